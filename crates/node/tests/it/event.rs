//! What people see.

use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use crate::harness::{Bed, Setup, Who, is_ready, under_both_identities};

under_both_identities!(a_nodes_life_shows_in_its_events);

async fn a_nodes_life_shows_in_its_events(who: Who) {
    let bed = Bed::shared(who, "event").await;
    let agent = bed.start_ready(Setup::default()).await;
    agent.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "the disk is full"));
    bed.see("not ready", |node| !is_ready(node)).await;
    agent.mock.faults().clear_all();
    bed.see("ready", is_ready).await;
    bed.see_event("Starting").await;
    let event = bed.see_event("NodeNotReady").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert!(event.message.unwrap().contains("the disk is full"));
    bed.see_event("NodeReady").await;
    let described = bed.kubectl(&["describe", "node", &bed.name]).await;
    for reason in ["Starting", "NodeNotReady", "NodeReady"] {
        assert!(described.contains(reason), "{described}");
    }
}
