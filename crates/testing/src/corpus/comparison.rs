//! Compares observations of two runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Observation;

/// Fields with a time.
const TIMES: [&str; 6] =
    ["startedAt", "finishedAt", "startTime", "lastTransitionTime", "lastProbeTime", "creationTimestamp"];
/// The memory limit that a kubelet reads from the cgroup of a pod without a limit.
const UNLIMITED: &str = "9007199254740988Ki";
/// Delays of a crash loop, in seconds.
const PAUSES: [u32; 6] = [10, 20, 40, 80, 160, 300];
/// Fields with an address.
const ADDRESSES: [&str; 3] = ["podIP", "hostIP", "ip"];

/// The differences of an observation from the recorded one, apart from ids, times, addresses, namespace names and digests.
///
/// Events arrive sooner or later: all recorded reasons must exist, and no reason may exist that is not recorded by the `end`, except for the reasons
/// in `may`.
///
/// At most `addresses` addresses of a pod are compared.
pub fn differences(
    recorded: &Observation,
    end: &Observation,
    seen: &Observation,
    may: &[&str],
    addresses: usize,
) -> Vec<String> {
    let mut found = Vec::new();
    if recorded.gone != seen.gone {
        found.push(format!("gone: {} and not {}", seen.gone, recorded.gone));
    }
    found.extend(compare("status", &status(recorded, addresses), &status(seen, addresses)));
    let must = |reason: &&String| !may.contains(&reason.as_str());
    let missing: Vec<&String> =
        recorded.events.keys().filter(|reason| !seen.events.contains_key(*reason)).filter(must).collect();
    let more: Vec<&String> = seen
        .events
        .keys()
        .filter(|reason| !recorded.events.contains_key(*reason) && !end.events.contains_key(*reason))
        .filter(must)
        .collect();
    if !missing.is_empty() || !more.is_empty() {
        found.push(format!("events: missing {missing:?}, more {more:?}"));
    }
    found.extend(compare("logs", &logs(recorded), &logs(seen)));
    found
}

fn logs(observation: &Observation) -> Value {
    let replacements = replacements(observation);
    observation.logs.iter().map(|(name, text)| (name.clone(), json!(replace(text, &replacements)))).collect()
}

fn status(observation: &Observation, addresses: usize) -> Value {
    let replacements = replacements(observation);
    let mut status = observation.pod["status"].clone();
    strip("status", &mut status, &replacements);
    // Read from cgroups, which are removed at some time after the pod has ended.
    if let Some(fields) = status.as_object_mut().filter(|status| is_over(status)) {
        fields.remove("resources");
    }
    // The number of node addresses does not depend on the pod.
    let of_the_pod = if observation.pod["spec"]["hostNetwork"] == true { 1 } else { addresses };
    for (list, compared) in [("hostIPs", 1), ("podIPs", of_the_pod)] {
        if let Some(addresses) = status.get_mut(list).and_then(Value::as_array_mut) {
            addresses.truncate(compared);
        }
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        status.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(without_turns);
    }
    // The last writer of a condition does not matter.
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.sort_by_key(|condition| condition["type"].to_string());
    }
    status
}

/// A later observation finds a crash-looping container some restarts further, and a kubelet on a busy host sometimes restarts a container that it
/// killed without a delay. So only the set of possible delays is compared.
fn without_turns(container: &mut Value) {
    let waiting = &container["state"]["waiting"];
    if waiting["reason"] != "CrashLoopBackOff" {
        return;
    }
    let message = waiting["message"].as_str().unwrap_or_default();
    let Some((pause, rest)) = message.strip_prefix("back-off ").and_then(|rest| rest.split_once(' ')) else {
        return;
    };
    if seconds(pause).is_some_and(|pause| PAUSES.contains(&pause)) {
        container["state"]["waiting"]["message"] = json!(format!("back-off {{pause}} {rest}"));
        container["restartCount"] = json!("{restarts}");
    }
}

/// `1m20s`, `5m0s`, `10s`.
fn seconds(pause: &str) -> Option<u32> {
    let (minutes, rest) = pause.split_once('m').unwrap_or(("0", pause));
    Some(minutes.parse::<u32>().ok()? * 60 + rest.strip_suffix('s')?.parse::<u32>().ok()?)
}

fn is_over(status: &serde_json::Map<String, Value>) -> bool {
    ["Succeeded", "Failed"].iter().any(|phase| status.get("phase").is_some_and(|there| there == phase))
}

/// Replacements for the texts of a pod.
fn replacements(observation: &Observation) -> Vec<(String, &'static str)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (metadata, status) = (&observation.pod["metadata"], &observation.pod["status"]);
    let mut replacements =
        vec![(text(&metadata["uid"]), "{uid}"), (text(&metadata["namespace"]), "{namespace}")];
    for (list, word) in [("podIPs", "{pod IP}"), ("hostIPs", "{host IP}")] {
        for address in status[list].as_array().into_iter().flatten() {
            replacements.push((text(&address["ip"]), word));
        }
    }
    replacements.retain(|(text, _)| !text.is_empty());
    // Longer addresses first, because one may be a prefix of another.
    replacements.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    replacements
}

