//! Containers and sandboxes of a pod that can be removed.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{RemoveContainer, StopContainer, StopReason};
use crate::snapshot::{ContainerState, SandboxState, Snapshot};

/// What to remove, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Stop these first: the runtime does not know whether they run.
    pub stop: Vec<StopContainer>,
    /// Remove these. If that fails, their sandbox has to stay too.
    pub containers: Vec<RemoveContainer>,
    /// Stop and remove these.
    pub sandboxes: Vec<String>,
}

/// Finds removable objects: all but the newest container of each name, unless they run, and empty sandboxes that are neither ready nor the
/// newest. Of a pod that no longer exists everything that does not run.
pub fn find_garbage(pod_exists: bool, snapshot: &Snapshot, now: Timestamp) -> Garbage {
    let mut garbage = Garbage::default();
    let mut kept = BTreeSet::new();
    let mut occupied = BTreeSet::new();
    for container in &snapshot.containers {
        // A creation time in the future means that the clock was set back: keep it for now.
        let dead = container.state != ContainerState::Running && container.created <= now;
        if !dead || (kept.insert(&container.name) && pod_exists) {
            occupied.insert(&container.sandbox);
            continue;
        }
        if container.state == ContainerState::Unknown {
            garbage.stop.push(StopContainer {
                id: container.id.clone(),
                name: container.name.clone(),
                message: "Container is in unknown state, try killing it before removal".to_owned(),
                reason: StopReason::Unknown,
            });
        }
        garbage.containers.push(RemoveContainer { id: container.id.clone(), keep_log: false });
    }
    let newest = snapshot.sandboxes.iter().max_by_key(|sandbox| (sandbox.created, sandbox.attempt));
    for sandbox in &snapshot.sandboxes {
        let active = sandbox.state == SandboxState::Ready || occupied.contains(&sandbox.id);
        let kept = pod_exists && newest.is_some_and(|newest| newest.id == sandbox.id);
        if !active && !kept {
            garbage.sandboxes.push(sandbox.id.clone());
        }
    }
    // Oldest first.
    garbage.containers.reverse();
    garbage.stop.reverse();
    garbage.sandboxes.reverse();
    garbage
}
