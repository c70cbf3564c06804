//! A burst of pods to Running and back to nothing: all contestants, each with a control plane of its own, in one run.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use vk_testing::{ControlPlane, Usage, control_plane};

use crate::{
    burst::{Burst, Up},
    contestant::{Contestant, Field, Prepared, make_node, ready, takes_nodes},
    machine::{Machine, peak_megabytes},
    report::{Figure, Report, say, thousands},
};

/// Memory is read this long after what it is read for: collectors have run, buffers have gone.
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
    field: Field,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Pods {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // It has nothing to do without containers.
        self.field.without_containers();
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::new(Machine::look()?);
        for &contestant in &field.contestants {
            report.versions.extend(field.version(contestant).map(|version| (contestant, version)));
        }
        for &count in &self.count {
            // Round by round, not contestant by contestant: what changes on the machine meanwhile meets all alike.
            for round in 0..self.rounds {
                for &contestant in &field.contestants {
                    let is_go = matches!(contestant, Contestant::GoAsShipped | Contestant::GoUnlimited);
                    if is_go && count > MANY {
                        let why = format!("not run with {} pods, because of its time", thousands(count));
                        report.leave_out(contestant, count, why);
                        continue;
                    }
                    if round > 0 && (is_go || count > MANY) {
                        continue;
                    }
                    say(&format!("{} pods, {contestant}, round {}", thousands(count), round + 1));
                    let figures = Box::pin(one(contestant, &field, count, &mut report.machine)).await;
                    report.outcome(contestant, count, figures)?;
                    report.save(&self.out, "pods")?;
                }
            }
        }
        report.publish(&self.out, "pods")
    }
}

async fn one(
    who: Contestant,
    field: &Prepared,
    count: usize,
    machine: &mut Machine,
) -> anyhow::Result<Vec<Figure>> {
    let cluster = ControlPlane::start(control_plane::Options::default()).await?;
    machine.saw(&cluster).await?;
    let namespace = cluster.namespace("bench").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());
    if who == Contestant::Bare {
        let mut burst = Burst::bare(pods, count);
        let up = burst.up().await?;
        tokio::time::sleep(SETTLE).await;
        let down = burst.down().await?;
        return Ok(times(count, &up, down));
    }

    let nodes: Api<Node> = Api::all(cluster.admin()?);
    let mut process = field.start(who, &format!("pods-{count}"), field.one_node(who, &cluster)?)?;
    if takes_nodes(who) {
        make_node(&nodes, crate::contestant::NODE).await?;
    }
    ready(&nodes, &mut process).await?;
    tokio::time::sleep(SETTLE).await;
    let idle = Usage::of(process.id())?;
    let mut burst = Burst::new(pods, count);
    let up = burst.up().await?;
    let ran = Usage::of(process.id())?;
    tokio::time::sleep(SETTLE).await;
    let full = Usage::of(process.id()).context("it ended")?;
    let down = burst.down().await?;
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

fn times(count: usize, up: &Up, down: Duration) -> Vec<Figure> {
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
