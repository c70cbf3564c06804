//! What belongs to others survives, and what is ours comes back.

use serde_json::json;

use super::{
    fixture::{PodFixture, condition, container, holds, is_running, phase, reference, status, uid, until},
    scripted_provider::{ScriptedProvider, report},
};
use crate::harness::{Who, under_both_identities};

under_both_identities!(foreign_conditions_labels_and_annotations_survive_a_hundred_status_changes);

const GATE: &str = "example.com/serving";

async fn foreign_conditions_labels_and_annotations_survive_a_hundred_status_changes(who: Who) {
    let fixture = PodFixture::new(who, "foreign").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let gated = json!({"spec": {"readinessGates": [{"conditionType": GATE}]}});
    let pod = fixture.create_running("web", gated).await;
    assert_eq!(condition(&pod, "Ready").unwrap().reason.as_deref(), Some("ReadinessGatesNotReady"));

    let time = "2026-01-02T03:04:05Z";
    let gate = |status: &str| {
        json!({"status": {"conditions": [
            {"type": GATE, "status": status, "reason": "Because", "message": "so", "lastTransitionTime": time},
        ]}})
    };
    fixture.patch_status("web", gate("True")).await;
    let open = fixture.see("web", "Ready", |pod| holds(pod, "Ready")).await;
    let theirs = condition(&open, GATE).unwrap();
    fixture.patch("web", json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})).await;
    until("the update", || run.recorder.updates(uid(&pod)).len(), |count| *count == 1).await;

    for round in 1..=100 {
        provider.set(&reference(&pod), report("Running", &json!({"running": {}}), round));
        fixture.see("web", "the change", |pod| container(pod, "main").restart_count == round).await;
    }
    let after = fixture.get("web").await.unwrap();
    assert_eq!(condition(&after, GATE).unwrap(), theirs);
    assert_eq!(after.metadata.labels.as_ref().unwrap()["a"], "b");
    assert_eq!(after.metadata.annotations.as_ref().unwrap()["c"], "d");
    assert!(holds(&after, "Ready"));
    assert_eq!(run.recorder.updates(uid(&pod)).len(), 1, "only the change of the labels");

    fixture.patch_status("web", gate("False")).await;
    fixture.see("web", "not Ready", |pod| !holds(pod, "Ready") && holds(pod, "ContainersReady")).await;
    fixture.patch_status("web", gate("True")).await;
    fixture.see("web", "Ready again", |pod| holds(pod, "Ready")).await;
    let writes = run.requests("patch_status", "pods");
    assert!(writes <= 105, "{writes} writes for 104 changes");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_status_that_was_overwritten_by_hand_is_repaired() {
    let fixture = PodFixture::admin("repair").await;
    let mock = fixture.mock();
    let run = fixture.start(mock);
    let pod = fixture.create_running("web", json!({})).await;
    let overwritten = json!({"status": {
        "phase": "Pending", "reason": "Vandal", "message": "ha",
        "podIP": null, "podIPs": [{"$patch": "replace"}], "startTime": null, "observedGeneration": null,
        "containerStatuses": [{
            "name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 99,
            "state": {"waiting": {"reason": "Vandal"}},
        }],
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "Initialized", "$patch": "delete"}],
    }});
    fixture.patch_status("web", overwritten).await;
    let repaired = |pod: &_| is_running(pod) && holds(pod, "Ready") && holds(pod, "Initialized");
    let after = fixture.see("web", "a repaired status", repaired).await;
    assert_eq!(status(&after).reason, None);
    assert_eq!(status(&after).message, None);
    assert_eq!(status(&after).pod_ips, status(&pod).pod_ips);
    assert_eq!(status(&after).observed_generation, pod.metadata.generation);
    assert!(status(&after).start_time.is_some());
    assert_eq!(container(&after, "main"), container(&pod, "main"));
    assert_eq!(phase(&after), "Running");
    // One to say it, one to repair it.
    run.wrote(2).await;
}

/// A final phase is final, whoever wrote it; everybody else has given the pod up, and so the backend must.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_somebody_else_declared_failed_is_stopped() {
    let fixture = PodFixture::admin("givenup").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    fixture.patch_status("web", json!({"status": {"phase": "Failed", "reason": "Evicted"}})).await;
    until("a stop", || run.recorder.deletes(uid(&pod)).len(), |count| *count == 1).await;
    let ended = |pod: &_| container(pod, "main").state.unwrap_or_default().terminated.is_some();
    let now = fixture.see("web", "an ended container", ended).await;
    assert_eq!((phase(&now), status(&now).reason.as_deref()), ("Failed", Some("Evicted")));
    fixture.delete("web", None).await;
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
}
