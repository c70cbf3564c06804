//! Changes of running pods.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use super::stage::{Stage, container, is_running, phase, status, uid, until};
use crate::harness::{Who, under_both_identities};

under_both_identities!(every_change_reaches_the_provider_once);

async fn every_change_reaches_the_provider_once(who: Who) {
    let stage = Stage::new(who, "update").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let pod = stage.create_running("web", json!({})).await;
    let updates = || run.spy.updates(uid(&pod));

    let image = json!({"spec": {"containers": [{"name": "main", "image": "example.com/app:2"}]}});
    let changed = stage.patch("web", image).await;
    let seen = until("the new image", updates, |all| all.len() == 1).await;
    assert_eq!(seen[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some("example.com/app:2"));
    let current = |pod: &_| {
        is_running(pod)
            && container(pod, "main").image == "example.com/app:2"
            && status(pod).observed_generation == changed.metadata.generation
    };
    stage.see("web", "the new image", current).await;

    stage.patch("web", json!({"metadata": {"labels": {"tier": "front"}}})).await;
    let seen = until("the label", updates, |all| all.len() == 2).await;
    assert_eq!(seen[1].metadata.labels.as_ref().unwrap()["tier"], "front");

    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "example.com/sh:1"}]}});
    let params = PatchParams::default();
    let patch = Patch::Strategic(debugger);
    let changed = stage.pods.patch_subresource("ephemeralcontainers", "web", &params, &patch).await.unwrap();
    let seen = until("the container", updates, |all| all.len() == 3).await;
    assert_eq!(seen[2].spec.as_ref().unwrap().ephemeral_containers.as_ref().unwrap()[0].name, "debug");
    let debugs = |pod: &_| {
        let all = status(pod).ephemeral_container_statuses.unwrap_or_default();
        let running = all.iter().any(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()));
        running && status(pod).observed_generation == changed.metadata.generation
    };
    stage.see("web", "the debugger", debugs).await;

    stage.create_running("other", json!({})).await;
    assert_eq!(mock.calls(Call::Update), 3);
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_resize_reaches_the_provider() {
    let stage = Stage::new(Who::Node, "resize").await;
    let run = stage.start(stage.mock());
    let spec = json!({"spec": {"containers": [{
        "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": "100m"}},
    }]}});
    let pod = stage.create_running("web", spec).await;
    let resize =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}});
    let params = PatchParams::default();
    let resized = stage.pods.patch_subresource("resize", "web", &params, &Patch::Strategic(resize)).await;
    let resized = resized.unwrap();
    let updates = || run.spy.updates(uid(&pod));
    let seen = until("the new size", updates, |all| all.len() == 1).await;
    let resources = seen[0].spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["cpu"].0, "200m");
    let current = |pod: &_| status(pod).observed_generation == resized.metadata.generation;
    stage.see("web", "the new generation", current).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_failing_update_never_moves_a_running_pod_back() {
    let stage = Stage::admin("updatefails").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let pod = stage.create_running("web", json!({})).await;
    mock.faults().set(Call::Update, Fault::error(Kind::Unavailable, "not now"));
    stage.patch("web", json!({"metadata": {"labels": {"try": "1"}}})).await;
    until("some attempts", || run.spy.updates(uid(&pod)), |all| all.len() >= 3).await;
    stage.see_event(&pod, "ProviderUpdateFailed").await;
    assert_eq!(phase(&stage.get("web").await.unwrap()), "Running");
    // The newest state wins over the old retry, and need not wait for it.
    stage.patch("web", json!({"metadata": {"labels": {"try": "2"}}})).await;
    mock.faults().clear_all();
    let newest = |all: &Vec<std::sync::Arc<k8s_openapi::api::core::v1::Pod>>| {
        all.last().unwrap().metadata.labels.as_ref().unwrap()["try"] == "2"
    };
    until("the newest", || run.spy.updates(uid(&pod)), newest).await;
    stage.see_event(&pod, "ProviderUpdateSuccess").await;

    mock.faults().set(Call::Update, Fault::error(Kind::Unsupported, "never"));
    let before = run.spy.updates(uid(&pod)).len();
    stage.patch("web", json!({"metadata": {"labels": {"try": "3"}}})).await;
    until("one attempt", || run.spy.updates(uid(&pod)).len(), |count| *count == before + 1).await;
    stage.create_running("other", json!({})).await;
    assert_eq!(run.spy.updates(uid(&pod)).len(), before + 1, "asking again would not help");
    assert!(is_running(&stage.get("web").await.unwrap()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn changes_during_a_slow_create_arrive_after_it_in_one() {
    let stage = Stage::admin("slow").await;
    let mock = stage.mock();
    mock.faults().set(Call::Create, Fault::hang());
    let run = stage.start(mock.clone());
    let pod = stage.create("web", json!({})).await;
    until("a create", || run.spy.creates(uid(&pod)), |count| *count == 1).await;
    for round in ["1", "2", "3"] {
        stage.patch("web", json!({"metadata": {"labels": {"round": round}}})).await;
    }
    // The watch is in order: when this pod has come, the changes have come.
    let other = stage.create("other", json!({})).await;
    until("another create", || run.spy.creates(uid(&other)), |count| *count == 1).await;
    mock.faults().clear_all();
    let updates = || run.spy.updates(uid(&pod));
    let seen = until("an update", updates, |all| !all.is_empty()).await;
    assert_eq!(seen[0].metadata.labels.as_ref().unwrap()["round"], "3");
    stage.see_event(&pod, "ProviderUpdateSuccess").await;
    stage.see("web", "a running pod", is_running).await;
    assert_eq!(updates().len(), 1);
    assert_eq!(run.spy.creates(uid(&pod)), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_hangs_in_update_does_not_keep_a_deleted_pod() {
    let stage = Stage::admin("updatehangs").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let pod = stage.create_running("web", json!({})).await;
    mock.faults().set(Call::Update, Fault::hang());
    stage.patch("web", json!({"metadata": {"labels": {"a": "b"}}})).await;
    until("an update", || run.spy.updates(uid(&pod)).len(), |count| *count == 1).await;
    stage.delete("web", Some(30)).await;
    stage.see_gone(&pod).await;
    assert_eq!(run.spy.deletes(uid(&pod)).len(), 1);
}
