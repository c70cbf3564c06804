//! What is known about the Jobs of stuck pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::pod_state;

/// A Job, as its pods name it. Anybody can write any UID into the owner references of a pod, so it says nothing by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct JobRef {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// What is known about a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobRecord {
    BeingRead,
    /// Whether it ignores the disruption of its pods.
    Ignores(bool),
    /// It could not be read, and is read again then.
    Failed(Duration),
}

// === impl JobRef ===

impl JobRef {
    /// The Job that controls a pod.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let owner = pod_state::controller(pod)?;
        let is_job = owner.kind == "Job" && owner.api_version.starts_with("batch/");
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        is_job.then(|| Self { namespace, name: owner.name.clone(), uid: owner.uid.clone() })
    }
}
