//! When the running process has seen pods alive and deleted: the grace period that they are promised.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;

use super::server;
use crate::pods::{
    reconciler::{
        Input,
        effect::{Completion, EffectResult},
    },
    watch::PodWatchEvent,
};

/// What one process has seen.
#[derive(Debug, Default)]
pub(super) struct SeenDeletions {
    alive: BTreeSet<Arc<str>>,
    /// Until when a pod has at least to stop; zero if it was found terminating.
    promised: BTreeMap<Arc<str>, Duration>,
}

// === impl SeenDeletions ===

impl SeenDeletions {
    /// The process is fed with this.
    pub(super) fn observe(&mut self, input: &Input, now: Duration) {
        match input {
            Input::Watch(PodWatchEvent::Applied(pod)) => {
                if pod.metadata.deletion_timestamp.is_none() {
                    self.alive.insert(server::uid(pod).into());
                }
                self.observe_deletion(pod, now);
            }
            Input::Completed(Completion { result: EffectResult::Write(Ok(Some(pod))), .. }) => {
                self.observe_deletion(pod, now);
            }
            Input::Completed(Completion { result: EffectResult::Pod(Ok(Some(pod))), .. }) => {
                self.observe_deletion(pod, now);
            }
            _ => {}
        }
    }

    fn observe_deletion(&mut self, pod: &Pod, now: Duration) {
        let Some(grace) = pod.metadata.deletion_grace_period_seconds else { return };
        let uid: Arc<str> = server::uid(pod).into();
        let end = now + Duration::from_secs(grace.try_into().unwrap_or(0));
        let end = if self.alive.contains(&uid) { end } else { Duration::ZERO };
        let promised = self.promised.entry(uid).or_insert(end);
        *promised = end.min(*promised);
    }

    /// The process stops a pod that exists, with this grace period.
    pub(super) fn check(&self, pod: &Pod, grace: Duration, now: Duration) {
        let promised = self.promised.get(server::uid(pod)).copied().unwrap_or_default();
        assert!(
            now + grace >= promised,
            "{} is killed {:?} before its grace period is over",
            server::uid(pod),
            promised.saturating_sub(now + grace)
        );
    }
}
