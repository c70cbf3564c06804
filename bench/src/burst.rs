//! The load and the observer, the same for all who are measured: pods are created, seen Running, deleted, seen gone.

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

use crate::contestant::NODE;

/// Requests that the clients keep under way.
const CONCURRENCY: usize = 64;
const LIMIT: Duration = Duration::from_mins(10);

/// A burst of pods on one node.
pub(crate) struct Burst {
    count: usize,
    /// What all pods are like.
    spec: Value,
    pods: Api<Pod>,
    seen: watch::Receiver<Seen>,
    watching: JoinHandle<()>,
    /// Bare: whom to tell which pods are there to be patched.
    line: Option<(mpsc::UnboundedSender<String>, JoinHandle<()>)>,
}

/// What it took to bring the pods up.
pub(crate) struct Up {
    /// From the first create to the last Running.
    pub(crate) all: Duration,
    /// From create to Running, of each pod, the shortest first.
    latencies: Vec<Duration>,
}

impl Up {
    /// The time within which this share of the pods ran, each counted from its own create.
    pub(crate) fn within(&self, percent: usize) -> Duration {
        let index = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

/// What the watch has seen.
#[derive(Clone, Default)]
struct Seen {
    running: HashMap<String, Instant>,
    there: HashSet<String>,
    /// A list is under way: what is there is not known.
    listing: bool,
}

impl Burst {
    /// A burst on a node that somebody runs without containers.
    pub(crate) fn new(pods: Api<Pod>, count: usize) -> Self {
        Self::of(pods, count, json!({"containers": [{"name": "main", "image": "bench"}]}))
    }

    /// A burst of pods like this.
    pub(crate) fn of(pods: Api<Pod>, count: usize, mut spec: Value) -> Self {
        spec["nodeName"] = json!(NODE);
        spec["automountServiceAccountToken"] = json!(false);
        spec["enableServiceLinks"] = json!(false);
        let (seen, watching) = observe(pods.clone());
        Self { count, spec, pods, seen, watching, line: None }
    }

    /// A burst with nobody there: the status is written, and the pod removed, by the bare client.
    pub(crate) fn bare(pods: Api<Pod>, count: usize) -> Self {
        // As a kubelet does it: whoever creates pods does not wait for their status, and the other way round.
        let (sender, line) = mpsc::unbounded_channel::<String>();
        let patching = patch_all(pods.clone(), line);
        let mut burst = Self::new(pods, count);
        burst.line = Some((sender, patching));
        burst
    }

    fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.count).map(|index| format!("pod-{index}"))
    }

    /// Creates all pods, and waits until all run.
    pub(crate) async fn up(&mut self) -> anyhow::Result<Up> {
        let begun = Instant::now();
        let created: Vec<(String, Instant)> = stream::iter(self.names())
            .map(|name| {
                let (pods, line) = (self.pods.clone(), self.line.as_ref().map(|(sender, _)| sender.clone()));
                let pod = json!({"metadata": {"name": name}, "spec": self.spec});
                async move {
                    let start = Instant::now();
                    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
                    if let Some(line) = line {
                        line.send(name.clone()).context("the patching ended")?;
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
        Ok(Up { all: last - begun, latencies })
    }

    /// Deletes all pods with the grace of their spec, 30 seconds where it has none, and waits until all are gone.
    pub(crate) async fn down(&mut self) -> anyhow::Result<Duration> {
        let (begun, bare) = (Instant::now(), self.line.is_some());
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

impl Drop for Burst {
    fn drop(&mut self) {
        self.watching.abort();
        if let Some((_, patching)) = &self.line {
            patching.abort();
        }
    }
}

/// Patches the status of each pod that stands in line to Running.
fn patch_all(pods: Api<Pod>, line: mpsc::UnboundedReceiver<String>) -> JoinHandle<()> {
    let running = json!({"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "name": "main", "ready": true,
        "started": true, "restartCount": 0, "image": "bench", "imageID": "", "containerID": "bench://1"});
    let kinds = ["Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers"];
    let conditions = kinds.map(|kind| json!({"type": kind, "status": "True"}));
    let status = json!({"phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.2",
        "startTime": "2026-01-01T00:00:00Z", "conditions": conditions, "containerStatuses": [running]});
    let body = Arc::new(json!({"status": status}));
    #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
    tokio::spawn(async move {
        let names = stream::unfold(line, async |mut line| line.recv().await.map(|name| (name, line)));
        let patched = names.map(|name| {
            let (pods, body) = (pods.clone(), Arc::clone(&body));
            async move { pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&*body)).await }
        });
        // A failure shows as a pod that never runs.
        patched.buffer_unordered(CONCURRENCY).for_each(|_| std::future::ready(())).await;
    })
}

/// Watches the pods, from outside of all that is measured.
fn observe(pods: Api<Pod>) -> (watch::Receiver<Seen>, JoinHandle<()>) {
    let (sender, seen) = watch::channel(Seen::default());
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
