//! A large lower cluster behind one virtual node: time to the first sync, lag of pod statuses, and memory. There is no scheduler and no
//! kubelet: all objects are created through the API.

mod bare_cluster;

use std::{collections::HashMap, fs, path::PathBuf, process::Command, time::Duration};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    runtime::watcher,
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use vk_testing::{ControlPlane, Usage, control_plane};

pub(crate) use self::bare_cluster::BareCluster;
use crate::{
    candidate::{Candidate, CandidateArgs, Candidates, NODE, ready},
    host_info::{HostInfo, peak_megabytes},
    objects::{CONCURRENCY, create_all, node, pod},
    report::{Figure, Report, print_progress, thousands},
};

const LIMIT: Duration = Duration::from_mins(10);
/// Time before memory is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// Memory goal of our process with 20,000 pods and 1,000 nodes in the lower cluster.
const GOAL_MEGABYTES: f64 = 200.0;
/// Status changes per second, and the duration in seconds.
const RATE: u32 = 100;
const SECONDS: u32 = 20;

#[derive(Debug, Args)]
pub(crate) struct Clusters {
    /// How many pods of ours, one run for each number
    #[arg(long, value_delimiter = ',', default_values_t = [5000])]
    count: Vec<usize>,
    /// How many pods there are below with those of others
    #[arg(long, default_value_t = 20_000)]
    pods: usize,
    /// How many nodes there are below
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    #[command(flatten)]
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

/// The upper and the lower cluster.
struct TwoClusters {
    upper: ControlPlane,
    lower: ControlPlane,
    above: Api<Pod>,
    below: Api<Pod>,
    /// Names of the namespace in the upper and the lower cluster.
    names: [String; 2],
    count: usize,
}

impl Clusters {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The rivals have no provider for clusters.
        self.field.keep(&[Candidate::Bare, Candidate::Ours]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::new(HostInfo::detect()?);
        for &candidate in &field.selected {
            report.versions.extend(field.version(candidate).map(|version| (candidate, version)));
        }
        for &count in &self.count {
            for &candidate in &field.selected {
                print_progress(&format!(
                    "{} of {} pods below on {} nodes, {candidate}",
                    thousands(count),
                    thousands(self.pods),
                    thousands(self.nodes)
                ));
                let figures = Box::pin(self.one(candidate, &field, count, &mut report.host)).await;
                report.outcome(candidate, count, figures)?;
                report.save(&self.out, "pods-below")?;
            }
        }
        report.publish(&self.out, "pods-below")
    }

    async fn one(
        &self,
        who: Candidate,
        field: &Candidates,
        count: usize,
        host: &mut HostInfo,
    ) -> anyhow::Result<Vec<Figure>> {
        let clusters = self.prepare(count).await?;
        host.record_version(&clusters.upper).await?;
        let nodes: Api<Node> = Api::all(clusters.upper.admin()?);
        let mut figures = Vec::new();
        let observer = StatusObserver::start(clusters.above.clone());

        // First the pods are created in the lower cluster; our process does it itself.
        if who == Candidate::Ours {
            let mut process = field.start(who, "pods-below-first", clusters.ours(field)?)?;
            ready(&nodes, &mut process).await?;
            let begun = Instant::now();
            clusters.bind_above().await?;
            clusters.there(count).await?;
            #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
            figures.push((
                "bound pods to made below",
                count as f64 / begun.elapsed().as_secs_f64(),
                "pods/s",
            ));
            process.kill()?;
        } else {
            clusters.bind_above().await?;
            clusters.make_below().await?;
        }
        // All of them start to run while no process watches.
        clusters.run_below("10.1.0.1").await?;

        let begun = Instant::now();
        let mut process = match who {
            Candidate::Ours => field.start(who, "pods-below", clusters.ours(field)?)?,
            _ => field.start(who, "pods-below", clusters.bare()?)?,
        };
        if who == Candidate::Ours {
            // The node is still Ready from before, so wait for the first status instead.
            observer.wait(|seen| seen.values().any(|(address, _)| address == "10.1.0.1")).await?;
        } else {
            ready(&nodes, &mut process).await?;
        }
        figures.push(("start to the first sync", begun.elapsed().as_secs_f64(), "s"));
        let all = |seen: &HashMap<String, (String, Instant)>| {
            seen.values().filter(|(address, _)| address == "10.1.0.1").count() == count
        };
        observer.wait(all).await?;
        figures.push(("start to all statuses told", begun.elapsed().as_secs_f64(), "s"));
        tokio::time::sleep(SETTLE).await;
        let idle = Usage::of(process.id()).context("it ended")?;

        let (from, lags) = (Instant::now(), clusters.lags(&observer).await?);
        let busy = Usage::of(process.id())?;
        let at = |percent: usize| lags[(lags.len() * percent / 100).min(lags.len() - 1)].as_secs_f64();
        let ratio = idle.megabytes() / GOAL_MEGABYTES;
        figures.extend([
            ("p50 of the lag of a status", at(50) * 1000.0, "ms"),
            ("p99 of the lag of a status", at(99) * 1000.0, "ms"),
            ("processor with 100 statuses in a second", busy.cores_since(&idle, from.elapsed()), "cores"),
            ("resident", idle.megabytes(), "MB"),
            ("resident at most", peak_megabytes(process.id())?, "MB"),
            ("resident, of the goal of 200 MB", ratio * 100.0, "%"),
        ]);
        Ok(figures)
    }

