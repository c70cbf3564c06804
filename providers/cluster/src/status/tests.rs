//! Which parts of a lower status are reported in the upper cluster.

mod composition;
mod lifecycle;
mod properties;

use serde_json::{Value, json};

use super::*;
use crate::names;

pub(super) fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

/// The upper pod, with this status.
#[expect(clippy::needless_pass_by_value, reason = "reads better")]
pub(super) fn upper(status: Value) -> Pod {
    pod(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {
            "nodeName": "vk-node",
            "initContainers": [{"name": "setup", "image": "setup:1"}],
            "containers": [{
                "name": "app", "image": "app:1",
                "resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
        },
        "status": status,
    }))
}

/// The lower pod, with this status.
#[expect(clippy::needless_pass_by_value, reason = "reads better")]
pub(super) fn lower(status: Value) -> Pod {
    pod(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "l1"},
        "spec": {"nodeName": "worker-1", "containers": [{"name": "app"}, {"name": "istio-proxy"}]},
        "status": status,
    }))
}

pub(super) fn running(name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "started": true,
           "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}})
}

pub(super) fn ended(name: &str, code: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
           "state": {"terminated": {"exitCode": code, "reason": "Completed"}}})
}

fn up(status: Value) -> PodStatus {
    upper_status(&lower(status), &upper(json!({})), 0)
}

fn names(list: Option<&Vec<ContainerStatus>>) -> Vec<&str> {
    list.into_iter().flatten().map(|one| one.name.as_str()).collect()
}

pub(super) fn condition<'a>(
    status: &'a PodStatus,
    kind: &str,
) -> Option<(&'a str, Option<&'a str>, Option<&'a str>)> {
    let found = status.conditions.iter().flatten().find(|one| one.type_ == kind)?;
    Some((found.status.as_str(), found.reason.as_deref(), found.message.as_deref()))
}

