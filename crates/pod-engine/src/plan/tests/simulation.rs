//! A simulation that executes plans on a simulated runtime under random schedules: containers exit, probes fail, sandboxes die, calls fail
//! halfway, pods are deleted, images change, the runtime loses its state, the engine restarts.
//!
//! Invariants: at most one live instance of a name; nothing starts in a deleted or finished pod, nor in a sandbox that is not ready; init
//! containers have completed and sidecars have started in the same sandbox before later containers start; ephemeral containers are started
//! once; no log is written twice. When the events end, the pod converges, and then there are no more actions.

mod event;
mod simulated_runtime;

use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod, Probe,
};
use proptest::{option, prelude::*};

use self::{event::events, simulated_runtime::SimulatedRuntime};
use super::{at, container, pod, sandbox};
use crate::{
    Snapshot,
    plan::{CrashBackoffs, Garbage, PlanInput, SandboxPlan, compute_plan, find_garbage, stop_order},
    probe::result::ProbeResults,
    snapshot::{ContainerState, SandboxState},
};

fn specs(names: &'static str, sidecars: bool) -> impl Strategy<Value = Vec<Spec>> {
    let one =
        (any::<bool>(), any::<[bool; 2]>(), option::weighted(0.2, 0..3_usize), prop::bool::weighted(0.1));
    prop::collection::vec(one, usize::from(!sidecars)..4).prop_map(move |all| {
        all.into_iter()
            .zip(names.split(' '))
            .map(|((sidecar, [startup, liveness], policy, reset), name)| {
                let policy = policy.map(|policy| ["Always", "OnFailure", "Never"][policy]);
                let policy = if sidecars && sidecar {
                    Some("Always")
                } else {
                    policy.filter(|&policy| !sidecars || policy != "Always")
                };
                // Plain init containers have no probes.
                let probed = !sidecars || sidecar;
                let exit_codes =
                    ContainerRestartRuleOnExitCodes { operator: "In".to_owned(), values: Some(vec![42]) };
                let rule = ContainerRestartRule {
                    action: "RestartAllContainers".to_owned(),
                    exit_codes: Some(exit_codes),
                };
                Spec {
                    name: name.to_owned(),
                    image: Some("registry/image:1".to_owned()),
                    restart_policy: policy.map(str::to_owned),
                    restart_policy_rules: (reset && policy.is_some()).then(|| vec![rule]),
                    startup_probe: (probed && startup).then(Probe::default),
                    liveness_probe: (probed && liveness).then(Probe::default),
                    ..Spec::default()
                }
            })
            .collect()
    })
}

fn pods() -> impl Strategy<Value = Pod> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    (policy, specs("i j k", true), specs("a b c", false)).prop_map(|(policy, inits, regular)| {
        let mut pod = pod(policy, "", "");
        let spec = pod.spec.as_mut().unwrap();
        spec.init_containers = Some(inits);
        spec.containers = regular;
        pod
    })
}

