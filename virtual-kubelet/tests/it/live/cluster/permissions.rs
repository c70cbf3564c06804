//! The published roles of both clusters suffice for everything that a virtual node does.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
};

use super::{
    super::{
        Process, becomes_ready,
        permissions::{ACCOUNT, apply, asked},
        run_as,
    },
    cluster_pair::{SITE, TAINT, approve, mock_nodes, start_lower_with},
    namespace_client::{NamespaceClient, text},
};

/// The account of the lower roles.
const BELOW: &str = "system:serviceaccount:kube-system:virtual-kubelet-lower";
/// The node that the published role may impersonate.
const NODE: &str = "virtual-kubelet";

async fn audited() -> ControlPlane {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::with_controllers() };
    start_lower_with(options).await
}

fn account(cluster: &ControlPlane, folder: &TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name.replace(':', "-"));
    cluster.write_kubeconfig(&path, name, &["system:serviceaccounts"]).unwrap();
    path
}

/// Starts the command with the published roles only, and waits until its node is Ready.
async fn start(upper: &ControlPlane, lower: &ControlPlane, folder: &TempDir, more: &Value) -> Process {
    let process = launch(upper, lower, folder, NODE, more);
    becomes_ready(upper, NODE).await;
    process
}

fn launch(upper: &ControlPlane, lower: &ControlPlane, folder: &TempDir, name: &str, more: &Value) -> Process {
    let mut config = json!({"virtualNodes": true, "nodeSelector": {SITE: NODE}});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let path = folder.path().join("provider.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let below = account(lower, folder, BELOW);
    let flags = [
        "--provider",
        "cluster",
        "--nodename",
        name,
        "--client-kubeconfig",
        below.to_str().unwrap(),
        "--provider-config",
        path.to_str().unwrap(),
    ];
    run_as(&account(upper, folder, ACCOUNT), &flags).start()
}

/// Requests of an account that were denied in the end. A node gets access to the objects of a pod with a delay.
fn refused(cluster: &ControlPlane, account: &str) -> Vec<String> {
    let asked = asked(cluster, account);
    assert!(asked.len() > 5, "{asked:?}");
    asked.into_iter().filter(|(_, code)| *code == 403).map(|(call, _)| call).collect()
}

/// Runs, changes, inspects and deletes a pod with all kinds of dependencies.
async fn lives(above: &NamespaceClient<'_>, below: &NamespaceClient<'_>) {
    for (kind, data) in
        [("configmaps", json!({"data": {"a": "b"}})), ("secrets", json!({"data": {"a": "Yg=="}}))]
    {
        let mut object = json!({"metadata": {"name": "settings"}});
        object.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
        above.create(kind, &object).await;
    }
    above.create("serviceaccounts", &json!({"metadata": {"name": "builder"}})).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeName": below.namespace, "resources": {"requests": {"storage": "1Gi"}}}});
    above.create("persistentvolumeclaims", &claim).await;
    for (client, node) in [(above, NODE.to_owned()), (below, format!("{NODE}-lower-0"))] {
        let volume = json!({"metadata": {"name": below.namespace}, "spec": {"capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}});
        client.create("persistentvolumes", &volume).await;
    }
    let pod = json!({"metadata": {"name": "guest"}, "spec": {
        "nodeSelector": {"kubernetes.io/hostname": NODE}, "serviceAccountName": "builder",
        "tolerations": [{"key": TAINT, "operator": "Exists"}], "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "example.com/app:1", "envFrom": [{"configMapRef": {"name": "settings"}}],
            "volumeMounts": [{"name": "s", "mountPath": "/s"}, {"name": "d", "mountPath": "/d"}]}],
        "volumes": [{"name": "s", "secret": {"secretName": "settings"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}});
    above.create("pods", &pod).await;
    above.wait_running("guest").await;
    above.patch("configmaps/settings", &json!({"data": {"a": "c"}})).await;
    below.wait_for("configmaps/settings", "is edited", |map| map["data"]["a"] == "c").await;
    above.kubectl(&["set", "image", "pod/guest", "main=example.com/app:2"]).await;
    let newer = |pod: &Value| text(&pod["spec"]["containers"][0]["image"]) == "example.com/app:2";
    below.wait_for("pods/guest", "has the other image", newer).await;
    above.kubectl(&["logs", "guest"]).await;
    assert_eq!(above.kubectl(&["exec", "guest", "--", "echo", "hello"]).await.trim(), "hello");
    above.delete("pods/guest", None).await;
    above.wait_deleted("pods/guest").await;
    below.wait_deleted("pods/guest").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_published_roles_suffice_in_both_clusters() {
    let (upper, lower) = (&audited().await, &audited().await);
    for file in ["rbac-impersonate.yaml", "rbac-cluster-upper.yaml"] {
        apply(upper, file).await;
    }
    apply(lower, "rbac-cluster-lower.yaml").await;
    let _nodes = mock_nodes(lower, NODE, 1);
    becomes_ready(lower, &format!("{NODE}-lower-0")).await;
    let folder = TempDir::new().unwrap();
    let mut process = start(upper, lower, &folder, &json!({})).await;
    approve(upper, NODE).await;
    let namespace = upper.namespace("rights").await.unwrap();
    let (above, below) =
        (NamespaceClient::new(upper, namespace.name()), NamespaceClient::new(lower, namespace.name()));
    lives(&above, &below).await;
    assert_eq!(process.stop(std::time::Duration::from_secs(15)).await.code, 0);
    assert_eq!(refused(upper, ACCOUNT), Vec::<String>::new(), "above");
    assert_eq!(refused(lower, BELOW), Vec::<String>::new(), "below");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn roles_in_single_lower_namespaces_suffice_for_their_pods() {
    let (upper, lower) = (&audited().await, &audited().await);
    for file in ["rbac-impersonate.yaml", "rbac-cluster-upper.yaml"] {
        apply(upper, file).await;
    }
    let (there, here) = (upper.namespace("mine").await.unwrap(), lower.namespace("theirs").await.unwrap());
    let (above, below) =
        (NamespaceClient::new(upper, there.name()), NamespaceClient::new(lower, here.name()));
    apply(lower, "rbac-cluster-lower-nodes.yaml").await;
    let role = format!("{}/../deploy/rbac-cluster-lower-namespace.yaml", env!("CARGO_MANIFEST_DIR"));
    below.kubectl(&["apply", "-f", &role]).await;
    let _nodes = mock_nodes(lower, NODE, 1);
    becomes_ready(lower, &format!("{NODE}-lower-0")).await;
    let folder = TempDir::new().unwrap();
    let mut process = start(upper, lower, &folder, &json!({"namespaces": {there.name(): here.name()}})).await;
    approve(upper, NODE).await;
    lives(&above, &below).await;
    assert_eq!(process.stop(std::time::Duration::from_secs(15)).await.code, 0);
    // A missing namespace would be created with the permission to do so.
    let refused = refused(lower, BELOW);
    assert!(refused.iter().all(|call| call == "get /namespaces"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn nodes_that_the_provider_adds_act_as_themselves() {
    const NODES: [&str; 2] = ["pool-a", "pool-b"];
    let (upper, lower) = (&audited().await, &audited().await);
    let folder = TempDir::new().unwrap();
    // As published but for the names. That of the process is none of a node.
    let text = include_str!("../../../../../deploy/rbac-impersonate.yaml");
    let text = text.replace("system:node:virtual-kubelet\n", "system:node:pool-a\n  - system:node:pool-b\n");
    let manifest = folder.path().join("rbac-impersonate.yaml");
    std::fs::write(&manifest, text).unwrap();
    let admin = NamespaceClient::new(upper, "kube-system");
    admin.kubectl(&["apply", "-f", manifest.to_str().unwrap()]).await;
    apply(upper, "rbac-cluster-upper.yaml").await;
    apply(lower, "rbac-cluster-lower.yaml").await;
    let _nodes = mock_nodes(lower, NODE, 1);
    becomes_ready(lower, &format!("{NODE}-lower-0")).await;
    let nodes = NODES.map(|name| json!({"name": name}));
    let mut process = launch(upper, lower, &folder, "pools", &json!({"nodes": nodes}));
    for name in NODES {
        becomes_ready(upper, name).await;
    }
    let namespace = upper.namespace("pools").await.unwrap();
    let above = NamespaceClient::new(upper, namespace.name());
    above.create("secrets", &json!({"metadata": {"name": "settings"}, "stringData": {"a": "b"}})).await;
    for name in NODES {
        let pod = json!({"metadata": {"name": name}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": name}, "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "example.com/app:1", "envFrom": [{"secretRef": {"name": "settings"}}]}]}});
        above.create("pods", &pod).await;
    }
    for name in NODES {
        above.wait_running(name).await;
        above.delete(&format!("pods/{name}"), None).await;
        above.wait_deleted(&format!("pods/{name}")).await;
    }
    assert_eq!(process.stop(std::time::Duration::from_secs(15)).await.code, 0);
    assert_eq!(refused(upper, ACCOUNT), Vec::<String>::new(), "above");
    assert_eq!(refused(lower, BELOW), Vec::<String>::new(), "below");
}
