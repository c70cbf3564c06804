//! A pod on trial: what is written about it, and its end.

use std::{borrow::Cow, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use vk_provider::placement::{REFUSED_REASON, SCHEDULED_CONDITION, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

use super::{
    PendingWrite, Worker, WorkerContext, admission::Remedy, backend::BackendState, call_tracker::CallKind,
    termination::Termination,
};
use crate::pods::{
    reconciler::effect::{PodEffect, PodWrite},
    status::whole_seconds,
    trial::{TrialChange, TrialPatch},
};

/// A create that was in flight at the end of a trial is awaited for this long: requests to a backend end before.
const CREATE_ENDS_WITHIN: Duration = Duration::from_mins(1);

impl Worker {
    /// The trial is over: whatever a call in flight creates is deleted again. It is awaited: a create that is cancelled can take effect when
    /// another node has the pod.
    pub(super) fn trial_ended(&mut self, cx: &mut WorkerContext<'_>) {
        self.calls.skip_delay();
        if self.calls.in_flight() != Some(CallKind::Create) {
            self.cancel_call(cx);
        }
    }

    /// When a create that does not end is cancelled, because the trial is over.
    pub(super) fn cancel_create_at(&self) -> Option<Duration> {
        let is_creating = self.calls.in_flight() == Some(CallKind::Create);
        Some(self.desired.trial_over_since().filter(|_| is_creating)? + CREATE_ENDS_WITHIN)
    }

    /// The pod comes back while what was here of it before is being removed. It begins anew once nothing of that is left.
    pub(super) fn begin_anew(&mut self, cx: &mut WorkerContext<'_>) {
        if !self.discards || !self.is_nothing_left() {
            return;
        }
        self.discards = false;
        self.backend = BackendState::new(true);
        self.backend.touch(cx.now.elapsed);
        (self.failure, self.start_failure) = (None, None);
        self.termination = Termination::default();
        self.spec.lost();
        self.calls.skip_delay();
        self.refresh.stop();
        self.refresh.supersede();
    }

    /// The pod is none of this node's any more.
    pub(super) fn release(&mut self, cx: &mut WorkerContext<'_>, version: Option<u64>) {
        if self.desired.release(version) {
            self.calls.skip_delay();
            self.cancel_call(cx);
        }
    }

    /// The label of a trial goes with the next status of a pod that was bound here.
    pub(super) fn remove_trial_label(&mut self, cx: &WorkerContext<'_>, pod: &Pod) {
        let has = |all: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
            all.as_ref().is_some_and(|all| all.contains_key(key))
        };
        if cx.policy.may_label && has(&pod.metadata.labels, TRIAL_LABEL) {
            self.metadata.label([(TRIAL_LABEL.to_owned(), None)].into());
        }
        if has(&pod.metadata.annotations, TRIAL_UNTIL_ANNOTATION) {
            self.metadata.annotate([(TRIAL_UNTIL_ANNOTATION.to_owned(), None)].into());
        }
    }

    /// Starts the write that is due for a pod that is not bound.
    pub(super) fn write_trial(&mut self, cx: &mut WorkerContext<'_>, pod: &Pod) {
        let change = if self.desired.is_trial_over() {
            if !self.is_nothing_left() {
                return;
            }
            TrialChange::End
        } else if self.discards {
            return;
        } else if let Some(condition) = self.trial_condition(cx, pod) {
            TrialChange::Condition(condition)
        } else {
            return;
        };
        if !cx.writes.acquire(&self.pod.uid) {
            return self.writer.queue();
        }
        let patch = TrialPatch::new(Arc::clone(&self.pod.uid), pod, change);
        let id = self.writer.start(PendingWrite::Trial, cx.ids);
        let write = PodWrite::Trial(Arc::new(patch));
        cx.effects.push(PodEffect::Write { id, pod: self.pod.clone(), write });
    }

    /// Whether the provider has nothing of the pod any more.
    fn is_nothing_left(&self) -> bool {
        self.backend.is_absent() && self.calls.in_flight().is_none()
    }

    /// Whether all of the pod has to be gone from the provider, and not only to have ended.
    pub(super) fn needs_absence(&self) -> bool {
        self.discards || self.desired.is_trial_over()
    }

    /// What the backend decided about the pod, if the API server does not have it.
    fn trial_condition(&self, cx: &WorkerContext<'_>, pod: &Pod) -> Option<PodCondition> {
        let find = |all: Option<&Vec<PodCondition>>| {
            all.into_iter().flatten().find(|one| one.type_ == SCHEDULED_CONDITION).cloned()
        };
        let there = find(pod.status.as_ref().and_then(|status| status.conditions.as_ref()));
        let reported = || find(self.backend.reported()?.conditions.as_ref());
        let ended = || self.backend.reported().filter(|_| self.backend.is_terminal());
        let said = if let Some(failure) = &self.failure {
            not_scheduled(REFUSED_REASON.into(), format!("{}: {}", failure.reason, failure.message))
        } else if let Some(failure) = &self.start_failure {
            let reason = match failure.remedy {
                // Patience does not help: another node may take it at once.
                Remedy::PodChange | Remedy::OutsideChange => REFUSED_REASON,
                Remedy::Retry => failure.reason.as_ref().unwrap_or(&failure.container_reason),
            };
            not_scheduled(reason.into(), failure.message.clone())
        } else if let Some(scheduled) = reported() {
            scheduled
        } else {
            // What the backend rejects has failed without a decision of its scheduler.
            let failed = ended()?;
            let message = failed.message.clone().or_else(|| failed.reason.clone());
            not_scheduled(
                REFUSED_REASON.into(),
                message.unwrap_or_else(|| "the backend has rejected it".to_owned()),
            )
        };
        let is_same = |there: &PodCondition| {
            (&there.status, &there.reason, &there.message) == (&said.status, &said.reason, &said.message)
        };
        if there.as_ref().is_some_and(is_same) {
            return None;
        }
        let since = there.filter(|there| there.status == said.status).and_then(|it| it.last_transition_time);
        Some(PodCondition {
            last_transition_time: Some(since.unwrap_or_else(|| Time(whole_seconds(cx.now.wall)))),
            last_probe_time: None,
            ..said
        })
    }
}

fn not_scheduled(reason: Cow<'_, str>, message: String) -> PodCondition {
    PodCondition {
        type_: SCHEDULED_CONDITION.to_owned(),
        status: "False".to_owned(),
        reason: Some(reason.into_owned()),
        message: Some(message),
        ..PodCondition::default()
    }
}
