//! Creations that fail, in every way, and pods that are lost.

use std::time::Duration;

use serde_json::json;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use super::stage::{
    Setup, Stage, container, is_running, message, phase, reason, reference, status, uid, until,
};
use crate::harness::{Who, under_both_identities};

under_both_identities!(a_pod_that_the_provider_rejects_fails_for_good_and_says_why);

async fn a_pod_that_the_provider_rejects_fails_for_good_and_says_why(who: Who) {
    let stage = Stage::new(who, "invalid").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let script = json!({"metadata": {"annotations": {
        "mock.virtual-kubelet.io/fail-create": "Invalid: no such flavour",
    }}});
    let pod = stage.create("web", script).await;
    let failed = stage.see("web", "a failed pod", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), "ProviderFailed");
    assert!(message(&failed).contains("no such flavour"), "{}", message(&failed));
    stage.see_event(&pod, "ProviderCreateFailed").await;
    stage.patch("web", json!({"metadata": {"labels": {"a": "b"}}})).await;
    stage.create_running("other", json!({})).await;
    assert_eq!(run.spy.creates(uid(&pod)), 1, "asking again would not help");
    // One for each pod.
    run.wrote(2).await;
    stage.delete("web", None).await;
    stage.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_create_that_fails_after_it_succeeded_makes_one_instance() {
    let stage = Stage::admin("after").await;
    let mock = stage.mock();
    let fault = Fault::error(Kind::Unavailable, "the answer was lost").times(3);
    mock.faults().set(Call::Create, Fault { after_success: true, ..fault });
    let run = stage.start(mock.clone());
    let pod = stage.create_running("web", json!({})).await;
    until("a good answer", || run.spy.creates(uid(&pod)), |count| *count == 4).await;
    stage.see_event(&pod, "ProviderCreateSuccess").await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
    assert!(is_running(&stage.get("web").await.unwrap()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_create_is_tried_until_it_succeeds_and_the_reason_shows_meanwhile() {
    let stage = Stage::admin("retry").await;
    let mock = stage.mock();
    mock.faults().set(Call::Create, Fault::error(Kind::Unavailable, "the backend sleeps").times(5));
    let setup = Setup { compare: Duration::from_millis(100), ..Setup::default() };
    let run = stage.start_with(mock.clone(), setup);
    let pod = stage.create("web", json!({})).await;
    let pending = stage.see("web", "the reason", |pod| message(pod).contains("sleeps")).await;
    assert_eq!((phase(&pending), reason(&pending).as_str()), ("Pending", "ProviderFailed"));
    let waiting = container(&pending, "main").state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerError"));
    let running = stage.see("web", "a running pod", is_running).await;
    assert_eq!((reason(&running), message(&running)), (String::new(), String::new()));
    assert_eq!(run.spy.creates(uid(&pod)), 6);
    run.wrote(2).await;
    stage.see_event(&pod, "ProviderCreateSuccess").await;
    let mut reasons: Vec<_> = stage.events(&pod).await.into_iter().filter_map(|event| event.reason).collect();
    reasons.sort();
    reasons.retain(|reason| reason.starts_with("Provider"));
    assert_eq!(reasons, ["ProviderCreateFailed", "ProviderCreateSuccess"]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_backend_without_room_keeps_the_pod_pending_and_is_asked_seldom() {
    let stage = Stage::admin("exhausted").await;
    let mock = stage.mock();
    mock.faults().set(Call::Create, Fault::error(Kind::Exhausted, "all seats are taken").times(1));
    let run = stage.start(mock.clone());
    let pod = stage.create("web", json!({})).await;
    let pending = stage.see("web", "the reason", |pod| message(pod).contains("all seats")).await;
    assert_eq!(phase(&pending), "Pending");
    stage.create_running("other", json!({})).await;
    assert_eq!(run.spy.creates(uid(&pod)), 1);
    stage.see("web", "a seat at last", is_running).await;
    assert_eq!(run.spy.creates(uid(&pod)), 2);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_panics_is_asked_again() {
    let stage = Stage::admin("panics").await;
    let provider = super::nonsense::Panics::new(stage.mock());
    let run = stage.start(provider);
    let pod = stage.create_running("web", json!({})).await;
    assert_eq!(run.spy.creates(uid(&pod)), 2);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_the_backend_lost_is_created_again() {
    let stage = Stage::admin("lost").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let pod = stage.create_running("web", json!({})).await;
    let address = status(&pod).pod_ip;
    stage.create_running("other", json!({})).await;
    mock.vanish(&reference(&pod)).await.unwrap();
    until("another create", || run.spy.creates(uid(&pod)), |count| *count == 2).await;
    stage.see_event(&pod, "PodLost").await;
    let again = |pod: &_| is_running(pod) && status(pod).pod_ip.is_some();
    let now = stage.see("web", "a running pod", again).await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 2);
    assert_eq!(uid(&now), uid(&pod));
    assert!(address.is_some());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_lost_pod_that_may_not_run_twice_fails() {
    let stage = Stage::admin("lostonce").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let pod = stage.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    mock.vanish(&reference(&pod)).await.unwrap();
    let failed = stage.see("job", "a failed pod", |pod| phase(pod) == "Failed").await;
    let ended = container(&failed, "main").state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert!(ended.started_at.is_some());
    assert_eq!(status(&failed).pod_ips, status(&pod).pod_ips);
    stage.create_running("other", json!({})).await;
    assert_eq!(run.spy.creates(uid(&pod)), 1);
    stage.delete("job", None).await;
    stage.see_gone(&pod).await;
}
