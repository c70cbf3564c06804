//! A provider that reports what the test tells it to.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, channel::mpsc};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_provider::{Changes, Error, ObservedPod, PodBundle, PodChange, PodRef, Provider, Result};

/// Clones are the same.
#[derive(Clone)]
pub(super) struct ScriptedProvider(Arc<Inner>);

struct Inner {
    node: String,
    poll: Option<Duration>,
    pods: Mutex<BTreeMap<Arc<str>, (PodRef, PodStatus)>>,
    /// Takes a stop and does nothing about it.
    deaf: AtomicBool,
    sender: mpsc::UnboundedSender<PodChange>,
    receiver: Mutex<Option<mpsc::UnboundedReceiver<PodChange>>>,
}

/// A status with one container, in this state.
pub(super) fn report(phase: &str, state: &Value, restarts: i32) -> PodStatus {
    let ready = state.get("running").is_some();
    serde_json::from_value(json!({
        "phase": phase,
        "podIP": "10.9.8.7",
        "containerStatuses": [{
            "name": "main", "image": "example.com/app:1", "imageID": "", "ready": ready, "started": ready,
            "restartCount": restarts, "state": state,
        }],
    }))
    .unwrap()
}

pub(super) fn running() -> PodStatus {
    report("Running", &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}), 0)
}

impl ScriptedProvider {
    /// Its pods run as soon as they are created.
    pub(super) fn new(node: &str) -> Self {
        Self::with(node, None)
    }

    /// Tells nothing by itself.
    pub(super) fn polled(node: &str, period: Duration) -> Self {
        Self::with(node, Some(period))
    }

    fn with(node: &str, poll: Option<Duration>) -> Self {
        let (sender, receiver) = mpsc::unbounded();
        Self(Arc::new(Inner {
            node: node.to_owned(),
            poll,
            pods: Mutex::default(),
            deaf: AtomicBool::new(false),
            sender,
            receiver: Mutex::new(Some(receiver)),
        }))
    }

    /// From now on the pod's status is this.
    pub(super) fn set(&self, pod: &PodRef, status: PodStatus) {
        self.0.pods.lock().insert(Arc::clone(&pod.uid), (pod.clone(), status.clone()));
        self.push(PodChange::Status(pod.clone(), Box::new(status)));
    }

    /// From now on it does not stop what it is told to stop.
    pub(super) fn turn_deaf(&self) {
        self.0.deaf.store(true, Ordering::Relaxed);
    }

    /// From now on it tells nothing by itself.
    pub(super) fn fall_silent(&self) {
        self.0.sender.close_channel();
    }

    pub(super) fn push(&self, change: PodChange) {
        if self.0.poll.is_none() {
            // Nobody hears it once it has fallen silent.
            drop(self.0.sender.unbounded_send(change));
        }
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().unwrap();
        let known = self.0.pods.lock().contains_key(&pod.uid);
        if !known {
            self.set(&pod, running());
        }
        Ok(())
    }

    async fn update_pod(&self, _pod: PodBundle) -> Result<()> {
        Ok(())
    }

    async fn delete_pod(&self, pod: &PodRef, _last_known: Option<Arc<Pod>>, _grace: Duration) -> Result<()> {
        if self.0.deaf.load(Ordering::Relaxed) {
            return Ok(());
        }
        let gone = self.0.pods.lock().remove(&pod.uid).is_none();
        self.push(PodChange::Refresh(pod.clone()));
        if gone { Err(Error::not_found("no such pod")) } else { Ok(()) }
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let found = self.0.pods.lock().get(&pod.uid).map(|(_, status)| status.clone());
        found.ok_or_else(|| Error::not_found("no such pod"))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let all = self.0.pods.lock();
        Ok(all
            .values()
            .map(|(pod, status)| ObservedPod {
                pod: pod.clone(),
                node: Some(self.0.node.clone()),
                status: status.clone(),
            })
            .collect())
    }

    fn changes(&self) -> Changes {
        match self.0.poll {
            Some(period) => Changes::Poll(period),
            None => Changes::Push(self.0.receiver.lock().take().unwrap().boxed()),
        }
    }
}
