//! What there is to do in a sandbox that stays, and in a new one.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use super::{
    Held, Plan, Remove, SandboxPlan, Situation, Start, Stop, Why,
    backoff::{self, Crash, Key},
    described, identity, init, restart, stopping,
};
use crate::{
    parts::{Role, parts},
    probe::verdict::{Kind, Verdict},
    snapshot::{Container, ContainerState, Sandbox, Snapshot, annotation},
    status::Trouble,
};

/// What to stop and start, before anybody asks about back-off.
#[derive(Default)]
pub(super) struct Work<'a> {
    stop: Vec<Stop>,
    start: Vec<(Role, Cow<'a, Spec>)>,
    /// Containers to be removed for the sake of a new beginning.
    reset: Vec<Remove>,
}

/// What there is to do in the pod's sandbox; nothing if the pod has ended.
pub(super) fn in_sandbox<'a>(situation: &Situation<'a>, sandbox: &Sandbox) -> Option<Work<'a>> {
    let Situation { pod, snapshot, .. } = *situation;
    if let Some(work) = reset(pod, snapshot) {
        return Some(work);
    }
    // Sidecars are not restarted for a pod whose work is done.
    if has_ended(pod, snapshot) {
        return None;
    }
    let mut work = Work::default();
    for part in parts(pod).filter(|part| part.role == Role::Ephemeral) {
        if snapshot.newest(&part.container.name).is_none() {
            work.start.push((part.role, part.container));
        }
    }
    let walk = init::walk(situation, &sandbox.id)?;
    work.stop.extend(walk.stop);
    let inits: Vec<_> = parts(pod).filter(|part| matches!(part.role, Role::Init | Role::Sidecar)).collect();
    work.start
        .extend(walk.start.into_iter().map(|index| (inits[index].role, inits[index].container.clone())));
    if walk.initialized {
        work.regular(situation, sandbox)?;
    }
    work.duplicates(pod, snapshot, sandbox);
    Some(work)
}

/// What there is to do when the pod gets a new sandbox; nothing if it has ended.
pub(super) fn in_new_sandbox<'a>(pod: &'a Pod, snapshot: &Snapshot, attempt: u32) -> Option<Work<'a>> {
    if let Some(work) = reset(pod, snapshot) {
        return Some(Work { stop: Vec::new(), ..work });
    }
    // Where no container was ever made, nothing has been done yet that must not be done twice.
    if restart::policy(pod) == "Never" && attempt != 0 && !snapshot.containers.is_empty() {
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
    // A new sandbox is a new beginning.
    let first = parts(pod).find(|part| matches!(part.role, Role::Init | Role::Sidecar));
    let start = first.map_or(start, |part| vec![(part.role, part.container)]);
    Some(Work { start, ..Work::default() })
}

/// Dead instances of init containers beyond the newest of each.
pub(super) fn superfluous(pod: &Pod, snapshot: &Snapshot) -> Vec<Remove> {
    let dead =
        |container: &&Container| matches!(container.state, ContainerState::Exited | ContainerState::Unknown);
    init_records(pod, snapshot, |records| records.filter(dead).skip(1).collect())
}

/// Whether the spec is another than the one that the container was started with. What does not tell has not changed.
pub(super) fn has_changed(container: &Spec, record: &Container) -> bool {
    let noted = record.annotations.get(annotation::HASH).and_then(|hash| u64::from_str_radix(hash, 16).ok());
    noted.is_some_and(|noted| noted != identity::hash(container))
}

/// All containers go, and everything begins anew, when one has ended in a way that its rules say so about. Those
/// that said it go last: until then they are the reason to go on.
fn reset<'a>(pod: &Pod, snapshot: &Snapshot) -> Option<Work<'a>> {
    let said = |container: &Spec, record: &Container| {
        record.state == ContainerState::Exited && restart::restarts_all(container, record.exit_code)
    };
    let parts = || parts(pod).filter(|part| part.role != Role::Ephemeral);
    parts().find(|part| {
        let newest = snapshot.newest(&part.container.name);
        newest.is_some_and(|record| said(&part.container, record))
    })?;
    let records = |wanted: bool, regular: bool| {
        parts().filter(move |part| (part.role == Role::Regular) == regular).flat_map(move |part| {
            let of_part = move |record: &&Container| {
                record.name == part.container.name && said(&part.container, record) == wanted
            };
            snapshot.containers.iter().filter(of_part).collect::<Vec<_>>()
        })
    };
    let all = [(false, true), (false, false), (true, true), (true, false)];
    let all: Vec<_> = all.into_iter().flat_map(|(wanted, regular)| records(wanted, regular)).collect();
    let stop = all.iter().filter(|record| record.may_run()).map(|record| Stop {
        id: record.id.clone(),
        name: record.name.clone(),
        message: "killing".to_owned(),
        why: Why::RestartAll,
    });
    let reset = all.iter().map(|record| Remove { id: record.id.clone(), keep_log: true });
    Some(Work { stop: stop.collect(), start: Vec::new(), reset: reset.collect() })
}

