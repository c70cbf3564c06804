//! What the reconciler is fed with: the watch, what the provider pushes, and the lists of versions for the audit.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use vk_provider::{PodChange, PodRef};

use super::{Scheduled, World};
use crate::pods::{
    reconciler::Input,
    watch::PodWatchEvent,
    watch_audit::{PERIOD, PodVersions},
};

impl World {
    /// The watch shows what happened in the API server, some time later.
    pub(super) fn follow_watch(&mut self) {
        if !self.server.log.is_empty() && !self.watch_broken && !self.watch_due {
            self.watch_due = true;
            let delay = self.delay();
            self.later(delay, Scheduled::Watch);
        }
    }

    /// The watch shows what happened, or breaks and is begun again with a list.
    pub(super) fn watch(&mut self) {
        self.watch_due = false;
        if self.watch_broken {
            return;
        }
        if self.in_storm() && self.rng.random_bool(0.15) {
            self.watch_broken = true;
            let wait = Duration::from_millis(self.rng.random_range(0..20_000));
            let process = self.process;
            return self.later(wait, Scheduled::Relist(process));
        }
        for event in std::mem::take(&mut self.server.log) {
            // An event may be lost, and nobody notices.
            if self.in_storm() && self.rng.random_bool(0.05) {
                self.note(|| "the watch loses an event".to_owned());
            } else {
                self.feed(Input::Watch(event));
            }
        }
    }

    pub(super) fn relist(&mut self) {
        self.watch_broken = false;
        self.server.log.clear();
        self.feed(Input::Watch(PodWatchEvent::Restarted));
        let pods: Vec<_> = self.server.pods().cloned().collect();
        for pod in pods {
            self.feed(Input::Watch(PodWatchEvent::Applied(pod)));
        }
        self.feed(Input::Watch(PodWatchEvent::Listed));
    }

    /// Lists the versions of the API server's pods. In the storm it may answer with what it had the last time.
    pub(super) fn list_versions(&mut self) {
        let process = self.process;
        self.later(PERIOD, Scheduled::ListVersions(process));
        if !self.in_storm() || self.rng.random_bool(0.6) {
            self.cached_versions = self.server.versions();
        }
        let (versions, delay) = (self.cached_versions.clone(), self.delay());
        self.later(delay, Scheduled::Versions(process, versions));
    }

    pub(super) fn show_versions(&mut self, versions: PodVersions) {
        self.feed(Input::Watch(PodWatchEvent::Versions(Arc::new(versions))));
    }

    /// The instance will change by itself, and the backend will push that.
    pub(super) fn follow_instance(&mut self, uid: &Arc<str>) {
        for at in self.backend.changes(uid, self.now) {
            self.schedule(at, Scheduled::InstanceChanged(Arc::clone(uid)));
        }
    }

    /// An instance changed: a backend that pushes says so, in order; in the storm that may be lost.
    pub(super) fn instance_changed(&mut self, uid: &Arc<str>) {
        if self.poll.is_some() || (self.in_storm() && self.rng.random_bool(0.2)) {
            return;
        }
        let pod = PodRef::new("default", "any", Arc::clone(uid));
        let change = match self.backend.status(&pod, self.now) {
            Ok(status) => PodChange::Status(pod, status),
            Err(_) => PodChange::Refresh(pod),
        };
        self.pushes.push_back(change);
        let delay = self.delay();
        self.later(delay, Scheduled::Push);
    }

    pub(super) fn push(&mut self) {
        if let Some(change) = self.pushes.pop_front() {
            self.feed(Input::Provider(change));
        }
    }
}
