//! The Ready condition follows the provider's health.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use vk_node::pods::watch_audit::AuditFailure;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use crate::harness::{
    NodeTest, Setup, Who, capacity, condition, is_ready, renewed, state, under_both_identities,
    under_both_identities_at_once,
};

under_both_identities!(
    a_provider_that_hangs_makes_the_node_not_ready_within_the_ping_timeout,
    a_provider_that_fails_makes_the_node_not_ready_at_once_and_its_recovery_ready,
);
under_both_identities_at_once!(
    three_failed_audits_of_the_pod_watch_in_a_row_show_on_the_node_until_one_succeeds,
    the_transition_time_changes_with_the_status_and_only_then,
    the_lease_is_renewed_while_the_provider_fails
);

async fn a_provider_that_hangs_makes_the_node_not_ready_within_the_ping_timeout(who: Who) {
    let test = NodeTest::shared(who, "hang").await;
    let mut controller = test.start_ready(Setup::default()).await;
    let begin = Instant::now();
    controller.mock.faults().set(Call::Ping, Fault::hang());
    let node = test.wait_for("not ready", |node| !is_ready(node)).await;
    assert_eq!(state(&node, "Ready"), ("False", "ProviderTimeout"));
    // The timeout is one second.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(!controller.progress.borrow_and_update().ready);

    let begin = Instant::now();
    controller.mock.faults().clear_all();
    test.wait_for("ready again", is_ready).await;
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

async fn a_provider_that_fails_makes_the_node_not_ready_at_once_and_its_recovery_ready(who: Who) {
    let test = NodeTest::shared(who, "fail").await;
    let mut setup = Setup::default();
    // Only a notification of the provider makes it this quick.
    setup.settings.ping_interval = Duration::from_mins(5);
    let controller = test.start_ready(setup).await;
    let begin = Instant::now();
    controller.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "the backend is on fire"));
    let node = test.wait_for("not ready", |node| !is_ready(node)).await;
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let ready = condition(&node, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("ProviderNotReady")));
    let message = ready.message.as_deref().unwrap();
    assert!(message.contains("the backend is on fire"), "{message}");
    assert_eq!(state(&node, "MemoryPressure").0, "False");

    let begin = Instant::now();
    controller.mock.faults().clear_all();
    test.wait_for("ready again", is_ready).await;
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

async fn the_transition_time_changes_with_the_status_and_only_then(who: Who) {
    let test = NodeTest::shared(who, "transition").await;
    let mut setup = Setup::default();
    setup.settings.status_interval = Duration::from_secs(1);
    let controller = test.start_ready(setup).await;
    let times = |node: &k8s_openapi::api::core::v1::Node| {
        let ready = condition(node, "Ready").unwrap();
        let time =
            |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| time.clone().unwrap().0;
        (time(&ready.last_transition_time), time(&ready.last_heartbeat_time))
    };
    let (since, _) = times(&test.node().await);
    let later = Duration::from_millis(1500);
    test.wait_for("heartbeats of the same state", |node| {
        times(node).0 == since && times(node).1 > since + later
    })
    .await;

    controller.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "first"));
    let node = test.wait_for("not ready", |node| !is_ready(node)).await;
    let (broken, _) = times(&node);
    assert!(broken > since, "{broken} {since}");
    test.wait_for("heartbeats of the failure", |node| times(node).1 > broken + later).await;
    controller.mock.faults().set(Call::Ping, Fault::hang());
    let node = test.wait_for("another reason", |node| state(node, "Ready").1 == "ProviderTimeout").await;
    assert_eq!(times(&node).0, broken, "the reason changed, and the status did not");

    controller.mock.faults().clear_all();
    let node = test.wait_for("ready again", is_ready).await;
    assert!(times(&node).0 > broken);
    // Other conditions never changed.
    let memory = condition(&node, "MemoryPressure").unwrap().last_transition_time.clone().unwrap().0;
    assert!(memory <= since, "{memory} {since}");
}

async fn the_lease_is_renewed_while_the_provider_fails(who: Who) {
    let test = NodeTest::shared(who, "lease").await;
    let controller = test.start_ready(Setup::default().short_lease()).await;
    controller.mock.faults().set(Call::Ping, Fault::hang());
    test.wait_for("not ready", |node| !is_ready(node)).await;
    let lease = test.lease().await;
    let later = renewed(&lease) + Duration::from_millis(2500);
    test.wait_for_lease("it is renewed", |now| renewed(now) > later).await;
    assert!(!is_ready(&test.node().await));
}

async fn three_failed_audits_of_the_pod_watch_in_a_row_show_on_the_node_until_one_succeeds(who: Who) {
    const KIND: &str = "PodWatchAuditFailed";
    let test = NodeTest::shared(who, "audit").await;
    let (failures, audit_failure) = watch::channel(None);
    let controller = test.start_ready(Setup { audit_failure, ..Setup::default() }).await;
    let fail = |in_a_row| {
        let failure = AuditFailure { in_a_row, message: "no answer within 10s".to_owned() };
        failures.send_replace(Some(Arc::new(failure)));
    };
    fail(2);
    controller.mock.set_capacity("cpu", "12".parse().unwrap());
    let node = test.wait_for("another change", |node| capacity(node, "cpu") == "12").await;
    assert_eq!(condition(&node, KIND), None, "not yet");
    fail(3);
    let node = test.wait_for("the condition", |node| condition(node, KIND).is_some()).await;
    assert_eq!(state(&node, KIND), ("True", "ListFailed"));
    let message = condition(&node, KIND).unwrap().message.clone().unwrap();
    assert!(message.contains("no answer within 10s"), "{message}");
    assert!(is_ready(&node), "the node works");
    failures.send_replace(None);
    test.wait_for("no condition", |node| condition(node, KIND).is_none()).await;
}