/// Whether all regular containers have ended, and none is started again.
fn has_ended(pod: &Pod, snapshot: &Snapshot) -> bool {
    let regular = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    regular.iter().all(|container| {
        snapshot.newest(&container.name).is_some_and(|record| {
            record.state == ContainerState::Exited
                && !restart::should_restart(pod, container, record.exit_code)
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
) -> Vec<Remove> {
    parts(pod)
        .filter(|part| matches!(part.role, Role::Init | Role::Sidecar))
        .flat_map(|part| {
            choose(&mut snapshot.containers.iter().filter(|record| record.name == part.container.name))
        })
        .map(|record| Remove { id: record.id.clone(), keep_log: false })
        .collect()
}

// === impl Work ===

impl<'a> Work<'a> {
    /// Looks after the regular containers; nothing if none runs and none shall.
    fn regular(&mut self, situation: &Situation<'a>, sandbox: &Sandbox) -> Option<()> {
        let Situation { pod, snapshot, verdicts, .. } = *situation;
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
            let (message, why, restart) = match record.state {
                ContainerState::Exited if !restart::should_restart(pod, container, record.exit_code) => {
                    continue;
                }
                ContainerState::Exited | ContainerState::Created => {
                    going = true;
                    self.start.push(start);
                    continue;
                }
                ContainerState::Unknown => {
                    let message = r#"Container is in "unknown" state, try killing it before restart"#;
                    (message.to_owned(), Why::Unknown, true)
                }
                ContainerState::Running if record.sandbox != sandbox.id => {
                    (stopping(name), Why::Duplicate, true)
                }
                ContainerState::Running => {
                    let failed = |kind| verdicts.get(&record.id, kind) == Some(Verdict::Failure);
                    let (what, why, restart) = if has_changed(container, record) {
                        ("definition changed", Why::Changed, true)
                    } else if failed(Kind::Liveness) {
                        ("failed liveness probe", Why::Liveness, restart::after_stop(pod, container))
                    } else if failed(Kind::Startup) {
                        ("failed startup probe", Why::Startup, restart::after_stop(pod, container))
                    } else {
                        going = true;
                        continue;
                    };
                    let intent = if restart { ", will be restarted" } else { "" };
                    (format!("Container {name} {what}{intent}"), why, restart)
                }
            };
            self.stop.push(Stop { id: record.id.clone(), name: name.clone(), message, why });
            if restart {
                going = true;
                self.start.push(start);
            }
        }
        going.then_some(())
    }

    /// Of each name there is one, and it is in the pod's sandbox: one that runs there, where there is any.
    fn duplicates(&mut self, pod: &Pod, snapshot: &Snapshot, sandbox: &Sandbox) {
        for part in parts(pod) {
            let name = &part.container.name;
            let records = || snapshot.containers.iter().filter(|record| record.name == *name);
            let here = |record: &&Container| record.sandbox == sandbox.id;
            let running = records().filter(here).find(|record| record.state == ContainerState::Running);
            let wanted = running.or_else(|| records().next().filter(here)).map(|record| &record.id);
            for record in records().filter(|record| record.may_run() && Some(&record.id) != wanted) {
                if self.stop.iter().all(|stop| stop.id != record.id) {
                    let (id, name) = (record.id.clone(), name.clone());
                    self.stop.push(Stop { id, message: stopping(&name), name, why: Why::Duplicate });
                }
            }
        }
    }

    /// Holds back who crashed too lately.
    pub(super) fn plan(self, situation: &Situation<'_>, sandbox: SandboxPlan) -> Plan {
        let Situation { pod, snapshot, backoffs, now, .. } = *situation;
        let anew = matches!(sandbox, SandboxPlan::Create { .. });
        let mut plan = Plan {
            stop_all: anew && (!snapshot.sandboxes.is_empty() || snapshot.is_live()),
            stop: self.stop,
            remove: if anew {
                init_records(pod, snapshot, |records| records.collect())
            } else {
                superfluous(pod, snapshot)
            },
            sandbox,
            start: Vec::new(),
            held: Vec::new(),
            look_again: None,
        };
        if !self.reset.is_empty() {
            plan.remove = self.reset;
            plan.look_again = Some(now);
        }
        for (role, container) in self.start {
            let name = container.name.clone();
            let ended = |record: &&Container| record.name == name && record.state == ContainerState::Exited;
            let crash = snapshot.containers.iter().find(ended).map(|record| Crash {
                key: Key::of(pod, &container),
                finished: record.finished.unwrap_or(record.created),
            });
            let wait = crash.as_ref().and_then(|crash| {
                let delay = backoffs.waiting(crash, now)?;
                Some((delay, crash.finished.checked_add(delay).unwrap_or(Timestamp::MAX)))
            });
            if let Some((delay, until)) = wait {
                // Nothing has to be held behind it: a plain init container is always the last to be started.
                plan.held.push(held(pod, name, delay, until));
                continue;
            }
            // No number is used twice, whichever of them runs.
            let before = snapshot.containers.iter().filter(|record| record.name == name);
            let restarts = before.map(|record| record.restart_count().saturating_add(1)).max();
            plan.start.push(Start { name, role, restarts, crash });
        }
        let soonest = plan.held.iter().map(|held| held.until).min();
        plan.look_again = plan.look_again.or(soonest);
        plan
    }
}

fn held(pod: &Pod, name: String, delay: Duration, until: Timestamp) -> Held {
    let (pod, delay) = (described(pod), backoff::shown(delay));
    let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
    let event = format!("Back-off restarting failed container {name} in pod {pod}");
    Held { name, until, trouble: Trouble { reason: "CrashLoopBackOff".to_owned(), message }, event }
}
