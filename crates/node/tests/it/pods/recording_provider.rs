//! A provider that forwards every call and records it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use vk_provider::{Changes, ObservedPod, PodBundle, PodRef, Provider, Result};

/// A lifecycle call.
#[derive(Clone, Debug)]
pub(super) enum RecordedCall {
    Create(Arc<Pod>),
    Update(Arc<Pod>),
    Delete(PodRef, Duration),
}

pub(super) struct RecordingProvider {
    provider: Arc<dyn Provider>,
    heard: Mutex<Vec<RecordedCall>>,
}

impl RecordingProvider {
    pub(super) fn new(provider: Arc<dyn Provider>) -> Self {
        Self { provider, heard: Mutex::default() }
    }

    fn note(&self, heard: RecordedCall) {
        self.heard.lock().push(heard);
    }

    /// How often this pod was to be created.
    pub(super) fn creates(&self, uid: &str) -> usize {
        self.created(uid).len()
    }

    /// The pod as it was handed over each time it was to be created.
    pub(super) fn created(&self, uid: &str) -> Vec<Arc<Pod>> {
        let is = |heard: &RecordedCall| match heard {
            RecordedCall::Create(pod) if pod.metadata.uid.as_deref() == Some(uid) => Some(Arc::clone(pod)),
            _ => None,
        };
        self.heard.lock().iter().filter_map(is).collect()
    }

    /// What this pod was to become, update by update.
    pub(super) fn updates(&self, uid: &str) -> Vec<Arc<Pod>> {
        let is = |heard: &RecordedCall| match heard {
            RecordedCall::Update(pod) if pod.metadata.uid.as_deref() == Some(uid) => Some(Arc::clone(pod)),
            _ => None,
        };
        self.heard.lock().iter().filter_map(is).collect()
    }

    /// The graces with which this pod was to stop.
    pub(super) fn deletes(&self, uid: &str) -> Vec<Duration> {
        let is = |heard: &RecordedCall| match heard {
            RecordedCall::Delete(pod, grace) if &*pod.uid == uid => Some(*grace),
            _ => None,
        };
        self.heard.lock().iter().filter_map(is).collect()
    }
}

#[async_trait]
impl Provider for RecordingProvider {
    async fn create_pod(&self, pod: PodBundle) -> Result<()> {
        self.note(RecordedCall::Create(Arc::clone(&pod.pod)));
        self.provider.create_pod(pod).await
    }

    async fn update_pod(&self, pod: PodBundle) -> Result<()> {
        self.note(RecordedCall::Update(Arc::clone(&pod.pod)));
        self.provider.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        self.note(RecordedCall::Delete(pod.clone(), grace));
        self.provider.delete_pod(pod, last_known, grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.provider.pod_status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.provider.pods().await
    }

    fn changes(&self) -> Changes {
        self.provider.changes()
    }
}
