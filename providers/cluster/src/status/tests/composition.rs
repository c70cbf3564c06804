//! The status that the core writes for our reports.

use serde_json::{Value, json};
use vk_node::pods::status::{ComposedStatus, StatusContext, all_ended, compose};

use super::{super::*, condition, ended, lower, running, upper};

fn composed(upper: &Pod, report: &PodStatus) -> ComposedStatus {
    let around = StatusContext {
        host_ips: vec!["192.0.2.1".to_owned()],
        now: "2026-01-01T00:00:10Z".parse().unwrap(),
        generation: Some(1),
        own_conditions: Vec::new(),
    };
    compose(upper, report, &around)
}

/// The upper pod after the core wrote its status for this report, without rejecting anything.
fn after(upper: &Pod, report: &PodStatus) -> Pod {
    let ComposedStatus { mut status, refused } = composed(upper, report);
    assert_eq!(refused, Vec::<String>::new());
    // The core does not write these.
    status.qos_class = Some("Burstable".to_owned());
    Pod { status: Some(status), ..upper.clone() }
}

fn ready(pod: &Pod) -> &str {
    condition(pod.status.as_ref().unwrap(), "Ready").unwrap().0
}

fn running_below() -> Value {
    json!({
        "phase": "Running", "qosClass": "Burstable", "hostIP": "10.0.0.7", "hostIPs": [{"ip": "10.0.0.7"}],
        "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}], "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [running("app"), running("istio-proxy")], "initContainerStatuses": [ended("setup", 0)],
        "conditions": [
            {"type": "PodReadyToStartContainers", "status": "True"}, {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"},
            {"type": "PodScheduled", "status": "True"}, {"type": "example.com/below", "status": "True"},
        ],
    })
}

fn pending() -> Pod {
    upper(
        json!({"phase": "Pending", "qosClass": "Burstable", "conditions": [{"type": "PodScheduled", "status": "True"}]}),
    )
}

#[test]
fn a_running_lower_pod_makes_a_running_upper_pod() {
    let below = lower(running_below());
    let first = after(&pending(), &upper_status(&below, &pending(), 0));
    let status = first.status.as_ref().unwrap();
    assert_eq!((status.phase.as_deref(), ready(&first)), (Some("Running"), "True"));
    assert_eq!((status.host_ip.as_deref(), status.pod_ip.as_deref()), (Some("192.0.2.1"), Some("10.1.0.5")));
    assert_eq!(condition(status, "PodScheduled"), None, "not written: what is there stays");
    assert_eq!(condition(status, "example.com/below"), None);
    let second = after(&first, &upper_status(&below, &first, 0));
    assert_eq!(second.status, first.status, "nothing new is nothing to write");
}

#[test]
fn a_readiness_gate_of_the_upper_pod_is_respected() {
    let mut gated = pending();
    gated.spec.as_mut().unwrap().readiness_gates =
        serde_json::from_value(json!([{"conditionType": "example.com/gate"}])).unwrap();
    let after = after(&gated, &upper_status(&lower(running_below()), &gated, 0));
    assert_eq!(ready(&after), "False");
}

#[test]
fn a_recreated_lower_pod_is_unready_until_it_runs() {
    let mut pod = after(&pending(), &upper_status(&lower(running_below()), &pending(), 0));
    let new = json!({"phase": "Pending", "qosClass": "Burstable"});
    pod = after(&pod, &upper_status(&lower(new), &pod, 1));
    assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(ready(&pod), "False", "Admiralty 7: it does not look as if it ran");
    let mut options = running_below();
    options["phase"] = json!("Pending");
    options["initContainerStatuses"] = json!([running("setup")]);
    options["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "PodInitializing"}});
    options["containerStatuses"][0]["ready"] = json!(false);
    options["conditions"] =
        json!([{"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"}]);
    pod = after(&pod, &upper_status(&lower(options), &pod, 1));
    assert_eq!(ready(&pod), "False");
    pod = after(&pod, &upper_status(&lower(running_below()), &pod, 1));
    assert_eq!(ready(&pod), "True");
    assert_eq!(pod.status.unwrap().container_statuses.unwrap()[0].restart_count, 1);
}

#[test]
fn a_lost_pod_has_failed_and_can_be_removed() {
    let report = upper_status(&lower(running_below()), &pending(), 0);
    let pod = after(&pending(), &report);
    for last in [Some(&report), None] {
        let report = failed_status(&pod, last, POD_DELETED, "somebody deleted it");
        assert!(all_ended(&report), "Liqo 598: it can be removed");
        let after = after(&pod, &report);
        let status = after.status.as_ref().unwrap();
        assert_eq!((status.phase.as_deref(), ready(&after)), (Some("Failed"), "False"));
        assert_eq!(status.reason.as_deref(), Some("LowerPodDeleted"));
        assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.5"));
    }
}

#[test]
fn liqo_3096_an_ended_pod_does_not_start_again() {
    let mut done = running_below();
    done["phase"] = json!("Succeeded");
    done["containerStatuses"] = json!([ended("app", 0)]);
    done["conditions"] = json!([{"type": "ContainersReady", "status": "False", "reason": "PodCompleted"}]);
    let pod = after(&pending(), &upper_status(&lower(done), &pending(), 0));
    let report = failed_status(&pod, None, POD_DELETED, "somebody deleted it");
    assert!(all_ended(&report));
    assert_eq!(after(&pod, &report).status, pod.status);
    let again = composed(&pod, &upper_status(&lower(json!({"phase": "Pending"})), &pod, 0));
    assert_eq!(again.status.phase.as_deref(), Some("Succeeded"), "even if the lower pod is recreated");
}

#[test]
fn a_pod_rejected_by_a_lower_kubelet_fails_with_its_message() {
    let refused = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "too much", "qosClass": "Burstable",
        "startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "PodScheduled", "status": "True"}]});
    let ran = after(&pending(), &upper_status(&lower(running_below()), &pending(), 0));
    for (before, replaced) in [(pending(), 0), (ran, 1)] {
        let pod = after(&before, &upper_status(&lower(refused.clone()), &before, replaced));
        let status = pod.status.as_ref().unwrap();
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
        assert_eq!(ready(&pod), "False", "also when an earlier lower pod was ready");
    }
}
