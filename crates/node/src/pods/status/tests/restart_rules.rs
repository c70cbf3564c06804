//! Containers that run again, by the rule of the API server (`ValidatePodStatusUpdate` of Kubernetes 1.36).

use super::*;

/// A pod whose container `a` has a restart rule for exit code 42, beside `b`, which has none.
fn ruled(action: &str, status: Value) -> Pod {
    let mut pod = web("Never", status);
    let spec = pod.spec.as_mut().expect("a spec");
    let rule = json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
    spec.containers[1].restart_policy = Some("Never".to_owned());
    spec.containers[1].restart_policy_rules = serde_json::from_value(rule).expect("rules");
    pod
}

fn ended(name: &str, code: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
           "state": {"terminated": {"exitCode": code}}})
}

/// What is refused of a report that container `name` runs after it ended with this code.
fn refused(action: &str, name: &str, code: i32) -> Vec<String> {
    let there = json!({"phase": "Running", "containerStatuses": [ended(name, code)]});
    let again = report(json!({"phase": "Running", "containerStatuses": [running(name)]}));
    let composed = compose(&ruled(action, there), &again, &context());
    let now = composed.status.container_statuses.expect("statuses");
    let now = now.iter().find(|one| one.name == name).and_then(|one| one.state.as_ref());
    let runs = now.is_some_and(|state| state.running.is_some());
    assert_eq!(runs, composed.refused.is_empty(), "{action} {name} {code}");
    composed.refused
}

#[test]
fn a_restart_rule_lets_a_container_of_a_pod_that_never_restarts_run_again() {
    assert_eq!(refused("Restart", "a", 42), Vec::<String>::new());
    assert_eq!(refused("Restart", "a", 1).len(), 1, "the rule is about another exit code");
    assert_eq!(refused("Restart", "b", 42).len(), 1, "the rule is another container's");
}

#[test]
fn a_rule_that_restarts_all_containers_lets_all_of_them_run_again_after_any_exit() {
    for (name, code) in [("a", 42), ("a", 0), ("b", 137), ("b", 0)] {
        assert_eq!(refused("RestartAllContainers", name, code), Vec::<String>::new(), "{name} {code}");
    }
}

#[test]
fn a_debug_container_never_runs_again() {
    let there = json!({"phase": "Running", "ephemeralContainerStatuses": [ended("debug", 0)]});
    let mut pod = ruled("RestartAllContainers", there);
    let debug = serde_json::from_value(json!([{"name": "debug"}])).expect("containers");
    pod.spec.as_mut().expect("a spec").ephemeral_containers = debug;
    let again = report(json!({"phase": "Running", "ephemeralContainerStatuses": [running("debug")]}));
    assert_eq!(compose(&pod, &again, &context()).refused.len(), 1);
}

#[test]
fn a_pod_whose_containers_will_run_again_has_not_ended() {
    let phase = |action: &str, codes: [i32; 2]| {
        let said = report(json!({"containerStatuses": [ended("a", codes[0]), ended("b", codes[1])]}));
        compose(&ruled(action, json!({"phase": "Running"})), &said, &context()).status.phase.expect("a phase")
    };
    assert_eq!(phase("Restart", [42, 1]), "Running");
    assert_eq!(phase("Restart", [1, 0]), "Failed");
    assert_eq!(phase("Restart", [0, 0]), "Succeeded");
    assert_eq!(phase("RestartAllContainers", [42, 0]), "Running");
}