/// Arbitrary runtime states, including unreachable ones.
fn snapshots() -> impl Strategy<Value = Snapshot> {
    let sandboxes = prop::collection::vec((any::<bool>(), any::<bool>(), 0..3_u32), 0..4);
    let states =
        [ContainerState::Created, ContainerState::Running, ContainerState::Exited, ContainerState::Unknown];
    let names = prop::sample::select(vec!["i", "j", "k", "a", "b", "c", "stranger"]);
    let one = (
        names,
        prop::sample::select(states.to_vec()),
        0..4_usize,
        prop_oneof![Just(0), Just(1), Just(42)],
        -5..5_i64,
    );
    (sandboxes, prop::collection::vec(one, 0..12)).prop_map(|(sandboxes, containers)| {
        let mut snapshot = Snapshot::default();
        for (index, (ready, addressed, attempt)) in sandboxes.into_iter().enumerate() {
            let mut made = sandbox(&format!("s{index}"), attempt, 1000 + i64::try_from(index).unwrap());
            made.state = if ready { SandboxState::Ready } else { SandboxState::NotReady };
            if !addressed {
                made.ips.clear();
            }
            snapshot.sandboxes.push(made);
        }
        for (index, (name, state, sandbox, code, later)) in containers.into_iter().enumerate() {
            let attempt = u32::try_from(index).unwrap();
            let mut made = container(name, attempt, &format!("s{sandbox}"), 2000 + later);
            (made.state, made.exit_code) = (state, code);
            made.finished = (state == ContainerState::Exited).then(|| at(2010 + later));
            snapshot.containers.push(made);
        }
        snapshot.sort();
        snapshot
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_bring_a_pod_through_every_storm(pod in pods(), told: bool, events in prop::collection::vec(events(), 1..60)) {
        let mut runtime = SimulatedRuntime::new(pod, told);
        for event in events {
            runtime.apply(event);
        }
        runtime.converge();
    }

    #[test]
    fn whatever_the_runtime_says_a_plan_is_sound(pod in pods(), snapshot in snapshots(), deleted: bool, now in 1990..2400_i64) {
        let mut pod = pod;
        if deleted {
            pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(now)));
        }
        let mut backoffs = CrashBackoffs::new(Duration::from_mins(5));
        backoffs.adopt(&pod, &snapshot, at(now));
        let probe_results = ProbeResults::default();
        let input = PlanInput { pod: &pod, snapshot: &snapshot, probe_results: &probe_results, backoffs: &backoffs, now: at(now) };
        let plan = compute_plan(&input);
        prop_assert_eq!(&plan, &compute_plan(&input));
        simulated_runtime::check(&pod, &snapshot, &plan, at(now));
        if deleted {
            prop_assert_eq!(&plan.sandbox, &SandboxPlan::None);
            prop_assert_eq!(plan.stop_all, snapshot.is_live());
        }
        // A started container has no live instance left.
        let stopped = |id: &String| plan.stop_all || plan.stop.iter().any(|stop| stop.id == *id);
        for start in &plan.start {
            let mut live = snapshot.containers.iter().filter(|container| container.name == start.name && container.may_run());
            prop_assert!(live.all(|container| stopped(&container.id)), "{:?}", plan);
        }
    }

    #[test]
    fn garbage_is_never_what_runs_or_what_is_newest_and_goes_in_one_sweep(snapshot in snapshots(), exists: bool) {
        let now = at(3000);
        let swept = find_garbage(exists, &snapshot, now);
        let mut rest = snapshot.clone();
        for remove in &swept.containers {
            let container = snapshot.container(&remove.id).unwrap();
            prop_assert_ne!(container.state, ContainerState::Running);
            let stopped = swept.stop.iter().any(|stop| stop.id == remove.id);
            prop_assert_eq!(stopped, container.state == ContainerState::Unknown);
            rest.containers.retain(|container| container.id != remove.id);
        }
        for id in &swept.sandboxes {
            let sandbox = snapshot.sandboxes.iter().find(|sandbox| sandbox.id == *id).unwrap();
            prop_assert_eq!(sandbox.state, SandboxState::NotReady);
            prop_assert!(rest.containers.iter().all(|container| container.sandbox != *id));
            rest.sandboxes.retain(|sandbox| sandbox.id != *id);
        }
        if exists {
            for container in &snapshot.containers {
                prop_assert!(rest.newest(&container.name).is_some(), "{} is forgotten", container.name);
            }
            prop_assert_eq!(rest.sandboxes.is_empty(), snapshot.sandboxes.is_empty());
        } else {
            prop_assert!(rest.containers.iter().all(|container| container.state == ContainerState::Running));
        }
        prop_assert_eq!(find_garbage(exists, &rest, now), Garbage::default());
    }

    #[test]
    fn everything_that_may_run_has_its_turn_and_nobody_waits_in_a_circle(pod in pods(), snapshot in snapshots()) {
        let mut turns = stop_order(Some(&pod), &snapshot);
        prop_assert_eq!(turns.len(), snapshot.containers.iter().filter(|container| container.may_run()).count());
        let mut gone = Vec::new();
        while !turns.is_empty() {
            let (free, waiting): (Vec<_>, Vec<_>) = turns.into_iter().partition(|turn| turn.after.iter().all(|id| gone.contains(id)));
            prop_assert!(!free.is_empty(), "{:?}", waiting);
            gone.extend(free.into_iter().map(|turn| turn.id));
            turns = waiting;
        }
    }
}
