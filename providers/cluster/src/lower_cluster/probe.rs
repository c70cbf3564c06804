//! One health probe for all virtual nodes of the lower cluster.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};
use vk_kube::Error;

use super::LowerCluster;

/// For how long the answer to the probe of one virtual node is used by others. Longer than the interval of their pings by default.
const MAX_AGE: Duration = Duration::from_secs(12);

/// The last probe. Nodes that probe at the same time wait for one answer.
#[derive(Debug, Default)]
pub(super) struct SharedProbe {
    last: Mutex<Option<ProbeAnswer>>,
}

#[derive(Clone, Debug)]
struct ProbeAnswer {
    at: Instant,
    number: u64,
    answer: Result<(), Error>,
}

/// The answers that one virtual node has used. It uses none twice, so that each of its failures is one of the API server.
#[derive(Debug, Default)]
pub(crate) struct ProbeCursor(AtomicU64);

// === impl LowerCluster ===

impl LowerCluster {
    /// Asks whether the API server is ready, and for what is not known of the cluster yet, unless another virtual node just did.
    pub(crate) async fn probe(&self, cursor: &ProbeCursor) -> Result<(), Error> {
        let mut last = self.0.probe.last.lock().await;
        let used = cursor.0.load(Ordering::Relaxed);
        if let Some(last) = last.as_ref().filter(|last| last.number > used && last.at.elapsed() < MAX_AGE) {
            cursor.0.store(last.number, Ordering::Relaxed);
            return last.answer.clone();
        }
        let answer = async {
            self.0.client.read_text("readyz", "/readyz").await?;
            self.0.identity.refresh(&self.0.client).await
        };
        let answer = answer.await;
        if matches!(answer, Ok(true)) {
            self.0.notify(|listener| listener.identity_changed());
        }
        let number = last.as_ref().map_or(1, |last| last.number + 1);
        let answer = answer.map(drop);
        *last = Some(ProbeAnswer { at: Instant::now(), number, answer: answer.clone() });
        cursor.0.store(number, Ordering::Relaxed);
        answer
    }
}
