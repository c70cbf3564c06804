//! The load, the same for all candidates: pods are created, observed Running, deleted, and observed gone.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::candidate::NODE;

/// Requests that the clients keep under way.
const CONCURRENCY: usize = 64;
const LIMIT: Duration = Duration::from_mins(10);

/// Many pods on one node.
pub(crate) struct PodLoad {
    count: usize,
    /// The spec of all pods.
    spec: Value,
    pods: Api<Pod>,
    seen: watch::Receiver<ObservedPods>,
    watching: JoinHandle<()>,
    /// With the bare client: the pods whose status is to be patched.
    queue: Option<(mpsc::UnboundedSender<String>, JoinHandle<()>)>,
}

/// How long it took until the pods ran.
pub(crate) struct StartTimes {
    /// From the first create to the last Running.
    pub(crate) all: Duration,
    /// From create to Running of each pod, in ascending order.
    latencies: Vec<Duration>,
}

impl StartTimes {
    /// The percentile of the time from create to Running.
    pub(crate) fn within(&self, percent: usize) -> Duration {
        let index = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

/// The state of the pods, from a watch.
#[derive(Clone, Default)]
struct ObservedPods {
    running: HashMap<String, Instant>,
    there: HashSet<String>,
    /// A list is in progress, so that the set of pods is incomplete.
    listing: bool,
}

impl PodLoad {
    /// Creates a load of pods that need no containers.
    pub(crate) fn new(pods: Api<Pod>, count: usize) -> Self {
        Self::of(pods, count, json!({"containers": [{"name": "main", "image": "bench"}]}))
    }

    /// Creates a load of pods with this spec.
    pub(crate) fn of(pods: Api<Pod>, count: usize, mut spec: Value) -> Self {
        spec["nodeName"] = json!(NODE);
        spec["automountServiceAccountToken"] = json!(false);
        spec["enableServiceLinks"] = json!(false);
        let (seen, watching) = observe(pods.clone());
        Self { count, spec, pods, seen, watching, queue: None }
    }

    /// Creates a load without a node: the bare client writes the statuses and removes the pods.
    pub(crate) fn bare(pods: Api<Pod>, count: usize) -> Self {
        // As with a kubelet, creating pods and writing their statuses do not wait for each other.
        let (sender, queue) = mpsc::unbounded_channel::<String>();
        let patching = patch_all(pods.clone(), queue);
        let mut load = Self::new(pods, count);
        load.queue = Some((sender, patching));
        load
    }

    fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.count).map(|index| format!("pod-{index}"))
    }

    /// Creates all pods and waits until all run.
    pub(crate) async fn start(&mut self) -> anyhow::Result<StartTimes> {
        let begun = Instant::now();
        let created: Vec<(String, Instant)> = stream::iter(self.names())
            .map(|name| {
                let (pods, queue) =
                    (self.pods.clone(), self.queue.as_ref().map(|(sender, _)| sender.clone()));
                let pod = json!({"metadata": {"name": name}, "spec": self.spec});
                async move {
                    let start = Instant::now();
                    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
                    if let Some(queue) = queue {
                        queue.send(name.clone()).context("the patching task has ended")?;
                    }
                    anyhow::Ok((name, start))
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        let count = self.count;
        let all = tokio::time::timeout(LIMIT, self.seen.wait_for(|seen| seen.running.len() >= count));
        let running = all.await.context("not all pods run")??.running.clone();
        let last = running.values().max().copied().unwrap_or(begun);
        let latency =
            |(name, start): &(String, Instant)| running.get(name).map(|at| at.duration_since(*start));
        let mut latencies: Vec<Duration> = created.iter().filter_map(latency).collect();
        latencies.sort();
        Ok(StartTimes { all: last - begun, latencies })
    }

    /// Deletes all pods with their grace period (30 seconds by default) and waits until all are gone.
    pub(crate) async fn delete(&mut self) -> anyhow::Result<Duration> {
        let (begun, bare) = (Instant::now(), self.queue.is_some());
        stream::iter(self.names())
            .map(|name| {
                let pods = self.pods.clone();
                async move {
                    pods.delete(&name, &DeleteParams::default()).await?;
                    if bare {
                        pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
                    }
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await?;
        let gone = self.seen.wait_for(|seen| !seen.listing && seen.there.is_empty());
        drop(tokio::time::timeout(LIMIT, gone).await.context("not all pods are gone")??);
        Ok(begun.elapsed())
    }
}

impl Drop for PodLoad {
    fn drop(&mut self) {
        self.watching.abort();
        if let Some((_, patching)) = &self.queue {
            patching.abort();
        }
    }
}

/// Patches the status of each queued pod to Running.
fn patch_all(pods: Api<Pod>, queue: mpsc::UnboundedReceiver<String>) -> JoinHandle<()> {
    let running = json!({"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "name": "main", "ready": true,
        "started": true, "restartCount": 0, "image": "bench", "imageID": "", "containerID": "bench://1"});
    let kinds = ["Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers"];
    let conditions = kinds.map(|kind| json!({"type": kind, "status": "True"}));
    let status = json!({"phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.2",
        "startTime": "2026-01-01T00:00:00Z", "conditions": conditions, "containerStatuses": [running]});
    let body = Arc::new(json!({"status": status}));
    #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
    tokio::spawn(async move {
        let names = stream::unfold(queue, async |mut queue| queue.recv().await.map(|name| (name, queue)));
        let patched = names.map(|name| {
            let (pods, body) = (pods.clone(), Arc::clone(&body));
            async move { pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&*body)).await }
        });
        // A failure shows as a pod that never runs.
        patched.buffer_unordered(CONCURRENCY).for_each(|_| std::future::ready(())).await;
    })
}

/// Watches the pods, independently of the candidates.
fn observe(pods: Api<Pod>) -> (watch::Receiver<ObservedPods>, JoinHandle<()>) {
    let (sender, seen) = watch::channel(ObservedPods::default());
    #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
    let task = tokio::spawn(async move {
        let mut events = watcher(pods, watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            let now = Instant::now();
            sender.send_modify(|seen| match event {
                Ok(watcher::Event::Init) => {
                    seen.listing = true;
                    seen.there.clear();
                }
                Ok(watcher::Event::InitDone) => seen.listing = false,
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                    let name = pod.metadata.name.unwrap_or_default();
                    if pod.status.and_then(|status| status.phase).as_deref() == Some("Running") {
                        seen.running.entry(name.clone()).or_insert(now);
                    }
                    seen.there.insert(name);
                }
                Ok(watcher::Event::Delete(pod)) => {
                    seen.there.remove(&pod.metadata.name.unwrap_or_default());
                }
                Err(_) => {}
            });
        }
    });
    (seen, task)
}
