//! What of a pod is news for the provider, and what the provider publishes on the pod itself.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::EventKind;

use super::{Action, Worker};
use crate::pods::fingerprint::Fingerprint;

impl Worker {
    /// Of the pod as the provider would get it. Most words about a pod change nothing of that, and it is not cheap.
    pub(super) fn print_of(&self, pod: &Pod) -> Fingerprint {
        let same = |known: &Arc<Pod>| {
            pod.metadata.generation.is_some()
                && known.metadata.generation == pod.metadata.generation
                && known.metadata.labels == pod.metadata.labels
                && known.metadata.annotations == pod.metadata.annotations
        };
        let known = self.print.filter(|_| self.desired.as_ref().is_some_and(same));
        known.unwrap_or_else(|| Fingerprint::of(pod, &self.published))
    }

    /// What the provider publishes is no news for it.
    pub(super) fn publish(&mut self, words: &BTreeMap<String, Option<String>>) {
        self.published.extend(words.keys().cloned());
        let Some(pod) = &self.desired else { return };
        let (now, before) = (Fingerprint::of(pod, &self.published), self.print);
        self.print = Some(now);
        // What was acted on is the same pod, seen with other eyes.
        for known in [&mut self.acted_on, &mut self.settled].into_iter().flatten() {
            if before.is_some_and(|before| before.rest == known.rest) {
                known.rest = now.rest;
            }
        }
    }

    pub(super) fn label(&mut self, labels: BTreeMap<String, Option<String>>, actions: &mut Vec<Action>) {
        if !self.policy.may_label {
            let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
            let message = format!(
                "the provider publishes the labels {}, which a node identity may not set: left out",
                keys.join(", ")
            );
            actions.push(Action::Announce(EventKind::Warning, "LabelsRefused".into(), message));
            return;
        }
        self.publish(&labels);
        self.labels.extend(labels);
    }
}
