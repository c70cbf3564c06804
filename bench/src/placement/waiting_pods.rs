//! Many pods of which no node has room: what they cost while they wait.

use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};
use vk_testing::{ControlPlane, control_plane};

use super::{
    Session,
    pod_observer::PodObserver,
    process_metrics::Writes,
    testbed::{self, MockNodes, PlacementProcess, wait_for, without_node_taints},
};
use crate::{
    candidate::{Candidate, Candidates},
    host_info::HostInfo,
    objects::create_all,
    report::{Figure, print_progress, thousands},
};

const REPORT: &str = "waiting-pods";
/// Time before memory is measured, and how long nothing is written when it is quiet.
const SETTLE: Duration = Duration::from_secs(5);
/// What placement writes.
const WRITTEN: [&str; 3] = ["pods", "events", "configmaps"];
const QUERIES: &str = "virtual_kubelet_placement_fit_queries_total";
/// The goals, in the units of the report.
const GOALS: [Figure; 5] = [
    ("resident, idle", 25.0, "MB"),
    ("resident with the pods", 80.0, "MB"),
    ("writes while nothing changes", 0.0, "writes/s"),
    ("queries with one node change a second", 200.0, "queries/s"),
    ("processor with one node change a second", 0.2, "cores"),
];

#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "each is the name of a flag")]
pub(super) struct WaitingLoad {
    /// Pods that wait
    #[arg(long, default_value_t = 5000)]
    waiting_pods: usize,
    /// How many shapes they have
    #[arg(long, default_value_t = 20)]
    waiting_shapes: usize,
    /// Virtual nodes that refuse them
    #[arg(long, default_value_t = 10)]
    waiting_nodes: u16,
    /// For how long a node changes every second, in seconds; nothing changes for half of that before
    #[arg(long, default_value_t = 60)]
    waiting_seconds: u32,
}

impl WaitingLoad {
    pub(super) async fn measure(&self, session: &Session<'_>) -> anyhow::Result<()> {
        let count = self.waiting_pods;
        let mut report = session.report(Candidate::Goal);
        report.add(Candidate::Goal, count, GOALS.to_vec());
        print_progress(&format!("{} waiting pods", thousands(count)));
        let figures = Box::pin(self.one(session.field, &mut report.host)).await;
        report.outcome(Candidate::Ours, count, figures)?;
        report.publish(session.out, REPORT)
    }

    async fn one(&self, field: &Candidates, host: &mut HostInfo) -> anyhow::Result<Vec<Figure>> {
        // Nothing is ever scheduled here.
        let cluster = ControlPlane::start(without_node_taints(control_plane::Options::default())).await?;
        host.record_version(&cluster).await?;
        let client = cluster.admin()?;
        let nodes = MockNodes {
            pattern: "vk-{}",
            count: self.waiting_nodes,
            is_tainted: true,
            config: json!({"cpu": "100k", "memory": "100Ti", "pods": "100k", "fit": {"refused": "insufficient cpu"}}),
        };
        let _nodes = nodes.start(field, Candidate::Ours, &cluster).await?;
        let placement = PlacementProcess::start(field, &cluster, &["--gates", "estimate"]).await?;
        tokio::time::sleep(SETTLE).await;
        let idle = placement.usage()?;

        let namespace = cluster.namespace("bench").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace.name());
        let observer = PodObserver::start(pods.clone());
        let begun = Instant::now();
        let shaped = |index| testbed::gated(testbed::pod(index, self.waiting_shapes));
        create_all(&pods, (0..self.waiting_pods).map(shaped)).await?;
        let seen = observer.wait("say why they wait", self.waiting_pods, |seen| seen.refused.count).await?;
        let told = seen.refused.last.map_or(Duration::ZERO, |last| last - begun);
        wait_until_quiet(&client).await?;
        let full = placement.usage()?;

        let window = Duration::from_secs((self.waiting_seconds / 2).max(1).into());
        let (before, from) = (Writes::of(&client).await?, Instant::now());
        let quiet = placement.usage()?;
        tokio::time::sleep(window).await;
        let quiet = placement.usage()?.cores_since(&quiet, from.elapsed());
        let unprompted = Writes::of(&client).await?.since(&before, &WRITTEN, &[]).sum();
        let unprompted = unprompted / from.elapsed().as_secs_f64();

        let (before, from) = (Writes::of(&client).await?, Instant::now());
        let (asked, busy) = (placement.metrics().await?.sum(QUERIES, &[]), placement.usage()?);
        self.change_nodes(&client).await?;
        let elapsed = from.elapsed();
        let busy = placement.usage()?.cores_since(&busy, elapsed);
        let asked = placement.metrics().await?.sum(QUERIES, &[]) - asked;
        anyhow::ensure!(asked > 0.0, "no node was asked when nodes changed, so nothing was measured");
        let prompted = Writes::of(&client).await?.since(&before, &WRITTEN, &[]).sum();
        let still = observer.wait("wait", self.waiting_pods, |seen| seen.there.unwrap_or_default()).await?;
        anyhow::ensure!(still.ungated.count == 0, "{} pods do not wait any more", still.ungated.count);
        Ok(vec![
            ("resident, idle", idle.megabytes(), "MB"),
            ("resident with the pods", full.megabytes(), "MB"),
            ("resident at the end", placement.usage()?.megabytes(), "MB"),
            ("creation to all pods with a reason", told.as_secs_f64(), "s"),
            ("writes while nothing changes", unprompted, "writes/s"),
            ("processor while nothing changes", quiet, "cores"),
            ("queries with one node change a second", asked / elapsed.as_secs_f64(), "queries/s"),
            ("processor with one node change a second", busy, "cores"),
            ("writes with one node change a second", prompted / elapsed.as_secs_f64(), "writes/s"),
        ])
    }

    /// Changes a label of one node after the other, one in a second.
    async fn change_nodes(&self, client: &kube::Client) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for second in 0..self.waiting_seconds {
            ticks.tick().await;
            let patch = json!({"metadata": {"labels": {"bench": second.to_string()}}});
            let name = format!("vk-{}", second % u32::from(self.waiting_nodes.max(1)));
            nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        // What the last change leads to counts, too.
        ticks.tick().await;
        Ok(())
    }
}

async fn wait_until_quiet(client: &kube::Client) -> anyhow::Result<()> {
    let mut last = Writes::of(client).await?;
    wait_for("nothing is written about the pods any more", async || {
        tokio::time::sleep(SETTLE).await;
        let now = Writes::of(client).await?;
        let is_quiet = now.since(&last, &WRITTEN, &[]).sum() < 0.5;
        last.clone_from(&now);
        Ok(is_quiet)
    })
    .await
}
