//! Watches the pods of a namespace, independently of the candidates.

use std::{collections::HashSet, time::Duration};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    runtime::watcher,
};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

const LIMIT: Duration = Duration::from_mins(5);
/// The condition that says what placement found.
const PLACED: &str = "multicluster.virtual-kubelet.io/Placed";

/// A watch of pods. It ends when this is dropped.
pub(super) struct PodObserver {
    pods: Api<Pod>,
    seen: watch::Receiver<ObservedPods>,
    watching: JoinHandle<()>,
}

/// How many pods have come how far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservedPods {
    /// Pods that exist; `None` while they are listed.
    pub(super) there: Option<usize>,
    /// Pods without a scheduling gate.
    pub(super) ungated: Progress,
    /// Pods that are bound to a node.
    pub(super) bound: Progress,
    /// Pods that run.
    pub(super) running: Progress,
    /// Pods for which placement has found no node.
    pub(super) refused: Progress,
}

/// How many pods have come that far, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) count: usize,
    pub(super) first: Option<Instant>,
    pub(super) last: Option<Instant>,
}

/// The names of pods that have come that far.
#[derive(Default)]
struct Names {
    there: HashSet<String>,
    ungated: HashSet<String>,
    bound: HashSet<String>,
    running: HashSet<String>,
    refused: HashSet<String>,
}

// === impl PodObserver ===

impl PodObserver {
    pub(super) fn start(pods: Api<Pod>) -> Self {
        let (sender, seen) = watch::channel(ObservedPods::default());
        let watched = pods.clone();
        #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
        let watching = tokio::spawn(async move {
            let mut names = Names::default();
            let mut events = watcher(watched, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                sender.send_modify(|seen| match event {
                    Ok(watcher::Event::Init) => {
                        names.there.clear();
                        seen.there = None;
                    }
                    Ok(watcher::Event::InitDone) => seen.there = Some(names.there.len()),
                    Ok(watcher::Event::Apply(pod)) => {
                        names.apply(&pod, seen);
                        seen.there = Some(names.there.len());
                    }
                    Ok(watcher::Event::InitApply(pod)) => names.apply(&pod, seen),
                    Ok(watcher::Event::Delete(pod)) => {
                        names.there.remove(pod.metadata.name.as_deref().unwrap_or_default());
                        seen.there = Some(names.there.len());
                    }
                    Err(_) => {}
                });
            }
        });
        Self { pods, seen, watching }
    }

    /// Waits until this many pods have come that far.
    pub(super) async fn wait(
        &self,
        what: &str,
        count: usize,
        progress: impl Fn(&ObservedPods) -> usize,
    ) -> anyhow::Result<ObservedPods> {
        let mut seen = self.seen.clone();
        let found = tokio::time::timeout(LIMIT, seen.wait_for(|seen| progress(seen) >= count)).await;
        if let Ok(found) = found {
            return Ok(*found.context("the watch of the pods has ended")?);
        }
        let now = *self.seen.borrow();
        anyhow::bail!("after {LIMIT:?}, {} of {count} pods {what}: {now:?}", progress(&now))
    }

    /// Deletes all pods of the namespace and waits until they are gone.
    pub(super) async fn delete_all(&self) -> anyhow::Result<()> {
        let parameters = DeleteParams::default().grace_period(1);
        self.pods.delete_collection(&parameters, &ListParams::default()).await?;
        let mut seen = self.seen.clone();
        let gone = tokio::time::timeout(LIMIT, seen.wait_for(|seen| seen.there == Some(0))).await;
        anyhow::ensure!(gone.is_ok(), "{:?} pods are not gone after {LIMIT:?}", self.seen.borrow().there);
        Ok(())
    }
}

impl Drop for PodObserver {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

// === impl Names ===

impl Names {
    fn apply(&mut self, pod: &Pod, seen: &mut ObservedPods) {
        let now = Instant::now();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let is_refused = status.and_then(|status| status.conditions.as_ref()).is_some_and(|conditions| {
            conditions.iter().any(|condition| condition.type_ == PLACED && condition.status == "False")
        });
        let steps = [
            (spec.is_some_and(|spec| spec.scheduling_gates.is_none()), &mut self.ungated, &mut seen.ungated),
            (spec.is_some_and(|spec| spec.node_name.is_some()), &mut self.bound, &mut seen.bound),
            (
                status.is_some_and(|status| status.phase.as_deref() == Some("Running")),
                &mut self.running,
                &mut seen.running,
            ),
            (is_refused, &mut self.refused, &mut seen.refused),
        ];
        for (is_reached, names, progress) in steps {
            if is_reached && names.insert(name.clone()) {
                progress.count += 1;
                progress.first.get_or_insert(now);
                progress.last = Some(now);
            }
        }
        self.there.insert(name);
    }
}
