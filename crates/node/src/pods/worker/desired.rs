//! The pod as the API server has it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_supervisor::Now;

use crate::pods::{
    status,
    trial::{self, Assignment},
    watch_audit::KnownVersion,
};

/// What is known of the pod in the API server.
#[derive(Debug)]
enum ApiState {
    /// It is none of this node's: it was never seen, or its trial here is over. Only the provider may have it.
    NotOurs {
        last_known: Option<Arc<Pod>>,
        /// The version that said so: an older one says nothing.
        version: Option<u64>,
    },
    Present(Arc<Pod>),
    /// This UID has left the API server and never comes back: an answer that says otherwise is old.
    Gone {
        last_known: Option<Arc<Pod>>,
        /// The watch has reported the deletion, and reports nothing older from now on.
        watch_confirmed: bool,
    },
}

/// The newest version of the pod, what it is to this node, and the time at which its `activeDeadlineSeconds` are over.
#[derive(Debug)]
pub(super) struct DesiredPod {
    state: ApiState,
    assignment: Assignment,
    /// Since when the trial is over.
    over_since: Option<Duration>,
    expires_at: Option<Duration>,
}

// === impl DesiredPod ===

impl DesiredPod {
    pub(super) fn unseen() -> Self {
        let state = ApiState::NotOurs { last_known: None, version: None };
        Self { state, assignment: Assignment::NotOurs, over_since: None, expires_at: None }
    }

    /// The pod, while it is in the API server.
    pub(super) fn pod(&self) -> Option<&Arc<Pod>> {
        match &self.state {
            ApiState::Present(pod) => Some(pod),
            ApiState::NotOurs { .. } | ApiState::Gone { .. } => None,
        }
    }

    /// The pod as it was last in the API server.
    pub(super) fn last_known(&self) -> Option<&Arc<Pod>> {
        match &self.state {
            ApiState::Present(pod) => Some(pod),
            ApiState::NotOurs { last_known, .. } | ApiState::Gone { last_known, .. } => last_known.as_ref(),
        }
    }

