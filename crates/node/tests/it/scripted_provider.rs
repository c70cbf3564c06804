//! The mock provider with a node description that tests can change.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use vk_provider::{
    NodeChange, NodeTemplate, ObservedPod, PodBundle, PodRef, Provider, Result,
    ability::{Fit, Verdict},
};
use vk_provider_mock::Mock;

type Edit = Box<dyn Fn(&mut NodeTemplate) + Send>;

pub(crate) struct ScriptedProvider {
    mock: Mock,
    edit: Mutex<Edit>,
    has_fit: AtomicBool,
}

impl ScriptedProvider {
    pub(crate) fn new(mock: Mock) -> Self {
        Self { mock, edit: Mutex::new(Box::new(|_| {})), has_fit: AtomicBool::new(false) }
    }

    /// Tells from now on whether pods fit and takes them on trial, or no longer.
    pub(crate) fn set_has_fit(&self, has_fit: bool) {
        self.has_fit.store(has_fit, Ordering::Relaxed);
        self.describe(|_| {});
    }

    /// Describes the node like this from now on, and says so.
    pub(crate) fn describe(&self, edit: impl Fn(&mut NodeTemplate) + Send + 'static) {
        *self.edit.lock() = Box::new(edit);
        // Every change of its capacity tells the core to look.
        self.mock.set_capacity("pods", "20".parse().unwrap());
    }
}

impl Fit for ScriptedProvider {
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[Arc<str>]) -> Vec<Verdict> {
        Fit::fit(&self.mock, held, pods, without)
    }

    fn takes_trials(&self) -> bool {
        true
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    async fn create_pod(&self, pod: PodBundle) -> Result<()> {
        self.mock.create_pod(pod).await
    }

    async fn update_pod(&self, pod: PodBundle) -> Result<()> {
        self.mock.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        self.mock.delete_pod(pod, last_known, grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.mock.pod_status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.mock.pods().await
    }

    async fn ping(&self) -> Result<()> {
        self.mock.ping().await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        self.mock.configure_node(node);
        (self.edit.lock())(node);
    }

    fn fit(&self) -> Option<&dyn Fit> {
        self.has_fit.load(Ordering::Relaxed).then_some(self as &dyn Fit)
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        self.mock.node_changes()
    }
}
