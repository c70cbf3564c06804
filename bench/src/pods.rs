//! Many pods to Running and gone again: all candidates, each with its own control plane, in one run.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use vk_testing::{ControlPlane, Usage, control_plane};

use crate::{
    candidate::{Candidate, CandidateArgs, Candidates, create_node, ready, takes_nodes},
    host_info::{HostInfo, peak_megabytes},
    pod_load::{PodLoad, StartTimes},
    report::{Figure, Report, print_progress, thousands},
};

/// Time before memory is measured, so that garbage collectors have run and buffers are released.
const SETTLE: Duration = Duration::from_secs(5);
/// Above this number of pods one round is enough, and the Go original takes too long.
const MANY: usize = 1000;

#[derive(Debug, Args)]
pub(crate) struct Pods {
    /// How many pods, one run for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000])]
    count: Vec<usize>,
    /// How often; the round in the middle counts. The Go original, and more than 1,000 pods, are run once
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Pods {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The kubelet and `local` need containers.
        self.field.without_containers();
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::new(HostInfo::detect()?);
        for &candidate in &field.selected {
            report.versions.extend(field.version(candidate).map(|version| (candidate, version)));
        }
        for &count in &self.count {
            // Round by round, not candidate by candidate, so that changes on the host affect all alike.
            for round in 0..self.rounds {
                for &candidate in &field.selected {
                    let is_go = matches!(candidate, Candidate::GoAsShipped | Candidate::GoUnlimited);
                    if is_go && count > MANY {
                        let why = format!("not run with {} pods, because of its time", thousands(count));
                        report.leave_out(candidate, count, why);
                        continue;
                    }
                    if round > 0 && (is_go || count > MANY) {
                        continue;
                    }
                    print_progress(&format!("{} pods, {candidate}, round {}", thousands(count), round + 1));
                    let figures = Box::pin(one(candidate, &field, count, &mut report.host)).await;
                    report.outcome(candidate, count, figures)?;
                    report.save(&self.out, "pods")?;
                }
            }
        }
        report.publish(&self.out, "pods")
    }
}

async fn one(
    who: Candidate,
    field: &Candidates,
    count: usize,
    host: &mut HostInfo,
) -> anyhow::Result<Vec<Figure>> {
    let cluster = ControlPlane::start(control_plane::Options::default()).await?;
    host.record_version(&cluster).await?;
    let namespace = cluster.namespace("bench").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());
    if who == Candidate::Bare {
        let mut load = PodLoad::bare(pods, count);
        let up = load.start().await?;
        tokio::time::sleep(SETTLE).await;
        let down = load.delete().await?;
        return Ok(times(count, &up, down));
    }

    let command = field.one_node(who, &cluster)?;
    load_node(who, field, count, &cluster, command, pods).await
}

/// Starts a node with this command, and gives it pods.
pub(crate) async fn load_node(
    who: Candidate,
    field: &Candidates,
    count: usize,
    cluster: &ControlPlane,
    command: Command,
    pods: Api<Pod>,
) -> anyhow::Result<Vec<Figure>> {
    let nodes: Api<Node> = Api::all(cluster.admin()?);
    let mut process = field.start(who, &format!("pods-{count}"), command)?;
    if takes_nodes(who) {
        create_node(&nodes, crate::candidate::NODE).await?;
    }
    ready(&nodes, &mut process).await?;
    tokio::time::sleep(SETTLE).await;
    let idle = Usage::of(process.id())?;
    let mut load = PodLoad::new(pods, count);
    let up = load.start().await?;
    let ran = Usage::of(process.id())?;
    tokio::time::sleep(SETTLE).await;
    let full = Usage::of(process.id()).context("it ended")?;
    let down = load.delete().await?;
    let ended = Usage::of(process.id())?;
    tokio::time::sleep(SETTLE).await;
    let after = Usage::of(process.id())?;
    let busy = ran.cpu.saturating_sub(idle.cpu) + ended.cpu.saturating_sub(full.cpu);
    let mut figures = times(count, &up, down);
    figures.extend([
        ("processor time of the pods to Running and gone", busy.as_secs_f64(), "s"),
        ("resident, idle", idle.megabytes(), "MB"),
        ("resident with the pods", full.megabytes(), "MB"),
        ("resident after their deletion", after.megabytes(), "MB"),
        ("resident at most", peak_megabytes(process.id())?, "MB"),
    ]);
    Ok(figures)
}

fn times(count: usize, up: &StartTimes, down: Duration) -> Vec<Figure> {
    // Exact: these are counts of pods.
    #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
    let rate = count as f64 / up.all.as_secs_f64();
    vec![
        ("bound pods to Running", rate, "pods/s"),
        ("p50 from create to Running", up.within(50).as_secs_f64(), "s"),
        ("p99 from create to Running", up.within(99).as_secs_f64(), "s"),
        ("all deleted, 30 s grace", down.as_secs_f64(), "s"),
    ]
}
