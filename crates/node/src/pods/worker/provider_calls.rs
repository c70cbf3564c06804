//! The lifecycle call that a pod needs, and what the answer means for it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_kube::Error as ApiError;
use vk_provider::{
    EventKind,
    error::{Kind, Reaction},
};

use super::{
    ProviderFailure, Worker, WorkerContext,
    admission::{Remedy, StartFailure, was_admitted},
    call_tracker::CallKind,
    termination::StopDecision,
};
use crate::pods::{
    admission::{AdmissionVerdict, Checks, RejectionPolicy},
    container_events,
    fingerprint::Fingerprint,
    reconciler::effect::{EffectId, PodEffect, ProviderCall},
    status, trial,
};

impl Worker {
    /// Starts the lifecycle call that is due.
    pub(super) fn call_provider(&mut self, cx: &mut WorkerContext<'_>) {
        if !self.calls.is_due(cx.now.elapsed) || self.backend.is_unknown() {
            return;
        }
        let pod = match self.desired.pod() {
            Some(pod) if !self.desired.is_terminating() && self.failure.is_none() && !self.discards => {
                Arc::clone(pod)
            }
            _ => return self.stop(cx),
        };
        if status::has_ended(&pod) || self.backend.is_terminal() {
            // Everybody takes it for dead: it must not go on. But a pod that has ended by itself stays, with its logs.
            let runs = self.backend.reported().is_some_and(|reported| !status::all_ended(reported));
            if runs && self.may_run() {
                self.stop(cx);
            }
            return;
        }
        let parked = self.start_failure.as_ref().is_some_and(|failure| failure.remedy == Remedy::PodChange);
        if parked || !self.ensure_admitted(cx, &pod) {
            return;
        }
        self.decide_resize(cx, &pod);
        let fingerprint = self.fingerprint_to_send(&pod);
        let kind = if !self.backend.is_accepted() {
            CallKind::Create
        } else if self.spec.sent() != Some(fingerprint) {
            CallKind::Update
        } else {
            return;
        };
        let sent = trial::as_bound(self.resize.send(&pod), cx.node);
        let call =
            if kind == CallKind::Create { ProviderCall::Create(sent) } else { ProviderCall::Update(sent) };
        self.backend.set_starting();
        self.termination.withdraw();
        self.resolver_open = true;
        self.start_call(cx, kind, call);
        self.spec.send(fingerprint, pod.metadata.generation);
    }

    fn start_call(&mut self, cx: &mut WorkerContext<'_>, kind: CallKind, call: ProviderCall) {
        let id = self.calls.start(kind, cx.ids);
        self.refresh.mark_stale();
        cx.effects.push(PodEffect::CallProvider { id, pod: self.pod.clone(), call });
    }

    /// Sees to it that the node has admitted the pod. Returns whether it has.
    fn ensure_admitted(&mut self, cx: &mut WorkerContext<'_>, pod: &Arc<Pod>) -> bool {
        let unchecked = cx.policy.checks == Checks::Off && cx.policy.daemon_sets.is_none();
        if unchecked || self.admission.is_admitted() {
            return true;
        }
        if self.backend.is_present() {
            // The provider has it, whatever the node says.
            self.admission.admit();
            cx.admission.claim(&self.pod.uid, &self.resize.actual(pod));
            return true;
        }
        if self.admission.is_reading_node() {
            return false;
        }
        let actual = self.resize.actual(pod);
        if let Some(verdict) = cx.admission.admit(&self.pod.uid, &actual, was_admitted(pod)) {
            return self.decide(cx, verdict);
        }
        let id = self.admission.read_node(cx.ids);
        cx.effects.push(PodEffect::ReadNode { id, pod: self.pod.clone() });
        false
    }

    /// The Node was read because the decision may depend on its newest version.
    pub(super) fn node_read(
        &mut self,
        cx: &mut WorkerContext<'_>,
        id: EffectId,
        node: Result<Box<Node>, ApiError>,
    ) {
        if !self.admission.complete(id) {
            return;
        }
        if let Some(pod) = self.desired.pod().cloned() {
            let actual = self.resize.actual(&pod);
            let verdict = cx.admission.admit_with(&self.pod.uid, &actual, was_admitted(&pod), node);
            self.decide(cx, verdict);
        }
    }

    /// The node has decided. Returns whether the pod is admitted.
    fn decide(&mut self, cx: &mut WorkerContext<'_>, verdict: AdmissionVerdict) -> bool {
        match verdict {
            AdmissionVerdict::Admitted => {
                self.admission.admit();
                true
            }
            AdmissionVerdict::Rejected { reason, message, refused } => {
                self.admission.release();
                self.record_event(cx, EventKind::Warning, reason.clone(), message.clone());
                self.reject(refused, reason, format!("Pod was rejected: {message}"), true);
                false
            }
        }
    }