    /// Whether the pod is gone or being deleted, or its trial is over.
    pub(super) fn is_terminating(&self) -> bool {
        self.pod().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()) || self.is_trial_over()
    }

    /// Whether the pod is in the API server and bound to this node.
    pub(super) fn is_bound(&self) -> bool {
        self.pod().is_some() && self.assignment == Assignment::Bound
    }

    /// Whether all that is known of the pod is that it is, or was, on trial here.
    pub(super) fn is_trial(&self) -> bool {
        self.is_ours() && self.last_known().is_some_and(|pod| trial::bound_to(pod).is_none())
    }

    /// Whether the pod is, or was, bound to this node. One that was released is another node's, or on no node.
    pub(super) fn is_known_as_bound(&self) -> bool {
        self.is_ours() && !self.is_trial()
    }

    fn is_ours(&self) -> bool {
        !matches!(self.state, ApiState::NotOurs { .. })
    }

    /// Whether the trial of the pod is over, and its label is still there.
    pub(super) fn is_trial_over(&self) -> bool {
        self.pod().is_some() && self.assignment == Assignment::TrialOver
    }

    /// Since when the trial of the pod is over.
    pub(super) fn trial_over_since(&self) -> Option<Duration> {
        self.over_since.filter(|_| self.is_trial_over())
    }

    /// Whether the trial of the pod is over, or the pod was this node's and is not any more.
    pub(super) fn is_leaving(&self) -> bool {
        let was_ours = matches!(&self.state, ApiState::NotOurs { last_known, .. } if last_known.is_some());
        was_ours || self.is_trial_over()
    }

    /// When the trial of the pod ends.
    pub(super) fn trial_until(&self) -> Option<Duration> {
        match self.assignment {
            Assignment::OnTrial { until, .. } if self.pod().is_some() => Some(until),
            _ => None,
        }
    }

    /// Ends a trial that has had its time. Returns whether that is new.
    pub(super) fn end_trial(&mut self, now: Now) -> bool {
        let is_due = match self.assignment {
            Assignment::OnTrial { until, wall } if self.pod().is_some() => {
                until <= now.elapsed || wall <= now.wall
            }
            _ => false,
        };
        if is_due {
            self.assignment = Assignment::TrialOver;
            self.over_since = Some(now.elapsed);
        }
        is_due
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
            ApiState::NotOurs { version: known, .. } => *known >= version(pod) && known.is_some(),
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

    /// A newer version. A trial that is over stays so until its label is removed: what it left is being deleted.
    pub(super) fn update(&mut self, pod: Arc<Pod>, assignment: Assignment, now: Now) {
        let again = self.is_trial_over() && matches!(assignment, Assignment::OnTrial { .. });
        self.assignment = if again { Assignment::TrialOver } else { assignment };
        self.over_since =
            self.over_since.or(Some(now.elapsed)).filter(|_| self.assignment == Assignment::TrialOver);
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
        // The watch of pods on trial has said before that it shows the pod no more.
        let watch_confirmed = reported_by_watch || matches!(self.state, ApiState::NotOurs { .. });
        self.state = ApiState::Gone { last_known, watch_confirmed };
        true
    }

    /// The pod is none of this node's any more, as of this version. Returns whether that is new.
    pub(super) fn release(&mut self, version: Option<u64>) -> bool {
        match &mut self.state {
            ApiState::Present(pod) => {
                let last_known = Some(Arc::clone(pod));
                let version = version.max(self::version(pod));
                self.state = ApiState::NotOurs { last_known, version };
                true
            }
            ApiState::NotOurs { version: known, .. } => {
                *known = version.max(*known);
                false
            }
            ApiState::Gone { watch_confirmed, .. } => {
                *watch_confirmed = true;
                false
            }
        }
    }

    /// Whether nothing more is to be expected from the watch. An old event would make a new worker, which would create the
    /// pod again.
    pub(super) fn is_final(&self) -> bool {
        match &self.state {
            ApiState::NotOurs { .. } => true,
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
        desired.update(pod(5), Assignment::Bound, now());
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
    fn a_trial_ends_once_and_what_was_said_before_it_was_taken_away_says_nothing() {
        let (until, wall) = (Duration::from_secs(90), "2026-01-01T01:00:00Z".parse().unwrap());
        let at = |seconds, wall| Now { elapsed: Duration::from_secs(seconds), wall };
        let mut desired = DesiredPod::unseen();
        desired.update(pod(5), Assignment::OnTrial { until, wall }, now());
        assert!(desired.is_trial() && !desired.is_bound() && !desired.is_terminating());
        assert!(!desired.end_trial(at(89, now().wall)) && desired.end_trial(at(90, now().wall)));
        assert!(!desired.end_trial(at(90, now().wall)));
        desired.update(pod(6), Assignment::OnTrial { until: until * 2, wall }, now());
        assert!(desired.is_trial_over() && desired.is_terminating(), "it is being deleted");
        assert!(desired.release(Some(8)) && !desired.release(Some(7)));
        assert!(desired.is_final() && !desired.is_trial() && desired.last_known() == Some(&pod(6)));
        assert!(desired.is_outdated(&pod(8)) && !desired.is_outdated(&pod(9)));
        desired.update(pod(9), Assignment::Bound, now());
        assert!(desired.is_bound() && !desired.is_terminating());
    }

    #[test]
    fn a_clock_that_is_corrected_ends_a_trial_in_time() {
        let (until, wall) = (Duration::from_hours(1), "2026-01-01T01:00:00Z".parse().unwrap());
        let mut desired = DesiredPod::unseen();
        desired.update(pod(5), Assignment::OnTrial { until, wall }, now());
        assert!(desired.end_trial(Now { elapsed: Duration::from_secs(91), wall }));
    }

    #[test]
    fn the_active_deadline_counts_from_the_start_of_the_pod() {
        let mut desired = DesiredPod::unseen();
        desired.update(pod(5), Assignment::Bound, now());
        assert_eq!(desired.expires_at(), Some(Duration::from_secs(75)));
    }
}