    /// Starts both control planes, and creates the nodes and the pods of others.
    async fn prepare(&self, count: usize) -> anyhow::Result<TwoClusters> {
        let options = control_plane::Options::default();
        let (upper, lower) =
            tokio::try_join!(ControlPlane::start(options.clone()), ControlPlane::start(options))?;
        let names = [
            upper.namespace("above").await?.name().to_owned(),
            lower.namespace("below").await?.name().to_owned(),
        ];
        let nodes: Api<Node> = Api::all(lower.admin()?);
        let made = (0..self.nodes).map(|index| node(&format!("node-{index}")));
        create_all(&nodes, made).await?;
        let others = lower.namespace("others").await?;
        let others: Api<Pod> = Api::namespaced(lower.admin()?, others.name());
        let made = (0..self.pods.saturating_sub(count))
            .map(|index| pod(&format!("other-{index}"), Some(&format!("node-{}", index % self.nodes))));
        create_all(&others, made).await?;
        let (above, below) =
            (Api::namespaced(upper.admin()?, &names[0]), Api::namespaced(lower.admin()?, &names[1]));
        Ok(TwoClusters { upper, lower, above, below, names, count })
    }
}

// === impl TwoClusters ===

impl TwoClusters {
    fn own(&self, node: Option<&str>) -> Vec<Value> {
        (0..self.count).map(|index| pod(&format!("pod-{index}"), node)).collect()
    }

    async fn bind_above(&self) -> anyhow::Result<()> {
        create_all(&self.above, self.own(Some(NODE))).await
    }

    async fn make_below(&self) -> anyhow::Result<()> {
        create_all(&self.below, self.own(None)).await
    }

