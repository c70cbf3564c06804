//! The ordinary lifecycle of a pod.

use serde_json::json;

use super::{
    fixture::{HOST_IP, PodFixture, condition, container, holds, is_running, phase, reference, status, uid},
    scripted_provider::{ScriptedProvider, report},
};
use crate::harness::{Who, under_both_identities};

under_both_identities!(a_bound_pod_runs_and_one_write_says_all_of_it, a_whole_life_is_told);

async fn a_bound_pod_runs_and_one_write_says_all_of_it(who: Who) {
    let fixture = PodFixture::new(who, "runs").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let pod = fixture.create_running("web", json!({})).await;
    let status = status(&pod);
    assert_eq!(status.host_ip.as_deref(), Some(HOST_IP));
    assert_eq!(status.host_ips.unwrap()[0].ip, HOST_IP);
    let ip = status.pod_ip.unwrap();
    assert_eq!(status.pod_ips.unwrap()[0].ip, ip);
    assert!(status.start_time.is_some());
    assert_eq!(status.observed_generation, pod.metadata.generation);
    let main = container(&pod, "main");
    assert!(main.ready && main.state.unwrap().running.is_some());
    assert_eq!(main.image, "example.com/app:1");
    for kind in ["Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers"] {
        let condition = condition(&pod, kind).unwrap();
        assert_eq!(condition.status, "True", "{kind}");
        assert!(condition.last_transition_time.is_some(), "{kind}");
        assert_eq!(condition.observed_generation, pod.metadata.generation, "{kind}");
    }
    // After another round trip nothing more was said, because nothing was to be said.
    fixture.patch("web", json!({"metadata": {"labels": {"a": "b"}}})).await;
    fixture.see_event(&pod, "ProviderUpdateSuccess").await;
    fixture.see_event(&pod, "ProviderCreateSuccess").await;
    run.wrote(1).await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
}

