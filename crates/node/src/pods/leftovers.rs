//! Pods that the backend has and the API server does not: what a crash or a missed event leaves behind.
//!
//! Cleaning up is the most dangerous thing a controller does. It takes three things at once: the mark of this very node on
//! the pod in the backend, a live answer of the API server that it knows no pod of this UID, and both of them twice.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use tracing::warn;
use vk_provider::{ObservedPod, PodRef};

/// How often a pod must be seen as left over before it is removed.
const SIGHTINGS: u32 = 2;

/// The candidates.
#[derive(Debug, Default)]
pub struct Leftovers {
    seen: HashMap<Arc<str>, u32>,
    /// What the last listing had and nobody asked for yet: the API server may tell of it later.
    unclaimed: HashMap<Arc<str>, Box<PodStatus>>,
}

impl Leftovers {
    /// The pods of a listing that nobody wants; answers those to be checked with the API server. What is not among them
    /// any more is forgotten.
    pub fn sighted(&mut self, unwanted: impl Iterator<Item = ObservedPod>, node: &str) -> Vec<PodRef> {
        let mut seen = HashMap::new();
        let mut check = Vec::new();
        self.unclaimed.clear();
        for pod in unwanted {
            self.unclaimed.insert(Arc::clone(&pod.pod.uid), Box::new(pod.status));
            if pod.node.as_deref() != Some(node) {
                warn!(pod = %pod.pod, owner = ?pod.node, "the provider lists a pod that is not marked as this node's: left alone");
                continue;
            }
            let count = self.seen.get(&pod.pod.uid).copied().unwrap_or(0);
            seen.insert(Arc::clone(&pod.pod.uid), count);
            check.push(pod.pod);
        }
        self.seen = seen;
        check
    }

    /// Somebody begins to work on this pod: answers its status, if the last listing had it.
    pub fn claim(&mut self, uid: &str) -> Option<Box<PodStatus>> {
        self.unclaimed.remove(uid)
    }

    /// The API server does not know the pod. Tells whether it was seen often enough to be removed.
    pub fn confirmed(&mut self, pod: &PodRef) -> bool {
        let Some(count) = self.seen.get_mut(&pod.uid) else { return false };
        *count += 1;
        *count >= SIGHTINGS
    }

    /// The API server knows the pod after all.
    pub fn known(&mut self, pod: &PodRef) {
        self.seen.remove(&pod.uid);
    }
}
