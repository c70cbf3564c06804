//! What the service says about groups, as the engine understands it. Pure and tolerant: what is missing is left out, and what nobody understands
//! is reported and changes nothing.

mod containers;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use jiff::Timestamp;
use vk_container_group::{
    backend::{GroupEvent, GroupRef, GroupState, Observed, Owner, Page, Size},
    identity,
};
use vk_provider::{EventKind, Quantity};

use crate::api::{ContainerGroup, EventList, GroupEvent as ApiEvent, GroupList, StatusEntry, StatusList};

/// The reasons of events of a spot group that the service takes back.
const TAKEN_BACK: [&str; 2] = ["BidFailed", "SpotToBeReleased"];

/// A page of `DescribeContainerGroups`, with the groups for which `is_ours` is true.
pub(crate) fn group_page(list: &GroupList, is_ours: impl Fn(&Owner) -> bool) -> Page {
    let mut page = Page {
        next: list.next_token.owned(),
        // Without the list itself nothing is known about any group.
        incomplete: list.container_groups.is_incomplete(),
        ..Page::default()
    };
    for entry in list.container_groups.iter() {
        match group(entry) {
            Some(observed) if observed.owner.as_ref().is_some_and(&is_ours) => page.groups.push(observed),
            // The group of another, or of nobody.
            Some(_) => {}
            None => page.incomplete = true,
        }
    }
    page
}

/// A page of `DescribeContainerGroupStatus`. It shows no tags: the engine takes the owner from the name.
pub(crate) fn status_page(list: &StatusList) -> Page {
    let mut page =
        Page { next: list.next_token.owned(), incomplete: list.data.is_incomplete(), ..Page::default() };
    for entry in list.data.iter() {
        match status(entry) {
            Some(observed) => page.groups.push(observed),
            None => page.incomplete = true,
        }
    }
    page
}

/// The events of `DescribeContainerGroupEvents`: groups of which nothing else is said.
pub(crate) fn event_page(list: &EventList) -> Page {
    let groups = list.data.iter().filter_map(|entry| {
        let (id, mut notes) = (entry.container_group_id.get()?, Notes::default());
        let mut observed = Observed::new(GroupRef::new(id, entry.name.get().unwrap_or_default()));
        observed.events = entry.events.iter().filter_map(|one| event(one, &mut notes)).collect();
        observed.malformed = notes.0;
        (!observed.events.is_empty()).then_some(observed)
    });
    Page { groups: groups.collect(), next: None, incomplete: list.data.is_incomplete() }
}

/// Everything that `DescribeContainerGroups` says about a group; `None` for one without an id.
pub(crate) fn group(entry: &ContainerGroup) -> Option<Observed> {
    let id = entry.container_group_id.get()?;
    let mut notes = Notes::default();
    let mut observed = Observed::new(GroupRef::new(id, entry.container_group_name.get().unwrap_or_default()));
    observed.owner = owner(entry);
    observed.complete = true;
    observed.state = entry.status.get().and_then(|state| notes.state(state));
    observed.created = notes.time("CreationTime", entry.creation_time.get());
    let ends = [
        ("SucceededTime", &entry.succeeded_time),
        ("FailedTime", &entry.failed_time),
        ("ExpiredTime", &entry.expired_time),
    ];
    let ends: Vec<_> = ends.into_iter().filter_map(|(name, text)| notes.time(name, text.get())).collect();
    observed.finished = ends.first().copied().filter(|_| has_ended(observed.state));
    observed.addresses =
        notes.addresses([entry.intranet_ip.get(), entry.ipv6_address.get()].into_iter().flatten());
    observed.public_address = entry.internet_ip.get().and_then(|text| notes.address(text));
    observed.zone = entry.zone_id.owned();
    observed.size = size(entry);
    observed.containers = containers::of_group(&entry.containers, &mut notes);
    observed.init_containers = containers::of_group(&entry.init_containers, &mut notes);
    observed.events = entry.events.iter().filter_map(|one| event(one, &mut notes)).collect();
    explain(&mut observed, entry);
    let starts = observed.containers.iter().flatten().filter_map(containers::first_start);
    observed.started = starts.min();
    observed.malformed = notes.0;
    Some(observed)
}

/// What `DescribeContainerGroupStatus` says about a group; `None` for one without an id.
pub(crate) fn status(entry: &StatusEntry) -> Option<Observed> {
    let id = entry.container_group_id.get()?;
    let mut notes = Notes::default();
    let mut observed = Observed::new(GroupRef::new(id, entry.name.get().unwrap_or_default()));
    observed.state = entry.status.get().and_then(|state| notes.state(state));
    if let Some(pod) = entry.pod_status.get() {
        if entry.status.get().is_none() {
            observed.state = pod.phase.get().and_then(|phase| notes.state(phase));
        }
        let all = pod.pod_ip.get().into_iter().chain(pod.pod_ips.iter().filter_map(|one| one.ip.get()));
        observed.addresses = notes.addresses(all);
        observed.started = notes.time("PodStatus.StartTime", pod.start_time.get());
        observed.containers = containers::of_status(&pod.container_statuses, &mut notes);
    }
    observed.malformed = notes.0;
    Some(observed)
}

