//! A group of the fake cloud: a line of times, from which its state follows.

use std::{net::IpAddr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use vk_provider::Quantity;

use crate::backend::{
    ContainerState, GroupEvent, GroupRef, GroupState, Observed, ObservedContainer, Owner, Size, Termination,
};

/// A group of the fake cloud.
#[derive(Clone, Debug)]
pub struct FakeGroup {
    /// Its id and name.
    pub group: GroupRef,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// Whose it is.
    pub owner: Owner,
    /// Its containers with their images.
    pub containers: Vec<(String, String)>,
    /// When it was created.
    pub created: Timestamp,
    pub(super) running: Timestamp,
    /// When its delete was accepted.
    pub deleting: Option<Timestamp>,
    pub(super) gone: Option<Timestamp>,
    /// When its containers ended, and with which exit code.
    pub(super) ended: Option<(Timestamp, i32)>,
    pub(super) preempted: bool,
    pub(super) events: Vec<GroupEvent>,
    pub(super) address: IpAddr,
    /// Its size, and the one that it gets later.
    pub(super) size: Size,
    pub(super) resized: Option<(Timestamp, Size)>,
}

/// The size of a group with this many CPUs, by default one.
pub(super) fn size(cpu: Quantity) -> Size {
    let cpu = if cpu == Quantity::units(0) { Quantity::units(1) } else { cpu };
    Size { cpu, memory: Quantity::bytes(2 << 30), instance_type: None }
}

// === impl FakeGroup ===

impl FakeGroup {
    /// Whether it exists and costs money.
    pub fn is_live(&self, at: Timestamp) -> bool {
        self.exists(at) && self.ended.is_none_or(|(ended, _)| at < ended)
    }

    pub(super) fn exists(&self, at: Timestamp) -> bool {
        self.created <= at && self.gone.is_none_or(|gone| at < gone)
    }

    pub(super) fn changed_since(&self, since: Timestamp) -> bool {
        let ended = self.ended.map(|(ended, _)| ended);
        let events = self.events.iter().filter_map(|event| event.time);
        let resized = self.resized.as_ref().map(|(resized, _)| *resized);
        let times = [Some(self.created), Some(self.running), self.deleting, ended, self.gone, resized];
        times.into_iter().flatten().chain(events).any(|time| time >= since)
    }

    /// What the cloud says about it; with `clock_error` in all times.
    pub(super) fn observed(&self, at: Timestamp, clock_error: SignedDuration) -> Observed {
        let wrong = |time: Timestamp| time + clock_error;
        let state = match self.ended {
            _ if self.deleting.is_some_and(|deleting| deleting <= at) => GroupState::Deleting,
            Some((ended, 0)) if ended <= at && !self.preempted => GroupState::Succeeded,
            Some((ended, _)) if ended <= at => GroupState::Failed,
            _ if self.running <= at => GroupState::Running,
            _ => GroupState::Provisioning,
        };
        let container = |(name, image): &(String, String)| {
            let state = match self.ended {
                Some((ended, code)) if ended <= at => ContainerState::Terminated(Termination {
                    exit_code: Some(code),
                    started: Some(wrong(self.running)),
                    finished: Some(wrong(ended)),
                    ..Termination::default()
                }),
                _ if self.running <= at => ContainerState::Running { started: Some(wrong(self.running)) },
                _ => ContainerState::Waiting { reason: None, message: None },
            };
            ObservedContainer {
                name: name.clone(),
                image: Some(image.clone()),
                state: Some(state),
                restarts: Some(0),
                ..ObservedContainer::default()
            }
        };
        let events = self.events.iter().filter(|event| event.time.is_none_or(|time| time <= at));
        Observed {
            owner: Some(self.owner.clone()),
            complete: true,
            state: Some(state),
            preempted: self.preempted,
            reason: self.preempted.then(|| "SpotInterruption".to_owned()),
            created: Some(wrong(self.created)),
            addresses: (self.running <= at).then(|| vec![self.address]),
            size: Some(match &self.resized {
                Some((resized, size)) if *resized <= at => size.clone(),
                _ => self.size.clone(),
            }),
            containers: Some(self.containers.iter().map(container).collect()),
            events: events.map(|event| GroupEvent { time: event.time.map(wrong), ..event.clone() }).collect(),
            ..Observed::new(self.group.clone())
        }
    }

    pub(super) fn id(&self) -> &Arc<str> {
        &self.group.id
    }
}
