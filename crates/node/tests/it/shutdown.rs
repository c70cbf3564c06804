//! Graceful shutdown.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;
use vk_node::node::OnStop;

use crate::harness::{NodeTest, Setup, Who, holder, state, uid, under_both_identities};

under_both_identities!(
    a_node_is_left_not_ready_and_a_successor_starts_at_once,
    shutdown_finishes_while_the_provider_hangs,
    shutdown_before_the_lease_is_acquired_changes_nothing,
);

async fn a_node_is_left_not_ready_and_a_successor_starts_at_once(who: Who) {
    let test = NodeTest::shared(who, "leave").await;
    let controller = test.start_ready(Setup::default()).await;
    let before = test.node().await;
    controller.stop().await.unwrap();
    let node = test.node().await;
    assert_eq!(state(&node, "Ready"), ("False", "NodeShutdown"));
    let lease = test.lease().await;
    let identity = |lease: &Lease| lease.spec.clone().unwrap().holder_identity.unwrap_or_default();
    assert_eq!((identity(&lease).as_str(), holder(&lease)), ("", None));

    let begin = Instant::now();
    let _controller = test.start_ready(Setup::default().elsewhere()).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let node = test.node().await;
    assert_eq!((uid(&node), state(&node, "Ready").0), (uid(&before), "True"));
    assert_eq!(identity(&test.lease().await), test.name);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_node_is_deleted_with_its_lease_if_configured() {
    let test = NodeTest::shared(Who::Admin, "delete").await;
    let mut setup = Setup::default();
    setup.settings.on_stop = OnStop::Delete;
    let controller = test.start_ready(setup).await;
    controller.stop().await.unwrap();
    assert!(test.nodes.get_opt(&test.name).await.unwrap().is_none());
    assert!(test.leases.get_opt(&test.name).await.unwrap().is_none());
}

async fn shutdown_finishes_while_the_provider_hangs(who: Who) {
    let test = NodeTest::shared(who, "stop-hung").await;
    let mut setup = Setup::default();
    setup.settings.ping_timeout = Duration::from_mins(5);
    let controller = test.start_ready(setup).await;
    controller.mock.faults().set(vk_provider_mock::Call::Ping, vk_provider_mock::Fault::hang());
    let begin = Instant::now();
    controller.stop().await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_eq!(state(&test.node().await, "Ready"), ("False", "NodeShutdown"));
}

async fn shutdown_before_the_lease_is_acquired_changes_nothing(who: Who) {
    let test = NodeTest::shared(who, "stop-early").await;
    let first = test.start_ready(Setup::default().elsewhere()).await;
    first.kill().await;
    let (node, lease) = (test.node().await, test.lease().await);
    let second = test.start(Setup::default());
    vk_testing::eventually("a look at the lease", crate::harness::SOON, || async {
        if second.requests("get", "leases", Some("ok")) > 0 { Ok(()) } else { Err("none") }
    })
    .await;
    second.stop().await.unwrap();
    assert_eq!(test.node().await.metadata.resource_version, node.metadata.resource_version);
    assert_eq!(test.lease().await.metadata.resource_version, lease.metadata.resource_version);
}
