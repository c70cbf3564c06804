//! What the provider reports about a pod: pushed statuses, answers to reads, lists, and that it has nothing of the pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use vk_provider::{EventKind, error::Kind};

use super::{
    ProviderFailure, Worker, WorkerContext,
    backend::{has_run, has_started},
    call_tracker::CallKind,
};
use crate::pods::{container_events, reconciler::effect::EffectId, status, watch};

impl Worker {
    /// A list of the provider's pods has the pod with this status, or does not have it.
    pub(super) fn listed(
        &mut self,
        cx: &mut WorkerContext<'_>,
        requested_at: Duration,
        status: Option<Box<PodStatus>>,
    ) {
        let calling = self.calls.in_flight().is_some();
        if !self.backend.accepts_list(requested_at, calling, status.is_some()) {
            return;
        }
        match status {
            Some(status) => self.report(cx, status),
            None if self.backend.is_present() => self.set_lost(cx),
            // The first list after a start may lack what an earlier process has just created.
            None if self.backend.is_unknown()
                && self.desired.is_terminating()
                && !self.desired.has_ended() =>
            {
                self.backend.set_present();
            }
            None => self.backend.set_absent(),
        }
    }

    pub(super) fn status_pushed(&mut self, cx: &mut WorkerContext<'_>, status: Box<PodStatus>) {
        if self.backend.is_absent() && self.failure.is_some() {
            // It may be older than the answer that the provider has nothing of the pod: only a read can tell.
            return self.refresh.request(cx.now.elapsed);
        }
        self.backend.touch(cx.now.elapsed);
        self.refresh.supersede();
        let stopped = self.termination.is_accepted() && status::all_ended(&status);
        self.report(cx, status);
        if stopped && !self.backend.has_ended() {
            self.refresh.request(cx.now.elapsed);
        }
    }

    /// The provider has the pod with this status.
    pub(super) fn report(&mut self, cx: &mut WorkerContext<'_>, mut status: Box<PodStatus>) {
        watch::shrink(&mut status);
        self.start_failure = None;
        let changed = self.backend.reported() != Some(&status);
        self.refresh.reported(changed);
        let events = match self.desired.pod().filter(|_| changed) {
            Some(pod) => {
                let before = self.backend.reported().or(pod.status.as_ref());
                container_events::between(pod, before, &status)
            }
            None => Vec::new(),
        };
        self.backend.report(status);
        self.record_container_events(cx, events);
    }

    /// The provider certainly has nothing of this pod.
    pub(super) fn set_lost(&mut self, cx: &mut WorkerContext<'_>) {
        let (was_accepted, was_present) = (self.backend.is_accepted(), self.backend.is_present());
        self.backend.set_absent();
        self.spec.lost();
        // What has ended has ended, also when that is not written yet.
        let is_stopping = self.desired.is_terminating() || self.discards;
        if is_stopping || self.failure.is_some() || self.backend.is_terminal() {
            return self.backend.set_ended();
        }
        let Some(pod) = self.desired.pod().filter(|pod| was_present && !status::has_ended(pod)).cloned()
        else {
            return;
        };
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        let message = "the backend lost the pod";
        // A pod that was never created, as far as is known, was not lost either.
        let reported = self.backend.take_reported();
        if was_accepted || reported.is_some() {
            self.record_event(cx, EventKind::Warning, "PodLost", message.to_owned());
        }
        if policy == Some("Never") && (has_started(&pod) || reported.is_some_and(|status| has_run(&status))) {
            // A container that ran once may not run again.
            self.backend.set_ended();
            self.fail("NotFound".to_owned(), message.to_owned(), false);
        }
    }

    /// The answer to a read of the status.
    pub(super) fn status_read(
        &mut self,
        cx: &mut WorkerContext<'_>,
        id: EffectId,
        result: Result<Box<PodStatus>, ProviderFailure>,
    ) {
        let Some(read) = self.refresh.complete(id) else { return };
        let now = cx.now.elapsed;
        let next = self.next_refresh(cx);
        match result {
            Err(failure) if failure.kind != Kind::NotFound => {
                self.refresh.failed(now, next, failure.kind.retry_after(), cx.rng);
            }
            answer => {
                self.backend.touch(now);
                self.refresh.answered(next);
                match answer {
                    // The pod may come back: what was said before is not about its next time here.
                    Ok(_) if read.superseded && self.desired.pod().is_none() => self.refresh.request(now),
                    Ok(status) => {
                        let ended = self.termination.is_accepted() && status::all_ended(&status);
                        if !read.superseded || ended {
                            self.report(cx, status);
                        }
                        if ended && read.stale {
                            self.refresh.request(now);
                        } else if ended {
                            self.backend.set_ended();
                        }
                    }
                    Err(_) if read.stale => self.refresh.request(now),
                    // While the pod is being created the provider may not know it yet.
                    Err(_) => {
                        let creating = self.calls.in_flight() == Some(CallKind::Create);
                        let is_stopping = self.desired.is_terminating() || self.discards;
                        if !creating && (self.backend.is_accepted() || is_stopping) {
                            self.set_lost(cx);
                        }
                    }
                }
            }
        }
        let has_stopped = !self.may_run() && self.desired.is_terminating() && !self.needs_absence();
        if self.backend.is_absent() || has_stopped {
            self.refresh.stop();
        }
    }

    /// When to read the status again without being asked.
    fn next_refresh(&self, cx: &WorkerContext<'_>) -> Option<Duration> {
        let terminating = self.desired.is_terminating() || self.discards;
        if !terminating && self.desired.has_ended() {
            return None;
        }
        Some(cx.now.elapsed + self.refresh.next_period(terminating, cx.policy.poll)?)
    }
}
