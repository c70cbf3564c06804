mod addresses;
mod restart_rules;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodCondition};
use serde_json::{Value, json};
use vk_provider::pod::STILL_RUNNING;

use super::*;

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).expect("a pod")
}

#[expect(clippy::needless_pass_by_value, reason = "reads better")]
fn web(policy: &str, status: Value) -> Pod {
    pod(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "generation": 3},
        "spec": {"restartPolicy": policy, "containers": [{"name": "b", "image": "two"}, {"name": "a", "image": "one"}]},
        "status": status,
    }))
}

fn report(value: Value) -> PodStatus {
    serde_json::from_value(value).expect("a status")
}

fn context() -> StatusContext {
    StatusContext {
        host_ips: vec!["10.0.0.1".to_owned()],
        now: "2026-01-01T00:00:10.5Z".parse().expect("a time"),
        own_conditions: Vec::new(),
        generation: Some(3),
    }
}

fn running(name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "started": true,
           "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}})
}

/// What is sent to bring about a status.
fn patch(status: &PodStatus, there: Option<&PodStatus>) -> Value {
    let none = MetadataChanges::new();
    let patch = StatusPatch::new("u1".into(), status.clone(), there, &none, &none);
    serde_json::to_value(patch).expect("a patch")
}

fn find<'a>(status: &'a PodStatus, kind: &str) -> &'a PodCondition {
    status.conditions.iter().flatten().find(|one| one.type_ == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn a_running_report_becomes_a_whole_status() {
    let composed = compose(
        &web("Always", json!({})),
        &report(
            json!({"phase": "Running", "podIP": "10.1.0.5", "containerStatuses": [running("b"), running("a")]}),
        ),
        &context(),
    );
    assert_eq!(composed.refused, Vec::<String>::new());
    let status = composed.status;
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.host_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(status.pod_ips.as_ref().map(|ips| ips[0].ip.as_str()), Some("10.1.0.5"));
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(
        status.start_time.as_ref().map(|time| time.0.to_string()).as_deref(),
        Some("2026-01-01T00:00:10Z")
    );
    let names: Vec<&str> = status.container_statuses.iter().flatten().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "sorted by name, as the kubelet does");
    for kind in [INITIALIZED, CONTAINERS_READY, READY, READY_TO_START] {
        assert_eq!(find(&status, kind).status, "True", "{kind}");
    }
}

#[test]
fn a_generation_that_the_server_does_not_keep_is_no_reason_to_write() {
    let said = report(json!({"phase": "Running", "containerStatuses": [running("a"), running("b")]}));
    let status = compose(&web("Always", json!({})), &said, &context()).status;
    let mut there = json!(status);
    there.as_object_mut().expect("an object").remove("observedGeneration");
    for condition in there["conditions"].as_array_mut().expect("a list") {
        condition.as_object_mut().expect("an object").remove("observedGeneration");
    }
    let changed = |key: &str, value: Value| {
        let mut there = there.clone();
        there[key] = value;
        report(there)
    };
    assert!(is_stored_except_unsupported(&status, Some(&report(there.clone()))));
    assert!(!is_stored_except_unsupported(&status, Some(&changed("observedGeneration", json!(2)))));
    assert!(!is_stored_except_unsupported(&status, Some(&changed("phase", json!("Pending")))));
    assert!(!is_stored_except_unsupported(&status, None));
}

#[test]
fn composing_again_what_the_server_has_changes_nothing() {
    let said = report(
        json!({"phase": "Running", "podIP": "10.1.0.5", "containerStatuses": [running("a"), running("b")]}),
    );
    let first = compose(&web("Always", json!({})), &said, &context()).status;
    let later = StatusContext { now: "2026-01-01T01:00:00Z".parse().expect("a time"), ..context() };
    let stored = web("Always", serde_json::to_value(&first).expect("JSON"));
    let second = compose(&stored, &said, &later).status;
    assert_eq!(digest(&second), digest(&first));
}

#[test]
fn a_phase_never_goes_back() {
    for (before, said) in
        [("Running", "Pending"), ("Succeeded", "Running"), ("Failed", "Succeeded"), ("Failed", "Pending")]
    {
        let composed =
            compose(&web("Never", json!({"phase": before})), &report(json!({"phase": said})), &context());
        assert_eq!(composed.status.phase.as_deref(), Some(before));
        assert_eq!(composed.refused.len(), 1, "{before} -> {said}: {:?}", composed.refused);
    }
    let nonsense =
        compose(&web("Never", json!({"phase": "Running"})), &report(json!({"phase": "Dancing"})), &context());
    assert_eq!(nonsense.status.phase.as_deref(), Some("Running"));
    assert_eq!(nonsense.refused.len(), 1);
}

