//! The decisions about one pod.
//!
//! There is one worker per UID. It compares what the API server wants ([`desired`]) with what the provider has
//! ([`backend`]) after every event, and emits effects. It is composed of small state machines that own their fields: the
//! lifecycle call, the refresh of the status, the writes to the API server, the admission, the resize, the termination. At
//! most one lifecycle call, one read of the status and one write to the API server are in flight at a time; a later event
//! never waits for the retry of an older one.

mod admission;
mod backend;
mod call_tracker;
mod desired;
mod event;
mod metadata;
mod provider_calls;
mod provider_reports;
mod resize;
mod retry;
mod spec_sync;
mod status_refresh;
mod status_source;
mod status_writer;
mod termination;
mod trial;

use std::{borrow::Cow, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rand::rngs::StdRng;
use vk_kube::{Error as ApiError, Kind as ApiKind};
use vk_provider::{EventKind, PodRef};
use vk_supervisor::Now;

use self::{
    admission::{Admission, PodFailure, Remedy, StartFailure},
    backend::BackendState,
    call_tracker::{CallKind, CallTracker},
    desired::DesiredPod,
    metadata::PublishedMetadata,
    resize::{Before, ResizeTracker},
    spec_sync::SpecSync,
    status_refresh::StatusRefresh,
    status_writer::{PendingWrite, StatusWriter},
    termination::Termination,
};
use super::{
    Policy,
    admission::NodeAdmission,
    container_events::{ContainerEvent, ProviderEventReasons},
    event_queue::EventBudget,
    reconciler::{
        effect::{EffectId, EffectIds, PodEffect, PodEventRecord},
        write_queue::WriteQueue,
    },
    status::MetadataChanges,
    trial::Assignment,
    watch_audit::KnownVersion,
};

pub(super) use self::desired::version;
pub(crate) use self::event::{Event, ProviderFailure};

/// What a worker uses while it handles an event: the time, and what belongs to the node as a whole.
pub(super) struct WorkerContext<'a> {
    pub(super) now: Now,
    /// The node's name.
    pub(super) node: &'a str,
    pub(super) policy: &'a Policy,
    pub(super) rng: &'a mut StdRng,
    pub(super) ids: &'a mut EffectIds,
    pub(super) admission: &'a mut NodeAdmission,
    pub(super) writes: &'a mut WriteQueue,
    /// Reasons of events that the provider records itself.
    pub(super) provider_events: &'a ProviderEventReasons,
    pub(super) effects: &'a mut Vec<PodEffect>,
}

/// The state of one pod.
pub(crate) struct Worker {
    pod: PodRef,
    desired: DesiredPod,
    backend: BackendState,
    spec: SpecSync,
    admission: Admission,
    resize: ResizeTracker,
    calls: CallTracker,
    termination: Termination,
    refresh: StatusRefresh,
    writer: StatusWriter,
    metadata: PublishedMetadata,
    /// Why the pod has failed by the controller's decision.
    failure: Option<Box<PodFailure>>,
    /// Why the pod does not start.
    start_failure: Option<Box<StartFailure>>,
    events: EventBudget,
    /// The provider was given a resolver for the pod's references, which is to be closed.
    resolver_open: bool,
    /// The pod is to run here, and what was here of it before, on trial, is being deleted first.
    discards: bool,
}

// === impl Worker ===

impl Worker {
    /// A worker that knows nothing yet. `known_absent`: the provider's pods are known, and this is not one of them.
    pub(super) fn new(pod: PodRef, known_absent: bool) -> Self {
        Self {
            pod,
            desired: DesiredPod::unseen(),
            backend: BackendState::new(known_absent),
            spec: SpecSync::default(),
            admission: Admission::default(),
            resize: ResizeTracker::default(),
            calls: CallTracker::new(),
            termination: Termination::default(),
            refresh: StatusRefresh::new(),
            writer: StatusWriter::new(),
            metadata: PublishedMetadata::default(),
            failure: None,
            start_failure: None,
            events: EventBudget::default(),
            resolver_open: false,
            discards: false,
        }
    }

    /// The pod's reference.
    pub(super) fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// The pod, while it is in the API server.
    pub(super) fn desired(&self) -> Option<&Arc<Pod>> {
        self.desired.pod()
    }

    /// Who comes first where there is not room for all: pods that were admitted before, and then the older ones.
    pub(super) fn precedence(&self) -> (bool, Option<Timestamp>) {
        let pod = self.desired();
        let admitted = pod.is_some_and(|pod| admission::was_admitted(pod));
        (!admitted, pod.and_then(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0))
    }

