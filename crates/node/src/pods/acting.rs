//! What workers want done, done: each call in a task of its own, with a time limit.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use tracing::debug;
use vk_provider::{Error, PodRef};

use super::{
    Answer, CALL_LIMIT, LOOK_LIMIT, Shell,
    worker::{Action, Call, Event, Refusal},
};

impl Shell {
    pub(super) fn act(&mut self, pod: &PodRef, action: Action) {
        let provider = Arc::clone(&self.provider);
        let uid = Arc::clone(&pod.uid);
        match action {
            Action::Admit { pod: desired, before } => self.admit(&uid, desired, before),
            Action::Resize(desired) => self.resize(&uid, &desired),
            Action::Claim(desired) => self.ledger.claim(&uid, &desired),
            Action::Release => self.release(&uid),
            Action::Create(desired) => {
                let bundle = self.bundle(desired);
                self.call(pod, Call::Create, async move { provider.create_pod(bundle).await });
            }
            Action::Update(desired) => {
                let bundle = self.bundle(desired);
                self.call(pod, Call::Update, async move { provider.update_pod(bundle).await });
            }
            Action::Delete { last_known, grace } => {
                let target = pod.clone();
                self.call(
                    pod,
                    Call::Delete,
                    async move { provider.delete_pod(&target, last_known, grace).await },
                );
            }
            Action::Cancel => {
                let now = self.start.elapsed();
                if let Some(slot) = self.workers.get_mut(&uid)
                    && let Some(call) = slot.call.take()
                {
                    call.abort();
                    slot.freshness.cancelled(now);
                }
            }
            Action::Await(reference) => self.wait(&uid, reference),
            Action::Look => {
                let target = pod.clone();
                self.tasks.spawn(async move {
                    let status = caught(LOOK_LIMIT, provider.pod_status(&target)).await;
                    Answer::Pod(uid, Event::Looked(status.map(Box::new).map_err(refusal)))
                });
            }
            Action::Write(write) => self.write(pod, write),
            Action::Announce(kind, reason, message) => {
                self.announce(pod, None, kind, reason.into_owned(), message);
            }
            Action::Tell(word) => {
                if !self.own_words.has(&word.reason) {
                    let reason = word.reason.into_owned();
                    self.announce(pod, Some(word.path), word.kind, reason, word.message);
                }
            }
            Action::Forget => {
                debug!(%pod, "done with the pod");
                self.release(&uid);
                let Some(mut slot) = self.workers.remove(&uid) else { return };
                slot.forget_references();
                if let Some(timer) = slot.timer {
                    self.timers.remove(&(timer, uid));
                }
            }
        }
    }

    fn call(
        &mut self,
        pod: &PodRef,
        call: Call,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let uid = Arc::clone(&pod.uid);
        let fence = self.client.fence().cloned();
        let handle = self.tasks.spawn(async move {
            // The pod may be another process' to touch by now: it is left alone until the lease says that it is not.
            if let Some(fence) = fence {
                fence.opened().await;
            }
            let answer = caught(CALL_LIMIT, work).await.map_err(refusal);
            Answer::Pod(uid, Event::Called(call, answer))
        });
        if let Some(slot) = self.workers.get_mut(&pod.uid) {
            slot.call = Some(handle);
        }
    }
}

/// A provider that panics has failed, and nothing more; and so has one that does not answer. A call without an end would
/// block its pod for ever.
pub(super) async fn caught<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = AssertUnwindSafe(tokio::time::timeout(limit, work)).catch_unwind().await;
    match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Error::unavailable(format!("the provider did not answer within {limit:?}"))),
        Err(_) => Err(Error::internal("the provider panicked")),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refusal(error: Error) -> Refusal {
    Refusal { message: error.report(), kind: error.kind().clone() }
}
