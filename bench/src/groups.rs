//! Many pods on container groups: the provider `eci` on an emulator in this process, beside the mock provider. The difference is what the engine
//! for container groups costs.

use std::path::PathBuf;

use clap::Args;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use vk_eci_emulator::{EciEmulator, Options, Settings, Timing};
use vk_testing::{ControlPlane, control_plane};

use crate::{
    candidate::{Candidate, CandidateArgs, Candidates},
    host_info::HostInfo,
    pods::load_node,
    report::{Figure, Report, print_progress, thousands},
};

#[derive(Debug, Args)]
pub(crate) struct Groups {
    /// How many pods
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// How often; the round in the middle counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Groups {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        self.field.keep(&[]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::beside(HostInfo::detect()?, Candidate::Ours);
        let candidates = [Candidate::Ours, Candidate::Eci];
        for candidate in candidates {
            report.versions.extend(field.version(candidate).map(|version| (candidate, version)));
        }
        for round in 0..self.rounds {
            for candidate in candidates {
                print_progress(&format!("{} pods, {candidate}, round {}", thousands(self.count), round + 1));
                let figures = Box::pin(one(candidate, &field, self.count, &mut report.host)).await;
                report.outcome(candidate, self.count, figures)?;
                report.save(&self.out, "groups")?;
            }
        }
        report.publish(&self.out, "groups")
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
    if who != Candidate::Eci {
        let command = field.one_node(who, &cluster)?;
        return load_node(who, field, count, &cluster, command, pods).await;
    }
    let emulator = EciEmulator::start(options()).await?;
    let command = field.our_node(&cluster, "eci", &config(&emulator.endpoint()))?;
    let mut figures = load_node(who, field, count, &cluster, command, pods).await?;
    let calls: u64 = emulator.calls().values().map(|calls| calls.total).sum();
    // Exact: these are counts.
    #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
    let per_pod = calls as f64 / count as f64;
    figures.push(("calls of the cloud in the life of a pod", per_pod, ""));
    Ok(figures)
}

/// A cloud that is as fast as the mock provider, and without limits.
fn options() -> Options {
    let timing = Timing {
        scheduling: SignedDuration::ZERO,
        pulling: SignedDuration::ZERO,
        stopping: SignedDuration::ZERO,
        ..Timing::instant()
    };
    let settings = Settings { timing, max_cpu: 1e9, ..Settings::default() };
    Options { settings, limits_rates: false, ..Options::new() }
}

fn config(endpoint: &str) -> String {
    format!(
        "region: cn-hangzhou\nvSwitches: [vsw-a]\nsecurityGroup: sg-1\nclusterName: bench\ncredentials: static\naccessKey: testid\nsecretKey: testsecret\n\
         capacity: {{cpu: 100k, memory: 100Ti, pods: 100k}}\nbudget: {{requestsPerSecond: 100000, burst: 100000}}\nendpoint: {endpoint}\n"
    )
}