/// Pending, Running, ended, started again, ended for good.
async fn a_whole_life_is_told(who: Who) {
    let fixture = PodFixture::new(who, "life").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let script = json!({
        "metadata": {"annotations": {
            // Long enough that a busy machine sees the pod wait.
            "mock.virtual-kubelet.io/start-delay": "2s",
            "mock.virtual-kubelet.io/restart-backoff": "0s",
        }},
        "spec": {"restartPolicy": "OnFailure", "initContainers": [{"name": "first", "image": "example.com/init:1"}]},
    });
    let pod = fixture.create("job", script).await;
    let waiting = fixture.see("job", "a waiting pod", |pod| status(pod).start_time.is_some()).await;
    assert_eq!(phase(&waiting), "Pending");
    assert!(!holds(&waiting, "Initialized") && !holds(&waiting, "Ready"));
    let runs = fixture.see("job", "a running pod", is_running).await;
    for kind in ["Initialized", "ContainersReady", "Ready"] {
        let condition = condition(&runs, kind).unwrap();
        assert_eq!(
            (condition.reason, condition.message),
            (None, None),
            "{kind}: the reason went with what it was for"
        );
    }
    mock.finish(&reference(&pod), "main", 3).await.unwrap();
    let again = |pod: &_| container(pod, "main").restart_count == 1 && is_running(pod);
    let pod = fixture.see("job", "a restarted container", again).await;
    let last = container(&pod, "main").last_state.unwrap().terminated.unwrap();
    assert_eq!(last.exit_code, 3);
    mock.finish(&reference(&pod), "main", 0).await.unwrap();
    let pod = fixture.see("job", "the end", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(condition(&pod, "Ready").unwrap().reason.as_deref(), Some("PodCompleted"));
    assert_eq!(container(&pod, "main").state.unwrap().terminated.unwrap().exit_code, 0);

    fixture.delete("job", None).await;
    fixture.see_gone(&pod).await;
    assert_eq!(
        run.recorder.deletes(uid(&pod)).len(),
        1,
        "the backend may keep nothing of a pod that is gone"
    );
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
    assert_eq!(run.refusals(), 0);
}

/// A provider that does what a kubelet does: what it says of a pod is what the API server has, field by field.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_status_told_as_a_kubelet_tells_it_is_written_as_it_is() {
    let fixture = PodFixture::admin("whole").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture
        .create_running("web", json!({"spec": {"readinessGates": [{"conditionType": "lb/open"}]}}))
        .await;
    let condition = |kind: &str, status: &str, reason: Option<&str>, message: Option<&str>| json!({"type": kind, "status": status, "reason": reason, "message": message});
    let unready = Some("containers with unready status: [main]");
    let crashing = json!({
        "phase": "Running",
        "qosClass": "BestEffort",
        "hostIP": "10.9.0.1", "hostIPs": [{"ip": "10.9.0.1"}], "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}],
        "resources": {},
        "conditions": [
            condition("PodReadyToStartContainers", "True", None, None),
            condition("Initialized", "True", None, None),
            condition("Ready", "False", Some("ContainersNotReady"), unready),
            condition("ContainersReady", "False", Some("ContainersNotReady"), unready),
            condition("PodScheduled", "True", None, None)],
        "containerStatuses": [{"name": "main", "image": "example.com/app:1", "imageID": "example.com/app@sha256:abc", "ready": false,
            "restartCount": 2, "started": false, "containerID": "containerd://2", "resources": {},
            "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "containerID": "containerd://2",
                "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}}}],
    });
    provider.set(&reference(&pod), serde_json::from_value(crashing.clone()).unwrap());
    let seen = fixture.see("web", "the back-off", |pod| container(pod, "main").restart_count == 2).await;
    assert_eq!(told(&seen), crashing);

    // And without what belonged to it when it is over: only the gate is missing.
    let mut well = crashing;
    for index in [2, 3] {
        well["conditions"][index]["status"] = json!("True");
        for field in ["reason", "message"] {
            well["conditions"][index][field] = json!(null);
        }
    }
    well["containerStatuses"][0]["state"] = json!({"running": {"startedAt": "2026-01-01T00:01:00Z"}});
    well["containerStatuses"][0]["ready"] = json!(true);
    provider.set(&reference(&pod), serde_json::from_value(well.clone()).unwrap());
    let seen = fixture.see("web", "a good end", |pod| container(pod, "main").ready).await;
    let gate = "corresponding condition of pod readiness gate \"lb/open\" does not exist.";
    well["conditions"][2] = condition("Ready", "False", Some("ReadinessGatesNotReady"), Some(gate));
    assert_eq!(told(&seen), well);
    assert_eq!(run.refusals(), 0);
}

/// A pod's status but for the times and generations, with what is not there as null.
fn told(pod: &k8s_openapi::api::core::v1::Pod) -> serde_json::Value {
    let mut status = json!(pod.status);
    let fields = status.as_object_mut().unwrap();
    fields.remove("observedGeneration");
    fields.remove("startTime");
    let conditions = status["conditions"].as_array_mut().unwrap();
    for condition in conditions.iter_mut() {
        let short = ["type", "status", "reason", "message"].map(|key| (key, condition[key].clone()));
        *condition = short.into_iter().collect();
    }
    let order = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    conditions.sort_by_key(|condition| order.iter().position(|kind| condition["type"] == **kind));
    status
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_whose_stream_ends_is_asked() {
    let fixture = PodFixture::admin("silent").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    provider.fall_silent();
    for count in 1..3 {
        provider.set(&reference(&pod), report("Running", &json!({"running": {}}), count));
        fixture.see("web", "the new count", |pod| container(pod, "main").restart_count == count).await;
    }
}

/// The phase follows from the containers; and what has ended stays in the backend, with its logs, until it is deleted.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_ended_by_itself_stays_in_the_backend_even_if_the_provider_names_no_phase() {
    let fixture = PodFixture::admin("nophase").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    provider.set(&reference(&pod), report("", &json!({"terminated": {"exitCode": 0}}), 0));
    fixture.see("job", "the end", |pod| phase(pod) == "Succeeded").await;
    fixture.create_running("other", json!({})).await;
    fixture.patch("job", json!({"metadata": {"labels": {"a": "b"}}})).await;
    fixture.create_running("another", json!({})).await;
    assert!(run.recorder.deletes(uid(&pod)).is_empty(), "nobody has deleted it");
    assert!(run.recorder.updates(uid(&pod)).is_empty(), "it has ended");
    fixture.delete("job", None).await;
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_cannot_tell_is_asked() {
    let fixture = PodFixture::admin("polled").await;
    let provider = ScriptedProvider::polled(&fixture.node, std::time::Duration::from_millis(300));
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("quiet", json!({})).await;
    provider.set(&reference(&pod), report("Running", &json!({"running": {}}), 7));
    fixture.see("quiet", "the new count", |pod| container(pod, "main").restart_count == 7).await;
    fixture.delete("quiet", Some(30)).await;
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
}

/// Sixty pods at once: none waits for another.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn many_pods_run_and_end_side_by_side() {
    let fixture = PodFixture::admin("many").await;
    let mock = fixture.mock();
    let _run = fixture.start(mock.clone());
    let names: Vec<String> = (0..60).map(|number| format!("many-{number}")).collect();
    futures::future::join_all(names.iter().map(|name| fixture.create(name, json!({})))).await;
    futures::future::join_all(names.iter().map(|name| fixture.see(name, "a running pod", is_running))).await;
    futures::future::join_all(names.iter().map(|name| fixture.delete(name, Some(30)))).await;
    let left = || async {
        let left = fixture.pods.list(&kube::api::ListParams::default()).await.unwrap().items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} pods are left")) }
    };
    vk_testing::eventually("all are gone", crate::harness::SOON, left).await;
    let journal = mock.journal().await.unwrap();
    assert_eq!(journal.len(), names.len());
    assert!(journal.values().all(|count| *count == 1), "{journal:?}");
}

/// What the provider has to say beside the status.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_a_provider_publishes_reaches_the_pod() {
    let fixture = PodFixture::admin("publish").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({"metadata": {"annotations": {"theirs": "stays"}}})).await;
    let set = [("example.com/id".to_owned(), Some("i-4711".to_owned()))];
    provider.push(vk_provider::PodChange::Annotations(reference(&pod), set.into()));
    let annotation = |pod: &k8s_openapi::api::core::v1::Pod, key: &str| {
        pod.metadata.annotations.as_ref().and_then(|all| all.get(key).cloned())
    };
    let id = |pod: &_| annotation(pod, "example.com/id").as_deref() == Some("i-4711");
    fixture.see("web", "the annotation", id).await;
    let unset = [("example.com/id".to_owned(), None)];
    provider.push(vk_provider::PodChange::Annotations(reference(&pod), unset.into()));
    let seen = fixture.see("web", "no annotation", |pod| annotation(pod, "example.com/id").is_none()).await;
    assert_eq!(annotation(&seen, "theirs").as_deref(), Some("stays"));
    provider.push(vk_provider::PodChange::Event(vk_provider::PodEvent {
        pod: reference(&pod),
        container: Some("main".to_owned()),
        kind: vk_provider::EventKind::Normal,
        reason: "Pulled".to_owned(),
        message: "the image is there".to_owned(),
    }));
    let event = fixture.see_event(&pod, "Pulled").await;
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{main}"));
    run.wrote(3).await;
}
