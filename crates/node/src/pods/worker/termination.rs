//! How a pod is stopped: with its grace period, again when that is shortened, and again when it is overdue.
//!
//! As with a kubelet, a grace period counts from when the deletion is seen, by the monotonic clock: a wall clock that is wrong
//! kills nobody early. Only a pod that is found terminating after a start has what the wall clock says is left: a restart does
//! not renew its grace period.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use vk_supervisor::Now;

/// How long a pod may outlive its grace period before the provider is asked again.
const OVERDUE: Duration = Duration::from_secs(5);
/// The API server keeps whole seconds of a deletionTimestamp: the rest belongs to the grace period, and can be most of a
/// short one.
const TRUNCATED: Duration = Duration::from_secs(1);

/// What to do about a pod that must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopDecision {
    /// The provider was asked: nothing to do before this time.
    Wait(Duration),
    /// Call the provider with this grace period.
    Stop { grace: Duration, overdue: bool },
}

/// The end of the grace period, and the delete call that the provider was last given.
#[derive(Debug, Default)]
pub(super) struct Termination {
    /// When the grace period ends, once the pod is to be stopped.
    stop_by: Option<Duration>,
    /// When the grace period of the last call ends.
    kill_at: Option<Duration>,
    /// The provider has accepted the call.
    accepted: bool,
    overdue_reported: bool,
    killing_reported: bool,
}

// === impl Termination ===

impl Termination {
    /// Whether the provider has accepted the request to stop the pod.
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// Whether the provider was asked to stop the pod at once, and its time is over.
    pub(super) fn is_immediate(&self, now: Duration) -> bool {
        self.kill_at.is_some_and(|at| at <= now)
    }

    /// The pod is being deleted, or its grace period was changed, which can only shorten it. `found`: it was terminating
    /// when this process first saw it.
    pub(super) fn deletion_seen(&mut self, pod: &Pod, found: bool, now: Now) {
        let metadata = &pod.metadata;
        let whole = seconds(metadata.deletion_grace_period_seconds, 0);
        let left = metadata.deletion_timestamp.as_ref().filter(|_| found).map(|time| {
            let end = time.0.saturating_add(TRUNCATED).unwrap_or(time.0);
            Duration::try_from(end.duration_since(now.wall)).unwrap_or(Duration::ZERO)
        });
        let end = now.elapsed + left.map_or(whole, |left| left.min(whole));
        self.stop_by = Some(self.stop_by.map_or(end, |before| before.min(end)));
        self.kill_at = None;
    }

    /// What to do now. `pod` is the pod in the API server, if it is there.
    pub(super) fn decide(&mut self, pod: Option<&Pod>, now: Duration) -> StopDecision {
        let stop_by = self.stop_by(pod, now);
        let overdue = self.kill_at.is_some_and(|at| now >= at.saturating_add(OVERDUE));
        // A time that is over cannot be shortened.
        if let Some(kill_at) = self.kill_at.filter(|at| *at <= stop_by.max(now) && !overdue) {
            return StopDecision::Wait(kill_at + OVERDUE);
        }
        self.kill_at = Some(if overdue { now } else { stop_by });
        let grace = if overdue { Duration::ZERO } else { stop_by.saturating_sub(now) };
        StopDecision::Stop { grace, overdue }
    }

    /// When the grace period ends: at once for a pod that is not in the API server. A pod that is not deleted and must stop
    /// all the same has the grace period of its spec from now on.
    fn stop_by(&mut self, pod: Option<&Pod>, now: Duration) -> Duration {
        let Some(pod) = pod else { return now };
        let of_spec =
            || seconds(pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds), 30);
        *self.stop_by.get_or_insert_with(|| now + of_spec())
    }

    /// The provider accepted the call. Returns whether that is new.
    pub(super) fn accept(&mut self) -> bool {
        !std::mem::replace(&mut self.accepted, true)
    }

    /// The call failed: the provider is asked again.
    pub(super) fn ask_again(&mut self) {
        self.kill_at = None;
    }

    /// A create or update call begins: the pod is not being stopped any more.
    pub(super) fn withdraw(&mut self) {
        self.accepted = false;
        self.stop_by = None;
        self.kill_at = None;
    }

    /// Whether to report that the pod is overdue: once.
    pub(super) fn report_overdue(&mut self) -> bool {
        !std::mem::replace(&mut self.overdue_reported, true)
    }

    /// Whether to report that containers are being stopped: once.
    pub(super) fn report_killing(&mut self) -> bool {
        !std::mem::replace(&mut self.killing_reported, true)
    }

    /// When a pod that does not stop is removed from the API server all the same.
    pub(super) fn force_at(&self, force_after: Option<Duration>) -> Option<Duration> {
        Some(self.kill_at? + force_after?)
    }
}

