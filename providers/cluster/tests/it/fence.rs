//! Writes of the provider, above and below, are fenced by the lease of the node.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;
use vk_kube::fence::Deadline;
use vk_provider::{Provider as _, error::Kind};
use vk_testing::eventually;

use crate::{
    fake_api_server::{DEADLINE, soon},
    scripted_cluster::{GRACE, ScriptedCluster, ScriptedNode, bundle, lower_pod, reference, upper_pod},
};

const POD: &str = "/api/v1/namespaces/web/pods/a";

fn a_while() -> Deadline {
    Deadline { steady: Instant::now() + Duration::from_mins(1), wall: Timestamp::MAX }
}

#[tokio::test]
async fn nothing_is_written_below_while_the_lease_may_have_another_holder() {
    let node = ScriptedNode::start(ScriptedCluster::default()).await;
    let fence = node.upper.begin_session("vk");
    let _changes = node.lead();
    let refused = soon(node.provider.create_pod(bundle(upper_pod("Pending")))).await.unwrap_err();
    assert!(refused.report().contains("no write may begin"), "{}", refused.report());
    assert_eq!(node.writes(), []);

    fence.set(Some(a_while()));
    eventually("the pod is created", DEADLINE, || async {
        let created = node.provider.create_pod(bundle(upper_pod("Pending"))).await;
        created.map_err(|error| error.report())
    })
    .await;
    let written =
        ["serviceaccounts", "pods"].map(|kind| (Method::POST, format!("/api/v1/namespaces/web/{kind}")));
    assert_eq!(node.writes(), written);
}

#[tokio::test]
async fn no_pod_is_deleted_below_while_the_lease_may_have_another_holder() {
    let mut cluster = ScriptedCluster::default();
    let running = lower_pod("Running", &json!({"running": {}}));
    cluster.watched.insert("pods", vec![running.clone()]);
    cluster.live.insert(POD.to_owned(), running);
    let node = ScriptedNode::start(cluster).await;
    let fence = node.upper.begin_session("vk");
    let _changes = node.lead();
    let refused = soon(node.provider.delete_pod(&reference(), None, GRACE)).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Cancelled, "{}", refused.report());
    assert_eq!(node.writes(), []);

    fence.set(Some(a_while()));
    soon(node.provider.delete_pod(&reference(), None, GRACE)).await.unwrap();
    assert_eq!(node.writes(), [(Method::DELETE, POD.to_owned())]);
}

/// A session that ended keeps its closed fence: what is left of it cannot write when the next session opens its own.
#[tokio::test]
async fn each_session_of_a_node_has_a_fence_of_its_own() {
    let node = ScriptedNode::start(ScriptedCluster::default()).await;
    let first = node.upper.begin_session("vk");
    first.set(Some(a_while()));
    let second = node.upper.begin_session("vk");
    assert!(first.is_open() && !second.is_open() && !node.upper.fence("vk").unwrap().is_open());
    assert!(node.upper.fence("other").is_none());
}
