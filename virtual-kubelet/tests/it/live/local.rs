//! The provider `local` with real containers: the command as a node of a real control plane, with nothing else installed.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;
use tempfile::TempDir;
use vk_provider_local::demo;
use vk_testing::{
    ControlPlane,
    matrix::{self, Stage, Subject},
};

use super::{Process, becomes_ready, ports, run};

/// Writes a line a second; speaks HTTP on 8080, and gives back what it gets on 9000.
const SERVES: &str = r#"
nc -ll -p 9000 -e cat &
nc -ll -p 8080 -e sh -c 'while read line && [ "${#line}" -gt 1 ]; do :; done; printf "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"' &
i=0; while :; do echo "line $i"; i=$((i + 1)); sleep 1; done
"#;

/// A node of its own, of which nothing remains.
struct Place {
    cluster: &'static ControlPlane,
    node: &'static str,
    state: TempDir,
    process: Option<Process>,
}

impl Place {
    async fn start(node: &'static str) -> Self {
        let cluster = ControlPlane::shared().await;
        let state = TempDir::new().unwrap();
        import(state.path());
        let mut place = Self { cluster, node, state, process: None };
        place.launch().await;
        place
    }

    async fn launch(&mut self) {
        let port = ports(1).to_string();
        let address = "127.0.0.1";
        let serving = self.cluster.serving_certificate(self.node, &[address, self.node]).unwrap();
        let file = |name: &str, text: &str| -> String {
            let path = self.state.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let state = self.state.path().to_str().unwrap();
        // How full the disk is that tests write to is not theirs to say.
        let config = file("local.yaml", "minFreeDisk: 1Mi\nlevel: oci\n");
        let (cert, key) = (file("serving.crt", &serving.cert_pem), file("serving.key", &serving.key_pem));
        let node = ["--provider", "local", "--nodename", self.node, "--state-dir", state, "--port", &port];
        let reached = ["--internal-ip", address, "--tls-cert-file", &cert, "--tls-private-key-file", &key];
        let flags = [&node[..], &reached, &["--provider-config", &config]].concat();
        self.process = Some(run(self.cluster, &flags).start());
        becomes_ready(self.cluster, self.node).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.process.take());
        let will = json!({
            "nodes": [{ "name": self.node, "state_dir": self.state.path(), "config": null }],
            "folder": null,
        });
        let mut guardian = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"))
            .arg("dev-guardian")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(guardian.stdin.take().unwrap(), "{will}").unwrap();
        guardian.wait().unwrap();
    }
}

fn import(state: &Path) {
    let archive = state.join("demo.tar");
    let busybox = demo::busybox().expect("dev/setup installs it");
    std::fs::write(&archive, demo::archive(&busybox).unwrap()).unwrap();
    let (archive, state) = (archive.to_str().unwrap(), state.to_str().unwrap());
    let outcome = crate::vk(&["image", "import", archive, "--state-dir", state]).run();
    assert_eq!(outcome.code, 0, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn kubectl_reaches_into_containers_without_a_daemon() {
    let place = Place::start("local-kubectl").await;
    let stage = Stage::open(Subject {
        kubectl: place.cluster.kubectl().unwrap(),
        kubeconfig: place.cluster.admin_kubeconfig().to_owned(),
        node: place.node.to_owned(),
        image: demo::NAME.to_owned(),
        command: ["sh", "-c", SERVES].map(str::to_owned).into(),
        crashing: BTreeMap::new(),
    })
    .await;
    matrix::logs::whole_tail_and_limit(&stage).await;
    matrix::logs::times_and_since(&stage).await;
    matrix::logs::follow(&stage).await;
    matrix::logs::previous(&stage).await;
    matrix::logs::refusals(&stage).await;
    matrix::exec::output_and_errors(&stage).await;
    matrix::exec::exit_codes(&stage).await;
    matrix::exec::input_until_its_end(&stage).await;
    matrix::exec::much_output(&stage, 4 << 20).await;
    matrix::exec::terminal(&stage).await;
    matrix::exec::refusals(&stage).await;
    matrix::copy::both_ways(&stage, 2 << 20).await;
    matrix::attach::output(&stage).await;
    matrix::forward::parallel_requests(&stage, 8080, 10).await;
    matrix::forward::much(&stage, 9000, 1 << 20).await;
    matrix::forward::refused_port(&stage, 1, 8080).await;
    matrix::debug::ephemeral_container(&stage).await;
    stage.close().await;
}