fn strip(key: &str, value: &mut Value, replacements: &[(String, &'static str)]) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                strip(name, value, replacements);
            }
            // An absent limit has several forms, one of them a very large number.
            let nothing = |value: &Value| {
                value.is_null()
                    || value == UNLIMITED
                    || value.as_object().is_some_and(serde_json::Map::is_empty)
            };
            fields.retain(|_, value| !nothing(value));
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| strip(key, element, replacements)),
        Value::String(text) => {
            if TIMES.contains(&key) {
                "{time}".clone_into(text);
            } else if ADDRESSES.contains(&key) {
                "{address}".clone_into(text);
            } else {
                *text = replace(text, replacements);
            }
        }
        _ => {}
    }
}

fn replace(text: &str, replacements: &[(String, &'static str)]) -> String {
    let text = replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    without_sums(&without_others(&text))
}

/// The resources that other pods use: `used: 450, capacity: ...`.
fn without_others(text: &str) -> String {
    let Some((before, after)) = text.split_once(", used: ") else { return text.to_owned() };
    let rest = after.trim_start_matches(|letter: char| letter.is_ascii_digit());
    format!("{before}, used: {{others}}{rest}")
}

/// Ids and digests are 64 hexadecimal digits.
fn without_sums(text: &str) -> String {
    let mut out = String::new();
    let mut run = String::new();
    for letter in text.chars().chain([' ']) {
        if matches!(letter, '0'..='9' | 'a'..='f') {
            run.push(letter);
            continue;
        }
        out.push_str(if run.len() == 64 { "{sum}" } else { &run });
        run.clear();
        out.push(letter);
    }
    out.pop();
    out
}

/// The differences between two values, each with its path.
pub fn compare(path: &str, recorded: &Value, seen: &Value) -> Vec<String> {
    let mut found = Vec::new();
    descend(path, recorded, seen, &mut found);
    found
}

fn descend(path: &str, recorded: &Value, seen: &Value, found: &mut Vec<String>) {
    match (recorded, seen) {
        (Value::Object(there), Value::Object(here)) => {
            let names: BTreeSet<&String> = there.keys().chain(here.keys()).collect();
            for name in names {
                let side =
                    |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                descend(&format!("{path}.{name}"), &side(there), &side(here), found);
            }
        }
        (Value::Array(there), Value::Array(here)) if there.len() == here.len() => {
            for (number, (there, here)) in there.iter().zip(here).enumerate() {
                let name = ["name", "type"].iter().find_map(|key| there.get(*key)?.as_str());
                let name = name.map_or_else(|| number.to_string(), str::to_owned);
                descend(&format!("{path}[{name}]"), there, here, found);
            }
        }
        (there, here) if there != here => found.push(format!("{path}: {here} and not {there}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(uid: &str, ip: &str, message: &str) -> Observation {
        let pod = json!({
            "metadata": {"uid": uid, "namespace": "case-1"},
            "status": {"podIPs": [{"ip": ip}], "startTime": uid, "message": message},
        });
        Observation { pod, ..Observation::default() }
    }

    #[test]
    fn what_differs_from_run_to_run_is_no_difference() {
        let sum = "0123456789abcdef".repeat(4);
        let one = observation("u1", "10.1.0.1", &format!("u1 at 10.1.0.1: {sum}"));
        let other = observation("u2", "10.2.0.12", &format!("u2 at 10.2.0.12: {}", sum.replace('0', "9")));
        assert_eq!(differences(&one, &one, &other, &[], 2), Vec::<String>::new());
    }

    #[test]
    fn a_crash_loop_is_the_same_in_all_its_turns() {
        let turn = |restarts: u64, pause: &str| {
            let waiting =
                json!({"reason": "CrashLoopBackOff", "message": format!("back-off {pause} restarting")});
            let container = json!({"name": "a", "restartCount": restarts, "state": {"waiting": waiting}});
            let pod = json!({"metadata": {}, "status": {"containerStatuses": [container]}});
            Observation { pod, ..Observation::default() }
        };
        let differs =
            |one: &Observation, other: &Observation| !differences(one, one, other, &[], 2).is_empty();
        assert!(!differs(&turn(3, "20s"), &turn(5, "1m20s")));
        assert!(differs(&turn(3, "20s"), &turn(3, "30s")), "a kubelet does not wait so long");
        assert!(differs(&turn(3, "20s"), &turn(3, "soon")));
    }

    #[test]
    fn everything_else_is() {
        let (one, mut other) = (observation("u", "10.1.0.1", "a"), observation("u", "10.1.0.1", "b"));
        other.events.insert("Killing".to_owned(), BTreeSet::new());
        let found = differences(&one, &one, &other, &[], 2);
        assert_eq!(found, [r#"status.message: "b" and not "a""#, r#"events: missing [], more ["Killing"]"#]);
        assert_eq!(differences(&one, &other, &other, &[], 2), [r#"status.message: "b" and not "a""#]);
        for (recorded, seen) in [(&one, &other), (&other, &one)] {
            let found = differences(recorded, recorded, seen, &["Killing"], 2);
            assert!(matches!(found.as_slice(), [only] if only.starts_with("status.message: ")), "{found:?}");
        }
    }
}
