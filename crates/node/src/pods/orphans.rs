//! Pods that the provider has and that this node should not run: what a crash, a missed event or a trial leaves behind.
//!
//! Cleaning up is the most dangerous thing that a controller does. It takes three things at once: the mark of this very node on
//! the pod in the backend, a live answer of the API server that the pod of this UID is gone or not for this node, and both of
//! them twice.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tracing::warn;
use vk_provider::{ObservedPod, PodRef, placement::trial_node};

use super::reconciler::effect::{EffectId, EffectIds};

/// How often a pod must be found without an owner before it is removed.
const CONFIRMATIONS: u32 = 2;

/// Why this node should not run a pod that the provider has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrphanReason {
    /// The API server has no pod of this UID.
    Gone,
    /// The pod is bound to another node, and runs there, too.
    BoundElsewhere,
    /// The pod is bound to no node, and is not on trial on this one.
    Unbound,
}

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

    /// The pod gets a worker, and so is no candidate any more: an answer about it that is still to come may be older than its
    /// binding. Returns its status, if the last list had it.
    pub(super) fn claim(&mut self, uid: &str) -> Option<Box<PodStatus>> {
        self.confirmations.remove(uid);
        self.unclaimed.remove(uid)
    }

    /// Takes the check with this id, if it is one.
    pub(super) fn take_check(&mut self, id: EffectId) -> Option<PodRef> {
        self.checks.remove(&id)
    }

    /// What the API server has under the pod's name. Returns why the pod is to be removed from the provider, if it is.
    pub(super) fn checked(&mut self, pod: &PodRef, node: &str, found: Option<&Pod>) -> Option<OrphanReason> {
        let Some(reason) = OrphanReason::of(pod, node, found) else {
            self.confirmations.remove(&pod.uid);
            return None;
        };
        let count = self.confirmations.get_mut(&pod.uid)?;
        *count += 1;
        (*count >= CONFIRMATIONS).then_some(reason)
    }
}

// === impl OrphanReason ===

impl OrphanReason {
    /// `found` is what the API server has under the pod's name. A node identity is shown only pods that are bound to its node, so
    /// for it all others are gone.
    fn of(pod: &PodRef, node: &str, found: Option<&Pod>) -> Option<Self> {
        let Some(found) = found.filter(|found| found.metadata.uid.as_deref() == Some(&*pod.uid)) else {
            return Some(Self::Gone);
        };
        if let Some(bound_to) = found.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty()) {
            // The node of a pod never changes. The trial label may still name the node on which the pod was tried before.
            return (bound_to != node).then_some(Self::BoundElsewhere);
        }
        // A pod cannot be unbound again, so this one was never bound, and only a trial makes a provider run such a pod. The label
        // says where the trial is. If it does not name this node, the trial here has ended: nobody else removes what is left of it,
        // and it would run beside the pod on the node that gets it.
        (trial_node(found) != Some(node)).then_some(Self::Unbound)
    }
}

impl fmt::Display for OrphanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the API server does not have it",
            Self::BoundElsewhere => "it is bound to another node",
            Self::Unbound => "it is not bound, and not on trial on this node",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vk_provider::placement::TRIAL_LABEL;

    use super::*;

    fn observed(owner: Option<&str>) -> ObservedPod {
        let pod = PodRef::new("default", "web", "u1");
        ObservedPod { pod, node: owner.map(str::to_owned), status: PodStatus::default() }
    }

    /// A pod in the API server.
    fn found(uid: &str, bound_to: Option<&str>, trial: Option<&str>) -> Pod {
        let pod = json!({
            "metadata": {"uid": uid, "labels": trial.map(|node| json!({TRIAL_LABEL: node}))},
            "spec": {"nodeName": bound_to, "containers": []},
        });
        serde_json::from_value(pod).unwrap()
    }

    /// The answers to two checks, after a list each, with this in the API server.
    fn checked_twice(found: Option<&Pod>) -> [Option<OrphanReason>; 2] {
        let (mut orphans, mut ids) = (Orphans::default(), EffectIds::default());
        [(); 2].map(|()| {
            let checks = orphans.listed([observed(Some("vk"))].into_iter(), "vk", &mut ids);
            let pod = orphans.take_check(checks[0].0).expect("a check");
            assert_eq!(orphans.take_check(checks[0].0), None);
            orphans.checked(&pod, "vk", found)
        })
    }

    #[test]
    fn a_pod_that_is_gone_is_removed_after_two_lists_and_two_answers() {
        assert_eq!(checked_twice(None), [None, Some(OrphanReason::Gone)]);
        let namesake = found("namesake", Some("vk"), Some("vk"));
        assert_eq!(checked_twice(Some(&namesake)), [None, Some(OrphanReason::Gone)]);
    }

    #[test]
    fn a_pod_that_is_bound_to_another_node_is_removed_after_two_lists_and_two_answers() {
        for trial in [None, Some("other"), Some("vk")] {
            let elsewhere = found("u1", Some("other"), trial);
            assert_eq!(checked_twice(Some(&elsewhere)), [None, Some(OrphanReason::BoundElsewhere)]);
        }
    }

    #[test]
    fn a_pod_that_is_not_bound_stays_only_while_it_is_on_trial_on_this_node() {
        for unbound in [None, Some("")] {
            assert_eq!(checked_twice(Some(&found("u1", unbound, Some("vk")))), [None, None]);
            for trial in [None, Some(""), Some("other")] {
                let ended = found("u1", unbound, trial);
                assert_eq!(checked_twice(Some(&ended)), [None, Some(OrphanReason::Unbound)]);
            }
        }
    }

    #[test]
    fn a_pod_that_is_this_nodes_or_marked_as_another_nodes_is_left_alone() {
        let (mut orphans, mut ids) = (Orphans::default(), EffectIds::default());
        assert_eq!(orphans.listed([observed(Some("other"))].into_iter(), "vk", &mut ids), []);
        assert_eq!(orphans.listed([observed(None)].into_iter(), "vk", &mut ids), []);
        let checks = orphans.listed([observed(Some("vk"))].into_iter(), "vk", &mut ids);
        assert_eq!(orphans.checked(&checks[0].1, "vk", Some(&found("u1", Some("vk"), None))), None);
        for late in [None, Some(&found("u1", Some("other"), None))] {
            assert_eq!(orphans.checked(&checks[0].1, "vk", late), None, "it is no candidate any more");
        }
        assert!(orphans.claim("u1").is_some() && orphans.claim("u1").is_none());
    }

    #[test]
    fn both_answers_must_follow_one_another() {
        let (mut orphans, mut ids) = (Orphans::default(), EffectIds::default());
        let (elsewhere, here) = (found("u1", Some("other"), None), found("u1", None, Some("vk")));
        for answer in [&elsewhere, &here, &elsewhere] {
            let checks = orphans.listed([observed(Some("vk"))].into_iter(), "vk", &mut ids);
            assert_eq!(orphans.checked(&checks[0].1, "vk", Some(answer)), None);
        }
    }

    #[test]
    fn a_pod_that_is_bound_here_while_it_is_checked_is_no_candidate_any_more() {
        let (mut orphans, mut ids) = (Orphans::default(), EffectIds::default());
        let unbound = found("u1", None, None);
        for bound in [false, true] {
            let checks = orphans.listed([observed(Some("vk"))].into_iter(), "vk", &mut ids);
            if bound {
                assert!(orphans.claim("u1").is_some());
            }
            assert_eq!(orphans.checked(&checks[0].1, "vk", Some(&unbound)), None, "the answer is older");
        }
    }
}
