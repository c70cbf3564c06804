//! What a cloud says about its groups.

use std::net::IpAddr;

use jiff::Timestamp;
use vk_provider::{
    EventKind,
    ability::{CpuStats, MemoryStats, NetworkStats},
};

use super::{GroupRef, Owner, Size};

/// What one call said about one group. What it did not say is `None`: the engine keeps what it saw before.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Which group.
    pub group: GroupRef,
    /// Whose it is, from its tags; `None` if the call does not show tags. The engine then takes the owner from the name.
    pub owner: Option<Owner>,
    /// Whether this is all that the cloud can say now. If not, the engine asks for details of groups that changed.
    pub complete: bool,
    /// Its state; `None` if the call does not show it.
    pub state: Option<GroupState>,
    /// Why it is in this state, as a CamelCase reason: `ScheduleFailed`, `NoStock`, ...
    pub reason: Option<String>,
    /// The same for humans.
    pub message: Option<String>,
    /// Whether the cloud took the group back: a spot instance, or maintenance.
    pub preempted: bool,
    /// When the cloud accepted it.
    pub created: Option<Timestamp>,
    /// When its first container could start.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Option<Timestamp>,
    /// Its addresses, primary first.
    pub addresses: Option<Vec<IpAddr>>,
    /// Its public address.
    pub public_address: Option<IpAddr>,
    /// Its zone.
    pub zone: Option<String>,
    /// Its size in effect.
    pub size: Option<Size>,
    /// Its regular containers.
    pub containers: Option<Vec<ObservedContainer>>,
    /// Its init containers.
    pub init_containers: Option<Vec<ObservedContainer>>,
    /// What happened to it. May repeat earlier events.
    pub events: Vec<GroupEvent>,
    /// What of the response could not be understood: an unknown state, a malformed address. Left out above, and shown as an event.
    pub malformed: Vec<String>,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// The cloud has accepted it, and nothing of it exists.
    Accepted,
    /// The cloud looks for a place, pulls images, or runs init containers.
    Provisioning,
    /// Its containers run, are restarted, or are updated.
    Running,
    /// It is being deleted. What runs may still run.
    Deleting,
    /// All containers have ended for good, with success.
    Succeeded,
    /// It has ended for good, without success.
    Failed,
    /// It has ended for good; its containers say how.
    Ended,
    /// It was deleted, but is still listed. The same as not being there.
    Deleted,
}

/// What a cloud says about a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedContainer {
    /// Its name in the pod.
    pub name: String,
    /// Its state.
    pub state: Option<ContainerState>,
    /// How its previous instance ended.
    pub previous: Option<Termination>,
    /// How often it was restarted.
    pub restarts: Option<i32>,
    /// Whether it is ready, by the cloud's own probes.
    pub ready: Option<bool>,
    /// Whether its startup probe has succeeded.
    pub started: Option<bool>,
    /// The image that it runs.
    pub image: Option<String>,
    /// The digest of the image.
    pub image_id: Option<String>,
    /// Its id, as `runtime://id`; by default one is derived from group and name.
    pub container_id: Option<String>,
}

/// The state of a container.
#[derive(Clone, Debug, PartialEq)]
pub enum ContainerState {
    /// It does not run yet, or not again yet.
    Waiting {
        /// A CamelCase reason, such as `ContainerCreating` or `CrashLoopBackOff`.
        reason: Option<String>,
        /// The same for humans.
        message: Option<String>,
    },
    /// It runs.
    Running {
        /// Since when.
        started: Option<Timestamp>,
    },
    /// It has ended.
    Terminated(Termination),
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// Its exit code; `None` if the cloud does not know.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// A CamelCase reason, such as `Completed` or `OOMKilled`.
    pub reason: Option<String>,
    /// The same for humans, or what the container wrote as its termination message.
    pub message: Option<String>,
    /// When it started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Option<Timestamp>,
}

/// Something that happened to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupEvent {
    /// When it happened (last), if the cloud says so.
    pub time: Option<Timestamp>,
    /// Normal or Warning.
    pub kind: EventKind,
    /// A CamelCase reason.
    pub reason: String,
    /// The same for humans.
    pub message: String,
    /// The container, if it is about one.
    pub container: Option<String>,
}

/// A page of groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The groups.
    pub groups: Vec<Observed>,
    /// Where the next page begins; `None` for the last page.
    pub next: Option<String>,
    /// Whether groups may be missing: an entry could not be read, or the cloud said so.
    pub incomplete: bool,
}

/// Resource usage of a container. When it has started is in [`Observed`].
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUsage {
    /// Its name.
    pub name: String,
    /// CPU.
    pub cpu: Option<CpuStats>,
    /// Memory.
    pub memory: Option<MemoryStats>,
}

