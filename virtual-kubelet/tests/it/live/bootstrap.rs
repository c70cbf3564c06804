//! TLS bootstrapping of a new node.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Pod};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{Client, Metrics, Objects, Selector, csr::NodeCertificate};
use vk_testing::{ControlPlane, control_plane::Options, eventually, kubectl};

use super::{Process, SOON, becomes_ready, exists, node, ports, ready};
use crate::{Run, vk};

/// Where a node lives and how it comes to its cluster.
struct Home {
    folder: TempDir,
    node: String,
}

impl Home {
    fn new(node: &str) -> Self {
        Self { folder: TempDir::new().unwrap(), node: node.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn certificate(&self) -> PathBuf {
        self.path(&format!("state/pki/{}.client.pem", self.node))
    }

    fn kubeconfig(&self) -> PathBuf {
        self.path(&format!("state/pki/{}.kubeconfig", self.node))
    }

    fn pair(&self) -> NodeCertificate {
        NodeCertificate::from_pem(&fs::read_to_string(self.certificate()).unwrap()).unwrap()
    }

    /// The command with a token.
    fn run(&self, cluster: &ControlPlane, token: &str, flags: &[&str]) -> Run {
        let bootstrap = self.path("bootstrap.kubeconfig");
        cluster.write_token_kubeconfig(&bootstrap, token).unwrap();
        let (port, state) = (ports(1).to_string(), self.path("state"));
        let mut all = vec!["run", "--provider", "mock", "--metrics-addr", "off", "--port", &port];
        all.extend(["--nodename", &self.node, "--state-dir", state.to_str().unwrap()]);
        all.extend(["--bootstrap-kubeconfig", bootstrap.to_str().unwrap()]);
        all.extend(flags);
        vk(&all)
    }
}

/// The requests for this node's client certificate.
async fn requests(cluster: &ControlPlane, node: &str) -> Vec<Value> {
    let all: Objects<CertificateSigningRequest> =
        Objects::all(Client::fixed(cluster.admin().unwrap(), Metrics::default()));
    let all = all.list(&Selector::default()).await.unwrap().objects;
    let of_node = |request: &Value| {
        request["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&format!("{node}-client-")))
    };
    all.into_iter().map(|request| json!(request)).filter(of_node).collect()
}

/// Waits until the process says this.
async fn says(process: &Process, words: &str) -> String {
    eventually(&format!("the process says {words:?}"), SOON, || async {
        let stderr = process.stderr();
        if stderr.contains(words) { Ok(stderr) } else { Err(stderr) }
    })
    .await
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_bootstrap_token_makes_a_node_that_needs_it_only_once() {
    let cluster = ControlPlane::shared_with_signing().await;
    let token = cluster.bootstrap_token(true).await.unwrap();
    let home = Home::new("newborn");
    let mut process = home.run(cluster, &token, &[]).start();
    becomes_ready(cluster, "newborn").await;
    assert!(says(&process, "\"user\":\"system:node:newborn\"").await.contains("connected"));
    assert_eq!(process.stop(SOON).await.code, 0);

    assert_eq!((mode(&home.certificate()), mode(&home.kubeconfig())), (0o600, 0o600));
    let written: Value = serde_json::from_str(&fs::read_to_string(home.kubeconfig()).unwrap()).unwrap();
    let user = &written["users"][0]["user"];
    assert_eq!(user["client-certificate"], home.certificate().to_str().unwrap());
    assert_eq!(user["client-key"], home.certificate().to_str().unwrap());
    assert!(!written.to_string().contains(&token), "the token is not in it");

    // Again, with a token that is good for nothing.
    let mut process = home.run(cluster, "000000.0000000000000000", &[]).start();
    becomes_ready(cluster, "newborn").await;
    assert_eq!(process.stop(SOON).await.code, 0);
    // And without the kubeconfig, which is written anew beside the certificate that is there.
    fs::remove_file(home.kubeconfig()).unwrap();
    let _process = home.run(cluster, "000000.0000000000000000", &[]).start();
    becomes_ready(cluster, "newborn").await;
    assert_eq!(requests(cluster, "newborn").await.len(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_named_kubeconfig_is_the_one_that_is_written() {
    let cluster = ControlPlane::shared_with_signing().await;
    let token = cluster.bootstrap_token(true).await.unwrap();
    let home = Home::new("named");
    let path = home.path("node.kubeconfig");
    let flags = ["--kubeconfig", path.to_str().unwrap()];
    let _process = home.run(cluster, &token, &flags).start();
    becomes_ready(cluster, "named").await;
    assert!(path.exists() && !home.kubeconfig().exists());
    // It is a kubeconfig like any other.
    let asked =
        kubectl(cluster, ["auth", "whoami", "-o", "json", "--kubeconfig", path.to_str().unwrap()]).await;
    assert!(asked.as_ref().unwrap().stdout.contains("system:node:named"), "{asked:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_expired_or_damaged_certificate_is_replaced_by_bootstrapping_again() {
    let cluster = ControlPlane::shared_with_signing().await;
    let token = cluster.bootstrap_token(true).await.unwrap();
    let home = Home::new("late");
    let mut process = home.run(cluster, &token, &[]).start();
    becomes_ready(cluster, "late").await;
    process.stop(SOON).await;

    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "system:node:late");
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let key = KeyPair::generate().unwrap();
    let expired = format!("{}{}", params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    for (pem, words) in [(expired.as_str(), "has expired"), ("nonsense", "is not usable")] {
        fs::write(home.certificate(), pem).unwrap();
        let mut process = home.run(cluster, &token, &[]).start();
        says(&process, words).await;
        says(&process, "all nodes are Ready").await;
        assert_eq!(process.stop(SOON).await.code, 0);
        assert!(home.pair().pem() != pem);
    }
    assert_eq!(requests(cluster, "late").await.len(), 3);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_token_that_nobody_knows_is_named() {
    let cluster = ControlPlane::shared_with_signing().await;
    let home = Home::new("stranger");
    let outcome = home.run(cluster, "abcdef.0123456789abcdef", &[]).start().end(SOON).await;
    outcome.failed(1, &["rejected the credentials", "Unauthorized", "token", "expired", "create a new one"]);
    assert!(!home.kubeconfig().exists() && !exists(cluster, "stranger").await);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_user_who_may_not_ask_learns_which_role_is_missing() {
    let cluster = ControlPlane::shared_with_signing().await;
    let home = Home::new("uninvited");
    cluster.write_kubeconfig(&home.path("weak.kubeconfig"), "weak", &[]).unwrap();
    let weak = home.path("weak.kubeconfig");
    // Of a flag that is given twice the last one counts.
    let flags = ["--bootstrap-kubeconfig", weak.to_str().unwrap(), "--startup-timeout", "3s"];
    let outcome = home.run(cluster, "unused", &flags).start().end(SOON).await;
    outcome.failed(1, &["bootstrap node uninvited", "\"weak\" cannot create", "system:node-bootstrapper"]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn without_an_approver_the_node_says_what_to_run_and_waits_for_it_also_over_a_restart() {
    let cluster = ControlPlane::shared_with_signing().await;
    let token = cluster.bootstrap_token(false).await.unwrap();
    let home = Home::new("patient");
    let mut process = home.run(cluster, &token, &["--startup-timeout", "3s"]).start();
    says(&process, "kubectl certificate approve patient-client-").await;
    assert!(process.is_running(), "it goes on waiting, whatever the start may take");
    assert_eq!(process.stop(SOON).await.code, 0);

    let process = home.run(cluster, &token, &[]).start();
    says(&process, "waiting for the existing request").await;
    let [request] = &*requests(cluster, "patient").await else { panic!("not one request") };
    let name = request["metadata"]["name"].as_str().unwrap();
    let approved = kubectl(cluster, ["certificate", "approve", name]).await.unwrap();
    assert!(approved.success(), "{approved:?}");
    becomes_ready(cluster, "patient").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_request_that_is_denied_ends_the_start_and_the_next_one_asks_anew() {
    let cluster = ControlPlane::shared_with_signing().await;
    let token = cluster.bootstrap_token(false).await.unwrap();
    let home = Home::new("unwanted");
    let mut names = Vec::new();
    for _ in 0..2 {
        let mut process = home.run(cluster, &token, &[]).start();
        says(&process, "waiting for the client certificate").await;
        let all = requests(cluster, "unwanted").await;
        let new = all.iter().filter_map(|request| request["metadata"]["name"].as_str().map(str::to_owned));
        let name = new.into_iter().find(|name| !names.contains(name)).unwrap();
        let denied = kubectl(cluster, ["certificate", "deny", &name]).await.unwrap();
        assert!(denied.success(), "{denied:?}");
        let outcome = process.end(SOON).await;
        outcome
            .failed(1, &["bootstrap node unwanted", &name, "was denied: KubectlDeny", "restart to request"]);
        names.push(name);
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_kubeconfig_with_other_credentials_is_not_written_over() {
    let cluster = ControlPlane::shared_with_signing().await;
    let home = Home::new("careful");
    let path = home.path("own.kubeconfig");
    cluster.write_token_kubeconfig(&path, "mine").unwrap();
    let before = fs::read(&path).unwrap();
    let outcome =
        home.run(cluster, "unused", &["--kubeconfig", path.to_str().unwrap()]).start().end(SOON).await;
    outcome.failed(2, &["kubeconfig:", "own.kubeconfig", "credentials other than", "bootstrapKubeconfig"]);
    assert_eq!(fs::read(&path).unwrap(), before);

    for (text, words) in [("clusters: [", "line 1"), ("apiVersion: v1\nkind: Config\n", "context")] {
        let broken = home.path("broken.kubeconfig");
        fs::write(&broken, text).unwrap();
        let flags = ["--bootstrap-kubeconfig", broken.to_str().unwrap()];
        let outcome = home.run(cluster, "unused", &flags).start().end(SOON).await;
        outcome.failed(2, &["bootstrapKubeconfig:", "broken.kubeconfig", words]);
    }
}

/// The signer gives certificates of half a minute, and the test outlives the first of them.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_certificate_is_renewed_before_it_expires_and_nothing_that_runs_notices() {
    let mut options = Options::with_signing();
    options.extra_controller_manager_args.push("--cluster-signing-duration=30s".to_owned());
    let cluster = ControlPlane::start(options).await.unwrap();
    let token = cluster.bootstrap_token(true).await.unwrap();
    let home = Home::new("lasting");
    let mut process = home.run(&cluster, &token, &["--lease-duration", "8s"]).start();
    becomes_ready(&cluster, "lasting").await;
    let first = home.pair();
    let namespace = cluster.namespace("lasting").await.unwrap();
    let pods: Objects<Pod> = Objects::namespaced(
        Client::fixed(cluster.admin().unwrap(), Metrics::default()),
        namespace.name().to_owned(),
    );
    let runs = async |name: &str| {
        eventually(&format!("pod {name} runs"), SOON, || async {
            let pod = json!(pods.get(name).await.map_err(|error| error.to_string())?);
            if pod["status"]["phase"] == "Running" { Ok(pod) } else { Err(pod["status"].to_string()) }
        })
        .await
    };
    let bind = async |name: &str| {
        let spec = json!({
            "nodeName": "lasting", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        });
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        pods.create(&pod).await.unwrap();
    };
    bind("early").await;
    let before = runs("early").await;

    let clock = vk_supervisor::Clock::system();
    eventually("the first certificate is history", Duration::from_mins(2), || async {
        let now = home.pair();
        let gone = first.is_expired(clock.now()) && now != first && !now.is_expired(clock.now());
        if gone { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    // A pod that comes now is seen and started, one that ran before is as it was, and the node was Ready all the time.
    bind("later").await;
    runs("later").await;
    let after = runs("early").await;
    assert_eq!(after["status"]["containerStatuses"], before["status"]["containerStatuses"]);
    let (ready_then, ready_now) = (ready(&node(&cluster, "lasting").await), process.is_running());
    assert_eq!((ready_then["status"].as_str(), ready_now), (Some("True"), true));
    let since: jiff::Timestamp = ready_then["lastTransitionTime"].as_str().unwrap().parse().unwrap();
    assert!(since < first.not_after(), "{ready_then}");
    assert!(!process.stderr().contains("Unauthorized"), "no call was made with an expired certificate");
    assert_eq!(process.stop(SOON).await.code, 0);
}
