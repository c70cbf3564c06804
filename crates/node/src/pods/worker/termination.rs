//! How a pod is stopped: with the grace that is left, again when the grace is shortened, and again when it is overdue.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::now::Now;

/// How long a pod may outlive its grace period before the provider is asked again.
const OVERDUE: Duration = Duration::from_secs(5);
/// The API server keeps whole seconds of a deletionTimestamp: the rest belongs to the grace period, and can be most of a
/// short one.
const TRUNCATED: Duration = Duration::from_secs(1);
/// The two clocks drift apart a little; a grace period that was shortened is shorter by whole seconds.
const DRIFT: Duration = Duration::from_millis(900);

/// What to do about a pod that must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopDecision {
    /// The provider was asked: nothing to do before this time.
    Wait(Duration),
    /// Call the provider with this grace period.
    Stop { grace: Duration, overdue: bool },
}

/// The delete call that the provider was last given.
#[derive(Debug, Default)]
pub(super) struct Termination {
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

    /// What to do now. `pod` is the pod in the API server, if it is there.
    pub(super) fn decide(&mut self, pod: Option<&Pod>, now: Now) -> StopDecision {
        let stop_by = self.stop_by(pod, now);
        let overdue = self.kill_at.is_some_and(|at| now.elapsed >= at.saturating_add(OVERDUE));
        if let Some(kill_at) = self.kill_at.filter(|at| *at <= stop_by + DRIFT && !overdue) {
            return StopDecision::Wait(kill_at + OVERDUE);
        }
        self.kill_at = Some(if overdue { now.elapsed } else { stop_by });
        let grace = if overdue { Duration::ZERO } else { stop_by.saturating_sub(now.elapsed) };
        StopDecision::Stop { grace, overdue }
    }

    /// When the grace period ends, counted from the deletionTimestamp; at once for a pod that is not in the API server.
    fn stop_by(&self, pod: Option<&Pod>, now: Now) -> Duration {
        let Some(pod) = pod else { return now.elapsed };
        if let Some(time) = &pod.metadata.deletion_timestamp {
            let end = time.0.saturating_add(TRUNCATED).unwrap_or(time.0);
            let left = Duration::try_from(end.duration_since(now.wall)).unwrap_or(Duration::ZERO);
            // Neither that nor a clock that is behind makes a grace period longer.
            let whole = pod.metadata.deletion_grace_period_seconds.and_then(|grace| grace.try_into().ok());
            return now.elapsed + whole.map_or(left, |whole| left.min(Duration::from_secs(whole)));
        }
        let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        self.kill_at.unwrap_or_else(|| now.elapsed + Duration::from_secs(grace.try_into().unwrap_or(30)))
    }

    /// The provider accepted the call. Returns whether that is new.
    pub(super) fn accept(&mut self) -> bool {
        !std::mem::replace(&mut self.accepted, true)
    }

    /// The call failed, or the grace period was changed: the provider is asked again.
    pub(super) fn ask_again(&mut self) {
        self.kill_at = None;
    }

    /// A create or update call begins: the pod is not being stopped any more.
    pub(super) fn withdraw(&mut self) {
        self.accepted = false;
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn now(seconds: u64) -> Now {
        let elapsed = Duration::from_secs(seconds);
        Now { elapsed, wall: Timestamp::from_second(1_800_000_000).unwrap() + elapsed }
    }

    fn deleted(grace: i64) -> Pod {
        let time = Timestamp::from_second(1_800_000_000 + grace).unwrap().to_string();
        let metadata = json!({"deletionTimestamp": time, "deletionGracePeriodSeconds": grace});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn stop(grace: u64, overdue: bool) -> StopDecision {
        StopDecision::Stop { grace: Duration::from_secs(grace), overdue }
    }

    #[test]
    fn the_provider_is_asked_once_and_again_when_the_grace_is_shortened_or_over() {
        let mut termination = Termination::default();
        assert_eq!(termination.decide(Some(&deleted(30)), now(0)), stop(30, false));
        assert_eq!(
            termination.decide(Some(&deleted(30)), now(1)),
            StopDecision::Wait(Duration::from_secs(35)),
            "asked already"
        );
        assert_eq!(termination.decide(Some(&deleted(5)), now(2)), stop(4, false));
        assert!(matches!(termination.decide(Some(&deleted(5)), now(10)), StopDecision::Wait(_)));
        assert_eq!(termination.decide(Some(&deleted(5)), now(12)), stop(0, true));
        assert!(termination.report_overdue() && !termination.report_overdue());
    }

    #[test]
    fn a_pod_that_is_gone_is_stopped_at_once() {
        let mut termination = Termination::default();
        assert_eq!(termination.decide(None, now(3)), stop(0, false));
        assert!(termination.is_immediate(Duration::from_secs(3)));
    }

    #[test]
    fn a_failed_call_is_repeated_with_the_grace_that_is_left() {
        let mut termination = Termination::default();
        assert_eq!(termination.decide(Some(&deleted(30)), now(0)), stop(30, false));
        termination.ask_again();
        assert_eq!(termination.decide(Some(&deleted(30)), now(10)), stop(21, false));
        assert_eq!(termination.force_at(Some(Duration::from_secs(9))), Some(Duration::from_secs(40)));
    }
}
