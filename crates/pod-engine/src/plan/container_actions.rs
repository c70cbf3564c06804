//! Actions for the containers of a pod, in a sandbox that is kept or in a new one.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};
use vk_provider::restart_policy::{pod_policy, restarts_all, should_restart};

use super::{
    DeferredStart, PlanInput, PodPlan, RemoveContainer, SandboxPlan, StartContainer, StopContainer,
    StopReason,
    backoff::{BackoffKey, Crash},
    init, restart, stop_message,
};
use crate::{
    containers::{Role, pod_containers, spec_hash},
    probe::result::{ProbeKind, ProbeResult},
    snapshot::{Container, ContainerState, Sandbox, Snapshot, annotation},
    status::FailureReason,
    text::{full_name, go_duration},
};

/// Containers to stop and start, before back-off is applied.
#[derive(Default)]
pub(super) struct ContainerActions<'a> {
    stop: Vec<StopContainer>,
    start: Vec<(Role, Cow<'a, Spec>)>,
    /// Containers to remove because a restart rule restarts all containers.
    reset: Vec<RemoveContainer>,
}

/// Actions in the pod's current sandbox. `None` if the pod is finished.
pub(super) fn in_sandbox<'a>(input: &PlanInput<'a>, sandbox: &Sandbox) -> Option<ContainerActions<'a>> {
    let PlanInput { pod, snapshot, .. } = *input;
    if let Some(actions) = reset(pod, snapshot) {
        return Some(actions);
    }
    // Sidecars of a completed pod are not restarted.
    if is_complete(pod, snapshot) {
        return None;
    }
    let mut actions = ContainerActions::default();
    for container in pod_containers(pod).filter(|container| container.role == Role::Ephemeral) {
        if snapshot.newest(&container.spec.name).is_none() {
            actions.start.push((container.role, container.spec));
        }
    }
    let progress = init::init_progress(input, &sandbox.id)?;
    actions.stop.extend(progress.stop);
    let inits: Vec<_> = pod_containers(pod)
        .filter(|container| matches!(container.role, Role::Init | Role::Sidecar))
        .collect();
    actions
        .start
        .extend(progress.start.into_iter().map(|index| (inits[index].role, inits[index].spec.clone())));
    if progress.initialized {
        actions.add_regular(input, sandbox)?;
    }
    actions.stop_duplicates(pod, snapshot, sandbox);
    Some(actions)
}

/// Actions in a new sandbox. `None` if the pod is finished.
pub(super) fn in_new_sandbox<'a>(
    pod: &'a Pod,
    snapshot: &Snapshot,
    attempt: u32,
) -> Option<ContainerActions<'a>> {
    if let Some(actions) = reset(pod, snapshot) {
        return Some(ContainerActions { stop: Vec::new(), ..actions });
    }
    // Without any container nothing has run yet that must not run twice.
    if pod_policy(pod) == "Never" && attempt != 0 && !snapshot.containers.is_empty() {
        return None;
    }
    let spec = pod.spec.as_ref();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let start: Vec<_> = regular
        .iter()
        .filter(|container| !(restart::runs_once(pod, container) && has_succeeded(snapshot, &container.name)))
        .map(|container| (Role::Regular, Cow::Borrowed(container)))
        .collect();
    // All have succeeded.
    if start.is_empty() {
        return None;
    }
    // A new sandbox starts with initialization.
    let first = pod_containers(pod).find(|container| matches!(container.role, Role::Init | Role::Sidecar));
    let start = first.map_or(start, |container| vec![(container.role, container.spec)]);
    Some(ContainerActions { start, ..ContainerActions::default() })
}

/// Exited instances of init containers except the newest of each.
pub(super) fn superfluous(pod: &Pod, snapshot: &Snapshot) -> Vec<RemoveContainer> {
    let dead =
        |container: &&Container| matches!(container.state, ContainerState::Exited | ContainerState::Unknown);
    init_records(pod, snapshot, |records| records.filter(dead).skip(1).collect())
}

/// Whether the spec differs from the one that the container was started with. Without a recorded hash it does not.
pub(super) fn has_changed(container: &Spec, record: &Container) -> bool {
    let recorded =
        record.annotations.get(annotation::HASH).and_then(|hash| u64::from_str_radix(hash, 16).ok());
    recorded.is_some_and(|recorded| recorded != spec_hash(container))
}

