//! Our taints beside those of others.

use std::time::Duration;

use serde_json::json;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};
use vk_testing::ControlPlane;

use crate::harness::{Bed, Setup, Who, capacity, has_taint, is_ready, state, taint, taints};

const PROVIDER: &str = "virtual-kubelet.io/provider";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn changed_taints_follow_and_removed_ones_go_between_two_runs() {
    let bed = Bed::shared(Who::Admin, "taints").await;
    let setup = |taints| Setup { taints, ..Setup::default() };
    let agent = bed
        .start_ready(setup(vec![
            taint(PROVIDER, "mock", "NoSchedule"),
            taint("example.com/value", "old", "NoSchedule"),
            taint("example.com/effect", "", "NoSchedule"),
            taint("example.com/gone", "", "NoExecute"),
        ]))
        .await;
    bed.kubectl(&["taint", "node", &bed.name, "example.com/theirs=x:NoSchedule"]).await;
    agent.stop().await.unwrap();

    let _agent = bed
        .start_ready(setup(vec![
            taint(PROVIDER, "mock", "NoSchedule"),
            taint("example.com/value", "new", "NoSchedule"),
            taint("example.com/effect", "", "NoExecute"),
        ]))
        .await;
    let node = bed.see("the removed taint goes", |node| taints(node).len() == 4).await;
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
async fn a_taint_of_ours_that_somebody_takes_away_comes_back() {
    let bed = Bed::shared(Who::Admin, "taint-back").await;
    let _agent = bed.start_ready(Setup::default()).await;
    bed.kubectl(&["taint", "node", &bed.name, &format!("{PROVIDER}-")]).await;
    bed.see("the taint is back", |node| has_taint(node, PROVIDER)).await;
    bed.kubectl(&["taint", "node", &bed.name, "--overwrite", &format!("{PROVIDER}=other:NoSchedule")]).await;
    bed.see("the value is back", |node| taints(node) == [format!("{PROVIDER}=mock:NoSchedule")]).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn taints_change_while_the_controller_manager_changes_them_too() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let bed = Bed::on(cluster, Who::Admin, "taints-both");
    let agent = bed.start_ready(Setup::default()).await;
    bed.see("ready and schedulable", |node| is_ready(node) && !has_taint(node, NOT_READY)).await;
    bed.kubectl(&["taint", "node", &bed.name, "example.com/theirs=x:NoSchedule"]).await;
    agent.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down"));
    agent.provider.describe(|node| node.taints.push(taint("example.com/ours", "", "NoSchedule")));
    bed.see("our taint and not-ready", |node| {
        has_taint(node, "example.com/ours") && has_taint(node, NOT_READY)
    })
    .await;
    agent.mock.faults().clear_all();
    agent.provider.describe(|_| {});
    let node =
        bed.see("neither", |node| !has_taint(node, "example.com/ours") && !has_taint(node, NOT_READY)).await;
    assert!(has_taint(&node, "example.com/theirs") && has_taint(&node, PROVIDER), "{node:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_that_may_not_change_its_taints_says_so_once_and_goes_on() {
    let bed = Bed::shared(Who::Node, "taints-kept").await;
    let agent = bed.start_ready(Setup::default()).await;
    agent.stop().await.unwrap();
    let taints_now = vec![taint("example.com/new", "", "NoSchedule")];
    let agent = bed.start_ready(Setup { taints: taints_now, ..Setup::default() }.short_lease()).await;
    let event = bed.see_event("TaintsNotChanged").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(taints(&bed.node().await), ["virtual-kubelet.io/provider=mock:NoSchedule"]);

    // It neither tries in vain nor forgets the rest.
    agent.mock.set_capacity("cpu", "7".parse().unwrap());
    let node = bed.see("the new capacity", |node| capacity(node, "cpu") == "7").await;
    let lease = bed.lease().await;
    bed.see_lease("two more renewals", |now| {
        crate::harness::renewed(now) > crate::harness::renewed(&lease) + Duration::from_millis(1500)
    })
    .await;
    assert_eq!(bed.node().await.metadata.resource_version, node.metadata.resource_version);
    for verb in ["patch", "patch_status", "create"] {
        assert_eq!(agent.requests(verb, "nodes", Some("Forbidden")), 0, "{verb}");
    }

    // What the administrator does by hand counts.
    bed.patch(json!({"spec": {"taints": [{"key": "example.com/new", "effect": "NoSchedule"}]}})).await;
    assert_eq!(state(&bed.node().await, "Ready").0, "True");
}
