//! Somebody removes our labels from a lower pod: it disappears from our watch, but it runs.

use http::Method;
use serde_json::{Value, json};
use vk_provider::Provider as _;
use vk_provider_cluster::{names::ORIGIN_UID, owner_config_map};

use crate::{
    fake_api_server::soon,
    scripted_cluster::{
        GRACE, ScriptedCluster, ScriptedNode, bundle, lower_pod, owner, reference, upper_pod,
    },
};

const POD: &str = "/api/v1/namespaces/web/pods/a";

/// Our lower pod without labels and annotations. Its owner cannot be removed by accident.
fn unlabelled() -> Value {
    let mut pod = lower_pod("Running", &json!({"running": {}}));
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.remove("labels");
    metadata.remove("annotations");
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner_config_map::name(&owner()), "uid": "o1",
            "controller": true}]),
    );
    pod
}

async fn node_with(pod: Value) -> ScriptedNode {
    let mut cluster = ScriptedCluster::default();
    cluster.live.insert(POD.to_owned(), pod);
    cluster.patched.insert(POD.to_owned(), lower_pod("Running", &json!({"running": {}})));
    ScriptedNode::start(cluster).await
}

#[tokio::test]
async fn a_pod_without_our_labels_gets_them_back_and_is_not_lost() {
    let node = node_with(unlabelled()).await;
    let _changes = node.lead();
    soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap();
    assert_eq!(soon(node.listed()).await, Some(("Running".to_owned(), String::new())));
    let status = soon(node.provider.pod_status(&reference())).await.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let patches: Vec<_> = node.writes().into_iter().filter(|(method, _)| method == Method::PATCH).collect();
    assert_eq!(patches, [(Method::PATCH, POD.to_owned())], "once: somebody may remove them at once");
}

#[tokio::test]
async fn a_pod_without_our_labels_is_deleted_with_the_upper_pod() {
    let node = node_with(unlabelled()).await;
    let _changes = node.lead();
    soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap();
    soon(node.provider.delete_pod(&reference(), None, GRACE)).await.unwrap();
    assert!(node.writes().contains(&(Method::DELETE, POD.to_owned())), "{:?}", node.writes());
}

#[tokio::test]
async fn a_pod_of_somebody_else_with_the_name_is_not_ours() {
    let mut theirs = unlabelled();
    theirs["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    let mut later = unlabelled();
    later["metadata"]["labels"] = json!({ORIGIN_UID: "u2"});
    for pod in [theirs, later] {
        let node = node_with(pod).await;
        let _changes = node.lead();
        let blocked = soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap_err();
        assert!(blocked.report().contains("NameConflict"), "{}", blocked.report());
        let lost = Some(("Failed".to_owned(), "LowerPodDeleted".to_owned()));
        assert_eq!(soon(node.listed()).await, lost);
        assert_eq!(node.writes(), []);
    }
}