fn seconds(given: Option<i64>, default: u64) -> Duration {
    Duration::from_secs(given.and_then(|given| given.try_into().ok()).unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use serde_json::json;

    use super::*;

    const START: i64 = 1_800_000_000;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The time on a node whose wall clock is this many seconds ahead.
    fn now(seconds: u64, ahead: i64) -> Now {
        let wall = Timestamp::from_second(START).unwrap() + at(seconds) + SignedDuration::from_secs(ahead);
        Now { elapsed: at(seconds), wall }
    }

    /// A pod that was deleted at the start of the test.
    fn deleted(grace: i64) -> Pod {
        let time = Timestamp::from_second(START + grace).unwrap().to_string();
        let metadata = json!({"deletionTimestamp": time, "deletionGracePeriodSeconds": grace});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn stop(grace: u64, overdue: bool) -> StopDecision {
        StopDecision::Stop { grace: at(grace), overdue }
    }

    #[test]
    fn a_wall_clock_that_is_wrong_does_not_change_the_grace_of_a_deletion_that_was_seen() {
        for ahead in [-3600, -31, 0, 31, 3600] {
            let mut termination = Termination::default();
            termination.deletion_seen(&deleted(30), false, now(2, ahead));
            assert_eq!(termination.decide(Some(&deleted(30)), at(2)), stop(30, false), "{ahead}");
        }
    }

    #[test]
    fn a_restart_does_not_renew_the_grace() {
        let mut termination = Termination::default();
        termination.deletion_seen(&deleted(30), true, now(20, 0));
        assert_eq!(termination.decide(Some(&deleted(30)), at(20)), stop(11, false));
        let mut late = Termination::default();
        late.deletion_seen(&deleted(30), true, now(60, 0));
        assert_eq!(late.decide(Some(&deleted(30)), at(60)), stop(0, false));
        let mut behind = Termination::default();
        behind.deletion_seen(&deleted(30), true, now(20, -3600));
        assert_eq!(behind.decide(Some(&deleted(30)), at(20)), stop(30, false), "never longer than the whole");
    }

    #[test]
    fn the_provider_is_asked_once_and_again_when_the_grace_is_shortened_or_over() {
        let mut termination = Termination::default();
        termination.deletion_seen(&deleted(30), false, now(0, 0));
        assert_eq!(termination.decide(Some(&deleted(30)), at(0)), stop(30, false));
        assert_eq!(
            termination.decide(Some(&deleted(30)), at(1)),
            StopDecision::Wait(at(35)),
            "asked already"
        );
        termination.deletion_seen(&deleted(5), false, now(2, 0));
        assert_eq!(termination.decide(Some(&deleted(5)), at(2)), stop(5, false), "as a kubelet counts it");
        assert!(matches!(termination.decide(Some(&deleted(5)), at(10)), StopDecision::Wait(_)));
        assert_eq!(termination.decide(Some(&deleted(5)), at(12)), stop(0, true));
        assert_eq!(
            termination.decide(Some(&deleted(5)), at(13)),
            StopDecision::Wait(at(17)),
            "not at once again"
        );
        assert_eq!(termination.decide(Some(&deleted(5)), at(17)), stop(0, true));
        assert!(termination.report_overdue() && !termination.report_overdue());
    }

    #[test]
    fn a_shorter_grace_never_makes_the_rest_longer() {
        let mut termination = Termination::default();
        termination.deletion_seen(&deleted(30), false, now(0, 0));
        termination.deletion_seen(&deleted(29), false, now(20, 0));
        assert_eq!(termination.decide(Some(&deleted(29)), at(20)), stop(10, false));
    }

    #[test]
    fn a_pod_that_is_gone_is_stopped_at_once() {
        let mut termination = Termination::default();
        assert_eq!(termination.decide(None, at(3)), stop(0, false));
        assert!(termination.is_immediate(at(3)));
    }

    #[test]
    fn a_failed_call_is_repeated_with_the_grace_that_is_left() {
        let mut termination = Termination::default();
        termination.deletion_seen(&deleted(30), false, now(0, 0));
        assert_eq!(termination.decide(Some(&deleted(30)), at(0)), stop(30, false));
        termination.ask_again();
        assert_eq!(termination.decide(Some(&deleted(30)), at(10)), stop(20, false));
        assert_eq!(termination.force_at(Some(at(9))), Some(at(39)));
    }

    #[test]
    fn a_pod_that_is_not_deleted_has_the_grace_of_its_spec_once() {
        let pod = json!({"spec": {"containers": [], "terminationGracePeriodSeconds": 7}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut termination = Termination::default();
        assert_eq!(termination.decide(Some(&pod), at(0)), stop(7, false));
        termination.ask_again();
        assert_eq!(termination.decide(Some(&pod), at(5)), stop(2, false));
    }
}
