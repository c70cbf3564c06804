//! Our taints and those of others.

use std::time::Duration;

use serde_json::json;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};
use vk_testing::ControlPlane;

use crate::harness::{NodeTest, Setup, Who, capacity, has_taint, is_ready, state, taint, taints};

const PROVIDER: &str = "virtual-kubelet.io/provider";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn changed_taints_are_updated_and_removed_ones_are_removed_between_two_runs() {
    let test = NodeTest::shared(Who::Admin, "taints").await;
    let setup = |taints| Setup { taints, ..Setup::default() };
    let controller = test
        .start_ready(setup(vec![
            taint(PROVIDER, "mock", "NoSchedule"),
            taint("example.com/value", "old", "NoSchedule"),
            taint("example.com/effect", "", "NoSchedule"),
            taint("example.com/gone", "", "NoExecute"),
        ]))
        .await;
    test.kubectl(&["taint", "node", &test.name, "example.com/theirs=x:NoSchedule"]).await;
    controller.stop().await.unwrap();

    let _controller = test
        .start_ready(setup(vec![
            taint(PROVIDER, "mock", "NoSchedule"),
            taint("example.com/value", "new", "NoSchedule"),
            taint("example.com/effect", "", "NoExecute"),
        ]))
        .await;
    let node = test.wait_for("the removed taint goes", |node| taints(node).len() == 4).await;
    assert_eq!(
        taints(&node),
        [
            "example.com/effect=:NoExecute",
            "example.com/theirs=x:NoSchedule",
            "example.com/value=new:NoSchedule",
            "virtual-kubelet.io/provider=mock:NoSchedule",
        ]
    );
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_removed_taint_of_ours_is_restored() {
    let test = NodeTest::shared(Who::Admin, "taint-back").await;
    let _controller = test.start_ready(Setup::default()).await;
    test.kubectl(&["taint", "node", &test.name, &format!("{PROVIDER}-")]).await;
    test.wait_for("the taint is back", |node| has_taint(node, PROVIDER)).await;
    test.kubectl(&["taint", "node", &test.name, "--overwrite", &format!("{PROVIDER}=other:NoSchedule")])
        .await;
    test.wait_for("the value is back", |node| taints(node) == [format!("{PROVIDER}=mock:NoSchedule")]).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn taints_change_while_the_controller_manager_changes_them_too() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = NodeTest::on(cluster, Who::Admin, "taints-both");
    let controller = test.start_ready(Setup::default()).await;
    test.wait_for("ready and schedulable", |node| is_ready(node) && !has_taint(node, NOT_READY)).await;
    test.kubectl(&["taint", "node", &test.name, "example.com/theirs=x:NoSchedule"]).await;
    controller.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down"));
    controller.provider.describe(|node| node.taints.push(taint("example.com/ours", "", "NoSchedule")));
    test.wait_for("our taint and not-ready", |node| {
        has_taint(node, "example.com/ours") && has_taint(node, NOT_READY)
    })
    .await;
    controller.mock.faults().clear_all();
    controller.provider.describe(|_| {});
    let node = test
        .wait_for("neither", |node| !has_taint(node, "example.com/ours") && !has_taint(node, NOT_READY))
        .await;
    assert!(has_taint(&node, "example.com/theirs") && has_taint(&node, PROVIDER), "{node:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_that_may_not_change_its_taints_reports_it_once() {
    let test = NodeTest::shared(Who::Node, "taints-kept").await;
    let controller = test.start_ready(Setup::default()).await;
    controller.stop().await.unwrap();
    let taints_now = vec![taint("example.com/new", "", "NoSchedule")];
    let controller = test.start_ready(Setup { taints: taints_now, ..Setup::default() }.short_lease()).await;
    let event = test.wait_for_event("TaintsNotChanged").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(taints(&test.node().await), ["virtual-kubelet.io/provider=mock:NoSchedule"]);

    // It does not retry, and still updates the rest.
    controller.mock.set_capacity("cpu", "7".parse().unwrap());
    let node = test.wait_for("the new capacity", |node| capacity(node, "cpu") == "7").await;
    let lease = test.lease().await;
    test.wait_for_lease("two more renewals", |now| {
        crate::harness::renewed(now) > crate::harness::renewed(&lease) + Duration::from_millis(1500)
    })
    .await;
    assert_eq!(test.node().await.metadata.resource_version, node.metadata.resource_version);
    for verb in ["patch", "patch_status", "create"] {
        assert_eq!(controller.requests(verb, "nodes", Some("Forbidden")), 0, "{verb}");
    }

    // Manual changes by the administrator are respected.
    test.patch(json!({"spec": {"taints": [{"key": "example.com/new", "effect": "NoSchedule"}]}})).await;
    assert_eq!(state(&test.node().await, "Ready").0, "True");
}
