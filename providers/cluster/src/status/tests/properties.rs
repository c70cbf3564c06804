//! Properties of the report for every lower pod.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{super::*, lower, upper};
use crate::names;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z]{1,8}", (4000usize..5000).prop_map(|length| "é".repeat(length))]
}

fn state() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"running": {"startedAt": "2026-01-01T00:00:05Z"}})),
        (text(), text()).prop_map(|(reason, message)| json!({"waiting": {"reason": reason, "message": message}})),
        (any::<i32>(), text(), text()).prop_map(
            |(code, reason, message)| json!({"terminated": {"exitCode": code, "reason": reason, "message": message}})
        ),
    ]
}

fn containers() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["app", "setup", "istio-proxy", "debugger"]);
    let one = (name, state(), state(), any::<i32>(), any::<bool>(), text());
    let build = |(name, state, last, count, ready, id): (_, Value, Value, i32, bool, String)| {
        json!({"name": name, "image": id, "imageID": id, "containerID": id, "ready": ready, "restartCount": count,
               "state": state, "lastState": last})
    };
    prop::collection::vec(one.prop_map(build), 0..4).prop_map(Value::Array)
}

fn conditions() -> impl Strategy<Value = Value> {
    let kinds = [
        "Ready",
        "ContainersReady",
        "PodScheduled",
        "Initialized",
        "DisruptionTarget",
        "example.com/gate",
        names::SCHEDULED,
    ];
    let status = prop::sample::select(vec!["True", "False", "Unknown", "Perhaps"]);
    let one = (prop::sample::select(kinds.to_vec()), status, text(), text());
    let build = |(kind, status, reason, message): (&str, &str, String, String)| json!({"type": kind, "status": status, "reason": reason, "message": message});
    prop::collection::vec(one.prop_map(build), 0..6).prop_map(Value::Array)
}

fn status() -> impl Strategy<Value = Value> {
    let phase = prop::sample::select(vec!["", "Pending", "Running", "Succeeded", "Failed", "Unknown"]);
    (phase, containers(), containers(), containers(), conditions(), text()).prop_map(
        |(phase, regular, init, ephemeral, conditions, words)| {
            json!({
                "phase": phase, "reason": words, "message": words, "qosClass": "Burstable", "hostIP": "192.168.7.7",
                "hostIPs": [{"ip": "192.168.7.7"}], "nominatedNodeName": "n", "podIP": "10.1.0.5", "conditions": conditions,
                "containerStatuses": regular, "initContainerStatuses": init, "ephemeralContainerStatuses": ephemeral,
            })
        },
    )
}

/// An upper pod with an earlier report.
fn above() -> impl Strategy<Value = Pod> {
    let earlier = (status(), 0..3)
        .prop_map(|(status, replaced)| upper_status(&lower(status), &upper(json!({})), replaced));
    earlier.prop_map(|status| upper(json!(status)))
}

fn longest(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(all) => all.iter().map(longest).max().unwrap_or(0),
        Value::Object(all) => all.values().map(longest).max().unwrap_or(0),
        _ => 0,
    }
}

fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}

proptest! {
    #[test]
    fn nothing_foreign_to_the_upper_pod_is_reported(below in status(), upper in above(), replaced in -1..4) {
        let status = upper_status(&lower(below), &upper, replaced);
        prop_assert!(status.container_statuses.iter().flatten().all(|one| one.name == "app"));
        prop_assert!(status.init_container_statuses.iter().flatten().all(|one| one.name == "setup"));
        prop_assert!(all(&status).count() <= 2, "none twice, and none that it does not have");
        prop_assert!(status.host_ip.is_none() && status.host_ips.is_none() && status.nominated_node_name.is_none());
        for condition in status.conditions.iter().flatten() {
            let foreign = ["Ready", "PodScheduled", "example.com/gate"].contains(&condition.type_.as_str());
            prop_assert!(!foreign && condition.status != "Perhaps", "{:?}", condition);
        }
        prop_assert!(longest(&json!(status)) <= MAX_MESSAGE);
        let restarts = all(&status).map(|one| one.restart_count).min().unwrap_or(i32::MAX);
        prop_assert!(restarts >= replaced.max(0));
    }

    #[test]
    fn an_unchanged_pod_has_the_same_report(below in status(), upper in above(), replaced in 0..4) {
        let first = upper_status(&lower(below.clone()), &upper, replaced);
        let mut written = upper.clone();
        // The core never takes back a terminal phase.
        let over = upper.status.filter(is_terminal).and_then(|status| status.phase);
        written.status = Some(PodStatus { phase: over.or_else(|| first.phase.clone()), ..first.clone() });
        prop_assert_eq!(upper_status(&lower(below), &written, replaced), first);
    }

    #[test]
    fn a_lost_pod_has_ended_for_good(below in status(), upper in above(), known in any::<bool>()) {
        let report = upper_status(&lower(below), &upper, 0);
        let last = known.then_some(&report);
        let status = failed_status(&upper, last, POD_DELETED, "gone");
        prop_assert!(is_terminal(&status));
        for state in all(&status).map(|one| one.state.as_ref().unwrap()) {
            prop_assert!(state.running.is_none(), "{:?}", state);
        }
        let live = |one: &&ContainerStatus| one.state.as_ref().unwrap().terminated.is_none();
        prop_assert!(all(&status).filter(live).all(|one| !one.ready));
        let was_over = upper.status.iter().chain(last).find(|status| is_terminal(status));
        let phase = was_over.map_or(Some("Failed"), |status| status.phase.as_deref());
        prop_assert_eq!(status.phase.as_deref(), phase);
        let written = Pod { status: Some(status.clone()), ..upper.clone() };
        prop_assert_eq!(failed_status(&written, Some(&status), NODE_LOST, "once more"), status, "it ends no other way");
    }
}
