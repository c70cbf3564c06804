//! Starts and ends of containers.

use jiff::{SignedDuration, Timestamp};

use super::{Cloud, ContainerState, Due, Effect, GroupStatus, Outcome};

/// Longest back-off, as a multiple of the first.
const MAX_BACK_OFF: i32 = 30;

// === impl Cloud ===

impl Cloud {
    pub(super) fn start(&mut self, number: u64, index: usize) {
        let now = self.now;
        self.sequence += 1;
        let run = self.sequence;
        let Some(group) = self.groups.get_mut(&number) else { return };
        if group.status.is_ended() || group.status == GroupStatus::Terminating {
            return;
        }
        let Some(container) = group.containers.get_mut(index).filter(|container| !container.is_running())
        else {
            return;
        };
        container.run = run;
        container.state = ContainerState::Running { started: now };
        if !container.log.is_empty() {
            container.previous_log = std::mem::take(&mut container.log);
        }
        group.changed = now;
        let (name, spec) = (container.name.clone(), container.spec.clone());
        group.push_event(now, "Created", &format!("Created container {name}"));
        group.push_event(now, "Started", &format!("Started container {name}"));
        if self.has_processes {
            self.effects.push(Effect::Start { group: number, container: index, run });
            return;
        }
        let script = (self.settings.script)(&spec);
        for (after, text) in script.output {
            let at = now + SignedDuration::try_from(after).unwrap_or_default();
            if let Some(container) = self.container_of_run(number, index, run) {
                container.append_log(at, text);
            }
        }
        if let Some((after, code)) = script.exit {
            let after = SignedDuration::try_from(after).unwrap_or_default();
            self.after(after, Due::Exit(number, index, run, Outcome::exit(code)));
        }
        let probe = &spec["ReadinessProbe"];
        if probe.is_object() {
            let delay = probe["InitialDelaySeconds"].as_i64().unwrap_or(0);
            self.after(SignedDuration::from_secs(delay), Due::Ready(number, index, run));
        } else {
            self.set_ready(number, index, run, true);
        }
    }

    /// The container, if it is still the same start of it.
    pub(crate) fn container_of_run(
        &mut self,
        number: u64,
        index: usize,
        run: u64,
    ) -> Option<&mut super::Container> {
        let group = self.groups.get_mut(&number)?;
        group.containers.get_mut(index).filter(|container| container.run == run)
    }

    pub(crate) fn set_ready(&mut self, number: u64, index: usize, run: u64, is_ready: bool) {
        let now = self.now;
        let Some(container) = self.container_of_run(number, index, run) else { return };
        if container.is_running() && container.is_ready != is_ready {
            container.is_ready = is_ready;
            if let Some(group) = self.groups.get_mut(&number) {
                group.changed = now;
            }
        }
    }

    /// A container has ended.
    pub(crate) fn exited(&mut self, number: u64, index: usize, run: u64, outcome: Outcome) {
        let now = self.now;
        let Some(container) = self.container_of_run(number, index, run) else { return };
        let ContainerState::Running { started } = container.state else { return };
        let is_init = container.is_init;
        let code = outcome.code;
        container.is_ready = is_init && code == 0;
        container.state = ContainerState::Terminated { started, finished: now, outcome };
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.changed = now;
        if group.status == GroupStatus::Terminating {
            if self.has_processes && !self.groups[&number].containers.iter().any(super::Container::is_running)
            {
                self.after(SignedDuration::ZERO, Due::Gone(number));
            }
            return;
        }
        if group.status.is_ended() {
            return;
        }
        let restarts = match group.restart_policy() {
            "Never" => false,
            "OnFailure" => code != 0,
            _ => !is_init || code != 0,
        };
        match (is_init, code, restarts) {
            (true, 0, _) => self.start_next(number),
            (true, _, false) => self.end(number, GroupStatus::Failed),
            (_, _, true) => self.restart_later(number, index, started),
            (false, _, false) => self.finish(number),
        }
    }

    fn restart_later(&mut self, number: u64, index: usize, started: Timestamp) {
        let now = self.now;
        let first = self.settings.timing.restart;
        let Some(container) = self.groups.get_mut(&number).and_then(|group| group.containers.get_mut(index))
        else {
            return;
        };
        // What has run for ten minutes starts at once again.
        let crashes =
            if now.duration_since(started) > SignedDuration::from_mins(10) { 0 } else { container.restarts };
        container.restarts += 1;
        let message = format!("back-off restarting failed container {}", container.name);
        let reason = "CrashLoopBackOff".to_owned();
        let waiting = ContainerState::Waiting { reason, message: message.clone() };
        container.previous = Some(std::mem::replace(&mut container.state, waiting));
        let factor = 2_i32.checked_pow(crashes).unwrap_or(MAX_BACK_OFF).min(MAX_BACK_OFF);
        if crashes > 0 {
            self.event(number, "BackOff", &message);
        }
        self.after(first * factor, Due::Start(number, index));
    }

    /// Ends the group if no container runs or will run again.
    fn finish(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number) else { return };
        let mut codes = group.containers.iter().filter(|each| !each.is_init).map(super::Container::exit_code);
        if codes.clone().any(|code| code.is_none()) {
            return;
        }
        let status =
            if codes.all(|code| code == Some(0)) { GroupStatus::Succeeded } else { GroupStatus::Failed };
        self.set_group_status(number, status);
        if self.has_processes {
            self.effects.push(Effect::Stop { group: number, grace: SignedDuration::ZERO });
        }
    }

    /// Ends all containers that run at once.
    pub(super) fn kill_containers(&mut self, number: u64, outcome: &Outcome) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&number) else { return };
        for container in &mut group.containers {
            container.is_ready = false;
            if let ContainerState::Running { started } = container.state {
                let outcome = outcome.clone();
                container.state = ContainerState::Terminated { started, finished: now, outcome };
            }
        }
        if self.has_processes {
            self.effects.push(Effect::Stop { group: number, grace: SignedDuration::ZERO });
        }
    }
}
