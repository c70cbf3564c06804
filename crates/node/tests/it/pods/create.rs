//! Creations that fail, in every way, and pods that are lost.

use std::time::Duration;

use serde_json::json;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use super::fixture::{
    PodFixture, Setup, container, is_running, message, phase, reason, reference, status, uid, until,
};
use crate::harness::{Who, under_both_identities};

under_both_identities!(a_pod_that_the_provider_rejects_fails_for_good_and_says_why);

async fn a_pod_that_the_provider_rejects_fails_for_good_and_says_why(who: Who) {
    let fixture = PodFixture::new(who, "invalid").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let script = json!({"metadata": {"annotations": {
        "mock.virtual-kubelet.io/fail-create": "Invalid: no such flavour",
    }}});
    let pod = fixture.create("web", script).await;
    let failed = fixture.see("web", "a failed pod", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), "ProviderFailed");
    assert!(message(&failed).contains("no such flavour"), "{}", message(&failed));
    fixture.see_event(&pod, "ProviderCreateFailed").await;
    fixture.patch("web", json!({"metadata": {"labels": {"a": "b"}}})).await;
    fixture.create_running("other", json!({})).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1, "asking again would not help");
    // One for each pod.
    run.wrote(2).await;
    fixture.delete("web", None).await;
    fixture.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_create_that_fails_after_it_succeeded_makes_one_instance() {
    let fixture = PodFixture::admin("after").await;
    let mock = fixture.mock();
    let fault = Fault::error(Kind::Unavailable, "the answer was lost").times(3);
    mock.faults().set(Call::Create, Fault { after_success: true, ..fault });
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    until("a good answer", || run.recorder.creates(uid(&pod)), |count| *count == 4).await;
    fixture.see_event(&pod, "ProviderCreateSuccess").await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
    assert!(is_running(&fixture.get("web").await.unwrap()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_create_is_tried_until_it_succeeds_and_the_reason_shows_meanwhile() {
    let fixture = PodFixture::admin("retry").await;
    let mock = fixture.mock();
    mock.faults().set(Call::Create, Fault::error(Kind::Unavailable, "the backend sleeps").times(5));
    let setup = Setup { compare: Duration::from_millis(100), ..Setup::default() };
    let run = fixture.start_with(mock.clone(), setup);
    let pod = fixture.create("web", json!({})).await;
    let pending = fixture.see("web", "the reason", |pod| message(pod).contains("sleeps")).await;
    assert_eq!((phase(&pending), reason(&pending).as_str()), ("Pending", "ProviderFailed"));
    let waiting = container(&pending, "main").state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerError"));
    let running = fixture.see("web", "a running pod", is_running).await;
    assert_eq!((reason(&running), message(&running)), (String::new(), String::new()));
    assert_eq!(run.recorder.creates(uid(&pod)), 6);
    run.wrote(2).await;
    fixture.see_event(&pod, "ProviderCreateSuccess").await;
    let mut reasons: Vec<_> =
        fixture.events(&pod).await.into_iter().filter_map(|event| event.reason).collect();
    reasons.sort();
    reasons.retain(|reason| reason.starts_with("Provider"));
    assert_eq!(reasons, ["ProviderCreateFailed", "ProviderCreateSuccess"]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_backend_without_room_keeps_the_pod_pending_and_is_asked_seldom() {
    let fixture = PodFixture::admin("exhausted").await;
    let mock = fixture.mock();
    mock.faults().set(Call::Create, Fault::error(Kind::Exhausted, "all seats are taken").times(1));
    let run = fixture.start(mock.clone());
    let pod = fixture.create("web", json!({})).await;
    let pending = fixture.see("web", "the reason", |pod| message(pod).contains("all seats")).await;
    assert_eq!(phase(&pending), "Pending");
    fixture.create_running("other", json!({})).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
    fixture.see("web", "a seat at last", is_running).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 2);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_panics_is_asked_again() {
    let fixture = PodFixture::admin("panics").await;
    let provider = super::invalid_provider::Panics::new(fixture.mock());
    let run = fixture.start(provider);
    let pod = fixture.create_running("web", json!({})).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 2);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_the_backend_lost_is_created_again() {
    let fixture = PodFixture::admin("lost").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    let address = status(&pod).pod_ip;
    fixture.create_running("other", json!({})).await;
    mock.vanish(&reference(&pod)).await.unwrap();
    until("another create", || run.recorder.creates(uid(&pod)), |count| *count == 2).await;
    fixture.see_event(&pod, "PodLost").await;
    let again = |pod: &_| is_running(pod) && status(pod).pod_ip.is_some();
    let now = fixture.see("web", "a running pod", again).await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 2);
    assert_eq!(uid(&now), uid(&pod));
    assert!(address.is_some());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_lost_pod_that_may_not_run_twice_fails() {
    let fixture = PodFixture::admin("lostonce").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    mock.vanish(&reference(&pod)).await.unwrap();
    let failed = fixture.see("job", "a failed pod", |pod| phase(pod) == "Failed").await;
    let ended = container(&failed, "main").state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert!(ended.started_at.is_some());
    assert_eq!(status(&failed).pod_ips, status(&pod).pod_ips);
    fixture.create_running("other", json!({})).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
    fixture.delete("job", None).await;
    fixture.see_gone(&pod).await;
}
