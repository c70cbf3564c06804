//! The status of the pod for the API server, and the write of it.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use vk_kube::Error as ApiError;
use vk_provider::EventKind;

use super::{
    PendingWrite, Worker, WorkerContext,
    admission::{PodFailure, StartFailure},
    backend::has_started,
};
use crate::pods::{
    digest::ValueDigest,
    reconciler::effect::{PodEffect, PodWrite},
    status::{self, ComposedStatus, StatusContext, StatusPart, StatusPatch},
};

impl Worker {
    /// Starts the write that is due: of the status, or else of the removal.
    pub(super) fn write(&mut self, cx: &mut WorkerContext<'_>) {
        let Some(pod) = self.desired.pod().cloned() else { return };
        if !self.desired.is_bound() {
            return self.write_trial(cx, &pod);
        }
        if self.discards && !self.desired.is_terminating() {
            // What is reported is about the time before.
            return;
        }
        let removable = self.is_removable(cx, &pod);
        // A status that the API server refuses does not keep the pod there.
        let status = self
            .status_patch(cx, &pod)
            .filter(|(patch, _)| !removable || !self.writer.is_status_abandoned(patch.status()));
        if status.is_none() && (!removable || self.writer.is_removed()) {
            return;
        }
        if !cx.writes.acquire(&self.pod.uid) {
            return self.writer.queue();
        }
        let (pending, write) = match status {
            Some((patch, digest)) => {
                let patch = Arc::new(patch);
                let write = PodWrite::Status(Arc::clone(&patch));
                (PendingWrite::Status { patch, digest, last: removable }, write)
            }
            None => (PendingWrite::Remove, PodWrite::Remove),
        };
        let id = self.writer.start(pending, cx.ids);
        cx.effects.push(PodEffect::Write { id, pod: self.pod.clone(), write });
    }

    /// Whether the pod is to leave the API server once its status is written.
    fn is_removable(&self, cx: &WorkerContext<'_>, pod: &Pod) -> bool {
        let force_at = self.termination.force_at(cx.policy.force_after);
        let forced = force_at.is_some_and(|at| cx.now.elapsed >= at);
        let calling = self.calls.in_flight().is_some();
        let stopped = !self.backend.is_unknown() && !calling && !self.may_run();
        pod.metadata.deletion_timestamp.is_some() && (stopped || forced)
    }

    /// The API server refuses a status. What it names is left out; if it names nothing that can be, the status is tried
    /// again later; a pod that is to be removed is removed without it after some attempts, if the answer is that of the API
    /// server's validation.
    pub(super) fn status_refused(
        &mut self,
        cx: &mut WorkerContext<'_>,
        patch: &StatusPatch,
        last: bool,
        error: &ApiError,
    ) {
        let fields = if error.failed_validation { error.fields.as_slice() } else { &[] };
        let parts = self.writer.refuse(patch, fields);
        let mut left_out: Vec<&str> = parts.into_iter().map(StatusPart::name).collect();
        let names = |prefix: &str| fields.iter().any(|field| field.starts_with(prefix));
        if names("metadata.annotations") && self.metadata.drop_annotations(patch.annotations()) {
            left_out.push("the provider's annotations");
        }
        if names("metadata.labels") && self.metadata.drop_labels(patch.labels()) {
            left_out.push("the provider's labels");
        }
        let first = self.writer.is_first_attempt();
        self.writer.failed(cx.now.elapsed, error.retry_after, cx.rng);
        let consequence = if !left_out.is_empty() {
            format!("{} is left out", left_out.join(", "))
        } else if last && error.failed_validation && self.writer.refuse_last(patch.status()) {
            "the pod is removed without it".to_owned()
        } else if first {
            "trying again".to_owned()
        } else {
            return;
        };
        tracing::warn!(pod = %self.pod, %error, consequence, "the API server refuses the status of a pod");
        let message = format!("the API server refuses the status of the pod, {consequence}: {error}");
        self.record_event(cx, EventKind::Warning, "StatusRefused", message);
    }

