//! A controller that ends, and another that finds what it left.

use std::time::Duration;

use serde_json::json;
use vk_provider::Provider as _;
use vk_provider_mock::Call;

use super::fixture::{
    PodFixture, Setup, is_running, phase, reason, reference, see_stopped, status, uid, until,
};
use crate::harness::{Who, under_both_identities};

under_both_identities!(running_pods_are_adopted_and_nothing_is_written_about_them);

async fn running_pods_are_adopted_and_nothing_is_written_about_them(who: Who) {
    let fixture = PodFixture::new(who, "adopt").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let script = json!({
        "metadata": {"annotations": {"mock.virtual-kubelet.io/run-for": "10ms"}},
        "spec": {"restartPolicy": "Never"},
    });
    fixture.create("done", script).await;
    let done = fixture.see("done", "the end", |pod| phase(pod) == "Succeeded").await;
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        pods.push(fixture.create_running(name, json!({})).await);
    }
    run.stop().await;
    drop(mock);

    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    for pod in &pods {
        until("adoption", || run.recorder.creates(uid(pod)), |count| *count == 1).await;
    }
    // It works, and so had the time for all the rest.
    fixture.create_running("new", json!({})).await;
    for pod in &pods {
        let now = fixture.get(pod.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(status(&now), status(pod));
        assert_eq!(mock.creations(uid(pod)).await.unwrap(), 1);
    }
    assert_eq!(run.recorder.creates(uid(&done)), 0, "what has ended is not begun again");
    assert_eq!(mock.creations(uid(&done)).await.unwrap(), 1);
    // For the new one alone.
    run.wrote(1).await;
    assert_eq!(run.requests("get", "pods"), 0, "none was taken for a leftover");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_terminating_at_the_start_is_stopped_before_it_leaves() {
    let fixture = PodFixture::admin("terminating").await;
    let run = fixture.start(fixture.mock());
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}});
    let pod = fixture.create_running("web", script).await;
    let lost = fixture.create_running("lost", json!({})).await;
    run.stop().await;
    fixture.delete("web", Some(600)).await;
    fixture.delete("lost", Some(600)).await;

    let mock = fixture.mock();
    mock.vanish(&reference(&lost)).await.unwrap();
    let run = fixture.start(mock.clone());
    let graces = until("a stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 1).await;
    assert!(graces[0] > Duration::from_secs(500), "{graces:?}");
    fixture.see_gone(&lost).await;
    assert!(fixture.get("web").await.is_some(), "it still runs");
    mock.finish(&reference(&pod), "main", 0).await.unwrap();
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 0);
    assert_eq!(run.recorder.creates(uid(&lost)), 0);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_changed_while_no_controller_ran_is_brought_up_to_date() {
    let fixture = PodFixture::admin("changed").await;
    let run = fixture.start(fixture.mock());
    let pod = fixture.create_running("web", json!({})).await;
    run.stop().await;
    let image = json!({"spec": {"containers": [{"name": "main", "image": "example.com/app:2"}]}});
    let changed = fixture.patch("web", image).await;
    assert!(changed.metadata.generation > pod.metadata.generation);

    let mock = fixture.mock();
    let _run = fixture.start(mock.clone());
    let current = |pod: &_| {
        let status = status(pod);
        status.observed_generation == changed.metadata.generation
            && status.container_statuses.unwrap()[0].image == "example.com/app:2"
    };
    fixture.see("web", "the new image", current).await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
}

/// A provider that does not answer at first is no provider without pods.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn nothing_is_decided_before_the_provider_has_listed_its_pods() {
    let fixture = PodFixture::admin("listing").await;
    let run = fixture.start(fixture.mock());
    let pod = fixture.create_running("web", json!({})).await;
    let ending = fixture.create_running("ending", json!({})).await;
    run.stop().await;
    fixture.delete("ending", Some(600)).await;

    let mock = fixture.mock();
    let fault = vk_provider_mock::Fault::error(vk_provider::error::Kind::Unavailable, "wait");
    mock.faults().set(Call::List, fault);
    let run = fixture.start(mock.clone());
    until("some attempts", || mock.calls(Call::List), |count| *count >= 3).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 0);
    assert!(fixture.get("ending").await.is_some());
    mock.faults().clear_all();
    fixture.see_gone(&ending).await;
    until("adoption", || run.recorder.creates(uid(&pod)), |count| *count == 1).await;
    assert_eq!(run.recorder.deletes(uid(&ending)).len(), 1);
}

under_both_identities!(orphans_are_removed_after_two_lists_and_only_with_the_mark_of_this_node);

