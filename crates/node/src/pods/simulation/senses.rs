//! What the shell sees: the watch, what the backend pushes, and the comparison of both sides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use rand::RngExt as _;
use vk_kube::{Error as ApiError, Kind as ApiKind};
use vk_provider::{ObservedPod, PodRef};

use super::{Scheduled, World, server, shell::Slot};
use crate::pods::{
    missed::{Finding, Survey},
    surveying,
    watch::Sight,
    worker::Event,
};

impl World {
    /// What the server has to tell is told by the watch, some time later.
    pub(super) fn follow_watch(&mut self) {
        if !self.server.log.is_empty() && !self.watch_broken && !self.watch_due {
            self.watch_due = true;
            let delay = self.delay();
            self.later(delay, Scheduled::Watch);
        }
    }

    /// The watch tells what happened, or breaks and is begun again with a listing.
    pub(super) fn watch(&mut self) {
        self.watch_due = false;
        if self.watch_broken {
            return;
        }
        if self.storm() && self.rng.random_bool(0.15) {
            self.watch_broken = true;
            let wait = Duration::from_millis(self.rng.random_range(0..20_000));
            let generation = self.generation;
            return self.later(wait, Scheduled::Relist(generation));
        }
        for sight in std::mem::take(&mut self.server.log) {
            // A word may be lost, and nobody notices.
            if self.storm() && self.rng.random_bool(0.05) {
                self.note(|| "the watch loses a word".to_owned());
            } else {
                self.sight(sight);
            }
        }
    }

    pub(super) fn relist(&mut self) {
        self.watch_broken = false;
        self.server.log.clear();
        self.shell.missed.restarted();
        let pods: Vec<_> = self.server.pods().cloned().collect();
        let seen: BTreeSet<String> = pods.iter().map(|pod| server::uid(pod).to_owned()).collect();
        for pod in pods {
            self.sight(Sight::Seen(pod));
        }
        for uid in self.shell.uids().into_iter().filter(|uid| !seen.contains(&**uid)) {
            self.tell(&uid, Event::Gone);
        }
        self.shell.missed.listed();
        self.shell.synced = true;
    }

    fn sight(&mut self, sight: Sight) {
        match sight {
            Sight::Seen(pod) => {
                if !self.shell.missed.seen(server::uid(&pod)) {
                    self.seen(pod);
                }
            }
            Sight::Deleted(pod) => {
                self.shell.missed.deleted(server::uid(&pod));
                self.tell(&server::uid(&pod).into(), Event::Gone);
            }
            Sight::Restarted | Sight::Listed | Sight::Surveyed(_) => {}
        }
    }

    fn seen(&mut self, pod: Arc<Pod>) {
        let reference = PodRef::of(&pod).expect("a stored pod");
        let uid = Arc::clone(&reference.uid);
        let claimed = self.shell.worker(reference);
        self.tell(&uid, Event::Desired(pod));
        if claimed.is_some() {
            self.tell(&uid, Event::Listed(claimed));
        }
    }

    /// Asks for the API server's pods. In the storm it may answer with what it had the last time.
    pub(super) fn survey(&mut self) {
        let generation = self.generation;
        self.later(surveying::PERIOD, Scheduled::Survey(generation));
        if !self.storm() || self.rng.random_bool(0.6) {
            self.surveyed = self.server.survey();
        }
        let (survey, delay) = (self.surveyed.clone(), self.delay());
        self.later(delay, Scheduled::Surveyed(generation, survey));
    }

    pub(super) fn surveyed(&mut self, survey: &Survey) {
        if self.shell.synced {
            let known = self.shell.workers.values().map(|slot| (slot.worker.pod(), slot.worker.known()));
            self.shell.missed.surveyed(survey, known);
            self.read_missed();
        }
    }

    fn read_missed(&mut self) {
        while let Some(pod) = self.shell.missed.take() {
            let (generation, delay) = (self.generation, self.delay());
            self.later(delay, Scheduled::Read(generation, pod));
        }
    }

    /// The API server is asked for a pod, and answers later.
    pub(super) fn read(&mut self, pod: PodRef) {
        let (generation, delay) = (self.generation, self.delay());
        let found = self.server.named(&pod.name).cloned();
        self.later(delay, Scheduled::WasRead(generation, pod, found));
    }

