//! An API server that goes away and comes back.

use std::time::Duration;

use futures::future::join_all;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};
use vk_testing::{ControlPlane, control_plane::Options};

use crate::harness::{Agent, Bed, SOON, Setup, Who, capacity, condition, is_ready, renewed, state};

/// A node under each identity, Ready, on a control plane that is ours alone.
async fn start(cluster: &ControlPlane) -> Vec<(Bed<'_>, Agent)> {
    let nodes = [Who::Admin, Who::Node].map(|who| async move {
        let bed = Bed::on(cluster, who, "outage");
        let agent = bed.start_ready(Setup::default().short_lease()).await;
        (bed, agent)
    });
    join_all(nodes.map(Box::pin)).await
}

/// The node is Ready, its lease is renewed, and it follows the provider: without a restart.
async fn is_well(bed: &Bed<'_>, agent: &Agent) {
    bed.see("ready", is_ready).await;
    let lease = bed.lease().await;
    bed.see_lease("a renewal", |now| renewed(now) > renewed(&lease)).await;
    agent.mock.set_capacity("cpu", "33".parse().unwrap());
    bed.see("a new capacity", |node| capacity(node, "cpu") == "33").await;
    assert!(agent.is_running());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn after_the_api_server_was_stopped_the_node_goes_on() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let nodes = start(&cluster).await;
    cluster.stop_api_server().await.unwrap();
    // What happens meanwhile is not lost.
    for (_, agent) in &nodes {
        agent.mock.set_capacity("cpu", "11".parse().unwrap());
    }
    cluster.start_api_server().await.unwrap();
    for (bed, agent) in &nodes {
        bed.see("what changed meanwhile", |node| capacity(node, "cpu") == "11").await;
        is_well(bed, agent).await;
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn after_the_api_server_hung_the_node_goes_on() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let nodes = start(&cluster).await;
    cluster.pause_api_server().await.unwrap();
    for (_, agent) in &nodes {
        agent.mock.set_capacity("cpu", "11".parse().unwrap());
    }
    // Longer than the lease, and than a call may take: some calls have given up by then.
    for (_, agent) in &nodes {
        vk_testing::eventually("a call that gave up", SOON, || async {
            let gave_up = agent.requests("patch_status", "nodes", Some("Timeout"));
            if gave_up > 0 { Ok(()) } else { Err("none") }
        })
        .await;
    }
    cluster.resume_api_server().await.unwrap();
    for (bed, agent) in &nodes {
        bed.see("what changed meanwhile", |node| capacity(node, "cpu") == "11").await;
        is_well(bed, agent).await;
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_failure_during_an_outage_shows_after_it() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let nodes = start(&cluster).await;
    cluster.kill_api_server().await.unwrap();
    for (_, agent) in &nodes {
        let before = agent.mock.calls(Call::Ping);
        agent.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down since the outage"));
        vk_testing::eventually("pings go on", Duration::from_secs(5), || async {
            if agent.mock.calls(Call::Ping) > before + 2 { Ok(()) } else { Err("they do not") }
        })
        .await;
    }
    cluster.start_api_server().await.unwrap();
    for (bed, agent) in &nodes {
        let node = bed.see("not ready", |node| state(node, "Ready") == ("False", "ProviderNotReady")).await;
        let message = condition(&node, "Ready").unwrap().message.clone().unwrap();
        assert!(message.contains("down since the outage"), "{message}");
        let event = bed.see_event("NodeNotReady").await;
        assert!(
            event.message.unwrap().contains("down since the outage"),
            "it could not be told when it happened"
        );
        agent.mock.faults().clear_all();
        is_well(bed, agent).await;
    }
}
