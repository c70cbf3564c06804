//! The question whether pods fit: how long it takes in process and over HTTP, and the memory of the snapshot and of the provider `cluster`.

mod load;
mod snapshot;

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::json;
use tokio::{process::Command, time::Instant};
use vk_kube::ClientOptions;
use vk_placement::ask::{AskLimits, FitClient};
use vk_provider::{ability::Verdict, placement::FitQuery};
use vk_supervisor::Supervisor;
use vk_testing::{ControlPlane, Usage, control_plane};

use self::load::{Asked, QueryLoad, percentile};
pub(crate) use self::snapshot::SnapshotLoad;
use super::{
    Session,
    testbed::{ClusterNodes, wait_for, without_node_taints},
};
use crate::{
    candidate::{Candidate, Candidates, NODE},
    host_info::{HostInfo, peak_megabytes},
    objects::create_all,
    report::{Figure, print_progress, thousands},
};

const REPORT: &str = "lower-pods";
/// Time before memory is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// Queries over HTTP that are not measured: the first connection, and the permission, which the node remembers.
const WARM_UP: usize = 50;
/// The goals for 1,000 lower nodes with 20,000 pods.
const GOALS: [Figure; 3] = [
    ("query in process, p99", 0.3, "ms"),
    ("query over HTTP, p99", 2.0, "ms"),
    ("resident, provider cluster", 200.0, "MB"),
];
/// The goals for ten times as many.
const LARGE_GOALS: [Figure; 2] =
    [("query in process, p99", 3.0, "ms"), ("memory of the snapshot", 60.0, "MB")];

#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "each is the name of a flag")]
pub(super) struct FitLoad {
    /// Lower nodes
    #[arg(long, default_value_t = 1000)]
    fit_nodes: usize,
    /// Pods on them
    #[arg(long, default_value_t = 20_000)]
    fit_pods: usize,
    /// How many times as many nodes and pods there are in the large snapshot
    #[arg(long, default_value_t = 10)]
    fit_scale: usize,
    /// Queries of each kind
    #[arg(long, default_value_t = 2000)]
    fit_queries: usize,
}

impl FitLoad {
    pub(super) async fn measure(&self, session: &Session<'_>) -> anyhow::Result<()> {
        let (nodes, pods) = (self.fit_nodes, self.fit_pods);
        let (many_nodes, many_pods) = (nodes * self.fit_scale, pods * self.fit_scale);
        let mut report = session.report(Candidate::Goal);
        report.add(Candidate::Goal, pods, GOALS.to_vec());
        report.add(Candidate::Goal, many_pods, LARGE_GOALS.to_vec());
        for (nodes, pods) in [(nodes, pods), (many_nodes, many_pods)] {
            print_progress(&format!("{} lower pods in process", thousands(pods)));
            report.outcome(Candidate::Ours, pods, self.in_process(nodes, pods).await)?;
        }
        print_progress(&format!("{} lower pods behind a virtual node", thousands(pods)));
        let figures = Box::pin(self.over_http(session.field, &mut report.host)).await;
        report.outcome(Candidate::Ours, pods, figures)?;
        report.publish(session.out, REPORT)
    }

    /// Measures a snapshot, in a process of its own so that its memory can be measured.
    async fn in_process(&self, nodes: usize, pods: usize) -> anyhow::Result<Vec<Figure>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["snapshot-load", "--nodes", &nodes.to_string(), "--pods", &pods.to_string()]);
        let output = command.args(["--queries", &self.fit_queries.to_string()]).kill_on_drop(true).output();
        let output = output.await.context("measure a snapshot")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "measure a snapshot: {problem}");
        snapshot::figures(&output.stdout)
    }

    /// A virtual node with a lower cluster full of pods of others.
    async fn over_http(&self, field: &Candidates, host: &mut HostInfo) -> anyhow::Result<Vec<Figure>> {
        let options = without_node_taints(control_plane::Options::default());
        let (upper, lower) =
            tokio::try_join!(ControlPlane::start(options.clone()), ControlPlane::start(options))?;
        host.record_version(&upper).await?;
        let (above, below) = (upper.namespace("above").await?, lower.namespace("below").await?);
        let others = lower.namespace("others").await?;
        let lower_nodes: Api<Node> = Api::all(lower.admin()?);
        create_all(&lower_nodes, (0..self.fit_nodes).map(load::node)).await?;
        let lower_pods: Api<Pod> = Api::namespaced(lower.admin()?, others.name());
        let bound = |index| load::pod(index, Some(index % self.fit_nodes.max(1)));
        create_all(&lower_pods, (0..self.fit_pods).map(bound)).await?;

        let names = [NODE.to_owned()];
        let config = json!({"namespaces": {above.name(): below.name()}});
        let process = ClusterNodes { names: &names, config, lower: &lower }.start(field, &upper).await?;
        let supervisor = Supervisor::new();
        let options = ClientOptions { kubeconfig: Some(upper.admin_kubeconfig().to_owned()), server: None };
        let client = options.connect(&supervisor, vk_kube::Metrics::default()).await?;
        let fit_client = FitClient::new(client, AskLimits::default());
        let nodes: Api<Node> = Api::all(upper.admin()?);
        let queries = QueryLoad::new(Asked::VirtualNode(above.name()))?;
        // It declares the ability, its server has a key, and it has listed the lower cluster soon after it is Ready.
        let mut last = String::new();
        wait_for("the virtual node answers that a pod fits", async || {
            let answer = fit_client.ask(&nodes.get(NODE).await?, &queries.query(0)).await;
            last = format!("it answers {answer:?}");
            Ok(answer.is_ok_and(|answer| answer.verdicts.iter().all(Verdict::fits)))
        })
        .await
        .with_context(|| last)?;
        let node = nodes.get(NODE).await?;
        let mut times = Vec::new();
        for index in 0..WARM_UP + self.fit_queries {
            let query: FitQuery = queries.query(index);
            let begun = Instant::now();
            let answer = fit_client.ask(&node, &query).await?;
            let elapsed = begun.elapsed();
            queries.check(index, &answer.verdicts)?;
            if index >= WARM_UP {
                times.push(elapsed);
            }
        }
        times.sort();
        tokio::time::sleep(SETTLE).await;
        let usage =
            Usage::of(process.id()).context("the process of the virtual node has ended: see its log")?;
        let peak = peak_megabytes(process.id())?;
        supervisor.shut_down(SETTLE).await;
        Ok(vec![
            ("query over HTTP, p50", percentile(&times, 50), "ms"),
            ("query over HTTP, p99", percentile(&times, 99), "ms"),
            ("resident, provider cluster", usage.megabytes(), "MB"),
            ("resident at most, provider cluster", peak, "MB"),
        ])
    }
}