    pub(super) fn was_read(&mut self, pod: &PodRef, found: Option<Arc<Pod>>) {
        let known = self.shell.workers.get(&pod.uid).map(|slot| slot.worker.known());
        let finding = if self.storm() && self.rng.random_bool(0.2) {
            self.shell.missed.unread(pod);
            None
        } else {
            self.shell.missed.read(pod, found.map(|found| Pod::clone(&found)), known)
        };
        match finding {
            Some(Finding::Gone) => {
                self.note(|| format!("the watch has not told that {pod} is gone"));
                self.tell(&pod.uid, Event::Gone);
            }
            Some(Finding::Newer(found)) => {
                self.note(|| format!("the watch has not told of {pod}"));
                self.seen(found);
            }
            None => {}
        }
        self.read_missed();
    }

    /// The instance will change by itself, and the backend will tell.
    pub(super) fn follow(&mut self, uid: &Arc<str>) {
        for at in self.backend.changes(uid, self.now) {
            self.schedule(at, Scheduled::Nudge(Arc::clone(uid)));
        }
    }

    /// Something about an instance changed: a backend that pushes says so, in order; in the storm it may be lost.
    pub(super) fn nudge(&mut self, uid: &Arc<str>) {
        if self.poll.is_some() || (self.storm() && self.rng.random_bool(0.2)) {
            return;
        }
        let pod = PodRef::new("default", "any", Arc::clone(uid));
        let event = match self.backend.status(&pod, self.now) {
            Ok(status) => Event::Reported(status),
            Err(_) => Event::Hint,
        };
        self.pushes.push_back((pod, event));
        let delay = self.delay();
        self.later(delay, Scheduled::Push);
    }

    pub(super) fn push(&mut self) {
        if let Some((pod, event)) = self.pushes.pop_front() {
            self.tell(&pod.uid, event);
        }
    }

    /// Asks for the backend's pods. What is answered was so when it was asked, and may be old.
    pub(super) fn compare(&mut self) {
        let (asked, generation) = (self.now, self.generation);
        let fails = self.storm() && self.rng.random_bool(0.3);
        let answer = (!fails).then(|| self.backend.list(asked));
        let delay = self.delay();
        self.later(delay, Scheduled::Listing(generation, asked, answer));
    }

    pub(super) fn listed(&mut self, asked: Duration, answer: Option<Vec<ObservedPod>>) {
        let generation = self.generation;
        let Some(pods) = answer else {
            let wait = self.shell.compare_backoff.next(None, &mut self.worker_rng);
            return self.later(wait, Scheduled::Compare(generation));
        };
        self.note(|| {
            format!("listed as of {asked:?}: {:?}", pods.iter().map(|pod| &pod.pod.uid).collect::<Vec<_>>())
        });
        self.shell.compare_backoff.reset();
        self.later(self.shell.policy.compare, Scheduled::Compare(generation));
        self.shell.listed = true;
        let mut there: BTreeMap<Arc<str>, ObservedPod> =
            pods.into_iter().map(|pod| (Arc::clone(&pod.pod.uid), pod)).collect();
        let mut known = self.shell.uids();
        known.sort_by_cached_key(|uid| (!there.contains_key(uid), self.shell.precedence(uid)));
        for uid in known {
            let status = there.remove(&uid).map(|pod| Box::new(pod.status));
            let admitted = |slot: &Slot| slot.freshness.admits(asked, slot.call.is_some(), status.is_some());
            if self.shell.workers.get(&uid).is_some_and(admitted) {
                self.tell(&uid, Event::Listed(status));
            }
        }
        for pod in self.shell.leftovers.sighted(there.into_values(), "vk") {
            let fails = self.storm() && self.rng.random_bool(0.3);
            let known = self.server.by_uid(&pod.uid).is_some();
            let answer = if fails { Err(ApiError::new(ApiKind::Timeout, "as scheduled")) } else { Ok(known) };
            let delay = self.delay();
            self.later(delay, Scheduled::Checked(generation, pod, answer));
        }
    }

    pub(super) fn checked(&mut self, pod: PodRef, answer: &Result<bool, ApiError>) {
        match answer {
            Ok(false) if self.shell.leftovers.confirmed(&pod) => {
                self.note(|| format!("cleaning up {pod}"));
                let uid = Arc::clone(&pod.uid);
                let claimed = self.shell.worker(pod);
                self.tell(&uid, Event::Listed(Some(claimed.unwrap_or_default())));
            }
            Ok(true) => self.shell.leftovers.known(&pod),
            _ => {}
        }
    }
}