/// Removes all containers when one has exited with a code whose rule restarts all of them. The containers that triggered it are removed
/// last: until then they are the reason to continue.
fn reset<'a>(pod: &Pod, snapshot: &Snapshot) -> Option<ContainerActions<'a>> {
    let triggers = |container: &Spec, record: &Container| {
        record.state == ContainerState::Exited && restarts_all(container, record.exit_code)
    };
    let restartable = || pod_containers(pod).filter(|container| container.role != Role::Ephemeral);
    restartable().find(|container| {
        let newest = snapshot.newest(&container.spec.name);
        newest.is_some_and(|record| triggers(&container.spec, record))
    })?;
    let records = |wanted: bool, regular: bool| {
        restartable().filter(move |container| (container.role == Role::Regular) == regular).flat_map(
            move |container| {
                let of_part = move |record: &&Container| {
                    record.name == container.spec.name && triggers(&container.spec, record) == wanted
                };
                snapshot.containers.iter().filter(of_part).collect::<Vec<_>>()
            },
        )
    };
    let all = [(false, true), (false, false), (true, true), (true, false)];
    let all: Vec<_> = all.into_iter().flat_map(|(wanted, regular)| records(wanted, regular)).collect();
    let stop = all.iter().filter(|record| record.may_run()).map(|record| StopContainer {
        id: record.id.clone(),
        name: record.name.clone(),
        message: "killing".to_owned(),
        reason: StopReason::RestartAll,
    });
    let reset = all.iter().map(|record| RemoveContainer { id: record.id.clone(), keep_log: true });
    Some(ContainerActions { stop: stop.collect(), start: Vec::new(), reset: reset.collect() })
}

/// Whether all regular containers have exited and none is restarted.
fn is_complete(pod: &Pod, snapshot: &Snapshot) -> bool {
    let regular = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    regular.iter().all(|container| {
        snapshot.newest(&container.name).is_some_and(|record| {
            record.state == ContainerState::Exited && !should_restart(pod, container, record.exit_code)
        })
    })
}

fn has_succeeded(snapshot: &Snapshot, name: &str) -> bool {
    let newest = snapshot.newest(name);
    newest.is_some_and(|record| record.state == ContainerState::Exited && record.exit_code == 0)
}

fn init_records<'a>(
    pod: &Pod,
    snapshot: &'a Snapshot,
    choose: impl Fn(&mut dyn Iterator<Item = &'a Container>) -> Vec<&'a Container>,
) -> Vec<RemoveContainer> {
    pod_containers(pod)
        .filter(|container| matches!(container.role, Role::Init | Role::Sidecar))
        .flat_map(|container| {
            choose(&mut snapshot.containers.iter().filter(|record| record.name == container.spec.name))
        })
        .map(|record| RemoveContainer { id: record.id.clone(), keep_log: false })
        .collect()
}

// === impl Work ===

impl<'a> ContainerActions<'a> {
    /// Adds the actions for regular containers. `None` if none runs and none is started.
    fn add_regular(&mut self, input: &PlanInput<'a>, sandbox: &Sandbox) -> Option<()> {
        let PlanInput { pod, snapshot, probe_results, .. } = *input;
        let regular = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
        let mut going = false;
        for container in regular {
            let start = (Role::Regular, Cow::Borrowed(container));
            let name = &container.name;
            let Some(record) = snapshot.newest(name) else {
                going = true;
                self.start.push(start);
                continue;
            };
            let (message, reason, restart) = match record.state {
                ContainerState::Exited if !should_restart(pod, container, record.exit_code) => {
                    continue;
                }
                ContainerState::Exited | ContainerState::Created => {
                    going = true;
                    self.start.push(start);
                    continue;
                }
                ContainerState::Unknown => {
                    let message = r#"Container is in "unknown" state, try killing it before restart"#;
                    (message.to_owned(), StopReason::Unknown, true)
                }
                ContainerState::Running if record.sandbox != sandbox.id => {
                    (stop_message(name), StopReason::Duplicate, true)
                }
                ContainerState::Running => {
                    let failed = |kind| probe_results.get(&record.id, kind) == Some(ProbeResult::Failure);
                    let (what, reason, restart) = if has_changed(container, record) {
                        ("definition changed", StopReason::Changed, true)
                    } else if failed(ProbeKind::Liveness) {
                        (
                            "failed liveness probe",
                            StopReason::Liveness,
                            restart::restarts_after_stop(pod, container),
                        )
                    } else if failed(ProbeKind::Startup) {
                        (
                            "failed startup probe",
                            StopReason::Startup,
                            restart::restarts_after_stop(pod, container),
                        )
                    } else {
                        going = true;
                        continue;
                    };
                    let intent = if restart { ", will be restarted" } else { "" };
                    (format!("Container {name} {what}{intent}"), reason, restart)
                }
            };
            self.stop.push(StopContainer { id: record.id.clone(), name: name.clone(), message, reason });
            if restart {
                going = true;
                self.start.push(start);
            }
        }
        going.then_some(())
    }

