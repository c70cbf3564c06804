//! The event stream of the runtime: hints that a pod changed.

use std::{sync::atomic::Ordering, time::Duration};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use tonic::{Code, Status, Streaming};
use vk_supervisor::Backoff;

use super::Cri;
use crate::proto::{ContainerEventResponse, GetEventsRequest};

/// Delays before the stream is reopened. The engine lists the runtime meanwhile, so this is not urgent.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The state of the stream.
struct Listener {
    cri: Cri,
    backoff: Backoff,
    open: Option<Streaming<ContainerEventResponse>>,
}

/// UIDs of pods that changed. A lost connection is reopened with back-off; the stream ends only if the runtime does not support
/// events.
///
/// The call is made when the stream is polled, and is part of the stream: containerd responds to it only with the first event.
pub(super) fn stream(cri: Cri) -> BoxStream<'static, String> {
    let listener = Listener { cri, backoff: Backoff::new(FIRST_DELAY, MAX_DELAY), open: None };
    stream::unfold(listener, |mut listener| async move {
        loop {
            match listener.next().await {
                Ok(uid) => return Some((uid, listener)),
                Err(status) if status.code() == Code::Unimplemented => {
                    listener.cri.has_no_events.store(true, Ordering::Relaxed);
                    return None;
                }
                Err(status) => {
                    tracing::debug!(%status, "no events from the container runtime for now");
                    let delay = listener.backoff.next(None, &mut rand::rng());
                    tokio::time::sleep(delay).await;
                }
            }
        }
    })
    .boxed()
}

// === impl Listener ===

impl Listener {
    async fn next(&mut self) -> Result<String, Status> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                closed => {
                    let answer = self.cri.runtime.get_container_events(GetEventsRequest {}).await?;
                    closed.insert(answer.into_inner())
                }
            };
            match open.message().await {
                Ok(Some(event)) => {
                    self.backoff.reset();
                    // Events without a pod are skipped.
                    let pod = event.pod_sandbox_status.and_then(|sandbox| sandbox.metadata);
                    if let Some(pod) = pod.filter(|pod| !pod.uid.is_empty()) {
                        return Ok(pod.uid);
                    }
                }
                Ok(None) => {
                    self.open = None;
                    return Err(Status::unavailable("the stream has ended"));
                }
                Err(status) => {
                    self.open = None;
                    return Err(status);
                }
            }
        }
    }
}