/// The owner in the tags: ours, or those of the Go provider.
pub(crate) fn owner(entry: &ContainerGroup) -> Option<Owner> {
    let tags: Vec<(&str, &str)> = entry
        .tags
        .iter()
        .filter_map(|tag| Some((tag.key.get()?, tag.value.0.as_deref().unwrap_or_default())))
        .collect();
    identity::read_tags(tags.iter().copied()).or_else(|| identity::read_eci_tags(tags.iter().copied()))
}

/// The size in effect.
pub(crate) fn size(entry: &ContainerGroup) -> Option<Size> {
    let (cpu, memory) = (entry.cpu.0?, entry.memory.0?);
    Some(Size {
        cpu: quantity(cpu, "")?,
        memory: quantity(memory, "Gi")?,
        instance_type: entry.instance_type.owned(),
    })
}

fn quantity(number: f64, unit: &str) -> Option<Quantity> {
    if !(0.0..1e6).contains(&number) {
        return None;
    }
    format!("{number}{unit}").parse().ok()
}

/// The state of a group by the service's word for it.
pub(crate) fn group_state(text: &str) -> Option<GroupState> {
    Some(match text {
        "Scheduling" | "Pending" => GroupState::Provisioning,
        "Running" | "Updating" | "Restarting" => GroupState::Running,
        "Succeeded" => GroupState::Succeeded,
        "Failed" | "ScheduleFailed" | "Expired" => GroupState::Failed,
        "Terminating" => GroupState::Deleting,
        _ => return None,
    })
}

fn has_ended(state: Option<GroupState>) -> bool {
    state.is_some_and(GroupState::has_ended)
}

fn event(entry: &ApiEvent, notes: &mut Notes) -> Option<GroupEvent> {
    let last = entry.last_timestamp.get().or_else(|| entry.first_timestamp.get());
    Some(GroupEvent {
        time: notes.time("event time", last),
        kind: if entry.kind.get() == Some("Warning") { EventKind::Warning } else { EventKind::Normal },
        reason: entry.reason.owned()?,
        message: entry.message.owned().unwrap_or_default(),
        container: None,
    })
}

/// Says why a group waits or has failed: by its state, and by its newest warning.
fn explain(observed: &mut Observed, entry: &ContainerGroup) {
    let Some(state) = entry.status.get() else { return };
    let is_spot = entry.spot_strategy.get().is_some_and(|strategy| strategy != "NoSpot");
    let was_taken = observed.events.iter().any(|event| TAKEN_BACK.contains(&event.reason.as_str()));
    // Only the service lets a group expire.
    observed.preempted = has_ended(observed.state) && (state == "Expired" || is_spot && was_taken);
    if observed.state == Some(GroupState::Failed) && matches!(state, "ScheduleFailed" | "Expired") {
        observed.reason = Some(state.to_owned());
    }
    if matches!(observed.state, Some(GroupState::Failed | GroupState::Provisioning)) {
        let warnings = observed.events.iter().filter(|event| event.kind == EventKind::Warning);
        let newest = warnings.max_by_key(|event| event.time);
        observed.message = newest.map(|event| format!("{}: {}", event.reason, event.message));
    }
}

/// What of an answer could not be understood.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<String>);

// === impl Notes ===

impl Notes {
    /// Reports something that nobody understands, without what may be secret or long.
    fn add(&mut self, what: &str, text: &str) {
        let text: String = text.chars().filter(|letter| !letter.is_control()).take(60).collect();
        self.0.push(format!("{what} {text:?}"));
    }

    fn state(&mut self, text: &str) -> Option<GroupState> {
        let state = group_state(text);
        if state.is_none() {
            self.add("state", text);
        }
        state
    }

    /// A time in RFC 3339, also without seconds.
    pub(crate) fn time(&mut self, what: &str, text: Option<&str>) -> Option<Timestamp> {
        let text = text?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.add(what, text);
        }
        parsed
    }

    fn address(&mut self, text: &str) -> Option<IpAddr> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.add("address", text);
        }
        parsed
    }

    /// The addresses without doubles; `None` if there are none, or none that can be read.
    fn addresses<'a>(&mut self, texts: impl Iterator<Item = &'a str>) -> Option<Vec<IpAddr>> {
        let mut found = Vec::new();
        for address in texts.filter_map(|text| self.address(text)) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        (!found.is_empty()).then_some(found)
    }
}