    /// Waits until the lower cluster has this number of pods.
    async fn there(&self, count: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            // The first page contains the number of remaining items.
            let list = self.below.list_metadata(&ListParams::default().limit(1)).await?;
            let more = list.metadata.remaining_item_count.unwrap_or(0);
            let there = list.items.len() + usize::try_from(more)?;
            if there >= count {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < LIMIT, "{there} of {count} pods came below");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sets all pods in the lower cluster to Running.
    async fn run_below(&self, address: &str) -> anyhow::Result<()> {
        let patches =
            (0..self.count).map(|index| run(self.below.clone(), format!("pod-{index}"), address.to_owned()));
        stream::iter(patches).buffer_unordered(CONCURRENCY).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Changes the status of lower pods at a constant rate. Returns how long each took to reach the upper cluster, in ascending order.
    async fn lags(&self, observer: &StatusObserver) -> anyhow::Result<Vec<Duration>> {
        let total = usize::try_from(RATE * SECONDS)?.min(self.count);
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut under_way = JoinSet::new();
        let mut begun = HashMap::new();
        for index in 0..total {
            ticks.tick().await;
            let name = format!("pod-{index}");
            let patch = run(self.below.clone(), name.clone(), "10.1.0.2".to_owned());
            under_way.spawn(async move { patch.await.map(|()| (name, Instant::now())) });
        }
        while let Some(one) = under_way.join_next().await {
            // From the response of the lower API server: the time of the write is not part of the lag.
            let (name, at) = one??;
            begun.insert(name, at);
        }
        let changed = |seen: &HashMap<String, (String, Instant)>| {
            seen.values().filter(|(address, _)| address == "10.1.0.2").count() >= total
        };
        let seen = observer.wait(changed).await?;
        let mut lags: Vec<Duration> = begun
            .iter()
            .filter_map(|(name, at)| Some(seen.get(name)?.1.saturating_duration_since(*at)))
            .collect();
        lags.sort();
        Ok(lags)
    }

    /// The command that runs our process between both clusters.
    fn ours(&self, field: &Candidates) -> anyhow::Result<Command> {
        let config = self.upper.data_dir().join("cluster.json");
        let [above, below] = &self.names;
        let text = json!({"kubeconfig": self.lower.admin_kubeconfig(), "namespaces": {above: below}});
        fs::write(&config, text.to_string())?;
        let mut command = Command::new(field.ours());
        command.args(["run", "--provider", "cluster", "--nodename", NODE, "--metrics-addr", "off"]);
        command.args(["--log-level", "warn", "--port", "11999", "--rotate-server-certificates=false"]);
        command.arg("--provider-config").arg(&config).arg("--kubeconfig").arg(self.upper.admin_kubeconfig());
        Ok(command)
    }

    /// The command that runs the bare client between both clusters.
    fn bare(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bare-cluster");
        command.arg("--upper").arg(self.upper.admin_kubeconfig()).args(["--above", &self.names[0]]);
        command.arg("--lower").arg(self.lower.admin_kubeconfig()).args(["--below", &self.names[1]]);
        Ok(command)
    }
}

/// Watches the addresses of the upper pods, with the time of each change.
struct StatusObserver {
    seen: watch::Receiver<HashMap<String, (String, Instant)>>,
    watching: JoinHandle<()>,
}

impl StatusObserver {
    fn start(pods: Api<Pod>) -> Self {
        let (sender, seen) = watch::channel(HashMap::new());
        #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
        let watching = tokio::spawn(async move {
            let mut events = watcher(pods, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let now = Instant::now();
                let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else {
                    continue;
                };
                let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
                let name = pod.metadata.name.unwrap_or_default();
                sender.send_if_modified(|seen| match seen.get(&name) {
                    Some((known, _)) if *known == address => false,
                    _ => {
                        seen.insert(name, (address, now));
                        true
                    }
                });
            }
        });
        Self { seen, watching }
    }

    async fn wait(
        &self,
        wanted: impl Fn(&HashMap<String, (String, Instant)>) -> bool,
    ) -> anyhow::Result<HashMap<String, (String, Instant)>> {
        let mut seen = self.seen.clone();
        let found = tokio::time::timeout(LIMIT, seen.wait_for(|seen| wanted(seen))).await;
        Ok(found.context("not all statuses arrived")??.clone())
    }
}

impl Drop for StatusObserver {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Sets a pod to Running with this address.
async fn run(pods: Api<Pod>, name: String, address: String) -> anyhow::Result<()> {
    let running = json!({"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "name": "main", "ready": true,
        "started": true, "restartCount": 0, "image": "bench", "imageID": "", "containerID": "bench://1"});
    let kinds = ["Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers"];
    let conditions = kinds.map(|kind| json!({"type": kind, "status": "True"}));
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "startTime": "2026-01-01T00:00:00Z", "conditions": conditions, "containerStatuses": [running]});
    // A merge patch, so that earlier addresses are replaced.
    let body = json!({"status": status});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&body)).await?;
    Ok(())
}
