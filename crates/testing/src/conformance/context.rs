//! The context of a running case: its backend, its pods, its folder.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tempfile::TempDir;
use vk_provider::{Context, PodRef, Supervisor};

use super::{
    caller::Caller,
    pod_builder::PodBuilder,
    result::{Outcome, Stop},
    subject::{Feature, Subject},
};

/// The address of the node, from a range for documentation.
pub(super) const NODE_IP: [u8; 4] = [192, 0, 2, 10];
/// The name of the node.
pub(crate) const NODE: &str = "conformance";

/// The context of a running case.
pub(crate) struct CaseContext {
    subject: Arc<dyn Subject>,
    /// The state directory, which survives the restarts of a case.
    state: Option<TempDir>,
    /// All pods of the case, which are removed at its end.
    made: Mutex<Vec<PodRef>>,
}

// === impl CaseContext ===

impl CaseContext {
    pub(super) fn new(subject: Arc<dyn Subject>) -> Self {
        let state = tempfile::Builder::new().prefix("vk-conformance-").tempdir().ok();
        Self { subject, state, made: Mutex::default() }
    }

    pub(crate) fn subject(&self) -> &dyn Subject {
        &*self.subject
    }

    pub(crate) fn limit(&self) -> Duration {
        self.subject.limit()
    }

    /// Starts a process: opens the provider and listens to its changes, as the core does. Drop the result of an earlier call first, because one
    /// process of a node ends before the next begins.
    pub(crate) async fn open(&self) -> Outcome<Caller> {
        let Some(state) = &self.state else {
            return Err(Stop::violated(
                "no temporary folder",
                "make the folder for temporary files writable",
            ));
        };
        let supervisor = Supervisor::new();
        let context = Context {
            supervisor: supervisor.clone(),
            node_name: NODE.to_owned(),
            internal_ip: NODE_IP.into(),
            kubelet_port: 10250,
            operating_system: "linux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            cluster: None,
            state_dir: state.path().to_owned(),
            shared_dir: state.path().to_owned(),
            extensions: vk_provider::Extensions::default(),
        };
        let advice = "make Subject::open return a provider with a usable backend within the limit";
        match tokio::time::timeout(self.limit(), self.subject.open(context)).await {
            Ok(Ok(provider)) => Ok(Caller::new(provider, Arc::clone(&self.subject), supervisor)),
            Ok(Err(error)) => Err(Stop::violated(format!("open failed: {}", error.report()), advice)),
            Err(_) => Err(Stop::violated(format!("open took longer than {:?}", self.limit()), advice)),
        }
    }

    /// Builds a pod for the case.
    pub(crate) fn pod(&self) -> PodBuilder<'_> {
        PodBuilder::new(self)
    }

    pub(crate) fn lacks(&self, feature: Feature) -> bool {
        self.subject.lacks().contains(&feature)
    }

    /// A grace period that a later delete shortens. On a backend that cannot shorten it, it ends soon by itself.
    pub(crate) fn first_grace(&self) -> Duration {
        if self.lacks(Feature::ShortenGrace) { Duration::from_secs(1) } else { Duration::from_hours(1) }
    }

    /// Ends the case if the backend lacks this feature.
    pub(crate) fn needs(&self, feature: Feature) -> Outcome {
        if self.lacks(feature) { Err(lacking(feature)) } else { Ok(()) }
    }

    pub(super) fn made(&self, pod: PodRef) {
        self.made.lock().push(pod);
    }

    /// Removes the pods of the case from a shared backend. Errors are ignored: the case already has its result.
    pub(super) async fn clean_up(&self) {
        let made = std::mem::take(&mut *self.made.lock());
        if made.is_empty() {
            return;
        }
        let Ok(caller) = self.open().await else { return };
        let removals = made.iter().map(|pod| caller.try_delete(pod, None, Duration::ZERO));
        futures::future::join_all(removals).await;
    }
}

/// The result for a provider that lacks this feature.
pub(crate) fn lacking(feature: Feature) -> Stop {
    Stop::DoesNotApply(format!("the provider has no {feature}"))
}