    /// The status patch that the pod needs, if it needs one.
    fn status_patch(
        &mut self,
        cx: &mut WorkerContext<'_>,
        pod: &Arc<Pod>,
    ) -> Option<(StatusPatch, ValueDigest)> {
        let source = self.status_source(pod)?;
        // A deletion raises the generation, too, and has been acted on when nothing of the pod runs.
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let over = deleted && self.backend.reported().is_some_and(status::all_ended);
        let rejected = self.failure.as_ref().is_some_and(|failure| failure.rejected);
        let context = StatusContext {
            host_ips: cx.policy.host_ips.clone(),
            now: cx.now.wall,
            generation: if over || rejected { pod.metadata.generation } else { self.spec.generation() },
            own_conditions: self.resize.condition().into_iter().chain(self.spec.condition()).collect(),
        };
        let ComposedStatus { mut status, refused } = if rejected && !has_started(pod) {
            status::rejected(pod, &source, &context)
        } else {
            status::compose(&self.resize.actual(&self.with_latest_phase(pod)), &source, &context)
        };
        if self.writer.set_invalid(refused) {
            let invalid = self.writer.invalid().join("; ");
            let message = format!("the provider reported {invalid}: not taken over");
            self.record_event(cx, EventKind::Warning, "InvalidProviderStatus", message);
        }
        let omitted = self.writer.refused_parts(&status);
        if !omitted.is_empty() {
            let stored = pod.status.clone().unwrap_or_default();
            for part in &omitted {
                part.restore(&mut status, &stored);
            }
        }
        let digest = status::digest(&status);
        if self.writer.is_stored(digest, &status, pod) && self.metadata.is_empty() {
            return None;
        }
        let (annotations, labels) = (self.metadata.annotations(), self.metadata.labels());
        let uid = Arc::clone(&self.pod.uid);
        let patch = StatusPatch::new(uid, status, pod.status.as_ref(), annotations, labels);
        Some((patch.without(omitted), digest))
    }

    /// The pod with the latest phase that it may have in the API server: a write that failed may have taken effect, and what
    /// the watch shows may be older.
    fn with_latest_phase(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(sent) = self.writer.sent_phase().filter(|sent| status::is_later(sent, phase)) else {
            return Arc::clone(pod);
        };
        let mut latest = Pod::clone(pod);
        latest.status.get_or_insert_default().phase = Some(sent.to_owned());
        Arc::new(latest)
    }

    /// What the status is made of: the controller's decision, the provider's report, or why there is none yet.
    fn status_source(&self, pod: &Pod) -> Option<Cow<'_, PodStatus>> {
        if let Some(failure) = &self.failure {
            // Only once nothing runs: a pod that is called Failed is given up by everybody else. Once that is written it
            // stays, also when an old report of the provider comes late.
            if self.may_run() && !status::is_terminal(self.writer.sent_phase()) {
                return self.backend.reported().map(Cow::Borrowed);
            }
            return Some(Cow::Owned(self.failed_status(pod, failure)));
        }
        if self.backend.is_absent() && is_kept_by_finalizer(pod) {
            // Others wait for its end, which the provider did not report.
            let end_reported = self.backend.reported().is_none_or(status::all_ended);
            if !end_reported && has_started(pod) {
                let message = "the pod was deleted, and the backend kept nothing of it";
                return (!status::has_ended(pod)).then(|| Cow::Owned(status::lost(pod, message)));
            }
        }
        if let Some(reported) = self.backend.reported() {
            return Some(Cow::Borrowed(reported));
        }
        self.start_failure.as_ref().map(|failure| Cow::Owned(pending_status(pod, failure)))
    }

    fn failed_status(&self, pod: &Pod, failure: &PodFailure) -> PodStatus {
        // What the provider reported last counts if it was the end; otherwise nobody saw the end.
        let seen = self.backend.reported().filter(|reported| status::all_ended(reported)).cloned();
        let unseen = || has_started(pod).then(|| status::lost(pod, &failure.message));
        let mut status = seen.or_else(unseen).unwrap_or_default();
        // Why it was not ready before it failed is of no interest any more.
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ != status::CONTAINERS_READY);
        }
        status.phase = Some("Failed".to_owned());
        status.reason = Some(failure.reason.clone());
        status.message = Some(failure.message.clone());
        status
    }
}

/// The status of a pod that does not start.
fn pending_status(pod: &Pod, failure: &StartFailure) -> PodStatus {
    let waiting = |one: &Container| {
        let image = one.image.as_deref().unwrap_or_default();
        let mut one = status::fill(&one.name, image, &failure.container_reason);
        if let Some(waiting) = one.state.as_mut().and_then(|state| state.waiting.as_mut()) {
            // A kubelet gives no message at containers whose volumes are being mounted.
            let message = failure.container_reason != "ContainerCreating";
            waiting.message = message.then(|| failure.message.clone());
        }
        one
    };
    PodStatus {
        phase: Some("Pending".to_owned()),
        reason: failure.reason.clone(),
        message: failure.reason.as_ref().map(|_| failure.message.clone()),
        container_statuses: pod.spec.as_ref().map(|spec| spec.containers.iter().map(waiting).collect()),
        ..PodStatus::default()
    }
}

/// Whether the pod is deleted and stays because of a finalizer.
fn is_kept_by_finalizer(pod: &Pod) -> bool {
    let finalizers = pod.metadata.finalizers.as_ref();
    pod.metadata.deletion_timestamp.is_some() && finalizers.is_some_and(|all| !all.is_empty())
}
