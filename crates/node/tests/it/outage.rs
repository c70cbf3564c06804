//! Outages of the API server.

use std::time::Duration;

use futures::future::join_all;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};
use vk_testing::{ControlPlane, control_plane::Options};

use crate::harness::{
    NodeTest, RunningController, SOON, Setup, Who, capacity, condition, is_ready, renewed, state,
};

/// A Ready node under each identity, on a separate control plane.
async fn start(cluster: &ControlPlane) -> Vec<(NodeTest<'_>, RunningController)> {
    let nodes = [Who::Admin, Who::Node].map(|who| async move {
        let test = NodeTest::on(cluster, who, "outage");
        let controller = test.start_ready(Setup::default().short_lease()).await;
        (test, controller)
    });
    join_all(nodes.map(Box::pin)).await
}

/// Checks that the node is Ready, its lease is renewed, and it follows the provider, without a restart.
async fn is_well(test: &NodeTest<'_>, controller: &RunningController) {
    test.wait_for("ready", is_ready).await;
    let lease = test.lease().await;
    test.wait_for_lease("a renewal", |now| renewed(now) > renewed(&lease)).await;
    controller.mock.set_capacity("cpu", "33".parse().unwrap());
    test.wait_for("a new capacity", |node| capacity(node, "cpu") == "33").await;
    assert!(controller.is_running());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_node_recovers_after_the_api_server_was_stopped() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let nodes = start(&cluster).await;
    cluster.stop_api_server().await.unwrap();
    // Changes during the outage are not lost.
    for (_, controller) in &nodes {
        controller.mock.set_capacity("cpu", "11".parse().unwrap());
    }
    cluster.start_api_server().await.unwrap();
    for (test, controller) in &nodes {
        test.wait_for("what changed meanwhile", |node| capacity(node, "cpu") == "11").await;
        is_well(test, controller).await;
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_node_recovers_after_the_api_server_hung() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let nodes = start(&cluster).await;
    cluster.pause_api_server().await.unwrap();
    for (_, controller) in &nodes {
        controller.mock.set_capacity("cpu", "11".parse().unwrap());
    }
    // Longer than the lease duration and the request timeout.
    for (_, controller) in &nodes {
        vk_testing::eventually("a call that gave up", SOON, || async {
            let gave_up = controller.requests("patch_status", "nodes", Some("Timeout"));
            if gave_up > 0 { Ok(()) } else { Err("none") }
        })
        .await;
    }
    cluster.resume_api_server().await.unwrap();
    for (test, controller) in &nodes {
        test.wait_for("what changed meanwhile", |node| capacity(node, "cpu") == "11").await;
        is_well(test, controller).await;
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_failure_during_an_outage_is_reported_after_it() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let nodes = start(&cluster).await;
    cluster.kill_api_server().await.unwrap();
    for (_, controller) in &nodes {
        let before = controller.mock.calls(Call::Ping);
        controller.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down since the outage"));
        vk_testing::eventually("pings go on", Duration::from_secs(5), || async {
            if controller.mock.calls(Call::Ping) > before + 2 { Ok(()) } else { Err("they do not") }
        })
        .await;
    }
    cluster.start_api_server().await.unwrap();
    for (test, controller) in &nodes {
        let node =
            test.wait_for("not ready", |node| state(node, "Ready") == ("False", "ProviderNotReady")).await;
        let message = condition(&node, "Ready").unwrap().message.clone().unwrap();
        assert!(message.contains("down since the outage"), "{message}");
        let event = test.wait_for_event("NodeNotReady").await;
        assert!(
            event.message.unwrap().contains("down since the outage"),
            "it could not be told when it happened"
        );
        controller.mock.faults().clear_all();
        is_well(test, controller).await;
    }
}
