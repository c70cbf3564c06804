//! Many nodes in one process: time to Ready, timely lease renewal, CPU and memory.

mod bare_nodes;
mod lease_observer;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::Instant;
use vk_testing::{ControlPlane, Usage, control_plane};

pub(crate) use self::bare_nodes::BareNodes;
use self::lease_observer::LeaseObserver;
use crate::{
    candidate::{Candidate, CandidateArgs, Candidates, create_node, takes_nodes},
    host_info::HostInfo,
    report::{Figure, Report, print_progress, thousands},
};

const LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// How many nodes, one run for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1000])]
    count: Vec<usize>,
    /// How long to watch their leases, in seconds
    #[arg(long, default_value_t = 60)]
    watch: u64,
    #[command(flatten)]
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Nodes {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The kubelet and `local` need containers.
        self.field.without_containers();
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::new(HostInfo::detect()?);
        for &count in &self.count {
            for &candidate in &field.selected {
                match candidate {
                    Candidate::GoAsShipped => {
                        let why = "has one node in a process, so there is nothing to compare".to_owned();
                        report.leave_out(candidate, count, why);
                        continue;
                    }
                    // 4 leases at a time are enough for kwok: more changes nothing.
                    Candidate::GoUnlimited | Candidate::KwokUnlimited => continue,
                    _ => {}
                }
                report.versions.extend(field.version(candidate).map(|version| (candidate, version)));
                print_progress(&format!("{} nodes, {candidate}", thousands(count)));
                let figures = Box::pin(self.one(candidate, &field, count, &mut report.host)).await;
                report.outcome(candidate, count, figures)?;
                report.save(&self.out, "nodes")?;
            }
        }
        report.publish(&self.out, "nodes")
    }

    async fn one(
        &self,
        who: Candidate,
        field: &Candidates,
        count: usize,
        host: &mut HostInfo,
    ) -> anyhow::Result<Vec<Figure>> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        host.record_version(&cluster).await?;
        let client = cluster.admin()?;
        let mut observer = LeaseObserver::start(client.clone());
        let begun = Instant::now();
        let mut process =
            field.start(who, &format!("nodes-{count}"), field.many_nodes(who, &cluster, count)?)?;
        if takes_nodes(who) {
            let nodes: Api<Node> = Api::all(client);
            stream::iter(0..count)
                .map(|index| {
                    let nodes = nodes.clone();
                    async move { create_node(&nodes, &format!("kwok-{index}")).await }
                })
                .buffer_unordered(64)
                .try_collect::<Vec<()>>()
                .await?;
        }
        while observer.ready() < count {
            anyhow::ensure!(process.ended()?.is_none(), "it ended: see its log");
            anyhow::ensure!(begun.elapsed() < LIMIT, "{} of {count} nodes are Ready", observer.ready());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = begun.elapsed();

        // Registration is over when every lease was renewed once.
        tokio::time::sleep(Duration::from_secs(12)).await;
        observer.begin();
        let (from, before) = (Instant::now(), Usage::of(process.id())?);
        tokio::time::sleep(Duration::from_secs(self.watch)).await;
        let (after, window) = (Usage::of(process.id())?, from.elapsed());
        let leases = observer.end(count);
        Ok(vec![
            ("start to all nodes Ready", took.as_secs_f64(), "s"),
            ("leases renewed in time", leases.in_time * 100.0, "% of the renewals"),
            ("longest time between two renewals of a lease", leases.longest.as_secs_f64(), "s"),
            ("nodes Ready all the time", leases.steady * 100.0, "% of the nodes"),
            ("processor", after.cores_since(&before, window), "cores"),
            ("resident", after.megabytes(), "MB"),
        ])
    }
}
