//! What waits for the controller of one node to be taken: never more than its pods, because news of a pod replace older ones.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::PodRef;

use crate::pods::{missed::Survey, watch::Sight};

/// Sights in a line. A reader who takes them late gets fewer, and the same picture.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: BTreeMap<u64, Item>,
    /// Where a pod stands.
    places: HashMap<Arc<str>, u64>,
    next: u64,
    /// Where the start and the end of a listing stand.
    restarted: Option<u64>,
    listed: Option<u64>,
    /// Comes last: the reader shall know all that came before it.
    survey: Option<Arc<Survey>>,
}

#[derive(Debug)]
enum Item {
    Restarted,
    Seen(Arc<str>, Arc<Pod>),
    Deleted(Arc<str>, Arc<Pod>),
    Listed,
}

impl Line {
    /// A listing begins. One that the reader has not taken to its end is as if it had been broken off.
    pub(super) fn restarted(&mut self) {
        for mark in [self.restarted.take(), self.listed.take()].into_iter().flatten() {
            self.waiting.remove(&mark);
        }
        self.survey = None;
        self.restarted = Some(self.push(Item::Restarted));
    }

    pub(super) fn seen(&mut self, pod: Arc<Pod>) {
        if let Some(PodRef { uid, .. }) = PodRef::of(&pod) {
            self.put(Arc::clone(&uid), Item::Seen(uid, pod));
        }
    }

    pub(super) fn deleted(&mut self, pod: Arc<Pod>) {
        if let Some(PodRef { uid, .. }) = PodRef::of(&pod) {
            self.put(Arc::clone(&uid), Item::Deleted(uid, pod));
        }
    }

    pub(super) fn listed(&mut self) {
        if let Some(mark) = self.listed.take() {
            self.waiting.remove(&mark);
        }
        self.listed = Some(self.push(Item::Listed));
    }

    pub(super) fn surveyed(&mut self, survey: Arc<Survey>) {
        self.survey = Some(survey);
    }

    /// The next sight.
    pub(super) fn pop(&mut self) -> Option<Sight> {
        let Some((_, item)) = self.waiting.pop_first() else {
            return self.survey.take().map(Sight::Surveyed);
        };
        Some(match item {
            Item::Restarted => {
                self.restarted = None;
                Sight::Restarted
            }
            Item::Listed => {
                self.listed = None;
                Sight::Listed
            }
            Item::Seen(uid, pod) => {
                self.places.remove(&uid);
                Sight::Seen(pod)
            }
            Item::Deleted(uid, pod) => {
                self.places.remove(&uid);
                Sight::Deleted(pod)
            }
        })
    }

    fn push(&mut self, item: Item) -> u64 {
        let place = self.next;
        self.next += 1;
        self.waiting.insert(place, item);
        place
    }

    /// News of a pod stand where older ones stood: whoever is in a listing must stay in it. Only what stood before the start
    /// of a listing moves behind it.
    fn put(&mut self, uid: Arc<str>, item: Item) {
        if let Some(place) = self.places.get(&uid).copied() {
            // A UID never comes back.
            if matches!(self.waiting.get(&place), Some(Item::Deleted(..))) {
                return;
            }
            if self.restarted.is_none_or(|restarted| restarted < place) {
                self.waiting.insert(place, item);
                return;
            }
            self.waiting.remove(&place);
        }
        let place = self.push(item);
        self.places.insert(uid, place);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
