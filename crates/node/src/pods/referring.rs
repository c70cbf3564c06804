//! What pods refer to, while somebody may ask for it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;
use vk_provider::{PodBundle, PodEvent, Resolver as _, resolve::Reference};

use super::{Shell, Slot};

impl Shell {
    /// The pod with what answers its questions.
    pub(super) fn bundle(&mut self, pod: Arc<Pod>) -> PodBundle {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let answers = match self.workers.get_mut(uid) {
            Some(slot) => slot.answers.get_or_insert_with(|| self.library.pod(&pod)).clone(),
            None => self.library.pod(&pod),
        };
        PodBundle { resolver: Arc::new(answers), pod }
    }

    /// Tells the worker when an object that its pod needs is there.
    pub(super) fn wait(&mut self, uid: &Arc<str>, reference: Reference) {
        let Some(slot) = self.workers.get_mut(uid) else { return };
        let Some(answers) = slot.answers.clone() else { return };
        let uid = Arc::clone(uid);
        let wait = self.waits.spawn(async move {
            answers.appeared(&reference).await;
            uid
        });
        if let Some(earlier) = slot.wait.replace(wait) {
            earlier.abort();
        }
    }
}

impl Slot {
    /// Nothing of the pod runs, and nothing will: what it refers to need not be read any more.
    pub(super) fn forget_references(&mut self) {
        if let Some(answers) = self.answers.take() {
            answers.close();
        }
        if let Some(wait) = self.wait.take() {
            wait.abort();
        }
    }
}

/// The next of the notes, if there are any to come.
pub(super) async fn next(notes: &mut Option<mpsc::Receiver<PodEvent>>) -> Option<PodEvent> {
    match notes {
        Some(notes) => notes.recv().await,
        None => std::future::pending().await,
    }
}
