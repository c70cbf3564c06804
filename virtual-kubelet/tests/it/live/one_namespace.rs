//! `deploy/one-namespace.yaml`, which replaces `--namespace` of the Go original.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{ControlPlane, control_plane::Namespace, eventually, kubectl};

use super::SOON;

const NODE: &str = "picky";

fn pod(name: &str, node: Option<&str>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        },
    }))
    .unwrap()
}

fn pods(cluster: &ControlPlane, namespace: &Namespace) -> Api<Pod> {
    Api::namespaced(cluster.admin().unwrap(), namespace.name())
}

/// Binds a pod as the scheduler does.
async fn bind(pods: &Api<Pod>, name: &str, node: &str) -> kube::Result<()> {
    pods.create(&PostParams::default(), &pod(name, None)).await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let params = PostParams::default();
    pods.create_subresource::<Value, Value>("binding", name, &params, &binding).await.map(drop)
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_policy_keeps_pods_of_other_namespaces_off_the_node() {
    let cluster = ControlPlane::shared().await;
    let (own, other) = (cluster.namespace("own").await.unwrap(), cluster.namespace("other").await.unwrap());
    let policy =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/one-namespace.yaml"))
            .unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy.replace("NODE", NODE).replace("NAMESPACE", own.name())).unwrap();
    let applied = kubectl(cluster, ["apply", "-f", file.to_str().unwrap()]).await.unwrap();
    assert!(applied.success(), "{applied:?}");

    let (own, other) = (pods(cluster, &own), pods(cluster, &other));
    let refusal = eventually("the policy is in force", SOON, || async {
        let name = format!("direct-{:08x}", rand::random::<u32>());
        match other.create(&PostParams::default(), &pod(&name, Some(NODE))).await {
            Err(refusal) => Ok(refusal.to_string()),
            Ok(_) => Err("the pod was created"),
        }
    })
    .await;
    assert!(refusal.contains(&format!("node {NODE} runs only pods of namespace own-")), "{refusal}");
    let refusal = bind(&other, "bound", NODE).await.unwrap_err().to_string();
    assert!(refusal.contains(&format!("node {NODE} runs only pods of namespace own-")), "{refusal}");

    own.create(&PostParams::default(), &pod("direct", Some(NODE))).await.unwrap();
    bind(&own, "bound", NODE).await.unwrap();
    // A pod on trial runs before it is bound. Labels can be set through the status, too.
    let trial = |node: &str| {
        Patch::Merge(json!({"metadata": {"labels": {"multicluster.virtual-kubelet.io/trial": node}}}))
    };
    for pods in [&own, &other] {
        pods.create(&PostParams::default(), &pod("unbound", None)).await.unwrap();
    }
    let refusals = [
        other.patch("unbound", &PatchParams::default(), &trial(NODE)).await,
        other.patch_status("unbound", &PatchParams::default(), &trial(NODE)).await,
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap_err().to_string();
        assert!(refusal.contains(&format!("node {NODE} runs only pods of namespace own-")), "{refusal}");
    }
    own.patch("unbound", &PatchParams::default(), &trial(NODE)).await.unwrap();
    other.patch("unbound", &PatchParams::default(), &trial("another")).await.unwrap();
    // Other nodes are not affected.
    other.create(&PostParams::default(), &pod("elsewhere", Some("another"))).await.unwrap();
    bind(&other, "bound-elsewhere", "another").await.unwrap();
}
