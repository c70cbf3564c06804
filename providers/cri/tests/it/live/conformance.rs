//! The conformance suite with real containers.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use vk_provider::{Context, Provider, Result};
use vk_testing::conformance::{Case, CaseResult, Feature, Subject, cases};

use super::{RuntimePaths, containerd};

/// The number of concurrent cases, each on its own runtime, because all use the same node name.
const LANES: usize = 3;
/// Selects cases by a part of their names.
const ONLY: &str = "VK_ONLY";

/// A backend for one case.
struct Live {
    place: RuntimePaths,
    folder: String,
}

impl Live {
    fn new(place: RuntimePaths) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Self { place, folder: format!("case-{}", COUNT.fetch_add(1, Ordering::Relaxed)) }
    }
}

#[async_trait]
impl Subject for Live {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        self.place.open(&self.folder, context).await
    }

    fn lacks(&self) -> &[Feature] {
        &[Feature::Fit]
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(1)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs containerd, as root: make test"]
async fn the_provider_keeps_the_contract_with_real_containers() {
    let only = std::env::var(ONLY).unwrap_or_default();
    let chosen = cases().iter().filter(|case| case.name.contains(&only));
    let queue: Arc<Mutex<VecDeque<&Case>>> = Arc::new(Mutex::new(chosen.collect()));
    let lanes = (0..LANES).map(|_| lane(Arc::clone(&queue)));
    let broken: Vec<String> = join_all(lanes).await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{} cases failed:\n{}", broken.len(), broken.join("\n\n"));
}

/// Runs cases until none are left, and returns their verdicts.
async fn lane(queue: Arc<Mutex<VecDeque<&'static Case>>>) -> Vec<String> {
    let containerd = containerd().await;
    let mut broken = Vec::new();
    loop {
        let Some(case) = queue.lock().pop_front() else { return broken };
        let verdict = case.run(Arc::new(Live::new(RuntimePaths::on(&containerd)))).await;
        if let CaseResult::Violated(violation) = verdict {
            broken.push(case.report(&violation));
        }
    }
}
