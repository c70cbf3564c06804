//! The end of groups, and changes of groups that run.

use jiff::SignedDuration;
use serde_json::{Map, Value};

use super::{Cloud, Container, ContainerState, Due, Effect, GroupStatus, Outcome, grid};
use crate::error::{ApiError, Result};

// === impl Cloud ===

impl Cloud {
    /// Deletes a group. It goes after its containers have ended.
    pub(crate) fn delete(&mut self, id: &str) -> Result<()> {
        let (number, group) = self.find(id)?;
        if group.status == GroupStatus::Terminating {
            return Ok(());
        }
        let grace = SignedDuration::from_secs(group.grace());
        let before = group.status;
        let is_running = group.containers.iter().any(Container::is_running);
        let now = self.now;
        self.event(number, "Killing", "Stopping the container group.");
        if let Some(group) = self.groups.get_mut(&number) {
            group.before = before;
            group.changed = now;
            group.status = GroupStatus::Terminating;
        }
        if self.has_processes {
            self.effects.push(Effect::Stop { group: number, grace });
            if !is_running {
                self.after(SignedDuration::ZERO, Due::Gone(number));
            }
        } else {
            let stopping =
                if is_running { self.settings.timing.stopping.min(grace) } else { SignedDuration::ZERO };
            self.after(stopping, Due::Gone(number));
        }
        Ok(())
    }

    /// A group does not exist any more.
    pub(crate) fn gone(&mut self, number: u64) {
        let now = self.now;
        self.kill_containers(number, &Outcome::signal(15));
        let Some(group) = self.groups.get_mut(&number).filter(|group| !group.is_gone) else { return };
        group.billed_to.get_or_insert(now);
        group.is_gone = true;
        let record = group.bill();
        self.records.push(record);
        if self.has_processes {
            self.effects.push(Effect::Remove { group: number });
        }
        if self.settings.timing.lag > SignedDuration::ZERO {
            self.after(self.settings.timing.lag, Due::Forget(number));
        } else {
            self.forget(number);
        }
    }

    pub(super) fn forget(&mut self, number: u64) {
        if let Some(group) = self.groups.remove(&number) {
            self.ids.remove(&group.id);
        }
    }

    /// Starts all containers again.
    pub(crate) fn restart_group(&mut self, id: &str) -> Result<()> {
        let (number, group) = self.find(id)?;
        if !matches!(group.status, GroupStatus::Pending | GroupStatus::Running) {
            return Err(incorrect_status(group.status));
        }
        self.interrupt(number, GroupStatus::Restarting);
        Ok(())
    }

    /// Changes a group in place: `RenewUpdate` replaces what is given, `IncrementalUpdate` merges it by name.
    pub(crate) fn update(&mut self, request: &Value) -> Result<()> {
        let id = request["ContainerGroupId"].as_str().unwrap_or_default();
        let (number, group) = self.find(id)?;
        if !matches!(group.status, GroupStatus::Pending | GroupStatus::Running) {
            return Err(incorrect_status(group.status));
        }
        let is_incremental = request["UpdateType"] == "IncrementalUpdate";
        let mut spec = group.spec.clone();
        let empty = Map::new();
        for (name, value) in request.as_object().unwrap_or(&empty) {
            match name.as_str() {
                "ContainerGroupId" | "ClientToken" | "UpdateType" | "RegionId" => {}
                "Container" | "InitContainer" | "Volume" if is_incremental => {
                    merge_by_name(&mut spec[name], value)?;
                }
                _ => spec[name] = value.clone(),
            }
        }
        let sum = |name: &str| -> f64 {
            let containers = spec["Container"].as_array().into_iter().flatten();
            let all: f64 = containers.filter_map(|each| each[name].as_f64()).sum();
            all.max(spec[name].as_f64().unwrap_or(0.0))
        };
        let size = if group.instance_type.is_some() { group.size } else { grid(sum("Cpu"), sum("Memory"))? };
        let tags = request["Tag"].as_array().map(|tags| {
            let text = |tag: &Value, name: &str| tag[name].as_str().unwrap_or_default().to_owned();
            tags.iter().map(|tag| (text(tag, "Key"), text(tag, "Value"))).collect::<Vec<_>>()
        });
        if let Some(group) = self.groups.get_mut(&number) {
            group.size = size;
            group.tags = tags.unwrap_or_else(|| std::mem::take(&mut group.tags));
            for container in &mut group.containers {
                let list = if container.is_init { "InitContainer" } else { "Container" };
                let mut specs = spec[list].as_array().into_iter().flatten();
                if let Some(newer) = specs.find(|each| each["Name"] == container.name.as_str()) {
                    container.spec = newer.clone();
                }
            }
            group.spec = spec;
        }
        self.interrupt(number, GroupStatus::Updating);
        Ok(())
    }

    /// Stops all containers, and starts them again shortly.
    fn interrupt(&mut self, number: u64, status: GroupStatus) {
        let now = self.now;
        self.kill_containers(number, &Outcome::signal(15));
        if let Some(group) = self.groups.get_mut(&number) {
            group.before = group.status;
            group.status = status;
            group.changed = now;
            for container in &mut group.containers {
                if let ContainerState::Terminated { .. } = container.state {
                    let waiting = ContainerState::Waiting {
                        reason: "ContainerCreating".to_owned(),
                        message: String::new(),
                    };
                    container.restarts += 1;
                    container.previous = Some(std::mem::replace(&mut container.state, waiting));
                }
            }
        }
        self.after(self.settings.timing.pulling, Due::Updated(number));
    }

    pub(super) fn finish_update(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number) else { return };
        match (group.status, group.before) {
            (GroupStatus::Updating | GroupStatus::Restarting, GroupStatus::Pending) => {
                self.set_group_status(number, GroupStatus::Pending);
                self.after(SignedDuration::ZERO, Due::Pull(number));
            }
            (GroupStatus::Updating | GroupStatus::Restarting, _) => self.start_next(number),
            _ => {}
        }
    }
}

fn incorrect_status(status: GroupStatus) -> ApiError {
    let message = format!("The container group is {}: only Pending and Running are allowed.", status.name());
    ApiError::new(403, "IncorrectStatus", message)
}

fn merge_by_name(list: &mut Value, changes: &Value) -> Result<()> {
    for change in changes.as_array().into_iter().flatten() {
        let mut items = list.as_array_mut().into_iter().flatten();
        let Some(item) = items.find(|item| item["Name"] == change["Name"]) else {
            let name = change["Name"].as_str().unwrap_or_default();
            return Err(ApiError::invalid("Name", format!("{name} is not in the container group.")));
        };
        for (name, value) in change.as_object().into_iter().flatten() {
            item[name] = value.clone();
        }
    }
    Ok(())
}