    /// Which version of the pod it knows.
    pub(super) fn known_version(&self) -> KnownVersion {
        self.desired.known_version()
    }

    /// Whether the pod is, or was, bound to this node.
    pub(super) fn is_bound(&self) -> bool {
        self.desired.is_known_as_bound()
    }

    /// Whether all that is known of the pod is that it is, or was, on trial here.
    pub(super) fn is_trial(&self) -> bool {
        self.desired.is_trial()
    }

    /// Handles an event.
    pub(super) fn handle(&mut self, cx: &mut WorkerContext<'_>, event: Event) {
        match event {
            Event::Tick => {}
            Event::Applied(pod) => self.apply(cx, pod),
            Event::Gone => self.set_gone(cx, true),
            Event::Released(version) => self.release(cx, version),
            Event::Listed { requested_at, status } => self.listed(cx, requested_at, status),
            Event::Adopted(status) => self.report(cx, status),
            Event::StatusReported(status) => self.status_pushed(cx, status),
            Event::StatusChanged => self.refresh.request(cx.now.elapsed),
            Event::Annotations(annotations) => {
                self.metadata.annotate(annotations);
                self.ignore_published();
            }
            Event::Labels(labels) => self.label(cx, labels),
            Event::NodeRead(id, node) => self.node_read(cx, id, node),
            Event::RoomFreed => self.resize.room_freed(),
            Event::ReferenceAvailable(id) => self.calls.reference_available(id, cx.now.elapsed),
            Event::CallCompleted(id, result) => self.call_completed(cx, id, result),
            Event::StatusRead(id, result) => self.status_read(cx, id, result),
            Event::WritePermit => self.writer.permit_granted(),
            Event::WriteCompleted(id, result) => self.write_completed(cx, id, result),
        }
        self.reconcile(cx);
    }

    /// When to send [`Event::Tick`], if nothing else happens before.
    pub(super) fn deadline(&self, now: Duration, policy: &Policy) -> Option<Duration> {
        let force = self.termination.force_at(policy.force_after);
        let force = force.filter(|at| *at > now && self.desired.is_terminating() && self.may_run());
        let refresh = self.refresh.deadline().filter(|_| !self.backend.is_unknown());
        let expiry = self.desired.expires_at().filter(|at| *at > now && self.failure.is_none());
        let trial = self.desired.trial_until().or_else(|| self.cancel_create_at()).filter(|at| *at > now);
        let (call, write) = (self.calls.deadline(now), self.writer.deadline(now));
        [call, write, refresh, force, expiry, trial].into_iter().flatten().min()
    }

    /// Whether all is done, and the worker may be dropped.
    pub(super) fn is_done(&self) -> bool {
        let idle = self.calls.in_flight().is_none() && self.writer.is_idle() && !self.refresh.is_in_flight();
        let nothing_left = !self.may_run() && !self.backend.is_unknown();
        self.desired().is_none() && nothing_left && self.desired.is_final() && idle
    }

    /// Gives back what it holds of the node, before it is dropped.
    pub(super) fn finish(&mut self, cx: &mut WorkerContext<'_>) {
        cx.admission.release(&self.pod.uid);
        self.close_resolver(cx);
    }

    /// Whether the provider may run something of this pod.
    fn may_run(&self) -> bool {
        let creating = self.calls.in_flight() == Some(CallKind::Create);
        (!self.backend.is_absent() || creating) && !self.backend.has_ended()
    }

    /// Whether the pod needs resources of the node, now or soon.
    fn needs_resources(&self) -> bool {
        let wanted = !self.desired.is_terminating()
            && !self.desired.has_ended()
            && self.failure.is_none()
            && !self.backend.is_terminal();
        wanted || self.may_run()
    }

