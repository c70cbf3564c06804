//! Compares plans with the decisions of a kubelet 1.36.4 (its `computePodActions`) in random situations.
//!
//! A line of `kubelet.txt`: the pod's policy; init containers; regular containers; ephemeral containers; the runtime's records, oldest
//! first; results of probes of the newest record; the sandbox; the decision of the kubelet. A container is `[+]name[/policy]` with `:S` and
//! `:L` for a startup and a liveness probe, `:C` for a changed image, and `:R42` and `:A42` for a rule that restarts it, or all containers,
//! after that exit code. `reset` lists the containers that are removed before all are restarted. Stopped containers have the kubelet's
//! message and reason, in the order of the ids.

use k8s_openapi::api::core::v1::{Container as Spec, EphemeralContainer, Probe};

use super::{Case, NOW, case, sandbox};
use crate::{
    plan::{SandboxPlan, StopContainer, StopReason},
    probe::result::{ProbeKind, ProbeResult},
    snapshot::SandboxState,
};

const ANSWERS: &str = include_str!("kubelet.txt");

#[test]
fn a_kubelet_decides_the_same() {
    let mut lines = 0;
    let mut others = Vec::new();
    for line in ANSWERS.lines() {
        let fields: Vec<_> = line.split('|').map(str::trim).collect();
        let [policy, inits, regular, ephemeral, records, probe_results, sandbox, answer] = fields[..] else {
            panic!("{line}")
        };
        let ours = summary(&input(policy, [inits, regular, ephemeral], records, probe_results, sandbox));
        if ours != answer {
            others.push(format!("{line}\n    and we: {ours}"));
        }
        lines += 1;
    }
    assert!(others.is_empty(), "{} others:\n{}", others.len(), others.join("\n"));
    assert!(lines > 500, "{lines} lines");
}

fn input(policy: &str, containers: [&str; 3], records: &str, probe_results: &str, state: &str) -> Case {
    let mut case = case(policy, "", "", "");
    let [inits, regular, ephemeral] = containers;
    case.spec().init_containers = Some(inits.split_whitespace().map(container).collect());
    case.spec().containers = regular.split_whitespace().map(container).collect();
    let ephemeral = ephemeral.split_whitespace();
    let ephemeral =
        ephemeral.map(|name| EphemeralContainer { name: name.to_owned(), ..EphemeralContainer::default() });
    case.spec().ephemeral_containers = Some(ephemeral.collect());
    match state {
        "ready" => {}
        "dead" => case.snapshot.sandboxes[0].state = SandboxState::NotReady,
        "noip" => case.snapshot.sandboxes[0].ips.clear(),
        "host" => case.spec().host_network = Some(true),
        "two" => case.snapshot.sandboxes.insert(0, sandbox("s1", 4, NOW - 950)),
        "none" => case.snapshot.sandboxes.clear(),
        other => panic!("{other}"),
    }
    for (age, record) in records.split_whitespace().enumerate() {
        let out_of_memory = record.strip_suffix("oom");
        case.record(out_of_memory.unwrap_or(record), "s0", NOW - 900 + i64::try_from(age).unwrap());
        if out_of_memory.is_some() {
            "OOMKilled".clone_into(&mut case.snapshot.containers[0].reason);
        }
    }
    for result in probe_results.split_whitespace() {
        let (probe, result) = result.split_once('=').unwrap();
        let (name, kind) = probe.split_once('.').unwrap();
        let kind = if kind == "S" { ProbeKind::Startup } else { ProbeKind::Liveness };
        let result = match result {
            "success" => ProbeResult::Success,
            "failure" => ProbeResult::Failure,
            _ => ProbeResult::Unknown,
        };
        let id = case.snapshot.newest(name).unwrap().id.clone();
        case.probe_results.set(&id, kind, result);
    }
    case
}

fn container(token: &str) -> Spec {
    let mut flags = token.split(':');
    let whole = flags.next().unwrap();
    let (name, policy) = whole.split_once('/').unwrap_or((whole, ""));
    let mut spec = super::spec(name);
    if !policy.is_empty() {
        spec.restart_policy = Some(policy.to_owned());
    }
    let mut case = case("Always", "", "", "");
    case.spec().containers = vec![spec];
    for flag in flags {
        let spec = &mut case.spec().containers[0];
        match flag {
            "S" => spec.startup_probe = Some(Probe::default()),
            "L" => spec.liveness_probe = Some(Probe::default()),
            "C" => spec.image = Some("registry/image:2".to_owned()),
            "R42" | "A42" => {
                let name = spec.name.clone();
                let action = if flag == "R42" { "Restart" } else { "RestartAllContainers" };
                case = case.rule(&name, action, "In", &[42]);
            }
            other => panic!("{other}"),
        }
    }
    case.spec().containers.remove(0)
}

fn summary(case: &Case) -> String {
    let plan = case.plan();
    let mut words = vec![match &plan.sandbox {
        SandboxPlan::Keep(id) => format!("keep:{id}"),
        SandboxPlan::Create { attempt, replaces: None } => format!("create:{attempt}"),
        SandboxPlan::Create { attempt, replaces: Some(id) } => format!("create:{attempt}-for-{id}"),
        SandboxPlan::None => "over".to_owned(),
    }];
    if plan.remove.iter().any(|remove| remove.keep_log) {
        words.extend(plan.remove.iter().map(|remove| format!("reset:{}", remove.id)));
        return words.join(" ");
    }
    let mut stops: Vec<_> = plan.stop.iter().map(stop).collect();
    stops.sort();
    words.extend(stops);
    words.extend(plan.start.iter().map(|start| format!("start:{}", start.name)));
    words.join(" ")
}

fn stop(stop: &StopContainer) -> String {
    let reason = match stop.reason {
        StopReason::Liveness => "LivenessProbe",
        StopReason::Startup => "StartupProbe",
        StopReason::Changed => "",
        StopReason::Unknown => "Unknown",
        other => panic!("{other:?}"),
    };
    format!("stop:{}({}; {reason})", stop.id, stop.message)
}
