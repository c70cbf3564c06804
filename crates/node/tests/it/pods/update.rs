//! Changes of running pods.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use super::fixture::{PodFixture, container, is_running, phase, status, uid, until};
use crate::harness::{Who, under_both_identities};

under_both_identities!(every_change_reaches_the_provider_once);

async fn every_change_reaches_the_provider_once(who: Who) {
    let fixture = PodFixture::new(who, "update").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    let updates = || run.recorder.updates(uid(&pod));

    let image = json!({"spec": {"containers": [{"name": "main", "image": "example.com/app:2"}]}});
    let changed = fixture.patch("web", image).await;
    let seen = until("the new image", updates, |all| all.len() == 1).await;
    assert_eq!(seen[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some("example.com/app:2"));
    let current = |pod: &_| {
        is_running(pod)
            && container(pod, "main").image == "example.com/app:2"
            && status(pod).observed_generation == changed.metadata.generation
    };
    fixture.see("web", "the new image", current).await;

    fixture.patch("web", json!({"metadata": {"labels": {"tier": "front"}}})).await;
    let seen = until("the label", updates, |all| all.len() == 2).await;
    assert_eq!(seen[1].metadata.labels.as_ref().unwrap()["tier"], "front");

    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "example.com/sh:1"}]}});
    let params = PatchParams::default();
    let patch = Patch::Strategic(debugger);
    let changed =
        fixture.pods.patch_subresource("ephemeralcontainers", "web", &params, &patch).await.unwrap();
    let seen = until("the container", updates, |all| all.len() == 3).await;
    assert_eq!(seen[2].spec.as_ref().unwrap().ephemeral_containers.as_ref().unwrap()[0].name, "debug");
    let debugs = |pod: &_| {
        let all = status(pod).ephemeral_container_statuses.unwrap_or_default();
        let running = all.iter().any(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()));
        running && status(pod).observed_generation == changed.metadata.generation
    };
    fixture.see("web", "the debugger", debugs).await;

    fixture.create_running("other", json!({})).await;
    assert_eq!(mock.calls(Call::Update), 3);
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_resize_reaches_the_provider() {
    let fixture = PodFixture::new(Who::Node, "resize").await;
    let run = fixture.start(fixture.mock());
    let spec = json!({"spec": {"containers": [{
        "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": "100m"}},
    }]}});
    let pod = fixture.create_running("web", spec).await;
    let resize =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}});
    let params = PatchParams::default();
    let resized = fixture.pods.patch_subresource("resize", "web", &params, &Patch::Strategic(resize)).await;
    let resized = resized.unwrap();
    let updates = || run.recorder.updates(uid(&pod));
    let seen = until("the new size", updates, |all| all.len() == 1).await;
    let resources = seen[0].spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["cpu"].0, "200m");
    let current = |pod: &_| status(pod).observed_generation == resized.metadata.generation;
    fixture.see("web", "the new generation", current).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_failing_update_never_moves_a_running_pod_back() {
    let fixture = PodFixture::admin("updatefails").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    mock.faults().set(Call::Update, Fault::error(Kind::Unavailable, "not now"));
    fixture.patch("web", json!({"metadata": {"labels": {"try": "1"}}})).await;
    until("some attempts", || run.recorder.updates(uid(&pod)), |all| all.len() >= 3).await;
    fixture.see_event(&pod, "ProviderUpdateFailed").await;
    assert_eq!(phase(&fixture.get("web").await.unwrap()), "Running");
    // The newest state wins over the old retry, and need not wait for it.
    fixture.patch("web", json!({"metadata": {"labels": {"try": "2"}}})).await;
    mock.faults().clear_all();
    let newest = |all: &Vec<std::sync::Arc<k8s_openapi::api::core::v1::Pod>>| {
        all.last().unwrap().metadata.labels.as_ref().unwrap()["try"] == "2"
    };
    until("the newest", || run.recorder.updates(uid(&pod)), newest).await;
    fixture.see_event(&pod, "ProviderUpdateSuccess").await;

    mock.faults().set(Call::Update, Fault::error(Kind::Unsupported, "never"));
    let before = run.recorder.updates(uid(&pod)).len();
    fixture.patch("web", json!({"metadata": {"labels": {"try": "3"}}})).await;
    until("one attempt", || run.recorder.updates(uid(&pod)).len(), |count| *count == before + 1).await;
    fixture.create_running("other", json!({})).await;
    assert_eq!(run.recorder.updates(uid(&pod)).len(), before + 1, "asking again would not help");
    assert!(is_running(&fixture.get("web").await.unwrap()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn changes_during_a_slow_create_arrive_after_it_in_one() {
    let fixture = PodFixture::admin("slow").await;
    let mock = fixture.mock();
    mock.faults().set(Call::Create, Fault::hang());
    let run = fixture.start(mock.clone());
    let pod = fixture.create("web", json!({})).await;
    until("a create", || run.recorder.creates(uid(&pod)), |count| *count == 1).await;
    for round in ["1", "2", "3"] {
        fixture.patch("web", json!({"metadata": {"labels": {"round": round}}})).await;
    }
    // The watch is in order: when this pod has come, the changes have come.
    let other = fixture.create("other", json!({})).await;
    until("another create", || run.recorder.creates(uid(&other)), |count| *count == 1).await;
    mock.faults().clear_all();
    let updates = || run.recorder.updates(uid(&pod));
    let seen = until("an update", updates, |all| !all.is_empty()).await;
    assert_eq!(seen[0].metadata.labels.as_ref().unwrap()["round"], "3");
    fixture.see_event(&pod, "ProviderUpdateSuccess").await;
    fixture.see("web", "a running pod", is_running).await;
    assert_eq!(updates().len(), 1);
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_hangs_in_update_does_not_keep_a_deleted_pod() {
    let fixture = PodFixture::admin("updatehangs").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    mock.faults().set(Call::Update, Fault::hang());
    fixture.patch("web", json!({"metadata": {"labels": {"a": "b"}}})).await;
    until("an update", || run.recorder.updates(uid(&pod)).len(), |count| *count == 1).await;
    fixture.delete("web", Some(30)).await;
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
}