    /// A version of the pod in the API server.
    fn apply(&mut self, cx: &mut WorkerContext<'_>, pod: Arc<Pod>) {
        if self.desired.is_outdated(&pod) {
            return;
        }
        let assignment = Assignment::of(&pod, cx.node, cx.now);
        match assignment {
            Assignment::NotOurs => return self.release(cx, version(&pod)),
            Assignment::Bound => self.remove_trial_label(cx, &pod),
            Assignment::OnTrial { .. } | Assignment::TrialOver => {}
        }
        if let Some(fingerprint) = self.spec.desired().filter(|_| self.desired.has_version_of(&pod)) {
            self.observe_size(&pod, fingerprint.size);
            return self.desired.replace(pod);
        }
        let known = self.desired.pod();
        let grace = known.and_then(|known| known.metadata.deletion_grace_period_seconds);
        let was_terminating = known.is_some_and(|known| known.metadata.deletion_timestamp.is_some());
        let (found, terminating) = (known.is_none(), pod.metadata.deletion_timestamp.is_some());
        let fingerprint = self.spec.fingerprint(&pod, known, self.metadata.keys());
        if terminating && (!was_terminating || grace != pod.metadata.deletion_grace_period_seconds) {
            // Whatever failed before, this is new: no delay. And a call that hangs must not keep the pod.
            self.calls.skip_delay();
            self.cancel_call(cx);
            self.termination.deletion_seen(&pod, found, cx.now);
        }
        if found && terminating && self.backend.is_absent() && !vk_provider::pod::is_terminal(&pod) {
            // Another process may have created it just before it was deleted: only the answer to a delete call says that nothing runs.
            self.backend.set_present();
        }
        let before = self.spec.desired();
        if !terminating && before.is_some_and(|before| before != fingerprint) {
            // The newest version does not wait for the retries of an older one.
            self.calls.skip_delay();
            if self.start_failure.take_if(|failure| failure.remedy == Remedy::PodChange).is_some() {
                self.admission.reset();
            }
        }
        self.observe_size(&pod, fingerprint.size);
        let resized = before.is_some_and(|before| before.size != fingerprint.size);
        if resized && !self.resize.is_active() && self.admission.is_admitted() {
            self.admission.reset();
        }
        self.spec.set_desired(fingerprint);
        self.writer.invalidate();
        let (was_over, was_leaving) = (self.desired.is_trial_over(), self.desired.is_leaving());
        self.desired.update(pod, assignment, cx.now);
        if !was_over && self.desired.is_trial_over() {
            self.trial_ended(cx);
        }
        if was_leaving && !self.desired.is_trial_over() {
            self.discards = true;
            self.begin_anew(cx);
        }
    }

    fn observe_size(&mut self, pod: &Pod, size: super::digest::ValueDigest) {
        let call = self.calls.in_flight();
        let before = Before {
            pod: self.desired.pod().map(|known| &**known),
            size: self.spec.desired().map(|known| known.size),
            may_exist: !self.backend.is_absent() || call.is_some(),
            updating: call == Some(CallKind::Update),
        };
        self.resize.observe(pod, size, before);
    }

    /// The pod is not in the API server any more: nobody waits for it, and what is left of it is stopped at once.
    fn set_gone(&mut self, cx: &mut WorkerContext<'_>, reported_by_watch: bool) {
        if self.desired.set_gone(reported_by_watch) {
            self.calls.skip_delay();
            self.cancel_call(cx);
        }
    }

    /// The provider publishes labels.
    fn label(&mut self, cx: &mut WorkerContext<'_>, labels: MetadataChanges) {
        if !cx.policy.may_label {
            let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
            let message = format!(
                "the provider publishes the labels {}, which a node identity may not set: left out",
                keys.join(", ")
            );
            return self.record_event(cx, EventKind::Warning, "LabelsRefused", message);
        }
        self.metadata.label(labels);
        self.ignore_published();
    }

    /// What the provider published is no change for it.
    fn ignore_published(&mut self) {
        if let Some(pod) = self.desired.pod() {
            self.spec.ignore_published(pod, self.metadata.keys());
        }
    }

    /// The answer to a write.
    fn write_completed(
        &mut self,
        cx: &mut WorkerContext<'_>,
        id: EffectId,
        result: Result<Option<Arc<Pod>>, ApiError>,
    ) {
        let Some(write) = self.writer.complete(id) else { return };
        match (write, result) {
            (PendingWrite::Status { patch, digest, .. }, Ok(pod)) => {
                self.metadata.written(patch.annotations(), patch.labels());
                self.writer.written(digest, pod.as_deref());
                if let Some(pod) = pod {
                    // Where the watch was quicker, what it showed stays: others hold that, too.
                    let known = self.desired.pod().filter(|_| self.desired.has_version_of(&pod)).cloned();
                    self.apply(cx, known.unwrap_or(pod));
                }
            }
            (PendingWrite::Trial, Ok(pod)) => {
                self.writer.settled();
                // What took the pod away meanwhile came after the write, which was for the version before.
                let pod = pod.filter(|_| self.desired.pod().is_some());
                if let Some(pod) = pod {
                    self.apply(cx, pod);
                }
            }
            (PendingWrite::Remove, Ok(_)) => self.writer.removed(),
            (write, Err(error)) => self.write_failed(cx, &write, &error),
        }
    }