#[test]
fn the_status_of_a_running_pod_is_reported() {
    let status = up(json!({
        "phase": "Running", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z",
        "hostIP": "192.168.7.7", "hostIPs": [{"ip": "192.168.7.7"}],
        "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}],
        "conditions": [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [running("app")],
        "initContainerStatuses": [ended("setup", 0)],
    }));
    let expected = json!({
        "phase": "Running", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z",
        "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}],
        "conditions": [{"type": "ContainersReady", "status": "True"}],
        "containerStatuses": [running("app")],
        "initContainerStatuses": [ended("setup", 0)],
    });
    assert_eq!(status, serde_json::from_value(expected).unwrap(), "without the address of the lower machine");
}

#[test]
fn internals_of_the_lower_cluster_are_not_reported() {
    let status = up(json!({
        "phase": "Running", "hostIP": "192.168.7.7", "hostIPs": [{"ip": "192.168.7.7"}], "nominatedNodeName": "worker-2",
        "observedGeneration": 7, "resize": "InProgress", "resourceClaimStatuses": [{"name": "gpu"}],
        "containerStatuses": [running("app")],
    }));
    let only = json!({"phase": "Running", "containerStatuses": [running("app")]});
    assert_eq!(status, serde_json::from_value(only).unwrap());
}

#[test]
fn injected_containers_are_not_reported() {
    let status = up(json!({
        "phase": "Running",
        "containerStatuses": [running("istio-proxy"), running("app"), running("app")],
        "initContainerStatuses": [ended("istio-init", 0), ended("setup", 0)],
        "ephemeralContainerStatuses": [running("lower-debugger")],
    }));
    assert_eq!(names(status.container_statuses.as_ref()), ["app"], "and none twice");
    assert_eq!(names(status.init_container_statuses.as_ref()), ["setup"]);
    assert_eq!(status.ephemeral_container_statuses, None);
}

#[test]
fn an_injected_container_can_make_the_pod_unready() {
    let mut proxy = running("istio-proxy");
    proxy["ready"] = json!(false);
    let words = "containers with unready status: [istio-proxy]";
    let status = up(json!({
        "phase": "Running", "containerStatuses": [running("app"), proxy],
        "conditions": [{"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady", "message": words}],
    }));
    let ready = condition(&status, "ContainersReady");
    assert_eq!(ready, Some(("False", Some("ContainersNotReady"), Some(words))), "the words name it");
    assert!(status.container_statuses.unwrap()[0].ready);
    let job = up(json!({"phase": "Running", "containerStatuses": [ended("app", 0), running("istio-proxy")]}));
    assert_eq!(job.phase.as_deref(), Some("Running"), "the phase is the lower pod's");
}

#[test]
fn ephemeral_containers_of_the_upper_pod_are_reported() {
    let mut above = upper(json!({}));
    above.spec.as_mut().unwrap().ephemeral_containers =
        serde_json::from_value(json!([{"name": "debugger", "image": "busybox"}])).unwrap();
    let mut debugger = running("debugger");
    debugger["allocatedResourcesStatus"] = json!([{"name": "example.com/gpu"}]);
    let below = json!({"phase": "Running", "ephemeralContainerStatuses": [debugger]});
    let status = upper_status(&lower(below), &above, 3);
    let shown = &status.ephemeral_container_statuses.unwrap()[0];
    assert_eq!((shown.name.as_str(), shown.restart_count), ("debugger", 0), "it is never started again");
    assert_eq!(shown.allocated_resources_status, None, "the API server refuses it");
}

#[test]
fn only_mounts_and_devices_of_the_upper_pod_are_reported() {
    let mut app = running("app");
    app["volumeMounts"] = json!([
        {"name": "data", "mountPath": "/data", "readOnly": true},
        {"name": "istio-token", "mountPath": "/var/run/secrets/tokens"},
        {"name": "data", "mountPath": "/elsewhere"},
    ]);
    app["allocatedResourcesStatus"] = json!([
        {"name": "example.com/gpu", "resources": [{"resourceID": "0", "health": "Unhealthy"}]},
        {"name": "example.com/injected"}, {"name": "claim:x"},
    ]);
    app["allocatedResources"] = json!({"cpu": "2"});
    app["resources"] = json!({"requests": {"cpu": "2"}});
    let status = up(json!({"phase": "Running", "qosClass": "Burstable", "containerStatuses": [app]}));
    let shown = json!(status.container_statuses.unwrap()[0]);
    assert_eq!(shown["volumeMounts"], json!([{"name": "data", "mountPath": "/data", "readOnly": true}]));
    assert_eq!(shown["allocatedResourcesStatus"].as_array().unwrap().len(), 1);
    assert_eq!(
        shown["allocatedResources"]["cpu"], "2",
        "what the kubelet below has given, in the middle of a resize, too"
    );
}

#[test]
fn a_report_is_complete_only_with_container_statuses() {
    let class = |status: Value| up(status).qos_class;
    let stored = json!({"phase": "Pending", "qosClass": "Burstable"});
    assert_eq!(class(stored), None, "the API server writes the class when it stores the pod");
    let refused = json!({"phase": "Failed", "reason": "NodeAffinity", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z"});
    assert_eq!(class(refused), None, "conditions of an earlier lower pod would stay as they are");
    let told = json!({"phase": "Running", "qosClass": "Burstable", "containerStatuses": [running("app")]});
    assert_eq!(class(told).as_deref(), Some("Burstable"));
    let unknown = json!({"phase": "Running", "containerStatuses": [running("app")]});
    assert_eq!(class(unknown), None, "never invented");
}

#[test]
fn conditions_of_the_lower_clusters_controllers_stay_there() {
    let one = |kind: &str| json!({"type": kind, "status": "True", "observedGeneration": 9, "lastProbeTime": "2026-01-01T00:00:00Z"});
    let kept = [
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "AllContainersRestarting",
        "PodResizePending",
        "PodResizeInProgress",
        "DisruptionTarget",
    ];
    let dropped =
        ["Ready", "PodScheduled", "target-health.elbv2.k8s.aws/x", "example.com/gate", names::SCHEDULED];
    let all: Vec<Value> = kept.iter().chain(&dropped).map(|kind| one(kind)).collect();
    let status = up(json!({"phase": "Running", "conditions": all}));
    let passed: Vec<&str> = status.conditions.iter().flatten().map(|one| one.type_.as_str()).collect();
    assert_eq!(passed, kept);
    let alien = |one: &k8s_openapi::api::core::v1::PodCondition| {
        one.observed_generation.or_else(|| one.last_probe_time.as_ref().map(|_| 0))
    };
    assert_eq!(status.conditions.iter().flatten().find_map(alien), None, "the generation is the lower pod's");
    let odd = up(json!({"phase": "Running", "conditions": [{"type": "Initialized", "status": "Perhaps"}]}));
    assert_eq!(odd.conditions, None);
}

#[test]
fn the_disruption_target_condition_is_reported() {
    let status = up(
        json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on memory"},
        ]}),
    );
    assert_eq!(
        condition(&status, "DisruptionTarget"),
        Some(("True", Some("TerminationByKubelet"), Some("low on memory")))
    );
    assert_eq!(
        (status.reason.as_deref(), status.message.as_deref()),
        (Some("Evicted"), Some("low on memory"))
    );
}

