//! Deletion of the Node or its lease by others.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::Instant;
use vk_kube::Client;
use vk_node::node::SharedNodeWatch;
use vk_supervisor::Supervisor;
use vk_testing::ControlPlane;

use crate::harness::{
    NodeTest, Setup, Who, capacity, is_ready, label, owner, taints, uid, under_both_identities,
    under_both_identities_at_once,
};

under_both_identities!(
    a_deleted_node_is_registered_again_and_owns_its_lease,
    a_node_deleted_with_its_lease_is_created_again_with_it,
);
under_both_identities_at_once!(a_garbage_collected_lease_is_created_again);

async fn a_deleted_node_is_registered_again_and_owns_its_lease(who: Who) {
    let test = NodeTest::shared(who, "deleted").await;
    let _controller = test.start_ready(Setup::default().label("example.com/ours", "x")).await;
    let before = test.node().await;
    let begin = Instant::now();
    test.nodes.delete(&test.name, &DeleteParams::default()).await.unwrap();
    let node =
        test.wait_for("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    test.wait_for_lease("its lease", |lease| owner(lease) == Some(uid(&node))).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(label(&node, "example.com/ours"), Some("x"));
    assert_eq!(taints(&node), taints(&before));
    test.wait_for_event("Reregistered").await;
}

async fn a_node_deleted_with_its_lease_is_created_again_with_it(who: Who) {
    let test = NodeTest::shared(who, "both-deleted").await;
    let _controller = test.start_ready(Setup::default()).await;
    let before = test.node().await;
    let begin = Instant::now();
    test.leases.delete(&test.name, &DeleteParams::default()).await.unwrap();
    test.nodes.delete(&test.name, &DeleteParams::default()).await.unwrap();
    let node =
        test.wait_for("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    test.wait_for_lease("its lease", |lease| owner(lease) == Some(uid(&node))).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

async fn a_garbage_collected_lease_is_created_again(who: Who) {
    let test = NodeTest::on(ControlPlane::shared_with_controllers().await, who, "collected");
    let _controller = test.start_ready(Setup::default().short_lease()).await;
    let before = test.node().await;
    test.wait_for_lease("the first lease", |lease| owner(lease) == Some(uid(&before))).await;
    test.nodes.delete(&test.name, &DeleteParams::default()).await.unwrap();
    let node =
        test.wait_for("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    test.wait_for_lease("its lease", |lease| owner(lease) == Some(uid(&node))).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn nodes_with_a_shared_watch_see_changes_of_their_own_node() {
    let cluster = ControlPlane::shared().await;
    let supervisor = Supervisor::new();
    let client = Client::fixed(cluster.admin().unwrap(), vk_kube::Metrics::default());
    let shared = SharedNodeWatch::start(client, "type=virtual-kubelet", &supervisor);
    let setup = || Setup { watch: Some(shared.clone()), ..Setup::default() };
    let tests = ["shared-a", "shared-b"].map(|name| NodeTest::on(cluster, Who::Admin, name));
    let _controllers = [tests[0].start_ready(setup()).await, tests[1].start_ready(setup()).await];
    let (before, untouched) = (tests[0].node().await, tests[1].node().await);

    tests[0].nodes.delete(&tests[0].name, &DeleteParams::default()).await.unwrap();
    tests[0].wait_for("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    assert_eq!(tests[1].node().await.metadata.resource_version, untouched.metadata.resource_version);

    // Without the label the watch does not select it.
    tests[1].patch(json!({"metadata": {"labels": {"type": null}}})).await;
    let node = tests[1].wait_for("the label is back", |node| label(node, "type").is_some()).await;
    assert_eq!(uid(&node), uid(&untouched));
    tests[1].patch_status(json!({"status": {"capacity": {"cpu": "1"}}})).await;
    tests[1].wait_for("the capacity is back", |node| capacity(node, "cpu") == "20").await;
}
