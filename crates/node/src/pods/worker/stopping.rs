//! How a pod is stopped: with the grace that is left, again when somebody is in a hurry, and again when it is overdue.

use std::time::Duration;

use vk_provider::EventKind;

use super::{Action, Call, Presence, Worker};
use crate::{now::Now, pods::telling};

/// How long a pod may outlive its grace before the backend is asked again.
const OVERDUE: Duration = Duration::from_secs(5);
/// The API server keeps whole seconds of a deletionTimestamp: what it cut off belongs to the grace, and can be most of a short one.
const CUT_OFF: Duration = Duration::from_secs(1);

impl Worker {
    /// Stops the pod in the backend: with the grace that is left, again when it is shortened or over.
    pub(super) fn stop(&mut self, now: Now, actions: &mut Vec<Action>) {
        // What has ended by itself is stopped, too: the backend may hold something for it.
        if self.presence == Presence::Absent || (self.stopping && !self.may_run()) {
            return;
        }
        let by = self.stop_time(now);
        let overdue = self.stop_by.is_some_and(|asked| now.elapsed >= asked.saturating_add(OVERDUE));
        // The two clocks drift apart a little; a grace that somebody shortened is shorter by whole seconds.
        if self.stop_by.is_some_and(|asked| asked <= by + Duration::from_millis(900)) && !overdue {
            let again = self.stop_by.map(|asked| asked + OVERDUE);
            self.life.not_before = again.unwrap_or_default();
            return;
        }
        if overdue && !self.told_overdue {
            self.told_overdue = true;
            let message =
                "the pod did not stop within its grace period: the backend is asked again to stop it at once";
            actions.push(Action::Announce(EventKind::Warning, "Overdue".into(), message.to_owned()));
        }
        if !self.told_killing
            && let Some(reported) = &self.reported
        {
            self.told_killing = true;
            actions.extend(telling::killing(reported).into_iter().map(Action::Tell));
        }
        let grace = if overdue { Duration::ZERO } else { by.saturating_sub(now.elapsed) };
        self.stop_by = Some(if overdue { now.elapsed } else { by });
        self.start(Call::Delete);
        actions.push(Action::Delete { last_known: self.last_known.clone(), grace });
    }

    /// When the pod's grace ends, counted from its deletionTimestamp; at once for a pod that is not in the API server.
    fn stop_time(&self, now: Now) -> Duration {
        let Some(pod) = &self.desired else { return now.elapsed };
        if let Some(time) = &pod.metadata.deletion_timestamp {
            let end = time.0.saturating_add(CUT_OFF).unwrap_or(time.0);
            let left = Duration::try_from(end.duration_since(now.wall)).unwrap_or(Duration::ZERO);
            // Neither that nor a clock that is behind makes a grace longer.
            let whole = pod.metadata.deletion_grace_period_seconds.and_then(|grace| grace.try_into().ok());
            return now.elapsed + whole.map_or(left, |whole| left.min(Duration::from_secs(whole)));
        }
        let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        self.stop_by.unwrap_or_else(|| now.elapsed + Duration::from_secs(grace.try_into().unwrap_or(30)))
    }

    pub(super) fn force_at(&self) -> Option<Duration> {
        Some(self.stop_by? + self.policy.force_after?)
    }
}
