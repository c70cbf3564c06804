//! Writes of a pod to the API server: its status, and its removal. At most one is in flight.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::rngs::StdRng;

use super::retry::Retry;
use crate::pods::{
    digest::ValueDigest,
    reconciler::effect::{EffectId, EffectIds},
    status::{self, StatusPart, StatusPatch},
};

/// The longest delay between two attempts.
const LARGEST_DELAY: Duration = Duration::from_secs(10);
/// How often the last status of a pod is sent to an API server that refuses it.
const LAST_STATUS_ATTEMPTS: u32 = 3;

#[derive(Debug)]
enum State {
    Idle,
    /// It waits for a write permit.
    Queued,
    InFlight(EffectId, PendingWrite),
}

/// A write in flight.
#[derive(Debug)]
pub(super) enum PendingWrite {
    /// A status, with the annotations and labels that are published with it.
    Status {
        patch: Arc<StatusPatch>,
        digest: ValueDigest,
        /// Nothing but this write keeps the pod from being removed.
        last: bool,
    },
    /// What the backend decided about a pod on trial, or the end of the trial.
    Trial,
    /// The removal of the pod.
    Remove,
}

/// A status that was written, and what the API server made of it.
#[derive(Debug)]
struct LastWrite {
    sent: ValueDigest,
    stored: ValueDigest,
}

/// The write in flight, and what was written.
#[derive(Debug)]
pub(super) struct StatusWriter {
    state: State,
    retry: Retry,
    written: Option<LastWrite>,
    /// Of our part of the status that the API server has, once it was needed.
    stored: Option<ValueDigest>,
    /// The phase that was sent last, with whatever success.
    sent_phase: Option<String>,
    /// The parts of the provider's report that were left out.
    invalid: Vec<String>,
    /// What the API server refused, until it changes.
    refused: Vec<(StatusPart, ValueDigest)>,
    /// The last status of a pod that is to be removed, and how often the API server has refused it.
    last_refused: Option<(ValueDigest, u32)>,
    removed: bool,
}

// === impl StatusWriter ===

impl StatusWriter {
    pub(super) fn new() -> Self {
        Self {
            state: State::Idle,
            retry: Retry::new(LARGEST_DELAY),
            written: None,
            stored: None,
            sent_phase: None,
            invalid: Vec::new(),
            refused: Vec::new(),
            last_refused: None,
            removed: false,
        }
    }

