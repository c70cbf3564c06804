//! What of a pod's dead things can go.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Remove, Stop, Why};
use crate::snapshot::{ContainerState, SandboxState, Snapshot};

/// What can go, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Stop these first: nobody knows whether they run.
    pub stop: Vec<Stop>,
    /// Remove these. Where that fails, the sandbox of it has to stay, too.
    pub containers: Vec<Remove>,
    /// Stop and remove these.
    pub sandboxes: Vec<String>,
}

/// What of a pod can go now: of each container name everything that does not run but the newest, and sandboxes that are not ready, hold
/// nothing and are not the newest. Of a pod that is gone everything that does not run.
pub fn garbage(pod_exists: bool, snapshot: &Snapshot, now: Timestamp) -> Garbage {
    let mut garbage = Garbage::default();
    let mut kept = BTreeSet::new();
    let mut occupied = BTreeSet::new();
    for container in &snapshot.containers {
        // One from the future is left alone until the clocks agree.
        let dead = container.state != ContainerState::Running && container.created <= now;
        if !dead || (kept.insert(&container.name) && pod_exists) {
            occupied.insert(&container.sandbox);
            continue;
        }
        if container.state == ContainerState::Unknown {
            garbage.stop.push(Stop {
                id: container.id.clone(),
                name: container.name.clone(),
                message: "Container is in unknown state, try killing it before removal".to_owned(),
                why: Why::Unknown,
            });
        }
        garbage.containers.push(Remove { id: container.id.clone(), keep_log: false });
    }
    let newest = snapshot.sandboxes.iter().max_by_key(|sandbox| (sandbox.created, sandbox.attempt));
    for sandbox in &snapshot.sandboxes {
        let active = sandbox.state == SandboxState::Ready || occupied.contains(&sandbox.id);
        let kept = pod_exists && newest.is_some_and(|newest| newest.id == sandbox.id);
        if !active && !kept {
            garbage.sandboxes.push(sandbox.id.clone());
        }
    }
    // The oldest first.
    garbage.containers.reverse();
    garbage.stop.reverse();
    garbage.sandboxes.reverse();
    garbage
}
