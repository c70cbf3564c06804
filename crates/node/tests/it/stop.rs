//! An orderly end.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;
use vk_node::node::OnStop;

use crate::harness::{Bed, Setup, Who, holder, state, uid, under_both_identities};

under_both_identities!(
    a_node_that_is_left_says_so_and_a_successor_starts_at_once,
    stopping_while_the_provider_hangs_ends,
    stopping_before_the_lease_is_ours_leaves_everything_alone,
);

async fn a_node_that_is_left_says_so_and_a_successor_starts_at_once(who: Who) {
    let bed = Bed::shared(who, "leave").await;
    let agent = bed.start_ready(Setup::default()).await;
    let before = bed.node().await;
    agent.stop().await.unwrap();
    let node = bed.node().await;
    assert_eq!(state(&node, "Ready"), ("False", "NodeShutdown"));
    let lease = bed.lease().await;
    let identity = |lease: &Lease| lease.spec.clone().unwrap().holder_identity.unwrap_or_default();
    assert_eq!((identity(&lease).as_str(), holder(&lease)), ("", None));

    let begin = Instant::now();
    let _agent = bed.start_ready(Setup::default().elsewhere()).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let node = bed.node().await;
    assert_eq!((uid(&node), state(&node, "Ready").0), (uid(&before), "True"));
    assert_eq!(identity(&bed.lease().await), bed.name);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_that_is_to_go_goes_with_its_lease() {
    let bed = Bed::shared(Who::Admin, "delete").await;
    let mut setup = Setup::default();
    setup.settings.on_stop = OnStop::Delete;
    let agent = bed.start_ready(setup).await;
    agent.stop().await.unwrap();
    assert!(bed.nodes.get_opt(&bed.name).await.unwrap().is_none());
    assert!(bed.leases.get_opt(&bed.name).await.unwrap().is_none());
}

async fn stopping_while_the_provider_hangs_ends(who: Who) {
    let bed = Bed::shared(who, "stop-hung").await;
    let mut setup = Setup::default();
    setup.settings.ping_timeout = Duration::from_mins(5);
    let agent = bed.start_ready(setup).await;
    agent.mock.faults().set(vk_provider_mock::Call::Ping, vk_provider_mock::Fault::hang());
    let begin = Instant::now();
    agent.stop().await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(state(&bed.node().await, "Ready"), ("False", "NodeShutdown"));
}

async fn stopping_before_the_lease_is_ours_leaves_everything_alone(who: Who) {
    let bed = Bed::shared(who, "stop-early").await;
    let first = bed.start_ready(Setup::default().elsewhere()).await;
    first.kill().await;
    let (node, lease) = (bed.node().await, bed.lease().await);
    let second = bed.start(Setup::default());
    vk_testing::eventually("a look at the lease", crate::harness::SOON, || async {
        if second.requests("get", "leases", Some("ok")) > 0 { Ok(()) } else { Err("none") }
    })
    .await;
    second.stop().await.unwrap();
    assert_eq!(bed.node().await.metadata.resource_version, node.metadata.resource_version);
    assert_eq!(bed.lease().await.metadata.resource_version, lease.metadata.resource_version);
}