#[test]
fn a_final_phase_can_be_refined_but_not_left() {
    let ended = json!({"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                       "state": {"terminated": {"exitCode": 3}}});
    let composed = compose(
        &web("Never", json!({"phase": "Failed"})),
        &report(json!({"phase": "Failed", "containerStatuses": [ended]})),
        &context(),
    );
    let status = composed.status;
    let code = status
        .container_statuses
        .iter()
        .flatten()
        .find(|one| one.name == "a")
        .and_then(|one| one.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code));
    assert_eq!(code, Some(3));
    assert_eq!(find(&status, READY).status, "False");
    assert_eq!(find(&status, READY).reason.as_deref(), Some("PodFailed"));
}

#[test]
fn unknown_containers_and_double_states_are_refused_and_named() {
    let double = json!({"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": null}, "terminated": {"exitCode": 1}}});
    let composed = compose(
        &web("Always", json!({})),
        &report(json!({"phase": "Running", "containerStatuses": [double, running("ghost")]})),
        &context(),
    );
    assert_eq!(composed.refused.len(), 2, "{:?}", composed.refused);
    assert!(composed.refused.iter().any(|text| text.contains("ghost")));
    let a = composed
        .status
        .container_statuses
        .iter()
        .flatten()
        .find(|one| one.name == "a")
        .cloned()
        .unwrap_or_default();
    let state = a.state.unwrap_or_default();
    assert!(state.terminated.is_some() && state.running.is_none());
}

#[test]
fn an_ended_container_does_not_run_again_against_its_policy() {
    let ended = json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]});
    let said = report(json!({"phase": "Running", "containerStatuses": [running("a")]}));
    let never = compose(&web("Never", ended.clone()), &said, &context());
    assert_eq!(never.refused.len(), 1, "{:?}", never.refused);
    let always = compose(&web("Always", ended), &said, &context());
    assert_eq!(always.refused, Vec::<String>::new());
}

#[test]
fn readiness_gates_decide_with_the_containers() {
    let mut gated = web("Always", json!({}));
    let spec = gated.spec.as_mut().expect("a spec");
    spec.readiness_gates =
        Some(vec![k8s_openapi::api::core::v1::PodReadinessGate { condition_type: "lb/ready".to_owned() }]);
    let said = report(json!({"phase": "Running", "containerStatuses": [running("a"), running("b")]}));
    let closed = compose(&gated, &said, &context()).status;
    assert_eq!(find(&closed, READY).status, "False");
    assert_eq!(find(&closed, READY).reason.as_deref(), Some("ReadinessGatesNotReady"));
    gated.status = Some(report(json!({"conditions": [{"type": "lb/ready", "status": "True"}]})));
    let open = compose(&gated, &said, &context()).status;
    assert_eq!(find(&open, READY).status, "True");
    assert!(!open.conditions.iter().flatten().any(|one| one.type_ == "lb/ready"), "not ours to write");
}

#[test]
fn a_patch_carries_the_uid_replaces_addresses_and_clears_reasons() {
    let said = report(json!({"phase": "Running", "podIP": "10.1.0.5", "containerStatuses": [running("a")]}));
    let status = compose(&web("Always", json!({"reason": "ProviderFailed"})), &said, &context()).status;
    let body = patch(&status, None);
    assert_eq!(body["metadata"]["uid"], "u1");
    assert_eq!(body["status"]["podIPs"], json!([{"$patch": "replace"}, {"ip": "10.1.0.5"}]));
    assert!(body["status"]["reason"].is_null() && body["status"].get("reason").is_some());
    assert!(body["status"].get("qosClass").is_none());
}

