//! Events on the Node.

use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use crate::harness::{NodeTest, Setup, Who, is_ready, under_both_identities};

under_both_identities!(start_failure_and_recovery_are_events);

async fn start_failure_and_recovery_are_events(who: Who) {
    let test = NodeTest::shared(who, "event").await;
    let controller = test.start_ready(Setup::default()).await;
    controller.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "the disk is full"));
    test.wait_for("not ready", |node| !is_ready(node)).await;
    controller.mock.faults().clear_all();
    test.wait_for("ready", is_ready).await;
    test.wait_for_event("Starting").await;
    let event = test.wait_for_event("NodeNotReady").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert!(event.message.unwrap().contains("the disk is full"));
    test.wait_for_event("NodeReady").await;
    let described = test.kubectl(&["describe", "node", &test.name]).await;
    for reason in ["Starting", "NodeNotReady", "NodeReady"] {
        assert!(described.contains(reason), "{described}");
    }
}
