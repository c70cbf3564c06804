//! Pods that the provider has and the API server does not: what a crash or a missed event leaves behind.
//!
//! Cleaning up is the most dangerous thing that a controller does. It takes three things at once: the mark of this very node on
//! the pod in the backend, a live answer of the API server that it has no pod of this UID, and both of them twice.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tracing::warn;
use vk_provider::{ObservedPod, PodRef};

use super::reconciler::effect::{EffectId, EffectIds};

/// How often a pod must be found without an owner before it is removed.
const CONFIRMATIONS: u32 = 2;

/// The candidates.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    confirmations: BTreeMap<Arc<str>, u32>,
    /// Pods of the last list that have no worker yet: the API server may show them later.
    unclaimed: HashMap<Arc<str>, Box<PodStatus>>,
    /// Candidates that are being read from the API server.
    checks: HashMap<EffectId, PodRef>,
}

// === impl Orphans ===

impl Orphans {
    /// The pods of a list that have no worker. Returns those to be read from the API server. Candidates that are not among them
    /// are forgotten.
    pub(super) fn listed(
        &mut self,
        unknown: impl Iterator<Item = ObservedPod>,
        node: &str,
        ids: &mut EffectIds,
    ) -> Vec<(EffectId, PodRef)> {
        let before = std::mem::take(&mut self.confirmations);
        let mut checks = Vec::new();
        self.unclaimed.clear();
        for ObservedPod { pod, node: owner, status } in unknown {
            self.unclaimed.insert(Arc::clone(&pod.uid), Box::new(status));
            if owner.as_deref() != Some(node) {
                warn!(%pod, ?owner, "the provider lists a pod that is not marked as this node's: left alone");
                continue;
            }
            let count = before.get(&pod.uid).copied().unwrap_or(0);
            self.confirmations.insert(Arc::clone(&pod.uid), count);
            let id = ids.allocate();
            self.checks.insert(id, pod.clone());
            checks.push((id, pod));
        }
        checks
    }

    /// The pod gets a worker. Returns its status, if the last list had it.
    pub(super) fn claim(&mut self, uid: &str) -> Option<Box<PodStatus>> {
        self.unclaimed.remove(uid)
    }

    /// Takes the check with this id, if it is one.
    pub(super) fn take_check(&mut self, id: EffectId) -> Option<PodRef> {
        self.checks.remove(&id)
    }

    /// What the API server has under the pod's name. Returns whether the pod is to be removed from the provider.
    pub(super) fn checked(&mut self, pod: &PodRef, found: Option<&Pod>) -> bool {
        if found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&*pod.uid)) {
            self.confirmations.remove(&pod.uid);
            return false;
        }
        let Some(count) = self.confirmations.get_mut(&pod.uid) else { return false };
        *count += 1;
        *count >= CONFIRMATIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(owner: Option<&str>) -> ObservedPod {
        let pod = PodRef::new("default", "web", "u1");
        ObservedPod { pod, node: owner.map(str::to_owned), status: PodStatus::default() }
    }

    fn pod(uid: &str) -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {"uid": uid}})).unwrap()
    }

    #[test]
    fn a_pod_is_removed_after_two_lists_and_two_answers() {
        let (mut orphans, mut ids) = (Orphans::default(), EffectIds::default());
        for remove in [false, true] {
            let checks = orphans.listed([observed(Some("vk"))].into_iter(), "vk", &mut ids);
            let pod = orphans.take_check(checks[0].0).expect("a check");
            assert_eq!(orphans.take_check(checks[0].0), None);
            assert_eq!(orphans.checked(&pod, Some(&self::pod("namesake"))), remove);
        }
    }

    #[test]
    fn a_pod_that_the_api_server_has_or_that_another_node_owns_is_left_alone() {
        let (mut orphans, mut ids) = (Orphans::default(), EffectIds::default());
        assert_eq!(orphans.listed([observed(Some("other"))].into_iter(), "vk", &mut ids), []);
        assert_eq!(orphans.listed([observed(None)].into_iter(), "vk", &mut ids), []);
        let checks = orphans.listed([observed(Some("vk"))].into_iter(), "vk", &mut ids);
        assert!(!orphans.checked(&checks[0].1, Some(&pod("u1"))));
        assert!(!orphans.checked(&checks[0].1, None), "it is no candidate any more");
        assert!(orphans.claim("u1").is_some() && orphans.claim("u1").is_none());
    }
}
