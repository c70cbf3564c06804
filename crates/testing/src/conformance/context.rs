//! One case under way: its backend, its pods, its folder.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tempfile::TempDir;
use vk_provider::{Context, PodRef};

use super::{
    caller::Caller,
    pod_builder::PodBuilder,
    result::{Outcome, Stop},
    subject::{Feature, Subject},
};

/// The address of the node, from a range that is for documentation.
pub(super) const NODE_IP: [u8; 4] = [192, 0, 2, 10];
/// The name of the node.
pub(crate) const NODE: &str = "conformance";

/// What a case works with.
pub(crate) struct CaseContext {
    subject: Arc<dyn Subject>,
    /// Survives the restarts of a case, and goes with it.
    state: Option<TempDir>,
    /// Every pod that the case made, to be removed at its end.
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

    /// Starts a process: opens the provider, and listens to it as the core would. Drop what an earlier call answered
    /// before, as one process for a node ends before the next begins.
    pub(crate) async fn open(&self) -> Outcome<Caller> {
        let Some(state) = &self.state else {
            return Err(Stop::broken(
                "there is no temporary folder",
                "make the folder for temporary files writable",
            ));
        };
        let context = Context {
            node_name: NODE.to_owned(),
            internal_ip: NODE_IP.into(),
            kubelet_port: 10250,
            operating_system: "linux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            state_dir: state.path().to_owned(),
            shared_dir: state.path().to_owned(),
            extensions: vk_provider::Extensions::default(),
        };
        let advice =
            "make Subject::open answer within the limit, with a provider on a backend that can be used";
        match tokio::time::timeout(self.limit(), self.subject.open(context)).await {
            Ok(Ok(provider)) => Ok(Caller::new(provider, Arc::clone(&self.subject))),
            Ok(Err(error)) => Err(Stop::broken(format!("opening answered: {}", error.report()), advice)),
            Err(_) => Err(Stop::broken(format!("opening took longer than {:?}", self.limit()), advice)),
        }
    }

    /// A pod for the case.
    pub(crate) fn pod(&self) -> PodBuilder<'_> {
        PodBuilder::new(self)
    }

    pub(crate) fn lacks(&self, feature: Feature) -> bool {
        self.subject.lacks().contains(&feature)
    }

    /// Ends the case here where the backend is said to be without this.
    pub(crate) fn needs(&self, feature: Feature) -> Outcome {
        if self.lacks(feature) { Err(lacking(feature)) } else { Ok(()) }
    }

    pub(super) fn made(&self, pod: PodRef) {
        self.made.lock().push(pod);
    }

    /// Leaves a shared backend as it was found. What cannot be removed is left: the case has its verdict already.
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

/// The verdict for a provider that is rightly said to be without this.
pub(crate) fn lacking(feature: Feature) -> Stop {
    Stop::DoesNotApply(format!("the provider has no {feature}"))
}
