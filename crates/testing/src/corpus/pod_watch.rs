//! Watches one pod.

use std::time::Duration;

use futures::{StreamExt as _, stream::BoxStream};
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
    core::DynamicObject,
};
use serde_json::Value;

/// Delay before a new watch.
const RETRY: Duration = Duration::from_millis(100);

/// The newest state of a pod, from a watch.
pub(super) struct PodWatch {
    pods: Api<DynamicObject>,
    name: String,
    changes: Option<BoxStream<'static, kube::Result<WatchEvent<DynamicObject>>>>,
    pod: Value,
    gone: bool,
}

// === impl PodWatch ===

impl PodWatch {
    pub(super) fn new(pods: Api<DynamicObject>, pod: &DynamicObject) -> Self {
        let name = pod.metadata.name.clone().unwrap_or_default();
        Self { pods, name, changes: None, pod: as_value(pod), gone: false }
    }

    /// The newest or, after its deletion, the last state of the pod.
    pub(super) fn pod(&self) -> &Value {
        &self.pod
    }

    /// Whether the pod was deleted.
    pub(super) fn gone(&self) -> bool {
        self.gone
    }

    /// Waits for a change. Cancel safe. Never returns after the deletion.
    pub(super) async fn change(&mut self) {
        loop {
            if self.gone {
                std::future::pending::<()>().await;
            }
            let Some(changes) = &mut self.changes else {
                let before = self.pod.clone();
                self.begin().await;
                // The watch does not report changes before its start.
                if self.gone || self.pod != before {
                    return;
                }
                continue;
            };
            match changes.next().await {
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                    self.pod = as_value(&pod);
                    return;
                }
                Some(Ok(WatchEvent::Deleted(pod))) => {
                    self.pod = as_value(&pod);
                    self.gone = true;
                    return;
                }
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                    self.changes = None;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn begin(&mut self) {
        let version = match self.pods.get_opt(&self.name).await {
            Ok(Some(pod)) => {
                self.pod = as_value(&pod);
                pod.metadata.resource_version.unwrap_or_default()
            }
            Ok(None) => {
                self.gone = true;
                return;
            }
            Err(_) => {
                tokio::time::sleep(RETRY).await;
                return;
            }
        };
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        self.changes = self.pods.watch(&only, &version).await.ok().map(futures::StreamExt::boxed);
    }
}

/// Without `managedFields`.
fn as_value(pod: &DynamicObject) -> Value {
    let mut pod = serde_json::to_value(pod).unwrap_or_default();
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    pod
}
