//! `deploy/eci.yaml` is complete: what it grants is enough for what it starts.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{
    ControlPlane,
    cloud::eci::EciEmulator,
    control_plane::{AUDIT_METADATA, Options},
    eventually, kubectl,
};

use super::{
    super::{SOON, becomes_ready, permissions::asked, run_as},
    LATER, simulated,
};

const ACCOUNT: &str = "system:serviceaccount:kube-system:virtual-kubelet-eci";
/// What users write in the place of words in capitals.
const VALUES: [(&str, &str); 7] = [
    ("REGION", "cn-hangzhou"),
    ("VSWITCH", "vsw-a"),
    ("SECURITY-GROUP", "sg-1"),
    ("CLUSTER-DNS", "10.96.0.10"),
    ("ACCESS-KEY-ID", "testid"),
    ("ACCESS-KEY-SECRET", "testsecret"),
    ("IMAGE", "example.com/virtual-kubelet:1"),
];

/// The manifest with the values of a user.
fn manifest() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/eci.yaml");
    let mut text = fs::read_to_string(path).unwrap();
    for (word, value) in VALUES {
        let before = text.clone();
        text = text.replace(word, value);
        assert_ne!(text, before, "{word}");
    }
    text
}

fn objects(manifest: &str) -> Vec<Value> {
    manifest.split("\n---\n").map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn the_deployment_has_the_keys_that_are_required_and_names_what_is_there() {
    let objects = objects(&manifest());
    let config: Value =
        serde_saphyr::from_str(of_kind(&objects, "ConfigMap")["data"]["eci.yaml"].as_str().unwrap()).unwrap();
    for key in ["region", "vSwitches", "securityGroup"] {
        assert!(!config[key].is_null(), "{key}: {config}");
    }
    let account = &of_kind(&objects, "ServiceAccount")["metadata"]["name"];
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(&pod["serviceAccountName"], account);
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        assert_eq!(&of_kind(&objects, kind)["subjects"][0]["name"], account, "{kind}");
    }
    let args = pod["containers"][0]["args"].as_array().unwrap();
    let name =
        args.iter().position(|arg| arg == "--nodename").map(|at| args[at + 1].as_str().unwrap()).unwrap();
    let role = of_kind(&objects, "ClusterRole")["rules"][0].clone();
    assert_eq!(role["resourceNames"], json!([format!("system:node:{name}")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_published_manifest_is_enough_to_run_pods() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = &ControlPlane::start(options).await.unwrap();
    let emulator: EciEmulator = simulated().await;
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let text = manifest();
    let applied = kubectl(cluster, ["apply", "-f", &file("eci-deploy.yaml", &text)]).await.unwrap();
    assert!(applied.success(), "{applied:?}");

    // What the Deployment would start, with the configuration that it mounts, and the emulator for the service.
    let objects = objects(&text);
    let config = of_kind(&objects, "ConfigMap")["data"]["eci.yaml"].as_str().unwrap();
    let config = file("eci.yaml", &format!("{config}endpoint: {}\n", emulator.endpoint()));
    let container = of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0].clone();
    let args: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args[0], "run");
    let args: Vec<&str> = args[1..]
        .iter()
        .map(|arg| match *arg {
            "/etc/eci/eci.yaml" => config.as_str(),
            "/var/lib/virtual-kubelet" => "state",
            other => other,
        })
        .collect();
    let kubeconfig = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&kubeconfig, ACCOUNT, &["system:serviceaccounts"]).unwrap();
    let mut run = run_as(&kubeconfig, &[&args[..], &["--address", "127.0.0.1"]].concat());
    for (name, value) in of_kind(&objects, "Secret")["stringData"].as_object().unwrap() {
        run = run.env(name, value.as_str().unwrap());
    }
    let mut process = run.start();
    becomes_ready(cluster, "eci").await;

    let namespace = cluster.namespace("eci-deployment").await.unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace.name()},
        "spec": {
            "nodeName": "eci", "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "busybox:1", "envFrom": [{"configMapRef": {"name": "settings"}}]}],
        },
    });
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": namespace.name()}, "data": {"A": "b"},
    });
    for object in [&settings, &pod] {
        let applied =
            kubectl(cluster, ["apply", "-f", &file("object.json", &object.to_string())]).await.unwrap();
        assert!(applied.success(), "{applied:?}");
    }
    let wait = ["-n", namespace.name(), "wait", "--for=condition=Ready", "pod/web", "--timeout=60s"];
    let ready = kubectl(cluster, wait).await.unwrap();
    assert!(ready.success(), "{ready:?} {}", process.stderr());
    // The name of the cluster is the one that the role allows to read.
    let system = kubectl(cluster, ["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"])
        .await
        .unwrap();
    let tags = emulator.groups().remove(0).tags;
    let mark = tags.iter().find(|(key, _)| *key == "vk-cluster").map(|(_, value)| value.clone());
    assert_eq!(mark.as_deref(), Some(system.stdout.trim()));
    let deleted =
        kubectl(cluster, ["-n", namespace.name(), "delete", "pod/web", "--wait=false"]).await.unwrap();
    assert!(deleted.success(), "{deleted:?}");
    eventually("the cloud is empty", LATER, || async {
        let groups = emulator.groups();
        if groups.is_empty() { Ok(()) } else { Err(format!("{groups:?}")) }
    })
    .await;
    assert_eq!(process.stop(SOON).await.code, 0);
    let refused: Vec<String> =
        asked(cluster, ACCOUNT).into_iter().filter(|(_, code)| *code == 403).map(|(call, _)| call).collect();
    assert_eq!(refused, Vec::<String>::new(), "the role is enough");
}
