//! The events that `kubectl describe pod` shows.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{EventKind, PodChange, PodEvent, error::Kind};
use vk_provider_mock::{Call, Fault};

use super::{
    fixture::{PodFixture, container, is_running, reference, uid, until},
    scripted_provider::{ScriptedProvider, report},
};
use crate::harness::Who;

fn label(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.labels.as_ref().and_then(|all| all.get(key).cloned())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn starts_back_offs_and_stops_are_told_as_a_kubelet_tells_them() {
    let fixture = PodFixture::admin("told").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    let started = fixture.see_event(&pod, "Started").await;
    assert_eq!(started.message.as_deref(), Some("Started container main"));
    assert_eq!(started.involved_object.field_path.as_deref(), Some("spec.containers{main}"));
    let crashing = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    provider.set(&reference(&pod), report("Running", &crashing, 1));
    let event = fixture.see_event(&pod, "BackOff").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let text = event.message.unwrap();
    assert!(text.starts_with("Back-off restarting failed container main in pod web_"), "{text}");
    provider.set(&reference(&pod), report("Running", &json!({"running": {}}), 1));
    fixture
        .see("web", "a running pod", |pod| is_running(pod) && container(pod, "main").restart_count == 1)
        .await;
    fixture.delete("web", Some(0)).await;
    let killing = fixture.see_event(&pod, "Killing").await;
    assert_eq!(killing.message.as_deref(), Some("Stopping container main"));
    fixture.see_event(&pod, "ProviderDeleteSuccess").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_the_provider_tells_itself_is_not_told_twice() {
    let fixture = PodFixture::admin("once").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let first = fixture.create_running("first", json!({})).await;
    let own = |pod: &Pod| {
        PodChange::Event(PodEvent {
            pod: reference(pod),
            container: Some("main".to_owned()),
            kind: EventKind::Normal,
            reason: "Started".to_owned(),
            message: "here we go".to_owned(),
        })
    };
    fixture.see_event(&first, "Started").await;
    provider.push(own(&first));
    let second = fixture.create_running("second", json!({})).await;
    provider.push(own(&second));
    fixture.see_event(&second, "Started").await;
    fixture.delete("second", Some(0)).await;
    fixture.see_event(&second, "ProviderDeleteSuccess").await;
    let events = fixture.events(&second).await;
    let messages = |reason: &str| -> Vec<String> {
        let of = events.iter().filter(|event| event.reason.as_deref() == Some(reason));
        of.filter_map(|event| event.message.clone()).collect()
    };
    assert_eq!(messages("Started"), ["here we go"]);
    assert_eq!(messages("Killing"), Vec::<String>::new(), "who tells of starts tells of stops");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_call_that_was_given_up_is_made_again_without_a_word() {
    let fixture = PodFixture::admin("silent").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    mock.faults().set(Call::Create, Fault::error(Kind::Cancelled, "given up"));
    let pod = fixture.create("web", json!({})).await;
    until("some attempts", || run.recorder.creates(uid(&pod)), |count| *count >= 2).await;
    mock.faults().clear_all();
    fixture.see("web", "a running pod", is_running).await;
    fixture.see_event(&pod, "ProviderCreateSuccess").await;
    let reasons: Vec<Option<String>> =
        fixture.events(&pod).await.into_iter().map(|event| event.reason).collect();
    assert!(!reasons.contains(&Some("ProviderCreateFailed".to_owned())), "{reasons:?}");
}

fn publish(provider: &ScriptedProvider, pod: &Pod, key: &str, value: Option<&str>) {
    let words = [(key.to_owned(), value.map(str::to_owned))];
    provider.push(PodChange::Labels(reference(pod), words.into()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn labels_that_a_provider_publishes_reach_the_pod_and_not_the_provider_again() {
    let fixture = PodFixture::admin("labels").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let theirs: Value = json!({"metadata": {"labels": {"theirs": "stays"}}});
    let pod = fixture.create_running("web", theirs).await;
    publish(&provider, &pod, "example.com/zone", Some("b"));
    fixture.see("web", "the label", |pod| label(pod, "example.com/zone").as_deref() == Some("b")).await;
    publish(&provider, &pod, "example.com/zone", None);
    let seen = fixture.see("web", "no label", |pod| label(pod, "example.com/zone").is_none()).await;
    assert_eq!(label(&seen, "theirs").as_deref(), Some("stays"));
    let annotation = [("example.com/id".to_owned(), Some("i-1".to_owned()))];
    provider.push(PodChange::Annotations(reference(&pod), annotation.into()));
    let has =
        |pod: &Pod| pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key("example.com/id"));
    fixture.see("web", "the annotation", has).await;
    fixture.patch("web", json!({"metadata": {"labels": {"mine": "too"}}})).await;
    let seen = until("one update", || run.recorder.updates(uid(&pod)), |all| !all.is_empty()).await;
    assert_eq!(seen.len(), 1, "only what somebody else changed");
    assert_eq!(label(&seen[0], "mine").as_deref(), Some("too"));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn labels_that_a_node_identity_may_not_set_are_left_out_with_a_word() {
    let fixture = PodFixture::new(Who::Node, "nolabels").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    publish(&provider, &pod, "example.com/zone", Some("b"));
    let event = fixture.see_event(&pod, "LabelsRefused").await;
    assert!(event.message.unwrap().contains("example.com/zone"));
    provider.set(&reference(&pod), report("Running", &json!({"running": {}}), 3));
    fixture.see("web", "the status all the same", |pod| container(pod, "main").restart_count == 3).await;
    assert_eq!(run.refusals(), 0);
}
