//! What the runtime lists and cannot be asked about: enough to stop it, and to show that it is there.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    backend::{ContainerEntry, SandboxEntry},
    parts,
    snapshot::{Container, ContainerState, Sandbox},
};

/// The exit code, reason and message of a container of which nobody knows how it ended: those of a kubelet for one that is lost.
const LOST: (i32, &str, &str) =
    (137, "ContainerStatusUnknown", "The container could not be inspected when the pod was terminated");

/// The sandbox by its entry, and by what was known of it before.
pub(super) fn sandbox(
    known: Option<&Sandbox>,
    entry: &SandboxEntry,
    mark: &BTreeMap<String, String>,
    now: Timestamp,
) -> Sandbox {
    if let Some(known) = known {
        return Sandbox { state: entry.state, ..known.clone() };
    }
    Sandbox {
        id: entry.id.clone(),
        attempt: entry.attempt,
        state: entry.state,
        created: now,
        ips: Vec::new(),
        host_network: false,
        handler: String::new(),
        labels: mark.clone(),
        annotations: BTreeMap::new(),
    }
}

/// The container by its entry, by what was known of it before, and by the pod where somebody knows that.
pub(super) fn container(
    known: Option<&Container>,
    entry: &ContainerEntry,
    pod: Option<&Pod>,
    mark: &BTreeMap<String, String>,
    now: Timestamp,
) -> Container {
    let mut container = known.cloned().unwrap_or_else(|| Container {
        id: entry.id.clone(),
        name: entry.name.clone(),
        attempt: entry.attempt,
        sandbox: entry.sandbox.clone(),
        // Whatever it becomes is new.
        state: ContainerState::Created,
        created: now,
        started: (entry.state != ContainerState::Created).then_some(now),
        finished: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: pod
            .and_then(|pod| parts::part(pod, &entry.name))
            .and_then(|part| part.container.image.clone())
            .unwrap_or_default(),
        image_ref: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        user: None,
        mounts: Vec::new(),
        labels: mark.clone(),
        annotations: BTreeMap::new(),
    });
    if entry.state == ContainerState::Exited && container.state != ContainerState::Exited {
        let (code, reason, message) = LOST;
        container.exit_code = code;
        reason.clone_into(&mut container.reason);
        message.clone_into(&mut container.message);
        container.finished = Some(now);
    }
    container.state = entry.state;
    container
}
