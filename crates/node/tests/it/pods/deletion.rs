//! Deletion: only after the provider has confirmed it, and at once when it has.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_provider::{Provider as _, error::Kind};
use vk_provider_mock::{Call, Fault};
use vk_supervisor::Clock;

use super::{
    fixture::{PodFixture, Setup, container, message, phase, reference, see_stopped, status, uid, until},
    scripted_provider::{ScriptedProvider, report},
};
use crate::harness::{Who, under_both_identities};

under_both_identities!(a_pod_leaves_the_api_only_after_the_provider_confirmed_and_then_at_once);

/// What never stops by itself within the time of a test.
fn stubborn() -> serde_json::Value {
    json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}})
}

async fn a_pod_leaves_the_api_only_after_the_provider_confirmed_and_then_at_once(who: Who) {
    let fixture = PodFixture::new(who, "graceful").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", stubborn()).await;
    fixture.delete("web", Some(60)).await;
    let graces = until("a stop", || run.recorder.deletes(uid(&pod)), |graces| !graces.is_empty()).await;
    assert!(graces[0] <= Duration::from_mins(1) && graces[0] >= Duration::from_secs(55), "{graces:?}");
    // One more round: another pod comes and runs while this one stops.
    fixture.create_running("other", json!({})).await;
    let stopping = fixture.get("web").await.expect("a pod that still runs stays");
    assert!(stopping.metadata.deletion_timestamp.is_some());
    assert!(container(&stopping, "main").state.unwrap().running.is_some());

    let begin = Instant::now();
    mock.finish(&reference(&pod), "main", 5).await.unwrap();
    fixture.see_gone(&pod).await;
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1, "it was told once");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_forced_delete_reaches_the_provider() {
    let fixture = PodFixture::admin("forced").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", stubborn()).await;
    fixture.delete("web", Some(0)).await;
    fixture.see_gone(&pod).await;
    let graces = until("a stop", || run.recorder.deletes(uid(&pod)), |graces| !graces.is_empty()).await;
    assert_eq!(graces, [Duration::ZERO]);
    see_stopped(&mock, &pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_forced_delete_of_a_pod_that_is_stopping_reaches_the_provider_at_once() {
    let fixture = PodFixture::admin("hurry").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", stubborn()).await;
    fixture.delete("web", Some(600)).await;
    until("a stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 1).await;
    fixture.delete("web", Some(0)).await;
    let graces = until("another stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 2).await;
    assert_eq!(graces[1], Duration::ZERO);
    see_stopped(&mock, &pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_whose_clock_is_31_seconds_ahead_kills_nobody_early() {
    let fixture = PodFixture::admin("ahead").await;
    let system = Clock::system();
    let clock = Clock::new(move || system.now() + Duration::from_secs(31));
    let run = fixture.start_with(fixture.mock(), Setup { clock, ..Setup::default() });
    let pod = fixture.create_running("web", stubborn()).await;
    fixture.delete("web", Some(30)).await;
    let graces = until("a stop", || run.recorder.deletes(uid(&pod)), |graces| !graces.is_empty()).await;
    assert_eq!(graces, [Duration::from_secs(30)]);
    fixture.delete("web", Some(0)).await;
    fixture.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_shortened_grace_is_honoured() {
    let fixture = PodFixture::admin("shorter").await;
    let run = fixture.start(fixture.mock());
    let pod = fixture.create_running("web", stubborn()).await;
    fixture.delete("web", Some(600)).await;
    until("a stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 1).await;
    fixture.delete("web", Some(2)).await;
    let graces = until("another stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 2).await;
    assert!(graces[1] <= Duration::from_secs(2), "{graces:?}");
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 2);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_delete_while_all_containers_are_waiting_reaches_the_provider_first() {
    let fixture = PodFixture::admin("waiting").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/start-delay": "1h"}}});
    let pod = fixture.create("web", script).await;
    let waiting = |pod: &_| container(pod, "main").state.is_some_and(|state| state.waiting.is_some());
    fixture.see("web", "a waiting container", waiting).await;
    mock.faults().set(Call::Delete, Fault::hang());
    fixture.delete("web", Some(30)).await;
    until("a stop", || run.recorder.deletes(uid(&pod)), |graces| !graces.is_empty()).await;
    fixture.create_running("other", json!({"metadata": {"annotations": {}}})).await;
    assert!(fixture.get("web").await.is_some(), "the provider has not answered yet");
    mock.faults().clear_all();
    fixture.see_gone(&pod).await;
    see_stopped(&mock, &pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_the_provider_never_took_can_be_deleted() {
    let fixture = PodFixture::admin("nevertook").await;
    let mock = fixture.mock();
    mock.faults().set(Call::Create, Fault::error(Kind::Unavailable, "the backend sleeps"));
    let run = fixture.start(mock.clone());
    let pod = fixture.create("web", json!({})).await;
    let pending = fixture.see("web", "the reason", |pod| message(pod).contains("sleeps")).await;
    assert_eq!(phase(&pending), "Pending");
    fixture.delete("web", Some(30)).await;
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1, "it may have been created in spite of the error");
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 0);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_hangs_in_create_does_not_keep_a_deleted_pod() {
    let fixture = PodFixture::admin("hangs").await;
    let mock = fixture.mock();
    mock.faults().set(Call::Create, Fault::hang());
    let run = fixture.start(mock.clone());
    let graceful = fixture.create("graceful", json!({})).await;
    let forced = fixture.create("forced", json!({})).await;
    for pod in [&graceful, &forced] {
        until("a create", || run.recorder.creates(uid(pod)), |count| *count == 1).await;
    }
    fixture.delete("graceful", Some(30)).await;
    fixture.delete("forced", Some(0)).await;
    for pod in [&graceful, &forced] {
        fixture.see_gone(pod).await;
        until("a stop", || run.recorder.deletes(uid(pod)), |graces| graces.len() == 1).await;
    }
    mock.faults().clear_all();
    fixture.create_running("other", json!({})).await;
    for pod in [&graceful, &forced] {
        assert_eq!(mock.creations(uid(pod)).await.unwrap(), 0, "the call was dropped");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_failing_stop_is_tried_again_and_the_pod_stays_meanwhile() {
    let fixture = PodFixture::admin("stopfails").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    mock.faults().set(Call::Delete, Fault::error(Kind::Unavailable, "not now"));
    fixture.delete("web", Some(30)).await;
    until("some attempts", || run.recorder.deletes(uid(&pod)), |graces| graces.len() >= 4).await;
    assert!(fixture.get("web").await.is_some());
    fixture.see_event(&pod, "ProviderDeleteFailed").await;
    mock.faults().clear_all();
    fixture.see_gone(&pod).await;
}

/// Another's finalizer: the pod stays, and the provider is told once.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_foreign_finalizer_is_respected() {
    let fixture = PodFixture::admin("finalizer").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
    fixture.delete("web", Some(30)).await;
    let ended = |pod: &_| container(pod, "main").state.is_some_and(|state| state.terminated.is_some());
    let over = fixture.see("web", "an ended container", ended).await;
    // A deletion raises the generation, as a kubelet's last word on a pod says too.
    assert_eq!(status(&over).observed_generation, over.metadata.generation);
    let removal = |count: &u64| *count == 1;
    until("the removal", || run.requests("delete", "pods"), removal).await;
    fixture.create_running("other", json!({})).await;
    let kept = fixture.get("web").await.expect("kept by its finalizer");
    assert_eq!(kept.metadata.finalizers.unwrap(), ["example.com/wait"]);
    fixture.patch("web", json!({"metadata": {"finalizers": null}})).await;
    fixture.see_gone(&pod).await;
    fixture.create_running("another", json!({})).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
    assert_eq!(run.requests("delete", "pods"), 1);
    let listed = mock.pods().await.unwrap();
    let known: Vec<&str> = listed.iter().map(|pod| &*pod.pod.name).collect();
    assert!(known.contains(&"other") && known.contains(&"another"), "{known:?}");
}

/// As the pods of a Job have it: what counts is how they ended, and so they must have ended.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_a_finalizer_keeps_has_ended_even_if_the_backend_forgot_it() {
    let fixture = PodFixture::admin("forgotten").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let script =
        json!({"metadata": {"finalizers": ["example.com/wait"]}, "spec": {"restartPolicy": "Never"}});
    let pod = fixture.create_running("job", script).await;
    fixture.delete("job", Some(30)).await;
    let failed = fixture.see("job", "the end", |pod| phase(pod) == "Failed").await;
    let ended = container(&failed, "main").state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    fixture.patch("job", json!({"metadata": {"finalizers": null}})).await;
    fixture.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_overdue_pod_stays_and_the_backend_is_asked_again_and_people_are_told() {
    let fixture = PodFixture::admin("overdue").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    provider.turn_deaf();
    fixture.delete("web", Some(1)).await;
    let graces = until("another stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 2).await;
    assert_eq!(graces[1], Duration::ZERO);
    fixture.see_event(&pod, "Overdue").await;
    assert!(fixture.get("web").await.is_some());
    provider.set(&reference(&pod), report("Failed", &json!({"terminated": {"exitCode": 137}}), 0));
    fixture.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_overdue_pod_leaves_all_the_same_where_the_policy_says_so() {
    let fixture = PodFixture::admin("force").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let setup = Setup { force_after: Some(Duration::from_secs(1)), ..Setup::default() };
    let run = fixture.start_with(provider.clone(), setup);
    let pod = fixture.create_running("web", json!({})).await;
    provider.turn_deaf();
    fixture.delete("web", Some(1)).await;
    fixture.see_gone(&pod).await;
    // It is not forgotten: the backend is still to be rid of it.
    until("another stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() >= 2).await;
}
