//! The phase, in the situations of the kubelet's own tests.

use super::*;
use crate::status::phase::phase;

/// A container's status from a short word: `run`, `started`, `0` (ended with that code), `wait`, `wait0` (waits, has ended with that code), `-` (not there).
fn container(name: &str, word: &str) -> Option<Value> {
    let ended = |code: &str| json!({"terminated": {"exitCode": code.parse::<i32>().expect("a code")}});
    let mut status = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0});
    match word {
        "-" => return None,
        "run" => status["state"] = json!({"running": {}}),
        "started" => {
            status["state"] = json!({"running": {}});
            status["started"] = json!(true);
        }
        "none" => status["state"] = json!({}),
        "wait" => status["state"] = json!({"waiting": {}}),
        word if word.starts_with("wait") => {
            status["state"] = json!({"waiting": {}});
            status["lastState"] = ended(&word["wait".len()..]);
        }
        code => status["state"] = ended(code),
    }
    Some(status)
}

/// The phase of a pod with init containers `x`, `y`, .. and regular containers `a`, `b`, ..; `sidecar` marks the first init container.
fn phase_of(
    policy: &str,
    inits: &[&str],
    sidecar: bool,
    regular: &[&str],
    terminated: bool,
    begun: bool,
) -> &'static str {
    let name = |first: u8, index: usize| char::from(first + u8::try_from(index).expect("few")).to_string();
    let spec = |first: u8, words: &[&str]| {
        (0..words.len())
            .map(|index| json!({"name": name(first, index), "restartPolicy": (sidecar && first == b'x' && index == 0).then_some("Always")}))
            .collect::<Vec<_>>()
    };
    let statuses = |first: u8, words: &[&str]| {
        words
            .iter()
            .enumerate()
            .filter_map(|(index, word)| container(&name(first, index), word))
            .collect::<Vec<_>>()
    };
    let pod = json!({"metadata": {}, "spec": {
        "restartPolicy": policy, "initContainers": spec(b'x', inits), "containers": spec(b'a', regular)}});
    let status =
        json!({"initContainerStatuses": statuses(b'x', inits), "containerStatuses": statuses(b'a', regular)});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    phase(&pod, &serde_json::from_value(status).expect("a status"), terminated, begun)
}

#[test]
fn regular_containers_alone() {
    let table: &[(&str, [&str; 2], bool, &str)] = &[
        ("Always", ["-", "-"], false, "Pending"),
        ("Always", ["run", "run"], false, "Running"),
        ("Always", ["0", "0"], false, "Running"),
        ("Always", ["0", "0"], true, "Succeeded"),
        ("Always", ["0", "1"], true, "Failed"),
        ("Always", ["run", "0"], false, "Running"),
        ("Always", ["run", "-"], false, "Pending"),
        ("Always", ["run", "none"], false, "Pending"),
        ("Always", ["run", "wait"], false, "Pending"),
        ("Always", ["run", "wait0"], false, "Running"),
        ("Always", ["wait1", "wait1"], false, "Running"),
        ("Never", ["run", "run"], false, "Running"),
        ("Never", ["0", "0"], false, "Succeeded"),
        ("Never", ["1", "1"], false, "Failed"),
        ("Never", ["0", "5"], false, "Failed"),
        ("Never", ["run", "1"], false, "Running"),
        ("Never", ["run", "-"], false, "Pending"),
        ("Never", ["run", "wait"], false, "Pending"),
        ("OnFailure", ["run", "run"], false, "Running"),
        ("OnFailure", ["0", "0"], false, "Succeeded"),
        ("OnFailure", ["1", "1"], false, "Running"),
        ("OnFailure", ["0", "1"], false, "Running"),
        ("OnFailure", ["0", "1"], true, "Failed"),
        ("OnFailure", ["run", "wait0"], false, "Running"),
        ("OnFailure", ["0", "wait1"], false, "Running"),
    ];
    for (policy, words, terminated, expected) in table {
        assert_eq!(
            phase_of(policy, &[], false, words, *terminated, false),
            *expected,
            "{policy} {words:?} terminated: {terminated}"
        );
    }
}

