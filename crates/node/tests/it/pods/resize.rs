//! The resize of running pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use vk_node::pods::{Policy, admission::Checks};
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use super::fixture::{PodFixture, Setup, condition, container, is_running, status, uid, until};
use crate::harness::Who;

fn asking(cpu: &str) -> Value {
    json!({"spec": {"containers": [{
        "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": cpu}},
    }]}})
}

async fn resize(fixture: &PodFixture<'_>, name: &str, cpu: &str) -> Pod {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}});
    let params = PatchParams::default();
    fixture.pods.patch_subresource("resize", name, &params, &Patch::Strategic(patch)).await.unwrap()
}

fn has(cpu: &'static str) -> impl Fn(&Pod) -> bool {
    move |pod| {
        let main = container(pod, "main");
        let resources = main.resources.and_then(|resources| resources.requests);
        let requested = |list: Option<
            std::collections::BTreeMap<_, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
        >| { list.and_then(|list| list.get("cpu").map(|cpu| cpu.0.clone())) };
        requested(resources).as_deref() == Some(cpu)
            && requested(main.allocated_resources).as_deref() == Some(cpu)
    }
}

fn resize_conditions(pod: &Pod) -> Vec<PodCondition> {
    ["PodResizePending", "PodResizeInProgress"].into_iter().filter_map(|kind| condition(pod, kind)).collect()
}