    fn write_failed(&mut self, cx: &mut WorkerContext<'_>, write: &PendingWrite, error: &ApiError) {
        match (write, error.kind) {
            // This UID is gone, whatever the watch shows yet.
            (_, ApiKind::NotFound | ApiKind::Replaced) | (PendingWrite::Remove, ApiKind::Conflict) => {
                self.writer.settled();
                self.set_gone(cx, false);
            }
            // Labels are extra: the status must not wait for the right to set them.
            (PendingWrite::Status { patch, .. }, ApiKind::Forbidden) if !patch.labels().is_empty() => {
                self.writer.settled();
                self.metadata.drop_labels(patch.labels());
                let keys: Vec<&str> = patch.labels().keys().map(String::as_str).collect();
                let message = format!("labels that the provider publishes, {}: {error}", keys.join(", "));
                self.record_event(cx, EventKind::Warning, "LabelsRefused", message);
            }
            (PendingWrite::Status { patch, last, .. }, ApiKind::Invalid) => {
                self.status_refused(cx, patch, *last, error);
            }
            // The watch shows who was quicker.
            (PendingWrite::Trial, ApiKind::Conflict) => {
                self.writer.failed(cx.now.elapsed, error.retry_after, cx.rng);
            }
            _ => {
                if self.writer.is_first_attempt() {
                    tracing::warn!(pod = %self.pod, kind = %error.kind, %error, "a write failed: trying again");
                }
                self.writer.failed(cx.now.elapsed, error.retry_after, cx.rng);
            }
        }
    }

    /// Starts whatever is missing.
    fn reconcile(&mut self, cx: &mut WorkerContext<'_>) {
        self.expire(cx);
        if self.desired.end_trial(cx.now) {
            self.trial_ended(cx);
        }
        if self.cancel_create_at().is_some_and(|at| at <= cx.now.elapsed) {
            self.cancel_call(cx);
        }
        self.begin_anew(cx);
        self.call_provider(cx);
        if !self.backend.is_unknown()
            && let Some(id) = self.refresh.start(cx.now.elapsed, cx.ids)
        {
            cx.effects.push(PodEffect::ReadStatus { id, pod: self.pod.clone() });
        }
        if self.writer.is_due(cx.now.elapsed) {
            self.write(cx);
        }
        if !self.needs_resources() {
            if self.admission.is_admitted() {
                self.admission.release();
                cx.admission.release(&self.pod.uid);
            }
            self.close_resolver(cx);
        }
    }

    /// `activeDeadlineSeconds`: a pod that has had its time fails.
    fn expire(&mut self, cx: &mut WorkerContext<'_>) {
        let over = self.desired.has_ended() || self.desired.is_terminating() || self.failure.is_some();
        if over || self.desired.expires_at().is_none_or(|at| cx.now.elapsed < at) {
            return;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.fail("DeadlineExceeded".to_owned(), message.to_owned(), false);
        self.calls.skip_delay();
        self.cancel_call(cx);
        self.record_event(cx, EventKind::Normal, "DeadlineExceeded", message.to_owned());
    }

    fn fail(&mut self, reason: String, message: String, rejected: bool) {
        self.failure = Some(Box::new(PodFailure { reason, message, rejected }));
    }

    fn close_resolver(&mut self, cx: &mut WorkerContext<'_>) {
        if let Some(id) = self.calls.cancel_wait() {
            cx.effects.push(PodEffect::Cancel(id));
        }
        if std::mem::take(&mut self.resolver_open) {
            cx.effects.push(PodEffect::CloseResolver(Arc::clone(&self.pod.uid)));
        }
    }

    /// Records an event on the pod.
    fn record_event(
        &mut self,
        cx: &mut WorkerContext<'_>,
        kind: EventKind,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let reason = reason.into();
        self.record(cx.now.elapsed, cx.effects, None, kind, reason, message);
    }

    /// Records events about containers, unless the provider does that itself.
    fn record_container_events(&mut self, cx: &mut WorkerContext<'_>, events: Vec<ContainerEvent>) {
        for ContainerEvent { path, kind, reason, message } in events {
            if !cx.provider_events.contains(&reason) {
                self.record(cx.now.elapsed, cx.effects, Some(path), kind, reason, message);
            }
        }
    }

    /// Records an event, if the pod has not had too many.
    pub(super) fn record(
        &mut self,
        now: Duration,
        effects: &mut Vec<PodEffect>,
        field_path: Option<String>,
        kind: EventKind,
        reason: Cow<'static, str>,
        message: String,
    ) {
        if !self.events.take(now) {
            return tracing::debug!(pod = %self.pod, %reason, "too many events on one pod: dropped");
        }
        let pod = self.pod.clone();
        effects.push(PodEffect::RecordEvent(PodEventRecord { pod, field_path, kind, reason, message }));
    }
}

#[cfg(test)]
mod tests;
