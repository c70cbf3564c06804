//! Which version of the pod's spec the provider has, and whether it needs another.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, PodCondition};

use super::event::ProviderFailure;
use crate::pods::{fingerprint::Fingerprint, status::UPDATED};

/// The fingerprints of the spec that is wanted, that was sent, and that the provider has.
#[derive(Debug, Default)]
pub(super) struct SpecSync {
    desired: Option<Fingerprint>,
    /// Sent with the last call, unless that is to be repeated.
    sent: Option<Fingerprint>,
    /// Accepted by the provider.
    applied: Option<Fingerprint>,
    /// The generation that the provider has acted on.
    generation: Option<i64>,
    /// Why the provider refused the last update.
    refusal: Option<Box<ProviderFailure>>,
}

// === impl SpecSync ===

impl SpecSync {
    pub(super) fn desired(&self) -> Option<Fingerprint> {
        self.desired
    }

    pub(super) fn sent(&self) -> Option<Fingerprint> {
        self.sent
    }

    pub(super) fn generation(&self) -> Option<i64> {
        self.generation
    }

    /// The fingerprint of a new version of the pod. Most new versions change nothing of it, and it is not cheap.
    pub(super) fn fingerprint(
        &self,
        pod: &Pod,
        known: Option<&Arc<Pod>>,
        published: &BTreeSet<String>,
    ) -> Fingerprint {
        let same = |known: &Arc<Pod>| {
            pod.metadata.generation.is_some()
                && known.metadata.generation == pod.metadata.generation
                && known.metadata.labels == pod.metadata.labels
                && known.metadata.annotations == pod.metadata.annotations
        };
        let unchanged = self.desired.filter(|_| known.is_some_and(same));
        unchanged.unwrap_or_else(|| Fingerprint::of(pod, published))
    }

    pub(super) fn set_desired(&mut self, fingerprint: Fingerprint) {
        self.desired = Some(fingerprint);
    }

    /// The provider published metadata on the pod, which is no change for it.
    pub(super) fn ignore_published(&mut self, pod: &Pod, published: &BTreeSet<String>) {
        let (now, before) = (Fingerprint::of(pod, published), self.desired);
        self.desired = Some(now);
        for known in [&mut self.sent, &mut self.applied].into_iter().flatten() {
            if before.is_some_and(|before| before.rest == known.rest) {
                known.rest = now.rest;
            }
        }
    }

    /// A create or update call with this spec begins.
    pub(super) fn send(&mut self, fingerprint: Fingerprint, generation: Option<i64>) {
        self.sent = Some(fingerprint);
        self.generation = generation;
    }

    /// Decides about this generation without a call.
    pub(super) fn observe_generation(&mut self, generation: Option<i64>) {
        self.generation = generation;
    }

    /// The provider accepted what was sent.
    pub(super) fn accepted(&mut self) {
        self.applied = self.sent;
        self.refusal = None;
    }

    /// The provider refused what was sent: the pod goes on as it is, until it is changed again.
    pub(super) fn refused(&mut self, failure: ProviderFailure) {
        self.refusal = Some(Box::new(failure));
    }

    /// The provider refused the new size: whatever else was changed is sent without it.
    pub(super) fn size_refused(&mut self) {
        let same_rest = |known: &Fingerprint| self.sent.is_some_and(|sent| sent.rest == known.rest);
        self.sent = self.applied.filter(same_rest);
    }

    /// The call failed, and may have taken effect: it is to be repeated.
    pub(super) fn failed(&mut self) {
        self.sent = None;
        self.applied = None;
    }

    /// The call was cancelled, and may have taken effect.
    pub(super) fn cancelled(&mut self) {
        self.applied = None;
    }

    /// The provider has nothing of the pod.
    pub(super) fn lost(&mut self) {
        self.sent = None;
    }

    /// The condition that reports a refused update.
    pub(super) fn condition(&self) -> Option<PodCondition> {
        let failure = self.refusal.as_ref()?;
        Some(PodCondition {
            type_: UPDATED.to_owned(),
            status: "False".to_owned(),
            reason: Some(failure.kind.name().to_owned()),
            message: Some(failure.message.clone()),
            ..PodCondition::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vk_provider::error::Kind;

    use super::*;

    fn pod(image: &str, cpu: &str) -> Pod {
        let container = json!({"name": "a", "image": image, "resources": {"requests": {"cpu": cpu}}});
        serde_json::from_value(
            json!({"metadata": {"annotations": {"own": "x"}}, "spec": {"containers": [container]}}),
        )
        .unwrap()
    }

    fn fingerprint(image: &str, cpu: &str) -> Fingerprint {
        Fingerprint::of(&pod(image, cpu), &BTreeSet::new())
    }

    #[test]
    fn a_refused_size_is_left_out_and_the_rest_is_sent_again() {
        let mut spec = SpecSync::default();
        spec.send(fingerprint("a:1", "1"), Some(1));
        spec.accepted();
        spec.send(fingerprint("a:1", "5"), Some(2));
        spec.size_refused();
        assert_eq!(spec.sent(), Some(fingerprint("a:1", "1")), "nothing is left to send");
        spec.send(fingerprint("a:2", "5"), Some(3));
        spec.size_refused();
        assert_eq!(spec.sent(), None, "the image is still to be sent");
    }

    #[test]
    fn what_the_provider_published_is_no_change() {
        let mut spec = SpecSync::default();
        spec.set_desired(fingerprint("a:1", "1"));
        spec.send(fingerprint("a:1", "1"), Some(1));
        spec.ignore_published(&pod("a:1", "1"), &["own".to_owned()].into());
        assert_eq!(spec.sent(), spec.desired());
        assert_ne!(spec.desired(), Some(fingerprint("a:1", "1")));
    }

    #[test]
    fn a_refused_update_is_a_condition_until_another_is_accepted() {
        let mut spec = SpecSync::default();
        spec.refused(ProviderFailure { kind: Kind::Unsupported, message: "no".to_owned() });
        assert_eq!(spec.condition().and_then(|one| one.message), Some("no".to_owned()));
        spec.accepted();
        assert_eq!(spec.condition(), None);
    }
}
