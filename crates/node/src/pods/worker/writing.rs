//! What a worker writes to the API server: the pod's status, and its removal.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodStatus};
use rand::rngs::StdRng;
use vk_kube::{Error as ApiError, Kind as ApiKind};
use vk_provider::EventKind;

use super::{Action, Presence, Worker, Write, Written};
use crate::{
    now::Now,
    pods::{
        digest::Digest,
        status::{self, Composed, StatusPatch, Surroundings, UPDATED},
    },
};

impl Worker {
    /// The write to the API server that is due.
    pub(super) fn write(&mut self, now: Now, actions: &mut Vec<Action>) {
        let Some(pod) = self.desired.clone() else { return };
        let ending = pod.metadata.deletion_timestamp.is_some();
        let forced = ending && self.force_at().is_some_and(|at| now.elapsed >= at);
        let settled = self.presence != Presence::Unknown && self.call.is_none() && !self.may_run();
        if let Some(patch) = self.status_write(now, &pod, actions) {
            self.write.busy = true;
            return actions.push(Action::Write(Write::Status(Box::new(patch))));
        }
        if ending && !self.removed && (settled || forced) {
            self.write.busy = true;
            actions.push(Action::Write(Write::Remove));
        }
    }

    /// The status patch that the pod needs, if it needs one.
    fn status_write(&mut self, now: Now, pod: &Arc<Pod>, actions: &mut Vec<Action>) -> Option<StatusPatch> {
        let source = self.status_source(pod)?;
        // A deletion raises the generation too, and has been acted on when nothing of the pod runs.
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let over = deleted && self.reported.as_deref().is_some_and(status::all_ended);
        let around = Surroundings {
            host_ips: self.policy.host_ips.clone(),
            now: now.wall,
            generation: if over || self.rejected { pod.metadata.generation } else { self.generation },
            verdicts: self.size_condition().into_iter().chain(self.update_condition()).collect(),
        };
        let Composed { status, refused } = if self.rejected && !super::has_started(pod) {
            status::rejected(pod, &source, &around)
        } else {
            status::compose(&self.actual(&self.furthest(pod)), &source, &around)
        };
        if refused != self.refused {
            if !refused.is_empty() {
                let message = format!("the provider reported {}: not taken over", refused.join("; "));
                actions.push(Action::Announce(EventKind::Warning, "InvalidProviderStatus".into(), message));
            }
            self.refused = refused;
        }
        let asked = status::digest(&status);
        let there = *self.there.get_or_insert_with(|| digest_of(pod));
        let same = match &self.written {
            Some(written) => written.asked == asked && written.there == there,
            None => asked == there || status::is_there_as_kept(&status, pod.status.as_ref()),
        };
        if same && self.annotations.is_empty() && self.labels.is_empty() {
            return None;
        }
        self.asked = Some(asked);
        self.said.clone_from(&status.phase);
        let (uid, there) = (Arc::clone(&self.pod.uid), pod.status.as_ref());
        Some(StatusPatch::new(uid, status, there, &self.annotations, &self.labels))
    }

    /// What to say about a change that the provider did not take.
    fn update_condition(&self) -> Option<PodCondition> {
        let (reason, message) = self.unchanged.as_ref()?;
        Some(PodCondition {
            type_: UPDATED.to_owned(),
            status: "False".to_owned(),
            reason: Some(reason.clone()),
            message: Some(message.clone()),
            ..PodCondition::default()
        })
    }

    /// The pod with the furthest phase that it may have in the API server: a write that failed may have taken effect, and
    /// what the watch tells may be older.
    fn furthest(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(said) = self.said.as_deref().filter(|said| status::is_later(said, phase)) else {
            return Arc::clone(pod);
        };
        let mut further = Pod::clone(pod);
        further.status.get_or_insert_default().phase = Some(said.to_owned());
        Arc::new(further)
    }