    /// The pod is not run: it fails, or waits to be changed.
    fn reject(&mut self, policy: RejectionPolicy, reason: String, message: String, rejected: bool) {
        match policy {
            RejectionPolicy::Fail => {
                self.backend.set_ended();
                self.fail(reason, message, rejected);
            }
            RejectionPolicy::Hold => {
                self.start_failure = Some(Box::new(StartFailure {
                    container_reason: "CreateContainerError".to_owned(),
                    reason: Some(reason),
                    message,
                    remedy: Remedy::PodChange,
                }));
            }
        }
    }

    /// Lets the node decide about a resize, before the provider is called.
    fn decide_resize(&mut self, cx: &mut WorkerContext<'_>, pod: &Arc<Pod>) {
        if !self.backend.is_accepted() || !self.resize.is_undecided() {
            return;
        }
        let full = cx.policy.checks == Checks::Full;
        let answer = if full { cx.admission.resize(&self.pod.uid, pod) } else { Ok(()) };
        if answer.is_err() {
            self.spec.observe_generation(pod.metadata.generation);
        }
        if let Some((reason, message)) = self.resize.decided(answer) {
            self.record_event(cx, EventKind::Warning, reason, message);
        }
    }

    /// Of the pod as the provider gets it now.
    fn fingerprint_to_send(&self, pod: &Pod) -> Fingerprint {
        let desired = self.spec.desired();
        let mut fingerprint = desired.unwrap_or_else(|| Fingerprint::of(pod, self.metadata.keys()));
        if let Some(size) = self.resize.size_to_send() {
            fingerprint.size = size;
        }
        fingerprint
    }

    /// Stops the pod: with the grace period that is left, again when it is shortened or over.
    fn stop(&mut self, cx: &mut WorkerContext<'_>) {
        // A pod that has ended by itself is stopped, too: the provider may hold something for it.
        if self.backend.is_absent() || (self.termination.is_accepted() && !self.may_run()) {
            return;
        }
        let (grace, overdue) =
            match self.termination.decide(self.desired.pod().map(|pod| &**pod), cx.now.elapsed) {
                StopDecision::Wait(until) => return self.calls.delay_until(until),
                StopDecision::Stop { grace, overdue } => (grace, overdue),
            };
        if overdue && self.termination.report_overdue() {
            let message =
                "the pod did not stop within its grace period: the backend is asked again to stop it at once";
            self.record_event(cx, EventKind::Warning, "Overdue", message.to_owned());
        }
        if self.backend.reported().is_some() && self.termination.report_killing() {
            let events = self.backend.reported().map(container_events::killing).unwrap_or_default();
            self.record_container_events(cx, events);
        }
        let last_known = self.desired.last_known().cloned();
        self.start_call(cx, CallKind::Delete, ProviderCall::Delete { last_known, grace });
    }

    /// Cancels a call that may hang, unless it is just what is wanted. It may have taken effect.
    pub(super) fn cancel_call(&mut self, cx: &mut WorkerContext<'_>) {
        let now = cx.now.elapsed;
        if self.calls.in_flight() == Some(CallKind::Delete) && self.termination.is_immediate(now) {
            return;
        }
        if let Some(id) = self.calls.cancel() {
            cx.effects.push(PodEffect::Cancel(id));
            self.spec.cancelled();
            self.refresh.mark_stale();
            self.backend.set_present();
            self.backend.touch(now);
        }
    }

    /// The answer to a lifecycle call.
    pub(super) fn call_completed(
        &mut self,
        cx: &mut WorkerContext<'_>,
        id: EffectId,
        result: Result<(), ProviderFailure>,
    ) {
        // Whatever the answer, and also after a cancellation, the call may have changed something.
        self.backend.touch(cx.now.elapsed);
        let Some(kind) = self.calls.complete(id) else { return };
        self.refresh.mark_stale();
        let failure = match result {
            Ok(()) => return self.call_succeeded(cx, kind),
            Err(failure) if kind == CallKind::Create && failure.kind.reaction() == Reaction::Done => {
                return self.call_succeeded(cx, kind);
            }
            Err(failure) => failure,
        };
        let shown = self.start_failure.as_ref().and_then(|failure| failure.reason.clone());
        let first = match (kind, failure.block_reason()) {
            (CallKind::Create, Some(reason)) => shown.as_deref() != Some(reason),
            _ => self.calls.is_first_attempt(),
        };
        if self.call_failed(cx, kind, &failure) {
            return;
        }
        // Whoever found that an object is missing has recorded an event.
        if let Kind::Unresolved(reference) = failure.kind {
            let (id, earlier) = self.calls.await_reference(cx.ids);
            cx.effects.extend(earlier.map(PodEffect::Cancel));
            return cx.effects.push(PodEffect::AwaitReference { id, pod: self.pod.clone(), reference });
        }
        // Nobody needs to know of a call that was cancelled and is repeated.
        if first && failure.kind != Kind::Cancelled {
            let (reason, verb) = match kind {
                CallKind::Create => (failure.block_reason().unwrap_or("ProviderCreateFailed"), "create"),
                CallKind::Update => (failure.block_reason().unwrap_or("ProviderUpdateFailed"), "update"),
                CallKind::Delete => ("ProviderDeleteFailed", "delete"),
            };
            let message = format!("cannot {verb} the pod: {}", failure.message);
            self.record_event(cx, EventKind::Warning, reason, message);
        }
    }