fn facts(fixture: &PodFixture<'_>, cpu: &str) -> Arc<Node> {
    let status = json!({"allocatable": {"cpu": cpu, "pods": "10"}});
    let node = json!({"metadata": {"name": fixture.node}, "status": status});
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pending(reason: &'static str, generation: Option<i64>) -> impl Fn(&Pod) -> bool {
    move |pod| {
        let pending = condition(pod, "PodResizePending");
        pending.is_some_and(|pending| {
            pending.status == "True"
                && pending.reason.as_deref() == Some(reason)
                && pending.observed_generation == generation
                && status(pod).observed_generation == generation
        })
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_size_for_which_there_is_no_room_waits_with_a_condition_until_there_is() {
    let fixture = PodFixture::new(Who::Node, "wait").await;
    let sender = watch::Sender::new(Some(facts(&fixture, "4")));
    let policy = Policy { checks: Checks::Full, ..Policy::default() };
    let setup = || Setup { policy: policy.clone(), node_object: sender.subscribe(), ..Setup::default() };
    let run = fixture.start_with(fixture.mock(), setup());
    let pod = fixture.create_running("web", asking("1")).await;
    let other = fixture.create_running("other", asking("2")).await;

    let resized = resize(&fixture, "web", "3").await;
    let generation = resized.metadata.generation;
    fixture.see("web", "a size that is put off", pending("Deferred", generation)).await;
    fixture.see_event(&pod, "ResizeDeferred").await;
    assert!(has("1")(&fixture.get("web").await.unwrap()));
    assert!(run.recorder.updates(uid(&pod)).is_empty(), "the provider does not hear of it");

    // Whatever else changes meanwhile arrives, in the old size.
    fixture.patch("web", json!({"metadata": {"labels": {"tier": "front"}}})).await;
    let seen = until("the label", || run.recorder.updates(uid(&pod)), |all| all.len() == 1).await;
    let main = &seen[0].spec.as_ref().unwrap().containers[0];
    assert_eq!(main.resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"].0, "1");

    // The next process knows what the pod has and what it waits for.
    run.stop().await;
    let run = fixture.start_with(fixture.mock(), setup());
    until("adoption", || run.recorder.creates(uid(&pod)), |count| *count == 1).await;
    fixture.see("web", "a size that is put off", pending("Deferred", generation)).await;

    fixture.delete("other", Some(0)).await;
    fixture.see_gone(&other).await;
    let done = fixture.see("web", "the new size", has("3")).await;
    let done = if resize_conditions(&done).is_empty() {
        done
    } else {
        fixture.see("web", "no conditions", |pod| resize_conditions(pod).is_empty()).await
    };
    assert!(is_running(&done));
    fixture.see_event(&pod, "ResizeCompleted").await;
    let updates = run.recorder.updates(uid(&pod));
    assert_eq!(updates.len(), 1, "{updates:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_size_that_the_node_never_has_is_infeasible_until_the_node_grows_or_it_is_taken_back() {
    let fixture = PodFixture::new(Who::Node, "never").await;
    let sender = watch::Sender::new(Some(facts(&fixture, "2")));
    let policy = Policy { checks: Checks::Full, ..Policy::default() };
    let setup = Setup { policy, node_object: sender.subscribe(), ..Setup::default() };
    let run = fixture.start_with(fixture.mock(), setup);
    let pod = fixture.create_running("web", asking("1")).await;
    let resized = resize(&fixture, "web", "3").await;
    fixture.see("web", "a size that cannot be", pending("Infeasible", resized.metadata.generation)).await;
    fixture.see_event(&pod, "ResizeInfeasible").await;
    resize(&fixture, "web", "1").await;
    fixture.see("web", "no conditions", |pod| resize_conditions(pod).is_empty()).await;
    assert!(run.recorder.updates(uid(&pod)).is_empty());

    let resized = resize(&fixture, "web", "4").await;
    fixture.see("web", "a size that cannot be", pending("Infeasible", resized.metadata.generation)).await;
    sender.send_replace(Some(facts(&fixture, "8")));
    fixture.see("web", "the new size", has("4")).await;
    fixture.see("web", "no conditions", |pod| resize_conditions(pod).is_empty()).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_size_that_the_provider_refuses_is_infeasible_and_the_pod_goes_on() {
    let fixture = PodFixture::new(Who::Node, "refusesize").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", asking("1")).await;
    mock.faults().set(Call::Update, Fault::error(Kind::Unsupported, "machines do not grow"));
    let resized = resize(&fixture, "web", "2").await;
    let seen = fixture.see("web", "a refusal", pending("Infeasible", resized.metadata.generation)).await;
    assert_eq!(condition(&seen, "PodResizePending").unwrap().message.unwrap(), "machines do not grow");
    assert!(is_running(&seen));
    fixture.see_event(&pod, "ResizeInfeasible").await;
    assert_eq!(run.recorder.updates(uid(&pod)).len(), 1, "asking again would not help");
    assert!(has("1")(&seen));
    mock.faults().clear_all();
    resize(&fixture, "web", "3").await;
    fixture.see("web", "the new size", has("3")).await;
    fixture.see("web", "no conditions", |pod| resize_conditions(pod).is_empty()).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_size_that_the_provider_cannot_give_now_is_tried_again_and_says_so() {
    let fixture = PodFixture::new(Who::Node, "later").await;
    let mock = fixture.mock();
    let _run = fixture.start(mock.clone());
    fixture.create_running("web", asking("1")).await;
    mock.faults().set(Call::Update, Fault::error(Kind::Unavailable, "not now"));
    resize(&fixture, "web", "2").await;
    let trouble = |pod: &Pod| {
        condition(pod, "PodResizeInProgress").is_some_and(|one| {
            one.reason.as_deref() == Some("Error") && one.message.as_deref() == Some("not now")
        })
    };
    fixture.see("web", "trouble", trouble).await;
    mock.faults().clear_all();
    fixture.see("web", "the new size", has("2")).await;
    fixture.see("web", "no conditions", |pod| resize_conditions(pod).is_empty()).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_change_that_the_provider_refuses_is_an_event_and_a_condition_until_another_is_taken() {
    let fixture = PodFixture::new(Who::Node, "unchanged").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    mock.faults().set(Call::Update, Fault::error(Kind::Unsupported, "pods do not change here"));
    fixture.patch("web", json!({"metadata": {"labels": {"tier": "front"}}})).await;
    let refused = |pod: &Pod| {
        condition(pod, "virtual-kubelet.io/Updated").is_some_and(|one| {
            one.status == "False"
                && one.reason.as_deref() == Some("Unsupported")
                && one.message.as_deref() == Some("pods do not change here")
        })
    };
    assert!(is_running(&fixture.see("web", "a refusal", refused).await));
    fixture.see_event(&pod, "ProviderUpdateFailed").await;
    assert_eq!(run.recorder.updates(uid(&pod)).len(), 1);
    mock.faults().clear_all();
    fixture.patch("web", json!({"metadata": {"labels": {"tier": "back"}}})).await;
    fixture.see("web", "no condition", |pod| condition(pod, "virtual-kubelet.io/Updated").is_none()).await;
}
