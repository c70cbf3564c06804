//! The pods that the gate keeps track of.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::Error;
use vk_provider::PodRef;

use super::{placement_step::Placing, report::Report, trial::Trial, ungated::Ungated, wait_queue::Position};
use crate::{effect::Answer, pod_state};

/// A pod that has our gate, or had it and is not bound yet.
#[derive(Debug)]
pub(super) struct TrackedPod {
    pub(super) pod: Arc<Pod>,
    pub(super) identity: PodRef,
    /// The group to which it belongs.
    pub(super) group: Option<Arc<str>>,
    /// When it was first seen without other gates.
    pub(super) since: Duration,
    pub(super) stage: Stage,
    pub(super) report: Report,
    /// The version of the last write, which the watch may not have shown yet.
    written: Option<u64>,
}

/// What happens with a pod.
#[derive(Debug)]
pub(super) enum Stage {
    /// In this queue.
    Waiting { queue: Arc<str>, position: Position },
    /// A node was chosen, and the API server is being told.
    Placing(Placing),
    /// A node runs it before it is bound, or has done so and has not removed all of it.
    OnTrial(Trial),
    /// Without its gate.
    Ungated(Ungated),
}

// === impl TrackedPod ===

impl TrackedPod {
    pub(super) fn new(now: Duration, identity: PodRef, pod: &Arc<Pod>, stage: Stage) -> Self {
        let (pod, report) = (Arc::clone(pod), Report::of(pod));
        Self { pod, identity, group: None, since: now, stage, report, written: None }
    }

    /// By what failures are remembered.
    pub(super) fn failure_key(&self) -> String {
        failure_key(&self.pod, self.group.as_deref())
    }

    /// The newest version: of the watch, or of what we wrote.
    pub(super) fn version(&self) -> String {
        match self.written.filter(|_| self.is_behind()) {
            Some(written) => written.to_string(),
            None => pod_state::version(&self.pod),
        }
    }

    /// Whether the watch has not shown yet what we wrote.
    pub(super) fn is_behind(&self) -> bool {
        self.is_outdated(&self.pod)
    }

    /// Whether a version is older than what we wrote.
    pub(super) fn is_outdated(&self, pod: &Pod) -> bool {
        let version = pod_state::version(pod).parse::<u64>().ok();
        version.zip(self.written).is_some_and(|(version, written)| version < written)
    }

    /// A write was answered.
    pub(super) fn wrote(&mut self, answer: &Result<Answer, Error>) {
        if let Ok(Answer::Patched(version)) = answer {
            self.written = version.parse().ok().max(self.written);
        }
    }
}

/// By what failures of a pod, or of its group, are remembered: pods that its controller creates have the same key.
pub(super) fn failure_key(pod: &Pod, group: Option<&str>) -> String {
    group.map_or_else(|| pod_state::shape(&pod_state::unpinned(pod)), str::to_owned)
}