    /// Returns whether the answer means that there is nothing to report.
    fn call_failed(&mut self, cx: &mut WorkerContext<'_>, kind: CallKind, failure: &ProviderFailure) -> bool {
        let now = cx.now.elapsed;
        match (kind, failure.kind.reaction()) {
            (CallKind::Delete | CallKind::Update, Reaction::Gone) => {
                self.calls.settled();
                // A read that is in flight began when the pod was still there.
                self.refresh.supersede();
                self.set_lost(cx);
                return true;
            }
            (CallKind::Create, Reaction::Refuse) => {
                self.calls.settled();
                self.backend.set_absent();
                let message = failure.message.clone();
                self.reject(cx.policy.refused, "ProviderFailed".to_owned(), message, false);
            }
            (CallKind::Update, Reaction::Refuse) => {
                self.calls.settled();
                self.update_refused(cx, failure);
            }
            (CallKind::Create, reaction) => {
                // It may have been created before the error came.
                self.backend.set_present();
                self.spec.failed();
                if failure.kind != Kind::Cancelled {
                    let remedy = match reaction {
                        Reaction::RetrySlowly => Remedy::OutsideChange,
                        _ => Remedy::Retry,
                    };
                    self.start_failure = Some(Box::new(StartFailure {
                        container_reason: failure.container_reason().to_owned(),
                        reason: (reaction != Reaction::Await)
                            .then(|| failure.block_reason().unwrap_or("ProviderFailed").to_owned()),
                        message: failure.message.clone(),
                        remedy,
                    }));
                }
                self.calls.failed(now, failure.retry_after(), cx.rng);
            }
            (CallKind::Update, _) => {
                self.spec.failed();
                self.resize.failed(failure);
                self.calls.failed(now, failure.retry_after(), cx.rng);
            }
            (CallKind::Delete, _) => {
                self.termination.ask_again();
                self.calls.failed(now, failure.retry_after(), cx.rng);
            }
        }
        false
    }

    /// The pod goes on as it is, until it is changed again.
    fn update_refused(&mut self, cx: &mut WorkerContext<'_>, failure: &ProviderFailure) {
        if !self.resize.is_in_progress() {
            return self.spec.refused(failure.clone());
        }
        if let Some(pod) = self.desired.pod() {
            cx.admission.claim(&self.pod.uid, &self.resize.actual(pod));
        }
        self.spec.size_refused();
        if let Some((reason, message)) = self.resize.refused(failure.message.clone()) {
            self.record_event(cx, EventKind::Warning, reason, message);
        }
    }

    fn call_succeeded(&mut self, cx: &mut WorkerContext<'_>, kind: CallKind) {
        cx.effects.extend(self.calls.succeeded().map(PodEffect::Cancel));
        let (reason, message) = match kind {
            CallKind::Create => {
                self.backend.set_accepted();
                self.start_failure = None;
                self.spec_accepted(cx);
                ("ProviderCreateSuccess", "the provider has taken the pod")
            }
            CallKind::Update => {
                self.spec_accepted(cx);
                ("ProviderUpdateSuccess", "the provider has taken the change")
            }
            CallKind::Delete => ("ProviderDeleteSuccess", "the provider stops the pod"),
        };
        if kind != CallKind::Delete || self.termination.accept() {
            self.record_event(cx, EventKind::Normal, reason, message.to_owned());
        }
        self.refresh.request(cx.now.elapsed);
    }

    fn spec_accepted(&mut self, cx: &mut WorkerContext<'_>) {
        self.spec.accepted();
        if self.resize.accepted(self.spec.sent().map(|sent| sent.size)) {
            let message = "the provider has taken the new size".to_owned();
            self.record_event(cx, EventKind::Normal, "ResizeCompleted", message);
        }
    }
}
