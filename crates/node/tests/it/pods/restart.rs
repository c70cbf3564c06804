//! A controller that ends, and another that finds what it left.

use std::time::Duration;

use serde_json::json;
use vk_provider_mock::Call;

use super::stage::{Setup, Stage, is_running, phase, reason, reference, see_stopped, status, uid, until};
use crate::harness::{Who, under_both_identities};

under_both_identities!(running_pods_are_adopted_and_nothing_is_written_about_them);

async fn running_pods_are_adopted_and_nothing_is_written_about_them(who: Who) {
    let stage = Stage::new(who, "adopt").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let script = json!({
        "metadata": {"annotations": {"mock.virtual-kubelet.io/run-for": "10ms"}},
        "spec": {"restartPolicy": "Never"},
    });
    stage.create("done", script).await;
    let done = stage.see("done", "the end", |pod| phase(pod) == "Succeeded").await;
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        pods.push(stage.create_running(name, json!({})).await);
    }
    run.stop().await;
    drop(mock);

    let mock = stage.mock();
    let run = stage.start(mock.clone());
    for pod in &pods {
        until("adoption", || run.spy.creates(uid(pod)), |count| *count == 1).await;
    }
    // It works, and so had the time for all the rest.
    stage.create_running("new", json!({})).await;
    for pod in &pods {
        let now = stage.get(pod.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(status(&now), status(pod));
        assert_eq!(mock.creations(uid(pod)).await.unwrap(), 1);
    }
    assert_eq!(run.spy.creates(uid(&done)), 0, "what has ended is not begun again");
    assert_eq!(mock.creations(uid(&done)).await.unwrap(), 1);
    // For the new one alone.
    run.wrote(1).await;
    assert_eq!(run.requests("get", "pods"), 0, "none was taken for a leftover");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_terminating_at_the_start_is_stopped_before_it_leaves() {
    let stage = Stage::admin("terminating").await;
    let run = stage.start(stage.mock());
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}});
    let pod = stage.create_running("web", script).await;
    let lost = stage.create_running("lost", json!({})).await;
    run.stop().await;
    stage.delete("web", Some(600)).await;
    stage.delete("lost", Some(600)).await;

    let mock = stage.mock();
    mock.vanish(&reference(&lost)).await.unwrap();
    let run = stage.start(mock.clone());
    let graces = until("a stop", || run.spy.deletes(uid(&pod)), |graces| graces.len() == 1).await;
    assert!(graces[0] > Duration::from_secs(500), "{graces:?}");
    stage.see_gone(&lost).await;
    assert!(stage.get("web").await.is_some(), "it still runs");
    mock.finish(&reference(&pod), "main", 0).await.unwrap();
    stage.see_gone(&pod).await;
    assert_eq!(run.spy.creates(uid(&pod)), 0);
    assert_eq!(run.spy.creates(uid(&lost)), 0);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_changed_while_no_controller_ran_is_brought_up_to_date() {
    let stage = Stage::admin("changed").await;
    let run = stage.start(stage.mock());
    let pod = stage.create_running("web", json!({})).await;
    run.stop().await;
    let image = json!({"spec": {"containers": [{"name": "main", "image": "example.com/app:2"}]}});
    let changed = stage.patch("web", image).await;
    assert!(changed.metadata.generation > pod.metadata.generation);

    let mock = stage.mock();
    let _run = stage.start(mock.clone());
    let current = |pod: &_| {
        let status = status(pod);
        status.observed_generation == changed.metadata.generation
            && status.container_statuses.unwrap()[0].image == "example.com/app:2"
    };
    stage.see("web", "the new image", current).await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
}

/// A provider that does not answer at first is no provider without pods.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn nothing_is_decided_before_the_provider_has_listed_its_pods() {
    let stage = Stage::admin("listing").await;
    let run = stage.start(stage.mock());
    let pod = stage.create_running("web", json!({})).await;
    let ending = stage.create_running("ending", json!({})).await;
    run.stop().await;
    stage.delete("ending", Some(600)).await;

    let mock = stage.mock();
    let fault = vk_provider_mock::Fault::error(vk_provider::error::Kind::Unavailable, "wait");
    mock.faults().set(Call::List, fault);
    let run = stage.start(mock.clone());
    until("some attempts", || mock.calls(Call::List), |count| *count >= 3).await;
    assert_eq!(run.spy.creates(uid(&pod)), 0);
    assert!(stage.get("ending").await.is_some());
    mock.faults().clear_all();
    stage.see_gone(&ending).await;
    until("adoption", || run.spy.creates(uid(&pod)), |count| *count == 1).await;
    assert_eq!(run.spy.deletes(uid(&ending)).len(), 1);
}

under_both_identities!(leftovers_are_removed_after_two_sightings_and_only_with_the_mark_of_this_node);

async fn leftovers_are_removed_after_two_sightings_and_only_with_the_mark_of_this_node(who: Who) {
    let stage = Stage::new(who, "leftovers").await;
    let run = stage.start(stage.mock());
    let ours = stage.create_running("ours", json!({})).await;
    run.stop().await;
    stage.delete("ours", Some(0)).await;
    stage.see_gone(&ours).await;

    let mock = stage.mock();
    let strange = super::bare::Listing::new(mock.clone());
    // The same, as if another node had made it, and as if nobody had.
    strange.also("foreign", Some("another-node"));
    strange.also("unmarked", None);
    let setup = Setup { compare: Duration::from_millis(200), ..Setup::default() };
    let run = stage.start_with(strange.clone(), setup);
    let known = stage.create_running("known", json!({})).await;
    see_stopped(&mock, &ours).await;
    assert!(strange.stops(uid(&ours))[0] >= 2, "seen once is not enough");
    let lists = strange.lists();
    until("more comparisons", || strange.lists(), |count| *count >= lists + 3).await;
    assert!(run.spy.deletes("foreign").is_empty() && run.spy.deletes("unmarked").is_empty());
    assert!(run.spy.deletes(uid(&known)).is_empty());
    assert!(is_running(&stage.get("known").await.unwrap()));
}

/// The verdict on a pod is not forgotten with the process that made it.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_reason_of_a_failure_survives_a_restart() {
    let stage = Stage::admin("verdict").await;
    let puppet = super::puppet::Puppet::new(&stage.node);
    let run = stage.start(puppet.clone());
    let script = json!({"spec": {"activeDeadlineSeconds": 1, "restartPolicy": "Never"}});
    stage.create("web", script).await;
    let failed = stage.see("web", "the end of its time", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), "DeadlineExceeded");
    run.stop().await;

    // The backend still knows how it ended, though not why.
    let puppet = super::puppet::Puppet::new(&stage.node);
    let ended = json!({"terminated": {"exitCode": 137}});
    puppet.set(&reference(&failed), super::puppet::report("Failed", &ended, 0));
    let run = stage.start(puppet);
    stage.create_running("other", json!({})).await;
    until("its write", || run.requests("patch_status", "pods"), |count| *count >= 1).await;
    let now = stage.get("web").await.unwrap();
    assert_eq!(reason(&now), "DeadlineExceeded");
    assert_eq!(phase(&now), "Failed");
}