#[test]
fn the_lower_scheduler_has_a_condition_of_its_own() {
    let waiting = pod(
        json!({"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}}),
    );
    let status = upper_status(&waiting, &upper(json!({})), 0);
    let told = Some(("False", Some("Unschedulable"), Some("0/3 nodes are available")));
    assert_eq!(condition(&status, names::SCHEDULED), told);
    assert_eq!(condition(&status, "PodScheduled"), None, "the upper scheduler's word stands");
    assert_eq!(
        status.conditions.as_ref().unwrap()[0].last_transition_time,
        scheduling(&waiting).unwrap().last_transition_time
    );
    assert!(scheduling(&waiting).unwrap().last_transition_time.is_some(), "since when it waits");
    let containers = status.container_statuses.unwrap();
    let why = containers[0].state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(
        (why.reason.as_deref(), why.message.as_deref()),
        (Some("LowerUnschedulable"), Some("0/3 nodes are available")),
        "kubectl shows it"
    );

    let there = json!({"phase": "Pending", "conditions": status.conditions});
    let found =
        lower(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}));
    assert_eq!(scheduling(&found).unwrap().status, "True");
    let after = upper_status(&found, &upper(there), 0);
    assert_eq!(
        condition(&after, names::SCHEDULED),
        Some(("True", None, None)),
        "it has waited, and waits no more"
    );
    let at_once = upper_status(&found, &upper(json!({})), 0);
    assert_eq!(condition(&at_once, names::SCHEDULED), None, "a pod that never waited says nothing");

    let mut late = waiting;
    late.spec.as_mut().unwrap().node_name = Some("worker-1".to_owned());
    assert_eq!(scheduling(&late).unwrap().status, "True", "a node is a node, whatever was said before");
    late.status = None;
    assert_eq!(scheduling(&late).unwrap().status, "True");
    late.spec.as_mut().unwrap().node_name = None;
    assert_eq!(scheduling(&late), None);
}

#[test]
fn texts_of_the_lower_cluster_are_truncated() {
    let long = "x".repeat(100_000);
    let mut app = ended("app", 1);
    app["image"] = json!(long);
    app["imageID"] = json!(long);
    app["containerID"] = json!(long);
    app["state"]["terminated"]["message"] = json!(long);
    app["state"]["terminated"]["reason"] = json!(long);
    app["lastState"] = json!({"waiting": {"reason": long, "message": long}});
    let status = up(json!({
        "phase": "Failed", "reason": long, "message": long, "containerStatuses": [app],
        "conditions": [{"type": "ContainersReady", "status": "False", "reason": long, "message": long}],
    }));
    let size = json!(status).to_string().len();
    assert!(size < 21_000, "four messages, four reasons, three names: {size}");
    let last_words = "y".repeat(4096);
    let mut app = ended("app", 1);
    app["state"]["terminated"]["message"] = json!(last_words);
    let kept = up(json!({"phase": "Failed", "containerStatuses": [app]}));
    assert!(json!(kept).to_string().contains(&last_words), "as much as a kubelet lets them be");
}