/// Resource usage of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupStats {
    /// Which group.
    pub group: GroupRef,
    /// Its containers.
    pub containers: Vec<ContainerUsage>,
    /// CPU of the group; by default the sum of its containers.
    pub cpu: Option<CpuStats>,
    /// Memory of the group; by default the sum of its containers.
    pub memory: Option<MemoryStats>,
    /// Network.
    pub network: Option<NetworkStats>,
}

// === impl Observed ===

impl Observed {
    /// A group of which nothing is known but that it exists.
    pub fn new(group: GroupRef) -> Self {
        Self {
            group,
            owner: None,
            complete: false,
            state: None,
            reason: None,
            message: None,
            preempted: false,
            created: None,
            started: None,
            finished: None,
            addresses: None,
            public_address: None,
            zone: None,
            size: None,
            containers: None,
            init_containers: None,
            events: Vec::new(),
            malformed: Vec::new(),
        }
    }

    /// Adds what a newer call said. What it left out stays. The events and malformed parts are those of the newer call.
    #[must_use]
    pub fn updated_by(self, newer: Self) -> Self {
        let same_state = newer.state.is_none() || newer.state == self.state;
        Self {
            group: newer.group,
            owner: newer.owner.or(self.owner),
            complete: newer.complete,
            state: newer.state.or(self.state),
            // A reason belongs to its state.
            reason: newer.reason.or_else(|| self.reason.filter(|_| same_state)),
            message: newer.message.or_else(|| self.message.filter(|_| same_state)),
            preempted: newer.preempted || self.preempted,
            created: newer.created.or(self.created),
            // Calls that disagree must not look like changes.
            started: self.started.or(newer.started),
            finished: newer.finished.or(self.finished),
            addresses: newer.addresses.or(self.addresses),
            public_address: newer.public_address.or(self.public_address),
            zone: newer.zone.or(self.zone),
            size: newer.size.or(self.size),
            containers: merged(self.containers, newer.containers),
            init_containers: merged(self.init_containers, newer.init_containers),
            events: newer.events,
            malformed: newer.malformed,
        }
    }
}

/// The containers of a newer call, each with what it left out.
fn merged(
    older: Option<Vec<ObservedContainer>>,
    newer: Option<Vec<ObservedContainer>>,
) -> Option<Vec<ObservedContainer>> {
    let (mut older, mut newer) = match (older, newer) {
        (Some(older), Some(newer)) => (older, newer),
        (older, newer) => return newer.or(older),
    };
    for one in &mut newer {
        if let Some(at) = older.iter().position(|before| before.name == one.name) {
            one.complete_from(older.swap_remove(at));
        }
    }
    Some(newer)
}

// === impl ObservedContainer ===

impl ObservedContainer {
    /// Adds what an older call has said and a newer one left out.
    fn complete_from(&mut self, older: Self) {
        self.state = match (self.state.take(), older.state) {
            (None, older) => older,
            (Some(ContainerState::Running { started: None }), Some(ContainerState::Running { started })) => {
                Some(ContainerState::Running { started })
            }
            (Some(ContainerState::Terminated(newer)), Some(ContainerState::Terminated(older))) => {
                Some(ContainerState::Terminated(newer.completed_from(older)))
            }
            (newer, _) => newer,
        };
        self.previous = self.previous.take().or(older.previous);
        self.restarts = self.restarts.or(older.restarts);
        self.ready = self.ready.or(older.ready);
        self.started = self.started.or(older.started);
        self.image = self.image.take().or(older.image);
        self.image_id = self.image_id.take().or(older.image_id);
        self.container_id = self.container_id.take().or(older.container_id);
    }
}

// === impl Termination ===

impl Termination {
    /// Adds what an older call has said, if it was about the same instance.
    fn completed_from(self, older: Self) -> Self {
        let differs = |one: Option<Timestamp>, other: Option<Timestamp>| {
            one.zip(other).is_some_and(|(one, other)| one != other)
        };
        if differs(self.started, older.started) || differs(self.finished, older.finished) {
            return self;
        }
        Self {
            exit_code: self.exit_code.or(older.exit_code),
            signal: self.signal.or(older.signal),
            reason: self.reason.or(older.reason),
            message: self.message.or(older.message),
            started: self.started.or(older.started),
            finished: self.finished.or(older.finished),
        }
    }
}

// === impl GroupState ===

impl GroupState {
    /// Whether nothing of the group runs, and nothing of it will run again.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Ended | Self::Deleted)
    }

    /// Whether the group is on its way to another state.
    pub fn is_changing(self) -> bool {
        matches!(self, Self::Accepted | Self::Provisioning | Self::Deleting)
    }

    /// A stable name for metrics and lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Provisioning => "Provisioning",
            Self::Running => "Running",
            Self::Deleting => "Deleting",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Ended => "Ended",
            Self::Deleted => "Deleted",
        }
    }
}
