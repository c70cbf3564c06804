//! A pod as it changes.

use std::time::Duration;

use futures::{StreamExt as _, stream::BoxStream};
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
    core::DynamicObject,
};
use serde_json::Value;

/// How soon another watch is tried.
const AGAIN: Duration = Duration::from_millis(100);

/// The newest state of a pod.
pub(super) struct Follow {
    pods: Api<DynamicObject>,
    name: String,
    changes: Option<BoxStream<'static, kube::Result<WatchEvent<DynamicObject>>>>,
    pod: Value,
    gone: bool,
}

// === impl Follow ===

impl Follow {
    pub(super) fn new(pods: Api<DynamicObject>, pod: &DynamicObject) -> Self {
        let name = pod.metadata.name.clone().unwrap_or_default();
        Self { pods, name, changes: None, pod: as_value(pod), gone: false }
    }

    /// The pod as it is, or as it last was.
    pub(super) fn pod(&self) -> &Value {
        &self.pod
    }

    /// Whether it is no more.
    pub(super) fn gone(&self) -> bool {
        self.gone
    }

    /// Waits for a change. May be dropped at any time. After the end nothing changes any more.
    pub(super) async fn change(&mut self) {
        loop {
            if self.gone {
                std::future::pending::<()>().await;
            }
            let Some(changes) = &mut self.changes else {
                let before = self.pod.clone();
                self.begin().await;
                // What happened before the watch began is not told by it.
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
                    tokio::time::sleep(AGAIN).await;
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
                tokio::time::sleep(AGAIN).await;
                return;
            }
        };
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        self.changes = self.pods.watch(&only, &version).await.ok().map(futures::StreamExt::boxed);
    }
}

/// Without the notes on who wrote what.
fn as_value(pod: &DynamicObject) -> Value {
    let mut pod = serde_json::to_value(pod).unwrap_or_default();
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    pod
}