    /// What the status is made of: the core's verdict, the provider's report, or why there is none yet.
    fn status_source(&self, pod: &Pod) -> Option<Cow<'_, PodStatus>> {
        if let Some((reason, message)) = &self.failed {
            // Only once nothing runs: a pod that is called Failed is given up by everybody else.
            // Once that is said it stays, also when an old word of the provider's comes late.
            if self.may_run() && !status::is_terminal(self.said.as_deref()) {
                return self.reported.as_deref().map(Cow::Borrowed);
            }
            // What the provider said last counts if it was the end; otherwise nobody saw the end.
            let seen = self.reported.as_deref().filter(|reported| status::all_ended(reported)).cloned();
            let unseen = || super::has_started(pod).then(|| status::lost(pod, message));
            let mut status = seen.or_else(unseen).unwrap_or_default();
            // Why it was not ready before it failed is of no interest any more.
            if let Some(conditions) = &mut status.conditions {
                conditions.retain(|condition| condition.type_ != status::CONTAINERS_READY);
            }
            status.phase = Some("Failed".to_owned());
            status.reason = Some(reason.clone());
            status.message = Some(message.clone());
            return Some(Cow::Owned(status));
        }
        if self.presence == Presence::Absent && is_kept(pod) {
            // Others wait for its end, of which the backend did not tell.
            let told = self.reported.as_deref().is_none_or(status::all_ended);
            if !told && super::has_started(pod) {
                let message = "the pod was deleted, and the backend kept nothing of it";
                return (!status::has_ended(pod)).then(|| Cow::Owned(status::lost(pod, message)));
            }
        }
        if let Some(reported) = &self.reported {
            return Some(Cow::Borrowed(reported));
        }
        let held = self.held.as_ref()?;
        let waiting = |one: &Container| {
            let mut one = status::fill(&one.name, one.image.as_deref().unwrap_or_default(), &held.state);
            if let Some(waiting) = one.state.as_mut().and_then(|state| state.waiting.as_mut()) {
                // A kubelet says nothing at containers whose volumes are being made.
                waiting.message = Some(held.message.clone()).filter(|_| held.state != "ContainerCreating");
            }
            one
        };
        Some(Cow::Owned(PodStatus {
            phase: Some("Pending".to_owned()),
            reason: held.reason.clone(),
            message: held.reason.as_ref().map(|_| held.message.clone()),
            container_statuses: pod.spec.as_ref().map(|spec| spec.containers.iter().map(waiting).collect()),
            ..PodStatus::default()
        }))
    }

    pub(super) fn wrote(
        &mut self,
        now: Now,
        write: &Write,
        answer: Result<Option<Arc<Pod>>, ApiError>,
        rng: &mut StdRng,
        actions: &mut Vec<Action>,
    ) {
        let asked = self.asked.take();
        match (write, answer) {
            (Write::Status(patch), Ok(pod)) => {
                self.write.done();
                // What came meanwhile is still to be written.
                let words = [&mut self.annotations, &mut self.labels];
                for (words, sent) in words.into_iter().zip([patch.annotations(), patch.labels()]) {
                    words.retain(|key, value| {
                        let done = sent.get(key) == Some(value);
                        if done && value.is_none() {
                            self.published.remove(key);
                        }
                        !done
                    });
                }
                let there = pod.as_deref().filter(|pod| pod.status.is_some()).map(digest_of);
                self.written = asked.zip(there).map(|(asked, there)| Written { asked, there });
                if let Some(pod) = pod {
                    // Where the watch was quicker, what it showed stays: others hold that, too.
                    let pod = self.desired.clone().filter(|_| self.knows(&pod)).unwrap_or(pod);
                    self.want(now, pod, actions);
                }
            }
            (Write::Remove, Ok(_)) => {
                self.write.done();
                self.removed = true;
            }
            (_, Err(error)) => match error.kind {
                // This UID is gone, whatever the watch says yet.
                ApiKind::NotFound | ApiKind::Replaced => {
                    self.write.done();
                    self.gone(now, actions);
                }
                ApiKind::Conflict if *write == Write::Remove => {
                    self.write.done();
                    self.gone(now, actions);
                }
                // Labels are extra: the status must not wait for the right to set them.
                ApiKind::Forbidden if !self.labels.is_empty() => {
                    self.write.done();
                    let labels = std::mem::take(&mut self.labels);
                    let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
                    let message = format!("labels that the provider publishes, {}: {error}", keys.join(", "));
                    actions.push(Action::Announce(EventKind::Warning, "LabelsRefused".into(), message));
                }
                _ => {
                    if self.write.backoff.failures() == 0 {
                        tracing::warn!(pod = %self.pod, kind = %error.kind, %error, "a write failed: trying again");
                        if error.kind == ApiKind::Invalid {
                            let message = format!("the API server refuses the status of the pod: {error}");
                            actions.push(Action::Announce(
                                EventKind::Warning,
                                "StatusRefused".into(),
                                message,
                            ));
                        }
                    }
                    self.write.failed(now.elapsed, error.retry_after, rng);
                }
            },
        }
    }
}

/// Of our part of the status that the pod has.
fn digest_of(pod: &Pod) -> Digest {
    pod.status.as_ref().map_or_else(|| Digest::of(&()), status::digest)
}

/// Whether the pod is deleted and stays for a finalizer of somebody else.
fn is_kept(pod: &Pod) -> bool {
    let finalizers = pod.metadata.finalizers.as_ref();
    pod.metadata.deletion_timestamp.is_some() && finalizers.is_some_and(|all| !all.is_empty())
}
