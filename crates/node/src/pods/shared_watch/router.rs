//! Sorts the pods of one watch by their nodes, each into the mailbox of its node.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{WatchEvent, metadata_list::ObjectList};
use vk_provider::PodRef;

use super::mailbox::{CoalescingQueue, Mailbox};
use crate::pods::{
    watch::PodWatchEvent,
    watch_audit::{AuditFailure, PodVersions},
};

/// The nodes that share the watch.
#[derive(Debug, Default)]
pub(super) struct WatchRouter {
    members: HashMap<String, Member>,
    ids: u64,
    /// Nodes that joined after the list began, and whose pods are listed separately.
    late: VecDeque<(String, u64)>,
    /// The first list has begun.
    begun: bool,
    /// Hashes of all pods that the watch has shown, also those of other nodes: what a list of versions has beside them was
    /// missed.
    shown: HashSet<u64>,
    /// Hashes of those of them that are our nodes'.
    ours: HashSet<u64>,
    /// Those of the list in progress.
    listing: Option<HashSet<u64>>,
    /// Pods that are being read because the watch has not shown them. If it does meanwhile, the answer is of no use.
    reading: HashSet<u64>,
    /// Pods were left out of the audit in progress, because the watch did not know all pods.
    audit_incomplete: bool,
    hasher: RandomState,
    /// The watch is not permitted: each node opens its own.
    pub(super) refused: bool,
}

#[derive(Debug)]
struct Member {
    id: u64,
    mailbox: Arc<Mailbox>,
    /// For a node that is late: the events since it joined, to be applied on top of the list of its pods.
    since: Option<HashMap<Arc<str>, PodWatchEvent>>,
    /// The version of that list: what the watch shows from before it is old, and may be long gone.
    floor: u64,
    /// It had joined when the list in progress began.
    listing: bool,
}

// === impl WatchRouter ===

impl WatchRouter {
    /// A node joins. It replaces an earlier one of the same name.
    pub(super) fn join(&mut self, node: &str) -> (u64, Arc<Mailbox>) {
        self.ids += 1;
        let (id, mailbox) = (self.ids, Arc::<Mailbox>::default());
        let since = self.begun.then(HashMap::new);
        if since.is_some() {
            self.late.push_back((node.to_owned(), id));
        }
        let member = Member { id, mailbox: Arc::clone(&mailbox), since, floor: 0, listing: false };
        self.members.insert(node.to_owned(), member);
        (id, mailbox)
    }

    pub(super) fn leave(&mut self, node: &str, id: u64) {
        if self.is_member(node, id) {
            self.members.remove(node);
        }
    }

    fn is_member(&self, node: &str, id: u64) -> bool {
        self.members.get(node).is_some_and(|member| member.id == id)
    }

    /// Whether the pods of this node are still to be listed separately.
    pub(super) fn is_late(&self, node: &str, id: u64) -> bool {
        self.members.get(node).is_some_and(|member| member.id == id && member.since.is_some())
    }

    /// The next node whose pods are to be listed separately.
    pub(super) fn next_late(&mut self) -> Option<(String, u64)> {
        while let Some((node, id)) = self.late.pop_front() {
            if self.is_late(&node, id) {
                return Some((node, id));
            }
        }
        None
    }

    /// The pods of a late node, listed after it had joined.
    pub(super) fn listed_separately(&mut self, node: &str, id: u64, listing: ObjectList<Pod>) {
        // A list of all pods that began meanwhile includes them.
        if !self.is_late(node, id) {
            return;
        }
        let Some(member) = self.members.get_mut(node) else { return };
        let mut since = member.since.take().unwrap_or_default();
        member.floor = listing.version;
        let uids = listing.objects.iter().filter_map(|pod| pod.metadata.uid.as_deref());
        self.ours.extend(uids.map(|uid| self.hasher.hash_one(uid)));
        since.retain(|_, event| is_after(event, listing.version));
        member.mailbox.update(|queue| {
            queue.restarted();
            for pod in listing.objects {
                if !pod.metadata.uid.as_deref().is_some_and(|uid| since.contains_key(uid)) {
                    queue.applied(Arc::new(pod));
                }
            }
            for event in since.into_values() {
                enqueue(queue, event);
            }
            queue.listed();
        });
    }

    /// An event of the watch.
    pub(super) fn watch_event(&mut self, event: WatchEvent<Pod>) {
        match event {
            WatchEvent::Restarted => {
                self.begun = true;
                self.listing = Some(HashSet::new());
                self.reading.clear();
                for member in self.members.values_mut() {
                    member.since = None;
                    member.floor = 0;
                    member.listing = true;
                    member.mailbox.update(CoalescingQueue::restarted);
                }
            }
            WatchEvent::Applied(pod) => {
                let hash = self.hash(&pod);
                if let Some(hash) = hash {
                    self.reading.remove(&hash);
                    self.shown.insert(hash);
                    self.listing.as_mut().map(|listing| listing.insert(hash));
                }
                if self.route(pod, PodWatchEvent::Applied) {
                    self.ours.extend(hash);
                }
            }
            WatchEvent::Deleted(pod) => {
                if let Some(hash) = self.hash(&pod) {
                    self.reading.remove(&hash);
                    self.shown.remove(&hash);
                    self.ours.remove(&hash);
                    self.listing.as_mut().map(|listing| listing.remove(&hash));
                }
                self.route(pod, PodWatchEvent::Deleted);
            }
            WatchEvent::Listed => {
                self.shown = self.listing.take().unwrap_or_default();
                self.ours.retain(|hash| self.shown.contains(hash));
                for member in self.members.values_mut() {
                    if std::mem::take(&mut member.listing) {
                        member.mailbox.update(CoalescingQueue::listed);
                    }
                }
            }
            WatchEvent::Error(_) => {}
        }
    }

