//! Finds events that the watch has lost.
//!
//! Nobody notices a watch that loses an event and goes on: the next list may be days away. So the versions that the workers know
//! are compared with a list of versions from time to time. That list comes from a cache and proves nothing, least of all that a
//! pod is gone. Where it differs, the pod is read from the API server itself, and only that answer counts.

mod version_list;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::PodRef;

use super::reconciler::effect::{EffectId, EffectIds};

pub(super) use self::version_list::read_live;
pub use self::version_list::{AuditScope, PERIOD, pod_versions};

/// How many pods are read at a time.
const READS: usize = 8;

/// The versions of the pods could not be listed: what the watch loses meanwhile is not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditFailure {
    /// How often in a row.
    pub in_a_row: u32,
    /// The last error.
    pub message: String,
}

/// Pods with their versions, as they were listed.
#[derive(Clone, Debug, Default)]
pub struct PodVersions {
    /// The version of the list: what is newer cannot be in it.
    pub version: u64,
    /// The pods by UID.
    pub pods: BTreeMap<Arc<str>, (PodRef, u64)>,
    /// Pods of several nodes are among them.
    pub all_nodes: bool,
}

/// The version of a pod that its worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownVersion {
    /// This version of it.
    Version(u64),
    /// It is gone, by another source than the watch.
    Gone,
}

/// What a live answer of the API server shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AuditFinding {
    /// The pod is gone.
    Gone,
    /// The pod exists, and is newer than what is known of it.
    Newer(Arc<Pod>),
}

/// The pods that are to be read, and what was found.
#[derive(Debug, Default)]
pub(super) struct WatchAudit {
    queue: VecDeque<PodRef>,
    /// Pods that are to be read or being read. If the watch shows a pod meanwhile, the answer is of no use.
    open: HashSet<Arc<str>>,
    reads: HashMap<EffectId, PodRef>,
    /// Pods that are gone without an event of the watch. If it is only late, whatever it shows of them is old.
    gone: HashSet<Arc<str>>,
    /// Those from before the list in progress: after it, the watch cannot show anything old of them.
    gone_before_list: HashSet<Arc<str>>,
}

impl AuditFailure {
    /// After so many failures in a row people are told.
    pub const WORTH_REPORTING: u32 = 3;
}

impl PodVersions {
    /// The versions of the pods of one node, or of all.
    pub fn new(list: vk_kube::MetadataList, all_nodes: bool) -> Self {
        let pods = list.objects.into_iter().map(|object| {
            let pod = PodRef::new(object.namespace, object.name, object.uid);
            (Arc::clone(&pod.uid), (pod, object.version))
        });
        Self { version: list.version, pods: pods.collect(), all_nodes }
    }
}

impl WatchAudit {
    /// Compares a list of versions with what the workers know.
    pub(super) fn compare<'a>(
        &mut self,
        list: &PodVersions,
        known: impl Iterator<Item = (&'a PodRef, KnownVersion)>,
    ) {
        if !self.open.is_empty() || !self.reads.is_empty() {
            return;
        }
        let mut have = HashSet::new();
        let mut differing = Vec::new();
        for (pod, known) in known {
            have.insert(&*pod.uid);
            let differs = match (list.pods.get(&pod.uid), known) {
                (Some((_, listed)), KnownVersion::Version(version)) => *listed > version,
                (None, KnownVersion::Version(version)) => version <= list.version,
                // The worker waits until the watch shows it, too.
                (listed, KnownVersion::Gone) => listed.is_none(),
            };
            if differs {
                differing.push(pod.clone());
            }
        }
        if !list.all_nodes {
            let new = list.pods.values().map(|(pod, _)| pod).filter(|pod| !have.contains(&*pod.uid));
            differing.extend(new.filter(|pod| !self.is_gone(&pod.uid)).cloned());
        }
        self.open = differing.iter().map(|pod| Arc::clone(&pod.uid)).collect();
        self.queue = differing.into();
    }

    /// The next pod to be read from the API server, unless enough are being read.
    pub(super) fn next_read(&mut self, ids: &mut EffectIds) -> Option<(EffectId, PodRef)> {
        while self.reads.len() < READS {
            let pod = self.queue.pop_front()?;
            if self.open.contains(&pod.uid) {
                let id = ids.allocate();
                self.reads.insert(id, pod.clone());
                return Some((id, pod));
            }
        }
        None
    }

    /// Takes the read with this id, if it is one.
    pub(super) fn take_read(&mut self, id: EffectId) -> Option<PodRef> {
        self.reads.remove(&id)
    }

    /// The API server has this under the pod's name. `known` is what its worker knows now, if it has one.
    pub(super) fn read(
        &mut self,
        pod: &PodRef,
        found: Option<Pod>,
        known: Option<KnownVersion>,
    ) -> Option<AuditFinding> {
        if !self.open.remove(&pod.uid) {
            return None;
        }
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(&*pod.uid));
        match (found, known) {
            (None, Some(_)) => {
                self.gone.insert(Arc::clone(&pod.uid));
                Some(AuditFinding::Gone)
            }
            // It is unknown here, or its worker knows better.
            (None, None) | (Some(_), Some(KnownVersion::Gone)) => None,
            (Some(found), None) => Some(AuditFinding::Newer(Arc::new(found))),
            (Some(found), Some(KnownVersion::Version(known))) => {
                let version = found.metadata.resource_version.as_ref()?.parse::<u64>().ok()?;
                (version > known).then(|| AuditFinding::Newer(Arc::new(found)))
            }
        }
    }

    /// The API server does not answer. The next comparison will show the same.
    pub(super) fn read_failed(&mut self, pod: &PodRef) {
        self.open.remove(&pod.uid);
    }

    /// The watch shows a pod. Returns whether that is old, because the pod is gone.
    pub(super) fn applied(&mut self, uid: &str) -> bool {
        self.open.remove(uid);
        self.is_gone(uid)
    }

    /// The watch shows that a pod is gone, and nothing old after that.
    pub(super) fn deleted(&mut self, uid: &str) {
        self.open.remove(uid);
        self.gone.remove(uid);
        self.gone_before_list.remove(uid);
    }

    /// A list begins, which will show everything.
    pub(super) fn restarted(&mut self) {
        self.open.clear();
        self.queue.clear();
        self.gone_before_list.extend(self.gone.drain());
    }

    /// The list is complete.
    pub(super) fn listed(&mut self) {
        self.gone_before_list.clear();
    }

    fn is_gone(&self, uid: &str) -> bool {
        self.gone.contains(uid) || self.gone_before_list.contains(uid)
    }
}

#[cfg(test)]
mod tests;