#[test]
fn a_pod_has_ended_only_when_nothing_of_it_can_run() {
    let state = |state: Value| json!({"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let ended = |value: Value| all_ended(&report(value));
    assert!(!ended(json!({})), "nothing known is not an end");
    assert!(ended(json!({"phase": "Failed"})));
    assert!(!ended(json!({"phase": "Pending", "containerStatuses": [state(json!({"waiting": {}}))]})));
    assert!(ended(json!({"phase": "Failed", "containerStatuses": [state(json!({"waiting": {}}))]})));
    assert!(!ended(
        json!({"phase": "Failed", "containerStatuses": [state(json!({"running": {"startedAt": null}}))]})
    ));
    let unseen = |holds: &str, phase: &str| {
        json!({"phase": phase, "containerStatuses": [state(json!({"terminated": {"exitCode": 0}}))],
        "conditions": [{"type": STILL_RUNNING, "status": holds}]})
    };
    assert!(ended(unseen("False", "Running")));
    assert!(!ended(unseen("True", "Running")), "what the provider cannot show runs");
    assert!(!ended(unseen("True", "Failed")));
}

#[test]
fn a_lost_pod_is_failed_with_what_ran_ended_unseen() {
    let lost = lost(&web("Never", json!({"phase": "Running", "containerStatuses": [running("a")]})), "gone");
    let ended: Option<ContainerStateTerminated> =
        lost.container_statuses.iter().flatten().find_map(|one: &ContainerStatus| {
            one.state.clone().and_then(|state: ContainerState| state.terminated)
        });
    assert_eq!(ended.map(|ended| ended.exit_code), Some(137));
    assert_eq!(lost.phase.as_deref(), Some("Failed"));
}

/// A report as a kubelet makes it: nothing is left to fill in.
fn whole_report(phase: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({"type": kind, "status": status, "reason": some(reason), "message": some(message)})
    };
    json!({
        "phase": phase,
        "qosClass": "Burstable",
        "startTime": "2026-01-01T00:00:01Z",
        "hostIP": "10.0.0.2", "hostIPs": [{"ip": "10.0.0.2"}], "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}],
        "resources": {"requests": {"cpu": "100m"}}, "allocatedResources": {"cpu": "100m"},
        "conditions": [
            condition("PodReadyToStartContainers", "True", "", ""),
            condition("Initialized", "False", "ContainersNotInitialized", "containers with incomplete status: [setup]"),
            condition("Ready", "False", "ContainersNotReady", "containers with unready status: [a b]"),
            condition("ContainersReady", "False", "ContainersNotReady", "containers with unready status: [a b]"),
            condition("PodScheduled", "True", "", "")],
        "initContainerStatuses": [{"name": "setup", "image": "registry.example/setup:1", "imageID": "sha256:abc", "ready": false,
            "restartCount": 0, "started": true, "containerID": "containerd://1", "resources": {},
            "user": {"linux": {"uid": 0, "gid": 0}}, "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}}],
        "containerStatuses": [
            {"name": "a", "image": "one", "imageID": "", "ready": false, "restartCount": 0, "started": false,
             "state": {"waiting": {"reason": "PodInitializing"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            {"name": "b", "image": "two", "imageID": "", "ready": false, "restartCount": 0, "started": false,
             "state": {"waiting": {"reason": "PodInitializing"}}}],
    })
}

fn staged(status: Value) -> Pod {
    let mut pod = web("Always", status);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.init_containers = serde_json::from_value(json!([{"name": "setup"}])).expect("containers");
    spec.containers[1].resources =
        serde_json::from_value(json!({"requests": {"cpu": "100m"}})).expect("resources");
    pod
}

#[test]
fn a_whole_report_is_taken_over_as_it_is() {
    let said = whole_report("Pending");
    let composed = compose(&staged(json!({})), &report(said.clone()), &context());
    assert_eq!(composed.refused, Vec::<String>::new());
    let mut expected = said;
    expected.as_object_mut().expect("an object").remove("qosClass");
    expected["observedGeneration"] = json!(3);
    for condition in expected["conditions"].as_array_mut().expect("a list") {
        condition["observedGeneration"] = json!(3);
        condition["lastTransitionTime"] = json!("2026-01-01T00:00:10Z");
    }
    let found = serde_json::to_value(&composed.status).expect("JSON");
    assert_eq!(ValueDigest::of(&found), ValueDigest::of(&expected), "{found:#} is not {expected:#}");
}

#[test]
fn a_pod_that_is_initialised_again_may_be_pending_again() {
    let again = compose(&staged(json!({"phase": "Running"})), &report(whole_report("Pending")), &context());
    assert_eq!((again.status.phase.as_deref(), again.refused.len()), (Some("Pending"), 0));
    let mut done = whole_report("Pending");
    done["initContainerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    let done = compose(&staged(json!({"phase": "Running"})), &report(done), &context());
    assert_eq!((done.status.phase.as_deref(), done.refused.len()), (Some("Running"), 1));
}

#[test]
fn a_provider_says_why_what_has_ended_was_not_ready_but_not_against_the_phase() {
    let ended = |phase: &str, said: &str| {
        let mut whole = whole_report(phase);
        whole["conditions"] =
            json!([{"type": "ContainersReady", "status": "False", "reason": said, "message": "so"}]);
        let status = compose(&staged(json!({"phase": "Running"})), &report(whole), &context()).status;
        let both =
            [CONTAINERS_READY, READY].map(|kind| find(&status, kind).reason.clone().unwrap_or_default());
        assert_eq!(both[0], both[1]);
        both[0].clone()
    };
    assert_eq!(ended("Failed", "ContainersNotReady"), "ContainersNotReady");
    assert_eq!(ended("Succeeded", "PodCompleted"), "PodCompleted");
    assert_eq!(ended("Failed", "PodCompleted"), "PodFailed");
    assert_eq!(ended("Succeeded", "PodFailed"), "PodCompleted");
}

#[test]
fn every_closed_gate_is_named() {
    let mut gated = web("Always", json!({"conditions": [{"type": "lb/one", "status": "Unknown"}]}));
    gated.spec.as_mut().expect("a spec").readiness_gates =
        serde_json::from_value(json!([{"conditionType": "lb/one"}, {"conditionType": "lb/two"}]))
            .expect("gates");
    let said = report(json!({"phase": "Running", "containerStatuses": [running("a"), running("b")]}));
    let status = compose(&gated, &said, &context()).status;
    let message = "the status of pod readiness gate \"lb/one\" is not \"True\", but Unknown, \
                   corresponding condition of pod readiness gate \"lb/two\" does not exist.";
    assert_eq!(find(&status, READY).message.as_deref(), Some(message));
}

#[test]
fn a_patch_takes_back_what_a_condition_said_before() {
    let said = report(json!({"phase": "Running", "containerStatuses": [running("a"), running("b")]}));
    let status = compose(&web("Always", json!({})), &said, &context()).status;
    let body = patch(&status, None);
    for condition in body["status"]["conditions"].as_array().expect("a list") {
        assert!(condition["reason"].is_null() && condition.get("reason").is_some(), "{condition}");
        assert!(condition["message"].is_null() && condition.get("message").is_some(), "{condition}");
    }
}

#[test]
fn a_patch_has_all_that_is_ours_of_a_status_and_nothing_else() {
    let resources = json!({"requests": {"cpu": "1"}});
    let ours = json!({
        "phase": "Failed", "reason": "Evicted", "message": "no room", "startTime": "2026-01-01T00:00:05Z", "observedGeneration": 3,
        "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}], "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}],
        "containerStatuses": [running("a")], "initContainerStatuses": [running("b")], "ephemeralContainerStatuses": [running("c")],
        "resources": resources, "allocatedResources": {"cpu": "1"},
        "conditions": [{"type": READY, "status": "True", "reason": "r", "message": "m", "observedGeneration": 3,
                        "lastProbeTime": "2026-01-01T00:00:05Z", "lastTransitionTime": "2026-01-01T00:00:05Z"}],
    });
    let mut whole = ours.clone();
    whole["qosClass"] = json!("Guaranteed");
    whole["nominatedNodeName"] = json!("n");
    let mut sent = patch(&report(whole), None)["status"].take();
    for list in ["hostIPs", "podIPs"] {
        let first = sent[list].as_array_mut().expect("a list").remove(0);
        assert_eq!(first, json!({"$patch": "replace"}));
    }
    assert_eq!(sent, serde_json::to_value(report(ours)).expect("a status"));
}

#[test]
fn a_patch_takes_out_amounts_and_conditions_that_are_there_and_do_not_hold() {
    let there = report(json!({
        "resources": {"requests": {"cpu": "2", "memory": "1Gi"}},
        "conditions": [{"type": RESIZE_PENDING, "status": "True"}],
    }));
    let status = report(json!({"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}));
    let sent = &patch(&status, Some(&there))["status"];
    assert_eq!(sent["resources"], json!({"$patch": "replace", "requests": {"cpu": "1"}}));
    assert_eq!(sent["allocatedResources"], json!({"$patch": "replace", "cpu": "1"}));
    assert_eq!(sent["conditions"], json!([{"$patch": "delete", "type": RESIZE_PENDING}]));
    let sent = &patch(&status, None)["status"];
    assert_eq!(sent["resources"], json!({"requests": {"cpu": "1"}}));
    assert!(sent.get("conditions").is_none());
}

#[test]
fn conditions_of_a_provider_reach_the_pod_and_go_when_it_does_not_report_them() {
    let scheduled = "multicluster.virtual-kubelet.io/Scheduled";
    let said = report(json!({"phase": "Pending", "conditions": [
        {"type": scheduled, "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"},
        {"type": scheduled, "status": "True"},
        {"type": "virtual-kubelet.io/Quota", "status": "Unknown"},
        {"type": "example.com/Foreign", "status": "True"},
        {"type": "notvirtual-kubelet.io/Foreign", "status": "True"},
        {"type": "PodScheduledElsewhere", "status": "True"},
    ]}));
    // Of another controller, and of placement.
    let foreign = json!({"type": "example.com/Gate", "status": "True"});
    let placed = json!({"type": "multicluster.virtual-kubelet.io/Placed", "status": "True"});
    let composed = compose(&web("Always", json!({"conditions": [foreign]})), &said, &context());
    assert_eq!(composed.refused, Vec::<String>::new());
    let status = composed.status;
    let kinds: Vec<&str> = status.conditions.iter().flatten().map(|one| one.type_.as_str()).collect();
    assert_eq!(kinds[4..], [scheduled, "virtual-kubelet.io/Quota"], "{kinds:?}");
    let told = find(&status, scheduled);
    assert_eq!((told.status.as_str(), told.reason.as_deref()), ("False", Some("Unschedulable")));
    assert!(told.last_transition_time.is_some() && told.observed_generation == Some(3));

    let mut there = json!(status);
    there["conditions"].as_array_mut().expect("a list").extend([foreign, placed]);
    let stored = web("Always", there);
    assert_eq!(digest(&compose(&stored, &said, &context()).status), digest(&status), "once is enough");
    let silent = report(json!({"phase": "Pending"}));
    let next = compose(&stored, &silent, &context()).status;
    assert_ne!(digest(&next), digest(stored.status.as_ref().expect("a status")));
    let sent = patch(&next, stored.status.as_ref());
    let gone: Vec<&Value> = sent["status"]["conditions"].as_array().expect("a list").iter().skip(4).collect();
    let delete = |kind: &str| json!({"$patch": "delete", "type": kind});
    assert_eq!(gone, [&delete(scheduled), &delete("virtual-kubelet.io/Quota")]);
}

#[test]
fn a_condition_that_the_server_would_refuse_is_left_out_and_named() {
    for (kind, status) in [
        ("virtual-kubelet.io/", "True"),
        ("a.virtual-kubelet.io/a/b", "True"),
        ("A.virtual-kubelet.io/Scheduled", "True"),
        (".virtual-kubelet.io/Scheduled", "True"),
        ("virtual-kubelet.io/-x", "True"),
        ("virtual-kubelet.io/Scheduled", "Maybe"),
    ] {
        let said = report(json!({"phase": "Pending", "conditions": [{"type": kind, "status": status}]}));
        let composed = compose(&web("Always", json!({})), &said, &context());
        assert_eq!(composed.refused.len(), 1, "{kind}: {:?}", composed.refused);
        assert_eq!(composed.status.conditions.map(|all| all.len()), Some(4), "{kind}");
    }
}

#[test]
fn that_a_pod_is_about_to_be_ended_is_said_once_and_never_taken_back() {
    let target = "DisruptionTarget";
    let said = |conditions: Value| report(json!({"phase": "Running", "conditions": conditions}));
    let sent = |there: &Pod, reported: &PodStatus| {
        let status = compose(there, reported, &context()).status;
        let same = digest(&status) == digest(there.status.as_ref().expect("a status"));
        let body = patch(&status, there.status.as_ref());
        let all = body["status"]["conditions"].as_array().expect("a list").clone();
        (all.into_iter().find(|one| one["type"] == target), same)
    };
    let drained = said(json!([{"type": target, "status": "True", "reason": "EvictionByEvictionAPI"}]));
    let before = compose(&web("Always", json!({})), &said(json!([])), &context()).status;
    let before = web("Always", json!(before));
    let (told, _) = sent(&before, &drained);
    assert_eq!(told.expect("news")["reason"], "EvictionByEvictionAPI");
    let no = said(json!([{"type": target, "status": "False"}]));
    assert_eq!(sent(&before, &no), (None, true), "what is not so was never said by anybody");

    // From here on it is known, and whoever said it keeps his words.
    let mut known = json!(before.status);
    let words = json!({"type": target, "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": "2026-01-01T00:00:01Z"});
    known["conditions"].as_array_mut().expect("a list").push(words);
    let known = web("Always", known);
    for reported in [said(json!([])), drained, no] {
        assert_eq!(
            sent(&known, &reported),
            (None, true),
            "neither sent nor taken out, nor a reason to write"
        );
    }
}

#[test]
fn a_patch_publishes_words_and_takes_them_back() {
    let words: MetadataChanges = [("a".to_owned(), Some("1".to_owned())), ("b".to_owned(), None)].into();
    let patch = StatusPatch::new("u1".into(), PodStatus::default(), None, &words, &MetadataChanges::new());
    let sent = serde_json::to_value(patch).expect("a patch");
    assert_eq!(sent["metadata"], json!({"uid": "u1", "annotations": {"a": "1", "b": null}}));
}