    /// Whether an audit needs the version of this pod: it is one of our nodes', or the watch never showed it.
    pub(super) fn is_audited(&mut self, uid: &str) -> bool {
        if self.listing.is_some() || !self.begun {
            self.audit_incomplete = true;
            return false;
        }
        let hash = self.hasher.hash_one(uid);
        self.ours.contains(&hash) || !self.shown.contains(&hash)
    }

    /// The versions could not be listed.
    pub(super) fn audit_failed(&mut self, failure: &Arc<AuditFailure>) {
        self.audit_incomplete = false;
        for member in self.members.values() {
            member.mailbox.update(|queue| queue.audited(PodWatchEvent::AuditFailed(Arc::clone(failure))));
        }
    }

    /// A list of versions, of those pods that [`Self::is_audited`] names. Each node compares it with what it knows. Returns the
    /// pods that the watch never showed, which may be any node's.
    pub(super) fn versions_listed(&mut self, versions: &Arc<PodVersions>) -> Vec<PodRef> {
        if std::mem::take(&mut self.audit_incomplete) || self.listing.is_some() || !self.begun {
            return Vec::new();
        }
        for member in self.members.values().filter(|member| member.since.is_none()) {
            member.mailbox.update(|queue| queue.audited(PodWatchEvent::Versions(Arc::clone(versions))));
        }
        let not_shown = |pod: &&PodRef| !self.shown.contains(&self.hasher.hash_one(&*pod.uid));
        let missed: Vec<PodRef> =
            versions.pods.values().map(|(pod, _)| pod).filter(not_shown).cloned().collect();
        self.reading = missed.iter().map(|pod| self.hasher.hash_one(&*pod.uid)).collect();
        missed
    }

    /// A pod that the watch never showed was read from the API server. Returns whether it is one of our nodes'.
    pub(super) fn found(&mut self, asked: &PodRef, found: Option<Pod>) -> bool {
        let hash = self.hasher.hash_one(&*asked.uid);
        let expected = self.reading.remove(&hash);
        let Some(pod) = found.filter(|found| found.metadata.uid.as_deref() == Some(&*asked.uid)) else {
            return false;
        };
        if !expected {
            return false;
        }
        self.shown.insert(hash);
        let ours = self.route(pod, PodWatchEvent::Applied);
        if ours {
            self.ours.insert(hash);
        }
        ours
    }

    /// The watch is not permitted.
    pub(super) fn set_refused(&mut self) {
        self.refused = true;
        for (_, member) in self.members.drain() {
            member.mailbox.changed.notify_one();
        }
    }

    /// Puts an event into the mailbox of the pod's node, if that is one of ours.
    fn route(&mut self, pod: Pod, event: fn(Arc<Pod>) -> PodWatchEvent) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let Some(member) = self.members.get_mut(node) else { return false };
        let event = event(Arc::new(pod));
        match &mut member.since {
            Some(since) => {
                if let PodWatchEvent::Applied(pod) | PodWatchEvent::Deleted(pod) = &event
                    && let Some(uid) = pod.metadata.uid.as_deref()
                {
                    since.insert(uid.into(), event);
                }
            }
            None if is_after(&event, member.floor) => member.mailbox.update(|queue| enqueue(queue, event)),
            None => {}
        }
        true
    }

    #[cfg(test)]
    pub(super) fn ours_len(&self) -> usize {
        self.ours.len()
    }

    fn hash(&self, pod: &Pod) -> Option<u64> {
        Some(self.hasher.hash_one(pod.metadata.uid.as_deref()?))
    }
}

fn enqueue(queue: &mut CoalescingQueue, event: PodWatchEvent) {
    match event {
        PodWatchEvent::Applied(pod) => queue.applied(pod),
        PodWatchEvent::Deleted(pod) => queue.deleted(pod),
        PodWatchEvent::Restarted
        | PodWatchEvent::Listed
        | PodWatchEvent::Versions(_)
        | PodWatchEvent::AuditFailed(_) => {}
    }
}

fn is_after(event: &PodWatchEvent, version: u64) -> bool {
    let (PodWatchEvent::Applied(pod) | PodWatchEvent::Deleted(pod)) = event else { return true };
    let version_of = pod.metadata.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
    version_of.is_none_or(|of| of > version)
}
