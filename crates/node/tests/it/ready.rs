//! Ready follows the provider.

use std::time::Duration;

use tokio::time::Instant;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use crate::harness::{
    Bed, Setup, Who, condition, is_ready, renewed, state, under_both_identities,
    under_both_identities_at_once,
};

under_both_identities!(
    a_provider_that_hangs_makes_the_node_not_ready_within_the_ping_timeout,
    a_provider_that_fails_makes_the_node_not_ready_at_once_and_its_recovery_ready,
);
under_both_identities_at_once!(
    the_transition_time_changes_with_the_status_and_only_then,
    the_lease_goes_on_while_the_provider_fails
);

async fn a_provider_that_hangs_makes_the_node_not_ready_within_the_ping_timeout(who: Who) {
    let bed = Bed::shared(who, "hang").await;
    let mut agent = bed.start_ready(Setup::default()).await;
    let begin = Instant::now();
    agent.mock.faults().set(Call::Ping, Fault::hang());
    let node = bed.see("not ready", |node| !is_ready(node)).await;
    assert_eq!(state(&node, "Ready"), ("False", "ProviderTimeout"));
    // The timeout is one second.
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert!(!agent.progress.borrow_and_update().ready);

    let begin = Instant::now();
    agent.mock.faults().clear_all();
    bed.see("ready again", is_ready).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

async fn a_provider_that_fails_makes_the_node_not_ready_at_once_and_its_recovery_ready(who: Who) {
    let bed = Bed::shared(who, "fail").await;
    let mut setup = Setup::default();
    // Only the provider's hint can make it quick.
    setup.settings.ping_interval = Duration::from_mins(5);
    let agent = bed.start_ready(setup).await;
    let begin = Instant::now();
    agent.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "the backend is on fire"));
    let node = bed.see("not ready", |node| !is_ready(node)).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    let ready = condition(&node, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("ProviderNotReady")));
    let message = ready.message.as_deref().unwrap();
    assert!(message.contains("the backend is on fire"), "{message}");
    assert_eq!(state(&node, "MemoryPressure").0, "False");

    let begin = Instant::now();
    agent.mock.faults().clear_all();
    bed.see("ready again", is_ready).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

async fn the_transition_time_changes_with_the_status_and_only_then(who: Who) {
    let bed = Bed::shared(who, "transition").await;
    let mut setup = Setup::default();
    setup.settings.status_interval = Duration::from_secs(1);
    let agent = bed.start_ready(setup).await;
    let times = |node: &k8s_openapi::api::core::v1::Node| {
        let ready = condition(node, "Ready").unwrap();
        let time =
            |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| time.clone().unwrap().0;
        (time(&ready.last_transition_time), time(&ready.last_heartbeat_time))
    };
    let (since, _) = times(&bed.node().await);
    let later = Duration::from_millis(1500);
    bed.see("heartbeats of the same state", |node| times(node).0 == since && times(node).1 > since + later)
        .await;

    agent.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "first"));
    let node = bed.see("not ready", |node| !is_ready(node)).await;
    let (broken, _) = times(&node);
    assert!(broken > since, "{broken} {since}");
    bed.see("heartbeats of the failure", |node| times(node).1 > broken + later).await;
    agent.mock.faults().set(Call::Ping, Fault::hang());
    let node = bed.see("another reason", |node| state(node, "Ready").1 == "ProviderTimeout").await;
    assert_eq!(times(&node).0, broken, "the reason changed, and the status did not");

    agent.mock.faults().clear_all();
    let node = bed.see("ready again", is_ready).await;
    assert!(times(&node).0 > broken);
    // Other conditions never changed.
    let memory = condition(&node, "MemoryPressure").unwrap().last_transition_time.clone().unwrap().0;
    assert!(memory <= since, "{memory} {since}");
}

async fn the_lease_goes_on_while_the_provider_fails(who: Who) {
    let bed = Bed::shared(who, "lease").await;
    let agent = bed.start_ready(Setup::default().short_lease()).await;
    agent.mock.faults().set(Call::Ping, Fault::hang());
    bed.see("not ready", |node| !is_ready(node)).await;
    let lease = bed.lease().await;
    let later = renewed(&lease) + Duration::from_millis(2500);
    bed.see_lease("it is renewed", |now| renewed(now) > later).await;
    assert!(!is_ready(&bed.node().await));
}