    /// Whether nothing is in flight or waits for a permit.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.is_idle() && self.retry.is_due(now)
    }

    pub(super) fn is_first_attempt(&self) -> bool {
        self.retry.is_first_attempt()
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }

    /// The phase that was sent last, with whatever success.
    pub(super) fn sent_phase(&self) -> Option<&str> {
        self.sent_phase.as_deref()
    }

    /// A new version of the pod: the digest of its status is taken anew when it is needed.
    pub(super) fn invalidate(&mut self) {
        self.stored = None;
    }

    /// The parts of the provider's report that are left out now. Returns whether they are to be reported.
    pub(super) fn set_invalid(&mut self, invalid: Vec<String>) -> bool {
        let report = invalid != self.invalid && !invalid.is_empty();
        self.invalid = invalid;
        report
    }

    pub(super) fn invalid(&self) -> &[String] {
        &self.invalid
    }

    /// The API server refuses these fields of a status that was sent. Returns the parts that are left out from now on.
    pub(super) fn refuse(&mut self, sent: &StatusPatch, fields: &[String]) -> Vec<StatusPart> {
        let mut parts = Vec::new();
        for part in fields.iter().filter_map(|field| StatusPart::of_field(field)) {
            if sent.sends(part) && !parts.contains(&part) {
                parts.push(part);
                self.refused.push((part, part.digest(sent.status())));
            }
        }
        parts
    }

    /// The parts of this status that the API server has refused as they are.
    pub(super) fn refused_parts(&mut self, status: &PodStatus) -> Vec<StatusPart> {
        self.refused.retain(|(part, digest)| part.digest(status) == *digest);
        self.refused.iter().map(|(part, _)| *part).collect()
    }

    /// The API server refuses the last status of a pod that is to be removed. Returns whether it is given up: not after one
    /// answer, which may be that of a webhook, because nobody would learn the exit codes of the pod. A status that says
    /// something else has attempts of its own.
    pub(super) fn refuse_last(&mut self, status: &PodStatus) -> bool {
        let digest = status::outcome_digest(status);
        let before =
            self.last_refused.filter(|(refused, _)| *refused == digest).map_or(0, |(_, times)| times);
        self.last_refused = Some((digest, before + 1));
        let abandoned = self.is_status_abandoned(status);
        if abandoned {
            self.retry.succeeded();
        }
        abandoned
    }

    /// Whether this last status is not sent any more.
    pub(super) fn is_status_abandoned(&self, status: &PodStatus) -> bool {
        self.last_refused.is_some_and(|(refused, times)| {
            times >= LAST_STATUS_ATTEMPTS && refused == status::outcome_digest(status)
        })
    }

    /// Whether the API server has this status.
    pub(super) fn is_stored(&mut self, digest: ValueDigest, status: &PodStatus, pod: &Pod) -> bool {
        let stored = *self.stored.get_or_insert_with(|| digest_of(pod));
        match &self.written {
            Some(written) => written.sent == digest && written.stored == stored,
            None => digest == stored || status::is_stored_except_unsupported(status, pod.status.as_ref()),
        }
    }

    /// There is no write permit: the pod waits for one.
    pub(super) fn queue(&mut self) {
        self.state = State::Queued;
    }

    /// The pod has a write permit: what is to be written is decided now.
    pub(super) fn permit_granted(&mut self) {
        if matches!(self.state, State::Queued) {
            self.state = State::Idle;
        }
    }

    pub(super) fn start(&mut self, write: PendingWrite, ids: &mut EffectIds) -> EffectId {
        if let PendingWrite::Status { patch, .. } = &write {
            self.sent_phase.clone_from(&patch.status().phase);
        }
        let id = ids.allocate();
        self.state = State::InFlight(id, write);
        id
    }

    /// The write with this id was answered. `None`: it is not the one in flight.
    pub(super) fn complete(&mut self, id: EffectId) -> Option<PendingWrite> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::InFlight(expected, write) if expected == id => Some(write),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// The status was written, and the API server has this pod now.
    pub(super) fn written(&mut self, sent: ValueDigest, pod: Option<&Pod>) {
        self.retry.succeeded();
        let stored = pod.filter(|pod| pod.status.is_some()).map(digest_of);
        self.written = stored.map(|stored| LastWrite { sent, stored });
    }

    pub(super) fn removed(&mut self) {
        self.retry.succeeded();
        self.removed = true;
    }

    /// The API server gave its final answer: no repetition.
    pub(super) fn settled(&mut self) {
        self.retry.succeeded();
    }

    pub(super) fn failed(&mut self, now: Duration, requested: Option<Duration>, rng: &mut StdRng) {
        self.retry.failed(now, requested, rng);
    }

    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        self.retry.deadline(now).filter(|_| self.is_idle())
    }
}

/// The digest of our part of the pod's status.
fn digest_of(pod: &Pod) -> ValueDigest {
    pod.status.as_ref().map_or_else(|| ValueDigest::of(&()), status::digest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::status::MetadataChanges;

    fn pod(phase: &str) -> Pod {
        serde_json::from_value(json!({"status": {"phase": phase}})).unwrap()
    }

    fn status_write(pod: &Pod) -> PendingWrite {
        let none = MetadataChanges::new();
        let patch = StatusPatch::new("u1".into(), pod.status.clone().unwrap(), None, &none, &none);
        PendingWrite::Status { patch: Arc::new(patch), digest: digest_of(pod), last: false }
    }

    #[test]
    fn an_answer_is_never_matched_with_a_later_write() {
        let mut ids = EffectIds::default();
        let mut writer = StatusWriter::new();
        let first = writer.start(status_write(&pod("Running")), &mut ids);
        assert!(writer.complete(first).is_some() && writer.is_idle());
        let second = writer.start(PendingWrite::Remove, &mut ids);
        assert!(writer.complete(first).is_none() && !writer.is_idle());
        assert!(matches!(writer.complete(second), Some(PendingWrite::Remove)));
        assert_eq!(writer.sent_phase(), Some("Running"));
    }

    #[test]
    fn a_status_is_written_once_also_when_the_api_server_changes_it() {
        let mut writer = StatusWriter::new();
        let (asked, stored) = (pod("Running"), pod("Failed"));
        let status = asked.status.clone().unwrap();
        assert!(!writer.is_stored(digest_of(&asked), &status, &pod("Pending")));
        writer.written(digest_of(&asked), Some(&stored));
        writer.invalidate();
        assert!(writer.is_stored(digest_of(&asked), &status, &stored));
        writer.invalidate();
        assert!(!writer.is_stored(digest_of(&asked), &status, &pod("Pending")), "somebody changed it");
    }

    #[test]
    fn a_queued_write_is_not_idle_and_is_decided_when_the_permit_comes() {
        let mut writer = StatusWriter::new();
        writer.queue();
        assert!(!writer.is_idle() && !writer.is_due(Duration::ZERO));
        writer.permit_granted();
        assert!(writer.is_due(Duration::ZERO));
    }
}
