//! The kubectl matrix with Kubernetes 1.33: its API server, which converts every WebSocket to SPDY, and its kubectl.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use vk_testing::{control_plane::Options, kubectl};

use super::{ControlPlane, Duration, Path, PathBuf, Served, TempDir, eventually, fs, whole_matrix};

const MINOR: &str = "33";
const SOON: Duration = Duration::from_mins(1);

/// Directory of the programs, built if needed.
fn programs() -> PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../dev/control-plane/build");
    let output = Command::new(build).arg(format!("1.{MINOR}")).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "dev/control-plane/build failed: it says why above");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

async fn start(options: Options) -> ControlPlane {
    ControlPlane::start(Options { programs: Some(programs()), ..options }).await.unwrap()
}

/// The API server that both ways of the matrix share.
async fn shared() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED.get_or_init(|| start(Options::default())).await
}

async fn good(cluster: &ControlPlane, args: &[&str]) -> String {
    let output = kubectl(cluster, args).await.unwrap();
    assert!(output.success(), "{args:?}: {output:?}");
    output.stdout
}

async fn parsed(cluster: &ControlPlane, args: &[&str]) -> Value {
    serde_json::from_str(&good(cluster, args).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_with_kubernetes_1_33() {
    let cluster = shared().await;
    let versions = parsed(cluster, &["version", "--output=json"]).await;
    for program in ["clientVersion", "serverVersion"] {
        assert_eq!(versions[program]["minor"], MINOR, "{program}: {versions}");
    }
    let served = Served::start(cluster, "matrix-older", 11_504, &[]).await;
    let node = parsed(cluster, &["get", "node", "matrix-older", "--output=json"]).await;
    assert_eq!(node["status"].get("declaredFeatures"), None, "{}", node["status"]);
    let claimed = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap();
    assert!(claimed.starts_with(&format!("v1.{MINOR}.")), "no node is newer than its API server: {claimed}");
    whole_matrix("1.33", &served, served.stage().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_with_spdy_from_a_kubectl_1_33_to_the_node() {
    let cluster = shared().await;
    let served = Served::start(cluster, "matrix-oldest", 11_505, &[]).await;
    let folder = TempDir::new().unwrap();
    let kubectl = without_websockets(&cluster.kubectl().unwrap(), folder.path());
    whole_matrix("1.33, SPDY all the way", &served, served.stage_with(kubectl).await).await;
}

/// A kubectl that asks the API server for SPDY, which that passes on to the node as it is.
fn without_websockets(kubectl: &Path, folder: &Path) -> PathBuf {
    let path = folder.join("kubectl");
    let text = format!(
        "#!/bin/sh\nexport KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false KUBECTL_PORT_FORWARD_WEBSOCKETS=false\nexec '{}' \"$@\"\n",
        kubectl.display()
    );
    let draft = folder.join("draft");
    fs::write(&draft, text).unwrap();
    // By another process: one that a test beside this one starts would hold open for writing what we write, and that cannot be run.
    let installed = Command::new("install").args(["-m", "755"]).args([&draft, &path]).status();
    assert!(installed.unwrap().success());
    path
}

/// Three pods with a place on the node, that refer to a ConfigMap, a Secret, a Service and a token of their account.
fn deployment(node: &str) -> Value {
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        {"configMap": {"name": "settings"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "example.com/app:1",
                "envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "password", "optional": false}}],
                "volumeMounts": [{"name": "files", "mountPath": "/files"}, {"name": "password", "mountPath": "/password"}],
            }],
            "volumes": [
                {"name": "files", "projected": {"sources": sources}},
                {"name": "password", "secret": {"secretName": "password"}},
            ],
        }},
    }})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_nothing_but_itself_serves_a_deployment_of_1_33() {
    const NODE: &str = "itself-older";
    let cluster = &start(Options::with_controllers()).await;
    let namespace = cluster.namespace("older").await.unwrap().name().to_owned();
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (kubeconfig, config, authority, manifest) =
        (file("kubeconfig"), file("vk.yaml"), file("ca.crt"), file("deployment.json"));
    cluster
        .write_kubeconfig(Path::new(&kubeconfig), &format!("system:node:{NODE}"), &["system:nodes"])
        .unwrap();
    fs::write(&config, "providerConfig: {volumes: true}\n").unwrap();
    fs::write(&authority, cluster.ca_pem()).unwrap();
    fs::write(&manifest, deployment(NODE).to_string()).unwrap();
    let flags = ["--config", &config, "--client-verify-ca", &authority];
    let served =
        Served::start_as(cluster, Path::new(&kubeconfig), TempDir::new().unwrap(), NODE, 11_506, &flags)
            .await;

    let request = eventually("the node asks for a certificate", SOON, || async {
        let list = parsed(cluster, &["get", "csr", "--output=json"]).await;
        let own = |one: &&Value| one["spec"]["username"] == format!("system:node:{NODE}");
        let name =
            list["items"].as_array().unwrap().iter().find(own).map(|one| one["metadata"]["name"].clone());
        name.and_then(|name| name.as_str().map(str::to_owned)).ok_or("it has not")
    })
    .await;
    good(cluster, &["certificate", "approve", &request]).await;

    let here = ["--namespace", &namespace];
    let within = |args: &[&str]| {
        let args: Vec<String> = here.iter().chain(args).map(|&arg| arg.to_owned()).collect();
        async move { good(cluster, &args.iter().map(String::as_str).collect::<Vec<_>>()).await }
    };
    within(&["create", "configmap", "settings", "--from-literal=COLOUR=green"]).await;
    within(&["create", "secret", "generic", "password", "--from-literal=PASSWORD=open"]).await;
    within(&["create", "service", "clusterip", "back", "--tcp=80:80"]).await;
    within(&["create", "--filename", &manifest]).await;
    within(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;

    let exec = async |words: &[&str]| {
        let args = [&here[..], &["exec", "deployment/web", "--"], words].concat();
        eventually(&format!("{words:?} is answered"), SOON, || async {
            // The API server trusts the node as soon as that shows its new certificate.
            let output = kubectl(cluster, &args).await.map_err(|error| error.to_string())?;
            if output.success() { Ok(output.stdout) } else { Err(output.stderr) }
        })
        .await
    };
    let env = exec(&["env"]).await;
    for line in ["COLOUR=green", "PASSWORD=open", "BACK_SERVICE_PORT=80", "KUBERNETES_SERVICE_PORT=443"] {
        assert!(env.lines().any(|one| one == line), "{line} in {env}");
    }
    assert_eq!(exec(&["cat", "/password/PASSWORD"]).await, "open");
    assert_eq!(exec(&["cat", "/files/COLOUR"]).await, "green");
    assert!(exec(&["cat", "/files/name"]).await.starts_with("web-"));
    let token = exec(&["cat", "/files/token"]).await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
        "spec": {"token": token, "audiences": ["vault"]}});
    fs::write(&manifest, review.to_string()).unwrap();
    let review = parsed(cluster, &["create", "--filename", &manifest, "--output=json"]).await;
    let user = format!("system:serviceaccount:{namespace}:default");
    assert_eq!(review["status"]["user"]["username"], json!(user), "{review}");
    let account = exec(&["cat", "/var/run/secrets/kubernetes.io/serviceaccount/namespace"]).await;
    assert_eq!(account, namespace);

    let patch = json!({"data": {"COLOUR": "blue"}}).to_string();
    within(&["patch", "configmap", "settings", "--patch", &patch]).await;
    eventually("a file follows its ConfigMap", SOON, || async {
        let found = exec(&["cat", "/files/COLOUR"]).await;
        if found == "blue" { Ok(()) } else { Err(found) }
    })
    .await;
    within(&["scale", "deployment/web", "--replicas=0"]).await;
    within(&["wait", "--for=delete", "pod", "--selector=app=web", "--timeout=60s"]).await;

    // Nodes of 1.33 may write events by the core group only.
    let events = parsed(cluster, &["get", "events", "--namespace=default", "--output=json"]).await;
    let own = |event: &&Value| event["involvedObject"]["name"] == NODE && event["reason"] == "Starting";
    assert!(events["items"].as_array().unwrap().iter().any(|event| own(&event)), "{events}");

    let lease = ["get", "lease", "--namespace=kube-node-lease", NODE, "--output=jsonpath={.spec.renewTime}"];
    let before = good(cluster, &lease).await;
    eventually("the lease is renewed", SOON, || async {
        let now = good(cluster, &lease).await;
        if now > before { Ok(()) } else { Err(now) }
    })
    .await;
    drop(served);
}
