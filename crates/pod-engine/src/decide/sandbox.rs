//! When a pod needs a sandbox.

use k8s_openapi::api::core::v1::Pod;

use crate::snapshot::{Sandbox, SandboxState, Snapshot};

/// What a pod's sandbox needs.
pub(super) enum Need<'a> {
    /// It can stay.
    Keep(&'a Sandbox),
    /// There must be a new one.
    New {
        /// Its number.
        attempt: u32,
        /// The one before it, unless it is replaced because the pod wants another network, which nobody is told.
        replaces: Option<&'a Sandbox>,
    },
}

/// Whether the newest sandbox is the only ready one and of the kind that the pod wants.
pub(super) fn need<'a>(pod: &Pod, snapshot: &'a Snapshot) -> Need<'a> {
    let Some(newest) = snapshot.sandboxes.first() else { return Need::New { attempt: 0, replaces: None } };
    let attempt = newest.attempt.saturating_add(1);
    let ready = snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    if ready > 1 || newest.state != SandboxState::Ready {
        return Need::New { attempt, replaces: Some(newest) };
    }
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
    if newest.host_network != host_network {
        return Need::New { attempt, replaces: None };
    }
    if !host_network && newest.ips.is_empty() {
        return Need::New { attempt, replaces: Some(newest) };
    }
    Need::Keep(newest)
}
