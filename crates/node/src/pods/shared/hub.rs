//! Sorts the pods of one watch by their nodes: changes in, sights out, each into the line of its node.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;
use vk_kube::{WatchEvent, metadata_list::ObjectList};
use vk_provider::PodRef;

use super::line::Line;
use crate::pods::{missed::Survey, watch::Sight};

/// A line and its reader's bell.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    line: Mutex<Line>,
    pub(super) bell: Notify,
}

/// All nodes that have a share in the watch.
#[derive(Debug, Default)]
pub(super) struct Hub {
    members: HashMap<String, Member>,
    ids: u64,
    /// Nodes that came too late for the listing, and whose pods must be listed apart.
    late: VecDeque<(String, u64)>,
    /// The first listing has begun.
    begun: bool,
    /// All pods that the watch has shown, also those of other nodes: what a survey has beside them was missed.
    shown: HashSet<u64>,
    /// Those of the listing under way.
    listing: Option<HashSet<u64>>,
    /// Pods that are being read, because the watch has not shown them. If it does meanwhile, the answer is of no use.
    reading: HashSet<u64>,
    hasher: RandomState,
    /// The watch is not permitted: everybody must help himself.
    pub(super) refused: bool,
}

#[derive(Debug)]
struct Member {
    id: u64,
    mailbox: Arc<Mailbox>,
    /// For a node that came too late: what the watch has told since, to be laid over the listing of its pods.
    since: Option<HashMap<Arc<str>, Sight>>,
    /// The version of that listing: what the watch tells of before it is old, and may long be gone.
    floor: u64,
    /// It was here when the listing under way began.
    listing: bool,
}

impl Mailbox {
    pub(super) fn pop(&self) -> Option<Sight> {
        self.line.lock().pop()
    }

    fn with(&self, put: impl FnOnce(&mut Line)) {
        put(&mut self.line.lock());
        self.bell.notify_one();
    }
}

impl Hub {
    /// A node wants its share. One of the same name has lost its own.
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

    /// Whether the pods of this node are still to be listed apart.
    pub(super) fn is_late(&self, node: &str, id: u64) -> bool {
        self.members.get(node).is_some_and(|member| member.id == id && member.since.is_some())
    }

    /// The next node whose pods are to be listed apart.
    pub(super) fn next_late(&mut self) -> Option<(String, u64)> {
        while let Some((node, id)) = self.late.pop_front() {
            if self.is_late(&node, id) {
                return Some((node, id));
            }
        }
        None
    }

    /// The pods of a node that came late, listed after it had joined.
    pub(super) fn listed_apart(&mut self, node: &str, id: u64, listing: ObjectList<Pod>) {
        // Meanwhile a listing of all may have begun, which does it.
        if !self.is_late(node, id) {
            return;
        }
        let Some(member) = self.members.get_mut(node) else { return };
        let mut since = member.since.take().unwrap_or_default();
        member.floor = listing.version;
        since.retain(|_, sight| is_after(sight, listing.version));
        member.mailbox.with(|line| {
            line.restarted();
            for pod in listing.objects {
                if !pod.metadata.uid.as_deref().is_some_and(|uid| since.contains_key(uid)) {
                    line.seen(Arc::new(pod));
                }
            }
            for sight in since.into_values() {
                put(line, sight);
            }
            line.listed();
        });
    }

    /// The watch tells.
    pub(super) fn change(&mut self, change: WatchEvent<Pod>) {
        match change {
            WatchEvent::Restarted => {
                self.begun = true;
                self.listing = Some(HashSet::new());
                self.reading.clear();
                for member in self.members.values_mut() {
                    member.since = None;
                    member.floor = 0;
                    member.listing = true;
                    member.mailbox.with(Line::restarted);
                }
            }
            WatchEvent::Applied(pod) => {
                if let Some(mark) = self.mark(&pod) {
                    self.reading.remove(&mark);
                    self.shown.insert(mark);
                    self.listing.as_mut().map(|listing| listing.insert(mark));
                }
                self.tell(pod, Sight::Seen);
            }
            WatchEvent::Deleted(pod) => {
                if let Some(mark) = self.mark(&pod) {
                    self.reading.remove(&mark);
                    self.shown.remove(&mark);
                    self.listing.as_mut().map(|listing| listing.remove(&mark));
                }
                self.tell(pod, Sight::Deleted);
            }
            WatchEvent::Listed => {
                self.shown = self.listing.take().unwrap_or_default();
                for member in self.members.values_mut() {
                    if std::mem::take(&mut member.listing) {
                        member.mailbox.with(Line::listed);
                    }
                }
            }
            WatchEvent::Error(_) => {}
        }
    }

    /// A survey of all pods. Every node compares it with what it knows; answers the pods that the watch never showed, and
    /// that may be anybody's.
    pub(super) fn surveyed(&mut self, survey: &Arc<Survey>) -> Vec<PodRef> {
        if self.listing.is_some() || !self.begun {
            return Vec::new();
        }
        for member in self.members.values().filter(|member| member.since.is_none()) {
            member.mailbox.with(|line| line.surveyed(Arc::clone(survey)));
        }
        let unheard = |pod: &&PodRef| !self.shown.contains(&self.hasher.hash_one(&*pod.uid));
        let unheard: Vec<PodRef> =
            survey.pods.values().map(|(pod, _)| pod).filter(unheard).cloned().collect();
        self.reading = unheard.iter().map(|pod| self.hasher.hash_one(&*pod.uid)).collect();
        unheard
    }

    /// A pod that the watch never showed was read from the API server. Tells whether one of the nodes has missed it.
    pub(super) fn found(&mut self, asked: &PodRef, found: Option<Pod>) -> bool {
        let mark = self.hasher.hash_one(&*asked.uid);
        let waited_for = self.reading.remove(&mark);
        let Some(pod) = found.filter(|found| found.metadata.uid.as_deref() == Some(&*asked.uid)) else {
            return false;
        };
        if !waited_for {
            return false;
        }
        self.shown.insert(mark);
        self.tell(pod, Sight::Seen)
    }

    /// The watch is not permitted.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
        for (_, member) in self.members.drain() {
            member.mailbox.bell.notify_one();
        }
    }

    /// Puts a sight into the line of the pod's node, if that is one of ours.
    fn tell(&mut self, pod: Pod, sight: fn(Arc<Pod>) -> Sight) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let Some(member) = self.members.get_mut(node) else { return false };
        let sight = sight(Arc::new(pod));
        match &mut member.since {
            Some(since) => {
                if let Sight::Seen(pod) | Sight::Deleted(pod) = &sight
                    && let Some(uid) = pod.metadata.uid.as_deref()
                {
                    since.insert(uid.into(), sight);
                }
            }
            None if is_after(&sight, member.floor) => member.mailbox.with(|line| put(line, sight)),
            None => {}
        }
        true
    }

    fn mark(&self, pod: &Pod) -> Option<u64> {
        Some(self.hasher.hash_one(pod.metadata.uid.as_deref()?))
    }
}

fn put(line: &mut Line, sight: Sight) {
    match sight {
        Sight::Seen(pod) => line.seen(pod),
        Sight::Deleted(pod) => line.deleted(pod),
        Sight::Restarted | Sight::Listed | Sight::Surveyed(_) => {}
    }
}

fn is_after(sight: &Sight, version: u64) -> bool {
    let (Sight::Seen(pod) | Sight::Deleted(pod)) = sight else { return true };
    let told = pod.metadata.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
    told.is_none_or(|told| told > version)
}
