//! A Node or a lease that somebody deletes.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::Instant;
use vk_kube::Client;
use vk_node::node::SharedNodeWatch;
use vk_supervisor::Supervisor;
use vk_testing::ControlPlane;

use crate::harness::{
    Bed, Setup, Who, capacity, is_ready, label, owner, taints, uid, under_both_identities,
    under_both_identities_at_once,
};

under_both_identities!(
    a_deleted_node_comes_back_and_owns_its_lease,
    a_node_that_is_deleted_with_its_lease_comes_back_with_both,
);
under_both_identities_at_once!(a_lease_that_the_garbage_collector_takes_comes_back);

async fn a_deleted_node_comes_back_and_owns_its_lease(who: Who) {
    let bed = Bed::shared(who, "deleted").await;
    let _agent = bed.start_ready(Setup::default().label("example.com/ours", "x")).await;
    let before = bed.node().await;
    let begin = Instant::now();
    bed.nodes.delete(&bed.name, &DeleteParams::default()).await.unwrap();
    let node = bed.see("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    bed.see_lease("its lease", |lease| owner(lease) == Some(uid(&node))).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(label(&node, "example.com/ours"), Some("x"));
    assert_eq!(taints(&node), taints(&before));
    bed.see_event("Reregistered").await;
}

async fn a_node_that_is_deleted_with_its_lease_comes_back_with_both(who: Who) {
    let bed = Bed::shared(who, "both-deleted").await;
    let _agent = bed.start_ready(Setup::default()).await;
    let before = bed.node().await;
    let begin = Instant::now();
    bed.leases.delete(&bed.name, &DeleteParams::default()).await.unwrap();
    bed.nodes.delete(&bed.name, &DeleteParams::default()).await.unwrap();
    let node = bed.see("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    bed.see_lease("its lease", |lease| owner(lease) == Some(uid(&node))).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

async fn a_lease_that_the_garbage_collector_takes_comes_back(who: Who) {
    let bed = Bed::on(ControlPlane::shared_with_controllers().await, who, "collected");
    let _agent = bed.start_ready(Setup::default().short_lease()).await;
    let before = bed.node().await;
    bed.see_lease("the first lease", |lease| owner(lease) == Some(uid(&before))).await;
    bed.nodes.delete(&bed.name, &DeleteParams::default()).await.unwrap();
    let node = bed.see("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    bed.see_lease("its lease", |lease| owner(lease) == Some(uid(&node))).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn nodes_that_share_a_watch_notice_what_happens_to_each() {
    let cluster = ControlPlane::shared().await;
    let supervisor = Supervisor::new();
    let client = Client::fixed(cluster.admin().unwrap(), vk_kube::Metrics::default());
    let shared = SharedNodeWatch::start(client, "type=virtual-kubelet", &supervisor);
    let setup = || Setup { watch: Some(shared.clone()), ..Setup::default() };
    let beds = ["shared-a", "shared-b"].map(|name| Bed::on(cluster, Who::Admin, name));
    let _agents = [beds[0].start_ready(setup()).await, beds[1].start_ready(setup()).await];
    let (before, untouched) = (beds[0].node().await, beds[1].node().await);

    beds[0].nodes.delete(&beds[0].name, &DeleteParams::default()).await.unwrap();
    beds[0].see("a new Node that is Ready", |node| uid(node) != uid(&before) && is_ready(node)).await;
    assert_eq!(beds[1].node().await.metadata.resource_version, untouched.metadata.resource_version);

    // Without the label the watch does not see it any more.
    beds[1].patch(json!({"metadata": {"labels": {"type": null}}})).await;
    let node = beds[1].see("the label is back", |node| label(node, "type").is_some()).await;
    assert_eq!(uid(&node), uid(&untouched));
    beds[1].patch_status(json!({"status": {"capacity": {"cpu": "1"}}})).await;
    beds[1].see("the capacity is back", |node| capacity(node, "cpu") == "20").await;
}
