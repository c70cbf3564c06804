//! Events of the runtime: hints that something happened to a pod.

use std::{sync::atomic::Ordering, time::Duration};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use tonic::{Code, Status, Streaming};
use vk_supervisor::Backoff;

use super::Cri;
use crate::proto::{ContainerEventResponse, GetEventsRequest};

/// How long to wait before events are asked for again. The runtime's lists are read meanwhile, so there is no hurry.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Where the stream stands.
struct Listener {
    cri: Cri,
    backoff: Backoff,
    open: Option<Streaming<ContainerEventResponse>>,
}

/// UIDs of pods to which something happened. The connection is made again, with patience, for as long as somebody listens; the
/// stream ends only where the runtime has no events at all.
///
/// Nothing is asked before the stream is polled, and the asking itself is part of the stream: containerd answers the call with
/// its first event and not earlier.
pub(super) fn stream(cri: Cri) -> BoxStream<'static, String> {
    let listener = Listener { cri, backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), open: None };
    stream::unfold(listener, |mut listener| async move {
        loop {
            match listener.next().await {
                Ok(uid) => return Some((uid, listener)),
                Err(status) if status.code() == Code::Unimplemented => {
                    listener.cri.silent.store(true, Ordering::Relaxed);
                    return None;
                }
                Err(status) => {
                    tracing::debug!(%status, "no events from the container runtime for now");
                    let pause = listener.backoff.next(None, &mut rand::rng());
                    tokio::time::sleep(pause).await;
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
                    // One that says nothing about its pod is no hint.
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
