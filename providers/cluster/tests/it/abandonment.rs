//! The annotation that abandons the lower cluster of a virtual Node.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use vk_kube::{Client, Metrics, Objects, Patch};
use vk_provider_cluster::{names, provider::abandonment};
use vk_supervisor::Supervisor;
use vk_testing::ControlPlane;

const SOON: Duration = Duration::from_mins(1);

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn abandonment_is_permanent_and_visible_with_node_permissions() {
    let cluster = ControlPlane::shared().await;
    let nodes: Objects<Node> = Objects::all(Client::fixed(cluster.admin().unwrap(), Metrics::default()));
    let [name, other] = ["abandoned", "kept"].map(|name| format!("{name}-{:08x}", rand::random::<u32>()));
    for name in [&name, &other] {
        nodes.create(&serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()).await.unwrap();
    }
    let supervisor = Supervisor::new();
    let begin = |name: &String| {
        let client = Client::fixed(cluster.node_client(name).unwrap(), Metrics::default());
        abandonment::watch(client, name.clone(), &supervisor)
    };
    let (mut abandoned, kept) = (begin(&name), begin(&other));
    assert!(!*abandoned.borrow());

    let annotated = |value| json!({"metadata": {"annotations": {names::ABANDON: value}}});
    nodes.patch(&other, Patch::Merge(&annotated(json!("false")))).await.unwrap();
    nodes.patch(&name, Patch::Merge(&annotated(json!("true")))).await.unwrap();
    tokio::time::timeout(SOON, abandoned.wait_for(|yes| *yes)).await.unwrap().unwrap();
    assert!(!*kept.borrow(), "it says false");

    nodes.patch(&name, Patch::Merge(&annotated(json!(null)))).await.unwrap();
    assert!(*abandoned.borrow(), "there is no way back");
    // After a restart the annotation counts again, and other nodes are not affected.
    nodes.patch(&other, Patch::Merge(&annotated(json!("true")))).await.unwrap();
    let mut again = begin(&other);
    tokio::time::timeout(SOON, again.wait_for(|yes| *yes)).await.unwrap().unwrap();
    assert!(!*begin(&name).borrow());
    assert!(supervisor.shut_down(Duration::from_secs(10)).await);
    for name in [&name, &other] {
        let node = nodes.get(name).await.unwrap();
        nodes.delete(name, &node.metadata.uid.unwrap()).await.unwrap();
    }
}
