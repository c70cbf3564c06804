//! A containerd of the kubelet's own: its folders, its socket, its network.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::json;
use vk_testing::{Process, eventually};

use super::{
    image,
    machine::{BRIDGE, Machine, NODE_ADDRESSES, run},
};

const SOON: Duration = Duration::from_secs(30);

/// A running containerd and the namespaces that it lives in. Dropping it ends everything in them.
pub(super) struct Runtime {
    folder: PathBuf,
    /// Outside of the PID namespace, whose first process dies with it.
    _outside: Process,
    /// The process id of that first process.
    inside: u32,
}

// === impl Runtime ===

impl Runtime {
    pub(super) async fn start(machine: &Machine) -> Self {
        let folder = machine.folder().to_owned();
        std::fs::create_dir_all(folder.join("cni")).unwrap();
        std::fs::write(folder.join("cni/10-peer.conflist"), network(&folder)).unwrap();
        std::fs::write(folder.join("containerd.toml"), config(&folder)).unwrap();
        let log = File::create(folder.join("containerd.log")).unwrap();
        // Programs that think that the machine is theirs shall not write to its folders. Mounts that kubelet and runtime make
        // must reach each other, and nobody else.
        let script = format!(
            "mount --make-rshared / && mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /var/log && \
             mount -t tmpfs tmpfs /run && exec containerd --config {}/containerd.toml",
            folder.display()
        );
        let outside = Process::spawn(
            Command::new("setpriv")
                .args([
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                ])
                .args(["--propagation", "private", "sh", "-c", &script])
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log),
        )
        .expect("util-linux is installed");
        let children = format!("/proc/{0}/task/{0}/children", outside.id());
        let inside = eventually("the namespaces are made", SOON, || async {
            let list = std::fs::read_to_string(&children).map_err(|error| error.to_string())?;
            list.split_whitespace().next().and_then(|pid| pid.parse().ok()).ok_or_else(|| list.clone())
        })
        .await;
        let runtime = Self { folder, _outside: outside, inside };
        let archive = runtime.folder.join("image");
        std::fs::create_dir(&archive).unwrap();
        let archive = image::build(&archive);
        eventually("containerd listens", SOON, || async {
            let output = runtime.ctr(&["version"]);
            if output.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        })
        .await;
        let socket = runtime.socket();
        run(
            "ctr",
            &["--address", socket.to_str().unwrap(), "--namespace", "k8s.io", "images", "import", &archive],
        );
        runtime
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// A command that runs beside containerd, in the same namespaces.
    pub(super) fn beside(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "nsenter",
            "--mount",
            "--pid",
            "--target",
            &self.inside.to_string(),
        ]);
        command.arg(program).stdin(Stdio::null());
        command
    }

    fn ctr(&self, args: &[&str]) -> std::process::Output {
        Command::new("ctr")
            .arg("--address")
            .arg(self.socket())
            .args(args)
            .output()
            .expect("containerd is installed")
    }
}

fn config(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"

[grpc]
address = "{folder}/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox}"
# Where even root may not lower the score of a process, every sandbox would fail.
restrict_oom_score_adj = true
# Large files are printed as one line.
max_container_log_line_size = -1

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"#,
        sandbox = image::SANDBOX
    )
}

/// Pods are on the node's own bridge, with an address of each family; nothing is translated, so no firewall rule is made.
fn network(folder: &Path) -> String {
    let ranges = json!([
        [{"subnet": "10.211.0.0/16", "rangeStart": "10.211.1.1", "gateway": NODE_ADDRESSES[0]}],
        [{"subnet": "fd00:211::/64", "rangeStart": "fd00:211::1:1", "gateway": NODE_ADDRESSES[1]}],
    ]);
    json!({
        "cniVersion": "1.0.0",
        "name": "peer",
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "ipam": {"type": "host-local", "dataDir": folder.join("addresses"), "ranges": ranges},
        }],
    })
    .to_string()
}
