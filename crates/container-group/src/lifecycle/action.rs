//! What goes into the machine of a pod and what comes out.

use std::time::Duration;

use crate::backend::{CallResult, GroupRef, Idempotency};

/// Identifies a call. Ids are never used twice in a process, so an answer is never taken for the answer to a later call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

/// Hands out ids.
#[derive(Debug, Default)]
pub struct CallIds(u64);

/// What the pod's groups should become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Nobody has said: the groups were found in the cloud.
    Unspecified,
    /// One group.
    Run,
    /// No group.
    Stop {
        /// The grace period.
        grace: Duration,
    },
}

/// A request of the core that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// `create_pod`.
    Create,
    /// `delete_pod`.
    Delete,
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create a group, when the budget allows it.
    Create {
        /// Answer with this id.
        id: CallId,
        /// The attempt.
        attempt: u32,
    },
    /// Find the group of an attempt by its name.
    LookUp {
        /// Answer with this id.
        id: CallId,
        /// The attempt.
        attempt: u32,
    },
    /// Delete a group.
    Delete {
        /// Answer with this id.
        id: CallId,
        /// The group.
        group: GroupRef,
        /// Its grace period.
        grace: Duration,
    },
    /// Answer the core.
    Settle(Request, CallResult<()>),
    /// A second group of this pod is deleted.
    Duplicate {
        /// The older group, which stays.
        kept: GroupRef,
        /// The younger one.
        removed: GroupRef,
    },
    /// A group is certainly gone.
    Gone(GroupRef),
}

/// What the machine needs to know about the rest of the world.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Time since the process started.
    pub now: Duration,
    /// How long the cloud's lists may be out of date.
    pub consistency: Duration,
    /// How the cloud recognises a repeated create.
    pub idempotency: Idempotency,
    /// Whether a complete list of the groups was read.
    pub synced: bool,
    /// Whether a complete list was begun so late that it shows whatever an earlier process may have created.
    pub certain: bool,
    /// Whether this process owns the node: without it nothing is written.
    pub leading: bool,
    /// Ids for calls.
    pub ids: &'a mut CallIds,
    /// Receives what is to be done.
    pub actions: &'a mut Vec<Action>,
}

// === impl CallIds ===

impl CallIds {
    /// A new id.
    pub fn issue(&mut self) -> CallId {
        self.0 += 1;
        CallId(self.0)
    }
}
