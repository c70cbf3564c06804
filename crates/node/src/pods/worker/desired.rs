//! The pod as the API server has it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    now::Now,
    pods::{status, watch_audit::KnownVersion},
};

/// What is known of the pod in the API server.
#[derive(Debug)]
enum ApiState {
    /// It was never seen: only the provider has it.
    Unseen,
    Present(Arc<Pod>),
    /// This UID has left the API server and never comes back: an answer that says otherwise is old.
    Gone {
        last_known: Option<Arc<Pod>>,
        /// The watch has reported the deletion, and reports nothing older from now on.
        watch_confirmed: bool,
    },
}

/// The newest version of the pod, and the time at which its `activeDeadlineSeconds` are over.
#[derive(Debug)]
pub(super) struct DesiredPod {
    state: ApiState,
    expires_at: Option<Duration>,
}

// === impl DesiredPod ===

impl DesiredPod {
    pub(super) fn unseen() -> Self {
        Self { state: ApiState::Unseen, expires_at: None }
    }

    /// The pod, while it is in the API server.
    pub(super) fn pod(&self) -> Option<&Arc<Pod>> {
        match &self.state {
            ApiState::Present(pod) => Some(pod),
            ApiState::Unseen | ApiState::Gone { .. } => None,
        }
    }

    /// The pod as it was last in the API server.
    pub(super) fn last_known(&self) -> Option<&Arc<Pod>> {
        match &self.state {
            ApiState::Present(pod) => Some(pod),
            ApiState::Gone { last_known, .. } => last_known.as_ref(),
            ApiState::Unseen => None,
        }
    }

    /// Whether the pod is gone or being deleted.
    pub(super) fn is_terminating(&self) -> bool {
        self.pod().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    /// Whether the API server has the pod in a final phase.
    pub(super) fn has_ended(&self) -> bool {
        self.pod().is_some_and(|pod| status::has_ended(pod))
    }

    /// Whether this is older than what is known already.
    pub(super) fn is_outdated(&self, pod: &Pod) -> bool {
        match &self.state {
            ApiState::Gone { .. } => true,
            ApiState::Present(known) => version(known) > version(pod),
            ApiState::Unseen => false,
        }
    }

    /// Whether just this version is known.
    pub(super) fn has_version_of(&self, pod: &Pod) -> bool {
        let known = self.pod().and_then(|known| version(known));
        known.is_some() && known == version(pod)
    }

    pub(super) fn known_version(&self) -> KnownVersion {
        self.pod().map_or(KnownVersion::Gone, |pod| KnownVersion::Version(version(pod).unwrap_or(0)))
    }

    /// A newer version.
    pub(super) fn update(&mut self, pod: Arc<Pod>, now: Now) {
        self.expires_at = expiry(&pod, now);
        self.state = ApiState::Present(pod);
    }

    /// The same version in another allocation: only this one is kept, because others hold it, too.
    pub(super) fn replace(&mut self, pod: Arc<Pod>) {
        self.state = ApiState::Present(pod);
    }

    /// The pod is not in the API server any more. Returns whether that is new.
    pub(super) fn set_gone(&mut self, reported_by_watch: bool) -> bool {
        if let ApiState::Gone { watch_confirmed, .. } = &mut self.state {
            *watch_confirmed |= reported_by_watch;
            return false;
        }
        let last_known = self.last_known().cloned();
        self.state = ApiState::Gone { last_known, watch_confirmed: reported_by_watch };
        true
    }

    /// Whether nothing more is to be expected from the watch. An old event would make a new worker, which would create the
    /// pod again.
    pub(super) fn is_final(&self) -> bool {
        match &self.state {
            ApiState::Unseen => true,
            ApiState::Present(_) => false,
            ApiState::Gone { last_known, watch_confirmed } => *watch_confirmed || last_known.is_none(),
        }
    }

    pub(super) fn expires_at(&self) -> Option<Duration> {
        self.expires_at
    }
}

/// The `resourceVersion` as a number, which orders the versions of one object.
pub(in crate::pods) fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// When `activeDeadlineSeconds` are over, by the controller's clock.
fn expiry(pod: &Pod, now: Now) -> Option<Duration> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start: Timestamp = pod.status.as_ref()?.start_time.as_ref()?.0;
    let age = Duration::try_from(now.wall.duration_since(start)).unwrap_or(Duration::ZERO);
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Some(now.elapsed + limit.saturating_sub(age))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(version: u64) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": "web", "uid": "u1", "resourceVersion": version.to_string()},
            "spec": {"containers": [], "activeDeadlineSeconds": 20},
            "status": {"startTime": "2026-01-01T00:00:00Z"},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn now() -> Now {
        Now { elapsed: Duration::from_mins(1), wall: "2026-01-01T00:00:05Z".parse().unwrap() }
    }

    #[test]
    fn older_versions_are_outdated_and_a_pod_that_is_gone_never_comes_back() {
        let mut desired = DesiredPod::unseen();
        assert!(!desired.is_outdated(&pod(1)));
        desired.update(pod(5), now());
        assert!(
            desired.is_outdated(&pod(4)) && !desired.is_outdated(&pod(5)) && !desired.is_outdated(&pod(6))
        );
        assert!(desired.has_version_of(&pod(5)));
        assert!(desired.set_gone(false));
        assert!(desired.is_outdated(&pod(6)));
        assert_eq!(desired.last_known(), Some(&pod(5)));
        assert!(!desired.is_final(), "the watch is behind");
        assert!(!desired.set_gone(true));
        assert!(desired.is_final());
    }

    #[test]
    fn the_active_deadline_counts_from_the_start_of_the_pod() {
        let mut desired = DesiredPod::unseen();
        desired.update(pod(5), now());
        assert_eq!(desired.expires_at(), Some(Duration::from_secs(75)));
    }
}
