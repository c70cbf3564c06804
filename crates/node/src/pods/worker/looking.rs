//! What a worker learns of the pod in the backend: by looking at it, from listings, from what the provider pushes.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use rand::rngs::StdRng;
use vk_provider::{EventKind, error::Kind};

use super::{Action, Call, Presence, Refusal, Worker, has_started, ran};
use crate::{
    now::Now,
    pods::{status, telling, watch},
};

/// How soon a provider that does not push is asked again after a change; twice as long each time when nothing has changed.
const SOON: Duration = Duration::from_millis(250);

impl Worker {
    pub(super) fn listed(&mut self, status: Option<Box<PodStatus>>, actions: &mut Vec<Action>) {
        match status {
            Some(status) => {
                self.presence = Presence::Present;
                self.report(status, actions);
            }
            None if self.accepted || self.presence == Presence::Present => self.vanished(actions),
            None => self.presence = Presence::Absent,
        }
    }

    pub(super) fn report(&mut self, mut status: Box<PodStatus>, actions: &mut Vec<Action>) {
        watch::shrink(&mut status);
        self.presence = Presence::Present;
        self.ended = status::all_ended(&status) && status::is_terminal(status.phase.as_deref());
        self.held = None;
        let changed = self.reported.as_ref() != Some(&status);
        self.same_looks = if changed { 0 } else { self.same_looks.saturating_add(1) };
        if let Some(pod) = self.desired.as_ref().filter(|_| changed) {
            let before = self.reported.as_deref().or(pod.status.as_ref());
            actions.extend(telling::between(pod, before, &status).into_iter().map(Action::Tell));
        }
        self.reported = Some(status);
    }

    /// The backend certainly has nothing of this pod.
    pub(super) fn vanished(&mut self, actions: &mut Vec<Action>) {
        let was_accepted = self.accepted;
        let was_there = was_accepted || self.presence == Presence::Present;
        self.presence = Presence::Absent;
        self.accepted = false;
        self.acted_on = None;
        // What has ended has ended, also when nobody has written it down yet.
        if self.is_ending() || self.failed.is_some() || self.is_over() {
            self.ended = true;
            return;
        }
        let Some(pod) = self.desired.clone().filter(|pod| was_there && !status::has_ended(pod)) else {
            return;
        };
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        let message = "the backend lost the pod";
        // One that was never created, as far as anybody knows, was not lost either.
        let reported = self.reported.take();
        if was_accepted || reported.is_some() {
            actions.push(Action::Announce(EventKind::Warning, "PodLost".into(), message.to_owned()));
        }
        if policy == Some("Never") && (has_started(&pod) || reported.is_some_and(|status| ran(&status))) {
            // What ran once may not run again.
            self.ended = true;
            self.failed = Some(("NotFound".to_owned(), message.to_owned()));
        }
    }

    pub(super) fn looked(
        &mut self,
        now: Now,
        answer: Result<Box<PodStatus>, Refusal>,
        rng: &mut StdRng,
        actions: &mut Vec<Action>,
    ) {
        self.look_busy = false;
        if !matches!(&answer, Err(refusal) if refusal.kind != Kind::NotFound) {
            self.look_backoff.reset();
        }
        // What was asked for meanwhile is still to be done.
        self.look_due = self.look_due.or_else(|| self.next_look(now));
        match answer {
            Ok(status) => {
                let ended = self.stopping && status::all_ended(&status);
                if !self.look_passed || ended {
                    self.report(status, actions);
                }
                self.ended |= ended && !self.look_old;
                if ended && self.look_old {
                    self.look_due = Some(now.elapsed);
                }
            }
            Err(refusal) if refusal.kind == Kind::NotFound && self.look_old => {
                self.look_due = Some(now.elapsed);
            }
            Err(refusal) if refusal.kind == Kind::NotFound => {
                // While it is being created the backend may not know it yet.
                if self.call != Some(Call::Create) && (self.accepted || self.is_ending()) {
                    self.vanished(actions);
                }
            }
            Err(refusal) => {
                let again = now.elapsed + self.look_backoff.next(refusal.kind.retry_after(), rng);
                self.look_due = Some(self.look_due.map_or(again, |due| due.clamp(now.elapsed, again)));
            }
        }
        if !self.may_run() && self.is_ending() {
            self.look_due = None;
        }
    }

    /// When to look again by ourselves: often while the pod stops, and as often as the provider says otherwise.
    fn next_look(&self, now: Now) -> Option<Duration> {
        if !self.is_ending() && self.desired.as_ref().is_some_and(|pod| status::has_ended(pod)) {
            return None;
        }
        let stopping = self.is_ending().then_some(Duration::from_secs(2));
        // Where something has just changed, something else soon will.
        let soon = SOON.saturating_mul(1 << self.same_looks.min(16));
        let poll = self.policy.poll.map(|poll| poll.min(soon));
        let period = match (stopping, poll) {
            (Some(stopping), Some(poll)) => Some(stopping.min(poll)),
            (stopping, poll) => stopping.or(poll),
        };
        period.map(|period| now.elapsed + period)
    }
}