#[test]
fn init_containers_before_the_regular_ones() {
    let table: &[(&str, &str, [&str; 2], &str)] = &[
        ("Always", "-", ["-", "-"], "Pending"),
        ("Always", "run", ["wait", "wait"], "Pending"),
        ("Always", "1", ["wait", "wait"], "Pending"),
        ("Always", "wait0", ["wait", "wait"], "Pending"),
        ("Always", "wait1", ["wait", "wait"], "Pending"),
        ("Always", "wait", ["wait", "wait"], "Pending"),
        ("Always", "0", ["run", "run"], "Running"),
        ("Always", "run", ["run", "run"], "Pending"),
        ("Never", "run", ["wait", "wait"], "Pending"),
        ("Never", "9", ["wait", "wait"], "Failed"),
        ("Never", "wait9", ["wait", "wait"], "Failed"),
        ("Never", "wait0", ["wait", "wait"], "Pending"),
        ("Never", "0", ["0", "0"], "Succeeded"),
        ("OnFailure", "9", ["wait", "wait"], "Pending"),
    ];
    for (policy, init, words, expected) in table {
        assert_eq!(
            phase_of(policy, &[init], false, words, false, false),
            *expected,
            "{policy} {init} {words:?}"
        );
    }
}

/// Policy, sidecar, regular containers, terminated, begun, phase.
type Row = (&'static str, &'static str, [&'static str; 2], bool, bool, &'static str);

#[test]
fn sidecars_beside_the_regular_ones() {
    let table: &[Row] = &[
        ("Always", "run", ["wait", "wait"], false, false, "Pending"),
        ("Always", "0", ["wait", "wait"], false, false, "Pending"),
        ("Always", "wait1", ["wait", "wait"], false, false, "Pending"),
        ("Always", "started", ["run", "-"], false, true, "Pending"),
        ("Always", "started", ["run", "run"], false, true, "Running"),
        ("Always", "run", ["run", "run"], false, true, "Running"),
        ("Always", "run", ["run", "run"], false, false, "Pending"),
        ("Always", "0", ["run", "run"], false, true, "Running"),
        ("Always", "wait0", ["run", "run"], false, true, "Running"),
        ("Always", "1", ["0", "0"], true, true, "Succeeded"),
        ("Always", "0", ["0", "0"], true, true, "Succeeded"),
        ("Never", "started", ["0", "0"], false, true, "Running"),
        ("Never", "run", ["0", "0"], false, true, "Running"),
        ("Never", "0", ["0", "0"], false, true, "Succeeded"),
        ("Never", "1", ["0", "0"], false, true, "Succeeded"),
        ("Never", "wait1", ["0", "0"], false, true, "Succeeded"),
        ("Never", "0", ["0", "2"], false, true, "Failed"),
    ];
    for (policy, sidecar, words, terminated, begun, expected) in table {
        let found = phase_of(policy, &[sidecar], true, words, *terminated, *begun);
        assert_eq!(found, *expected, "{policy} {sidecar} {words:?} terminated: {terminated} begun: {begun}");
    }
}

#[test]
fn a_container_with_a_policy_of_its_own_follows_that() {
    let phase_with = |own: Value, code: i32| {
        let mut container = own;
        container["name"] = json!("a");
        let pod = json!({"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}});
        let status = json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code}}}]});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        phase(&pod, &serde_json::from_value(status).expect("a status"), false, true)
    };
    assert_eq!(phase_with(json!({"restartPolicy": "Never"}), 1), "Failed");
    assert_eq!(phase_with(json!({"restartPolicy": "OnFailure"}), 1), "Running");
    assert_eq!(phase_with(json!({"restartPolicy": "Always"}), 0), "Running");
    let ruled = json!({"restartPolicy": "Never", "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]});
    assert_eq!(phase_with(ruled.clone(), 42), "Running");
    assert_eq!(phase_with(ruled, 1), "Failed");
    let other = json!({"restartPolicy": "Never", "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [42]}}]});
    assert_eq!(phase_with(other.clone(), 42), "Failed");
    assert_eq!(phase_with(other, 1), "Running");
}
