//! Whether a pod needs a new sandbox.

use k8s_openapi::api::core::v1::Pod;

use crate::snapshot::{Sandbox, SandboxState, Snapshot};

/// What happens to a pod's sandbox.
pub(super) enum SandboxDecision<'a> {
    /// Keep this one.
    Keep(&'a Sandbox),
    /// Create a new one.
    Create {
        /// Its attempt number.
        attempt: u32,
        /// The previous sandbox. `None` also if it is replaced because the pod's network mode changed, which no event reports.
        replaces: Option<&'a Sandbox>,
    },
}

/// Keeps the newest sandbox if it is the only ready one, has the pod's network mode and has an address.
pub(super) fn decide<'a>(pod: &Pod, snapshot: &'a Snapshot) -> SandboxDecision<'a> {
    let Some(newest) = snapshot.sandboxes.first() else {
        return SandboxDecision::Create { attempt: 0, replaces: None };
    };
    let attempt = newest.attempt.saturating_add(1);
    let ready = snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    if ready > 1 || newest.state != SandboxState::Ready {
        return SandboxDecision::Create { attempt, replaces: Some(newest) };
    }
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
    if newest.host_network != host_network {
        return SandboxDecision::Create { attempt, replaces: None };
    }
    if !host_network && newest.ips.is_empty() {
        return SandboxDecision::Create { attempt, replaces: Some(newest) };
    }
    SandboxDecision::Keep(newest)
}

/// Whether the pod has no sandbox in which its containers can run.
pub(crate) fn needs_sandbox(pod: &Pod, snapshot: &Snapshot) -> bool {
    matches!(decide(pod, snapshot), SandboxDecision::Create { .. })
}