async fn orphans_are_removed_after_two_lists_and_only_with_the_mark_of_this_node(who: Who) {
    let fixture = PodFixture::new(who, "orphans").await;
    let run = fixture.start(fixture.mock());
    let ours = fixture.create_running("ours", json!({})).await;
    run.stop().await;
    fixture.delete("ours", Some(0)).await;
    fixture.see_gone(&ours).await;

    let mock = fixture.mock();
    let strange = super::broken_watch::Listing::new(mock.clone());
    // The same, as if another node had made it, and as if nobody had.
    strange.also("foreign", Some("another-node"));
    strange.also("unmarked", None);
    let setup = Setup { compare: Duration::from_millis(200), ..Setup::default() };
    let run = fixture.start_with(strange.clone(), setup);
    let known = fixture.create_running("known", json!({})).await;
    see_stopped(&mock, &ours).await;
    assert!(strange.stops(uid(&ours))[0] >= 2, "seen once is not enough");
    let lists = strange.lists();
    until("more comparisons", || strange.lists(), |count| *count >= lists + 3).await;
    assert!(run.recorder.deletes("foreign").is_empty() && run.recorder.deletes("unmarked").is_empty());
    assert!(run.recorder.deletes(uid(&known)).is_empty());
    assert!(is_running(&fixture.get("known").await.unwrap()));
}

under_both_identities!(
    pods_of_other_nodes_are_removed_from_the_provider_after_two_lists_and_stay_in_the_api_server
);

async fn pods_of_other_nodes_are_removed_from_the_provider_after_two_lists_and_stay_in_the_api_server(
    who: Who,
) {
    let fixture = PodFixture::new(who, "elsewhere").await;
    let trial = |node: &str| json!({"metadata": {"labels": {"multicluster.virtual-kubelet.io/trial": node}}});
    let gated =
        json!({"nodeName": null, "schedulingGates": [{"name": "multicluster.virtual-kubelet.io/placement"}]});
    let provider = super::scripted_provider::ScriptedProvider::new(&fixture.node);
    let mut pods = Vec::new();
    for (name, labels, spec) in [
        ("bound-elsewhere", trial(&fixture.node), json!({"nodeName": "another-node"})),
        ("trial-ended", json!({}), gated.clone()),
        ("trial-elsewhere", trial("another-node"), gated.clone()),
        ("on-trial", trial(&fixture.node), gated),
    ] {
        let mut more = labels;
        more["spec"] = spec;
        let pod = fixture.create(name, more).await;
        provider.set(&reference(&pod), super::scripted_provider::running());
        pods.push(pod);
    }
    // The API server shows a node only the pods that are bound to it: a pod on trial is as good as gone for it.
    let on_trial = if who == Who::Admin { pods.pop() } else { None };

    let listing = super::broken_watch::Listing::new(provider.clone());
    let setup = Setup { compare: Duration::from_millis(200), ..Setup::default() };
    let run = fixture.start_with(listing.clone(), setup);
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap();
        see_stopped(&provider, pod).await;
        assert!(listing.stops(uid(pod))[0] >= 2, "{name}: seen once is not enough");
        assert_eq!(fixture.get(name).await.as_ref(), Some(pod), "{name} in the API server");
    }
    let lists = listing.lists();
    until("more comparisons", || listing.lists(), |count| *count >= lists + 3).await;
    if let Some(pod) = on_trial {
        assert!(run.recorder.deletes(uid(&pod)).is_empty());
        assert!(provider.pod_status(&reference(&pod)).await.is_ok());
        assert_eq!(fixture.get("on-trial").await, Some(pod));
    }
    assert_eq!(run.requests("patch_status", "pods") + run.requests("delete", "pods"), 0);
}

/// The verdict on a pod is not forgotten with the process that made it.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_reason_of_a_failure_survives_a_restart() {
    let fixture = PodFixture::admin("verdict").await;
    let provider = super::scripted_provider::ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let script = json!({"spec": {"activeDeadlineSeconds": 1, "restartPolicy": "Never"}});
    fixture.create("web", script).await;
    let failed = fixture.see("web", "the end of its time", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), "DeadlineExceeded");
    run.stop().await;

    // The backend still knows how it ended, though not why.
    let provider = super::scripted_provider::ScriptedProvider::new(&fixture.node);
    let ended = json!({"terminated": {"exitCode": 137}});
    provider.set(&reference(&failed), super::scripted_provider::report("Failed", &ended, 0));
    let run = fixture.start(provider);
    fixture.create_running("other", json!({})).await;
    until("its write", || run.requests("patch_status", "pods"), |count| *count >= 1).await;
    let now = fixture.get("web").await.unwrap();
    assert_eq!(reason(&now), "DeadlineExceeded");
    assert_eq!(phase(&now), "Failed");
}
