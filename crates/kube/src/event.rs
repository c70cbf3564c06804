//! Events on objects, aggregated by kube-rs' recorder: a repeated one counts up instead of filling the list.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder as KubeRecorder, Reporter};
use parking_lot::Mutex;
use tracing::debug;

use crate::{Client, objects::limited};

/// Publishes events for one reporter.
#[derive(Clone)]
pub struct Recorder {
    reporter: Reporter,
    current: Arc<Mutex<(Client, KubeRecorder)>>,
}

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As expected.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Recorder {
    /// A recorder that reports as `controller` on `instance`, which is the node.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance.to_owned()) };
        let recorder = KubeRecorder::new(client.kube(), reporter.clone());
        Self { reporter, current: Arc::new(Mutex::new((client, recorder))) }
    }

    /// kube-rs' recorder keeps the client that it was made with: make another when the credentials are renewed.
    fn current(&self) -> (Client, KubeRecorder) {
        let mut current = self.current.lock();
        if current.0.renewed() {
            current.1 = KubeRecorder::new(current.0.kube(), self.reporter.clone());
        }
        current.clone()
    }

    /// Publishes one event. An event that cannot be written is not worth stopping for: it is logged and dropped.
    pub async fn publish(&self, about: &ObjectReference, severity: Severity, reason: &str, message: &str) {
        let event = Event {
            type_: match severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            // The API server takes at most 1 kB.
            note: Some(message.chars().take(1000).collect()),
            action: reason.to_owned(),
            secondary: None,
        };
        let (client, recorder) = self.current();
        let result = client.write(limited(recorder.publish(&event, about))).await;
        client.metrics().count("create", "events", &result);
        if let Err(error) = result {
            debug!(%error, reason, "event not written");
        }
    }
}