    /// Stops all but one instance of each name: the one that runs in the pod's sandbox, if any.
    fn stop_duplicates(&mut self, pod: &Pod, snapshot: &Snapshot, sandbox: &Sandbox) {
        for container in pod_containers(pod) {
            let name = &container.spec.name;
            let records = || snapshot.containers.iter().filter(|record| record.name == *name);
            let here = |record: &&Container| record.sandbox == sandbox.id;
            let running = records().filter(here).find(|record| record.state == ContainerState::Running);
            let wanted = running.or_else(|| records().next().filter(here)).map(|record| &record.id);
            for record in records().filter(|record| record.may_run() && Some(&record.id) != wanted) {
                if self.stop.iter().all(|stop| stop.id != record.id) {
                    let (id, name) = (record.id.clone(), name.clone());
                    self.stop.push(StopContainer {
                        id,
                        message: stop_message(&name),
                        name,
                        reason: StopReason::Duplicate,
                    });
                }
            }
        }
    }

    /// Applies back-off and completes the plan.
    pub(super) fn plan(self, input: &PlanInput<'_>, sandbox: SandboxPlan) -> PodPlan {
        let PlanInput { pod, snapshot, backoffs, now, .. } = *input;
        let anew = matches!(sandbox, SandboxPlan::Create { .. });
        let mut plan = PodPlan {
            stop_all: anew && (!snapshot.sandboxes.is_empty() || snapshot.is_live()),
            stop: self.stop,
            remove: if anew {
                init_records(pod, snapshot, |records| records.collect())
            } else {
                superfluous(pod, snapshot)
            },
            sandbox,
            start: Vec::new(),
            deferred: Vec::new(),
            next_deadline: None,
        };
        if !self.reset.is_empty() {
            plan.remove = self.reset;
            plan.next_deadline = Some(now);
        }
        for (role, container) in self.start {
            let name = container.name.clone();
            let ended = |record: &&Container| record.name == name && record.state == ContainerState::Exited;
            let crash = snapshot.containers.iter().find(ended).map(|record| Crash {
                key: BackoffKey::of(pod, &container),
                finished: record.finished.unwrap_or(record.created),
            });
            let wait = crash.as_ref().and_then(|crash| {
                let delay = backoffs.current_delay(crash, now)?;
                Some((delay, crash.finished.checked_add(delay).unwrap_or(Timestamp::MAX)))
            });
            if let Some((delay, until)) = wait {
                // Nothing after it has to wait: an init container is always the last one to start.
                plan.deferred.push(deferred_start(pod, name, delay, until));
                continue;
            }
            // No attempt number is used twice.
            let before = snapshot.containers.iter().filter(|record| record.name == name);
            let restarts = before.map(|record| record.restart_count().saturating_add(1)).max();
            plan.start.push(StartContainer { name, role, restarts, crash });
        }
        let soonest = plan.deferred.iter().map(|deferred| deferred.until).min();
        plan.next_deadline = plan.next_deadline.or(soonest);
        plan
    }
}

fn deferred_start(pod: &Pod, name: String, delay: Duration, until: Timestamp) -> DeferredStart {
    let (pod, delay) = (full_name(pod), go_duration(delay));
    let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
    let event = format!("Back-off restarting failed container {name} in pod {pod}");
    DeferredStart {
        name,
        until,
        failure: FailureReason { reason: "CrashLoopBackOff".to_owned(), message },
        event,
    }
}
