//! What the watch should have told and did not.
//!
//! A watch that loses an event and goes on is not noticed by anybody: the next listing may be days away. So what the workers
//! know is compared with a survey from time to time. A survey comes from a cache and proves nothing, least of all that a pod is
//! gone. Where it differs, the pod is read from the API server itself, and only that answer counts.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::PodRef;

/// How many pods are read at a time.
const READS: usize = 8;

/// The pods that the API server's cache has, with their versions.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The version of the whole: what is newer cannot be in it.
    pub version: u64,
    /// The pods by UID.
    pub pods: HashMap<Arc<str>, (PodRef, u64)>,
    /// Whether pods of other nodes are among them.
    pub of_all: bool,
}

/// What a worker knows of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This version of it.
    Version(u64),
    /// That it is gone, by other means than the watch.
    Gone,
}

/// What a live answer shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// The pod is gone.
    Gone,
    /// The pod is there, and is newer than what is known of it.
    Newer(Arc<Pod>),
}

/// What is to be read, and what was found.
#[derive(Debug, Default)]
pub struct Missed {
    queue: VecDeque<PodRef>,
    /// What is to be read or being read. If the watch tells of a pod meanwhile, the answer is of no use.
    open: HashSet<Arc<str>>,
    reading: usize,
    /// Pods that are gone, of which the watch has not told. If it is only late, what it says of them yet is old.
    buried: HashSet<Arc<str>>,
    /// Those of before the listing under way: after it, the watch cannot say anything old of them.
    buried_before: HashSet<Arc<str>>,
}

impl Survey {
    /// A survey of the pods of one node, or of all.
    pub fn new(survey: vk_kube::MetadataList, of_all: bool) -> Self {
        let pods = survey.objects.into_iter().map(|head| {
            let pod = PodRef::new(head.namespace, head.name, head.uid);
            (Arc::clone(&pod.uid), (pod, head.version))
        });
        Self { version: survey.version, pods: pods.collect(), of_all }
    }
}

impl Missed {
    /// Compares a survey with what the workers know.
    pub fn surveyed<'a>(&mut self, survey: &Survey, known: impl Iterator<Item = (&'a PodRef, Known)>) {
        if !self.open.is_empty() || self.reading > 0 {
            return;
        }
        let mut have = HashSet::new();
        let mut differing = Vec::new();
        for (pod, known) in known {
            have.insert(&*pod.uid);
            let differs = match (survey.pods.get(&pod.uid), known) {
                (Some((_, listed)), Known::Version(version)) => *listed > version,
                (None, Known::Version(version)) => version <= survey.version,
                // The worker waits until the watch tells, too.
                (listed, Known::Gone) => listed.is_none(),
            };
            if differs {
                differing.push(pod.clone());
            }
        }
        if !survey.of_all {
            let new = survey.pods.values().map(|(pod, _)| pod).filter(|pod| !have.contains(&*pod.uid));
            differing.extend(new.filter(|pod| !self.is_buried(&pod.uid)).cloned());
        }
        self.open = differing.iter().map(|pod| Arc::clone(&pod.uid)).collect();
        self.queue = differing.into();
    }

    /// The next pod to be read from the API server, if it is time.
    pub fn take(&mut self) -> Option<PodRef> {
        while self.reading < READS {
            let pod = self.queue.pop_front()?;
            if self.open.contains(&pod.uid) {
                self.reading += 1;
                return Some(pod);
            }
        }
        None
    }

    /// The API server has this under the pod's name. `known` is what its worker knows now, if it has one.
    pub fn read(&mut self, pod: &PodRef, found: Option<Pod>, known: Option<Known>) -> Option<Finding> {
        if !self.close(pod) {
            return None;
        }
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(&*pod.uid));
        match (found, known) {
            (None, Some(_)) => {
                self.buried.insert(Arc::clone(&pod.uid));
                Some(Finding::Gone)
            }
            // Nobody knows it, or somebody knows better.
            (None, None) | (Some(_), Some(Known::Gone)) => None,
            (Some(found), None) => Some(Finding::Newer(Arc::new(found))),
            (Some(found), Some(Known::Version(known))) => {
                let version = found.metadata.resource_version.as_ref()?.parse::<u64>().ok()?;
                (version > known).then(|| Finding::Newer(Arc::new(found)))
            }
        }
    }

    /// The API server does not answer. The next survey will show the same.
    pub fn unread(&mut self, pod: &PodRef) {
        self.close(pod);
    }

    /// Tells whether the answer is of use.
    fn close(&mut self, pod: &PodRef) -> bool {
        self.reading = self.reading.saturating_sub(1);
        self.open.remove(&pod.uid)
    }

    /// The watch shows a pod. Tells whether that is old, because the pod is gone.
    pub fn seen(&mut self, uid: &str) -> bool {
        self.open.remove(uid);
        self.is_buried(uid)
    }

    /// The watch tells that a pod is gone, and nothing old after that.
    pub fn deleted(&mut self, uid: &str) {
        self.open.remove(uid);
        self.buried.remove(uid);
        self.buried_before.remove(uid);
    }

    /// A listing begins, which will show everything.
    pub fn restarted(&mut self) {
        self.open.clear();
        self.queue.clear();
        self.buried_before.extend(self.buried.drain());
    }

    /// The listing is complete.
    pub fn listed(&mut self) {
        self.buried_before.clear();
    }

    fn is_buried(&self, uid: &str) -> bool {
        self.buried.contains(uid) || self.buried_before.contains(uid)
    }
}

#[cfg(test)]
mod tests;
