//! Writes to the API server: each waits for its turn, because a connection carries only so many at a time.
//!
//! Nothing is put into the line but the pod's UID. What is written is decided when its turn has come, so whatever happens to
//! the pod meanwhile is in it, and a long line costs next to nothing.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vk_kube::{Objects, Patch, Slim};
use vk_provider::PodRef;

use super::{
    Answer, Shell,
    worker::{Event, Write},
};

/// The pods of a node that wait to be written about.
pub(super) struct Turns {
    /// Shared by all nodes of a client.
    free: Arc<Semaphore>,
    line: VecDeque<Arc<str>>,
    /// Whose turn it is may write now.
    current: Option<OwnedSemaphorePermit>,
}

// === impl Turns ===

impl Turns {
    pub(super) fn new(turns: Arc<Semaphore>) -> Self {
        Self { free: turns, line: VecDeque::new(), current: None }
    }

    /// Resolves when the first in line has its turn.
    pub(super) async fn next(&self) -> OwnedSemaphorePermit {
        if !self.line.is_empty()
            && let Ok(turn) = Arc::clone(&self.free).acquire_owned().await
        {
            return turn;
        }
        std::future::pending().await
    }

    /// A turn at once, where nobody waits.
    fn now(&mut self) -> Option<OwnedSemaphorePermit> {
        let one = || Arc::clone(&self.free).try_acquire_owned().ok();
        self.current.take().or_else(|| self.line.is_empty().then(one).flatten())
    }
}

// === impl Shell ===

impl Shell {
    /// The first in line has its turn, and says what it wants to write by now.
    pub(super) fn take_turn(&mut self, turn: OwnedSemaphorePermit) {
        self.turns.current = Some(turn);
        while self.turns.current.is_some() {
            let Some(uid) = self.turns.line.pop_front() else { break };
            self.tell(&uid, Event::Turn);
        }
        self.turns.current = None;
    }

    pub(super) fn write(&mut self, pod: &PodRef, write: Write) {
        let Some(turn) = self.turns.now() else {
            return self.turns.line.push_back(Arc::clone(&pod.uid));
        };
        let pods: Objects<Slim<Pod>> = Objects::namespaced(self.client.clone(), pod.namespace.as_ref());
        let pod = pod.clone();
        self.tasks.spawn(async move {
            let answer = match &write {
                Write::Status(patch) => {
                    let patched = pods.patch_status(&pod.name, Patch::Strategic(patch.as_ref())).await;
                    patched.map(|Slim(mut pod)| {
                        super::watch::trim(&mut pod);
                        Some(Arc::new(pod))
                    })
                }
                Write::Remove => {
                    pods.delete_with_grace(&pod.name, &pod.uid, Duration::ZERO).await.map(|()| None)
                }
            };
            drop(turn);
            Answer::Pod(Arc::clone(&pod.uid), Event::Wrote(write, answer))
        });
    }
}
