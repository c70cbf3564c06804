//! A burst of pods to Running and back to nothing, beside a bare client that makes the same writes: the API server's own
//! limit on this machine.

use std::{
    collections::HashMap,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use vk_testing::{ControlPlane, Process, Usage, control_plane};

use crate::report::{Figure, publish};

/// Requests that the clients keep under way.
const CONCURRENCY: usize = 64;
const NODE: &str = "bench";
const LIMIT: Duration = Duration::from_mins(10);

#[derive(Debug, Args)]
pub(crate) struct Pods {
    /// How many pods
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// The command to measure
    #[arg(long)]
    virtual_kubelet: PathBuf,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

/// What one run took.
struct Run {
    /// From the first create to the last Running.
    up: Duration,
    /// From create to Running, of the pod in the middle.
    p50: Duration,
    /// From the first delete to the last one gone.
    down: Duration,
}

/// What the watch has seen.
#[derive(Clone, Default)]
struct Seen {
    running: HashMap<String, Instant>,
    gone: usize,
}

impl Pods {
    pub(crate) async fn measure(self) -> anyhow::Result<()> {
        let bare = self.bare().await.context("bare client")?;
        let (ours, idle, full) = self.ours().await.context("virtual-kubelet")?;
        let count = self.count;
        let seconds = |time: Duration| time.as_secs_f64();
        // Exact: these are counts of pods.
        #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
        let rate = |time: Duration| count as f64 / seconds(time);
        let figures = [
            Figure::new(format!("bare client: {count} pods to Running"), rate(bare.up), "pods/s"),
            Figure::new(format!("virtual-kubelet: {count} pods to Running"), rate(ours.up), "pods/s"),
            Figure::new("ratio of the rates", rate(ours.up) / rate(bare.up), ""),
            Figure::new("bare client: p50 create to Running", seconds(bare.p50), "s"),
            Figure::new("virtual-kubelet: p50 create to Running", seconds(ours.p50), "s"),
            Figure::new("ratio of the p50s", seconds(ours.p50) / seconds(bare.p50), ""),
            Figure::new(format!("bare client: {count} pods deleted"), seconds(bare.down), "s"),
            Figure::new(
                format!("virtual-kubelet: {count} pods deleted, 30 s grace"),
                seconds(ours.down),
                "s",
            ),
            Figure::new("ratio of the deletions", seconds(ours.down) / seconds(bare.down), ""),
            Figure::new("resident, idle", idle.megabytes(), "MB"),
            Figure::new(format!("resident with {count} pods"), full.megabytes(), "MB"),
        ];
        publish(&self.out, "pods", &figures)
    }

    async fn bare(&self) -> anyhow::Result<Run> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        let namespace = cluster.namespace("bench").await?;
        let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());
        // As a kubelet does it: whoever creates pods does not wait for their status, and the other way round.
        let (sender, line) = mpsc::unbounded_channel::<String>();
        let patching = patch_all(pods.clone(), line);
        let create = |name: String| {
            let (pods, sender) = (pods.clone(), sender.clone());
            async move {
                pods.create(&PostParams::default(), &pod(&name)?).await?;
                sender.send(name).context("the patching ended")
            }
        };
        let remove = |name: String| {
            let pods = pods.clone();
            async move {
                pods.delete(&name, &DeleteParams::default()).await?;
                pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
                anyhow::Ok(())
            }
        };
        let run = self.burst(&pods, create, remove, || Ok(())).await;
        patching.abort();
        run
    }

    async fn ours(&self) -> anyhow::Result<(Run, Usage, Usage)> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        let namespace = cluster.namespace("bench").await?;
        let config = cluster.data_dir().join("mock.yaml");
        std::fs::write(&config, "default: {cpu: 100k, memory: 100Ti, pods: 100k}\n")?;
        let mut command = Command::new(&self.virtual_kubelet);
        command.args([
            "run",
            "--provider",
            "mock",
            "--nodename",
            NODE,
            "--metrics-addr",
            "off",
            "--log-level",
            "warn",
        ]);
        command.arg("--provider-config").arg(&config).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        let process = Process::spawn(command.args(["--port", "11999"]).stdout(Stdio::null()))?;
        let nodes: Api<Node> = Api::all(cluster.admin()?);
        let begun = Instant::now();
        while nodes.get_opt(NODE).await?.is_none_or(|node| !crate::nodes::is_ready(&node)) {
            anyhow::ensure!(begun.elapsed() < Duration::from_mins(1), "the node is not Ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let idle = Usage::of(process.id())?;
        let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());
        let create = |name: String| {
            let pods = pods.clone();
            async move { anyhow::Ok(pods.create(&PostParams::default(), &pod(&name)?).await.map(drop)?) }
        };
        let remove = |name: String| {
            let pods = pods.clone();
            async move { anyhow::Ok(pods.delete(&name, &DeleteParams::default()).await.map(drop)?) }
        };
        let mut full = idle;
        let look = || {
            full = Usage::of(process.id())?;
            Ok(())
        };
        let run = self.burst(&pods, create, remove, look).await?;
        Ok((run, idle, full))
    }

    /// Creates all pods, waits until all run, then deletes them all and waits until they are gone.
    async fn burst<A, B>(
        &self,
        pods: &Api<Pod>,
        create: impl Fn(String) -> A,
        remove: impl Fn(String) -> B,
        between: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Run>
    where
        A: Future<Output = anyhow::Result<()>>,
        B: Future<Output = anyhow::Result<()>>,
    {
        let (mut seen, watching) = observe(pods.clone());
        let begun = Instant::now();
        let names = || (0..self.count).map(|index| format!("pod-{index}"));
        let timed = |name: String| {
            let (start, work) = (Instant::now(), create(name.clone()));
            async move { anyhow::Ok((name, start, work.await?)) }
        };
        let started: Vec<(String, Instant, ())> =
            stream::iter(names()).map(timed).buffer_unordered(CONCURRENCY).try_collect().await?;
        let all = tokio::time::timeout(LIMIT, seen.wait_for(|seen| seen.running.len() >= self.count));
        let running = all.await.context("not all pods run")??.running.clone();
        let last = running.values().max().copied().unwrap_or(begun);
        let mut latencies: Vec<Duration> = started
            .iter()
            .filter_map(|(name, start, ())| Some(running.get(name)?.duration_since(*start)))
            .collect();
        latencies.sort();
        between()?;

        let begun_down = Instant::now();
        stream::iter(names()).map(remove).buffer_unordered(CONCURRENCY).try_collect::<Vec<()>>().await?;
        let gone = tokio::time::timeout(LIMIT, seen.wait_for(|seen| seen.gone >= self.count));
        drop(gone.await.context("not all pods are gone")??);
        let down = begun_down.elapsed();
        watching.abort();
        Ok(Run {
            up: last - begun,
            p50: latencies.get(latencies.len() / 2).copied().unwrap_or_default(),
            down,
        })
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
    #[expect(clippy::disallowed_methods, reason = "ended by the caller")]
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
    let sender = Arc::new(sender);
    #[expect(clippy::disallowed_methods, reason = "ended by the caller")]
    let task = tokio::spawn(async move {
        let mut events = watcher(pods, watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            let now = Instant::now();
            match event {
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                    if phase == Some("Running") {
                        let name = pod.metadata.name.unwrap_or_default();
                        sender.send_modify(|seen| {
                            seen.running.entry(name).or_insert(now);
                        });
                    }
                }
                Ok(watcher::Event::Delete(_)) => sender.send_modify(|seen| seen.gone += 1),
                _ => {}
            }
        }
    });
    (seen, task)
}

fn pod(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{"name": "main", "image": "bench"}],
        },
    }))?)
}
