//! Pods on trial, beside the same pods bound by hand: the virtual node runs them in a lower cluster with a real scheduler, on mock nodes.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{ControlPlane, Process, control_plane};

use super::{
    Session,
    pod_observer::PodObserver,
    process_metrics::Writes,
    testbed::{self, ClusterNodes, MockNodes, PlacementProcess, scheduler_config, wait_for},
};
use crate::{
    candidate::{Candidate, Candidates, NODE},
    objects::create_all,
    report::{Figure, print_progress, thousands},
};

const REPORT: &str = "pods-on-trial";
/// The writes are complete when there were none for this long.
const QUIET: Duration = Duration::from_secs(2);
/// Writes to pods by others: users and kube-scheduler, and in the lower cluster its scheduler and its nodes.
const OF_OTHERS_ABOVE: [&str; 3] = ["POST pods", "POST pods/binding", "DELETECOLLECTION pods"];
const OF_OTHERS_BELOW: [&str; 2] = ["POST pods/binding", "PATCH pods/status"];

#[derive(Debug, Args)]
pub(super) struct TrialLoad {
    /// Pods on trial
    #[arg(long, default_value_t = 200)]
    trial_pods: usize,
    /// Lower nodes for them, with 64 CPUs each
    #[arg(long, default_value_t = 10)]
    trial_lower_nodes: u16,
}

/// Both clusters, their nodes and the placement process. Clusters are the last to be dropped.
struct TrialClusters {
    _placement: PlacementProcess,
    _node: Process,
    _lower_nodes: Process,
    pods: Api<Pod>,
    upper: ControlPlane,
    lower: ControlPlane,
}

impl TrialLoad {
    pub(super) async fn measure(&self, session: &Session<'_>) -> anyhow::Result<()> {
        let count = self.trial_pods;
        let mut report = session.report(Candidate::Bare);
        print_progress("two clusters for pods on trial");
        let clusters = Box::pin(self.prepare(session.field)).await?;
        report.host.record_version(&clusters.upper).await?;
        // The first pod pays for the lower namespace.
        clusters.run(Candidate::Bare, 1).await.context("a first pod")?;
        for round in 1..=session.rounds {
            for &candidate in &session.field.selected {
                print_progress(&format!("{} pods on trial, {candidate}, round {round}", thousands(count)));
                let figures = Box::pin(clusters.run(candidate, count)).await;
                report.outcome(candidate, count, figures)?;
                report.save(session.out, REPORT)?;
            }
        }
        report.publish(session.out, REPORT)
    }

    async fn prepare(&self, field: &Candidates) -> anyhow::Result<TrialClusters> {
        let options = || control_plane::Options {
            scheduler_config: Some(scheduler_config(&json!([]))),
            ..control_plane::Options::with_controllers()
        };
        let (upper, lower) =
            tokio::try_join!(ControlPlane::start(options()), ControlPlane::start(options()))?;
        let lower_nodes = MockNodes {
            pattern: "lower-{}",
            count: self.trial_lower_nodes,
            is_tainted: false,
            config: json!({"cpu": "64", "memory": "256Gi", "pods": "1000"}),
        };
        let lower_nodes = lower_nodes.start(field, Candidate::Ours, &lower).await?;
        // The lower nodes are virtual themselves.
        let names = [NODE.to_owned()];
        let node = ClusterNodes { names: &names, config: json!({"virtualNodes": true}), lower: &lower };
        let node = node.start(field, &upper).await?;
        let nodes: Api<Node> = Api::all(upper.admin()?);
        wait_for("the virtual node takes pods on trial and has capacity", async || {
            let node = nodes.get(NODE).await?;
            let capacity = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            let has_capacity = capacity.is_some_and(|all| all.get("cpu").is_some_and(|cpu| cpu.0 != "0"));
            Ok(vk_provider::placement::declares_trial(&node) && has_capacity)
        })
        .await?;
        let placement = PlacementProcess::start(field, &upper, &["--gates", "trial"]).await?;
        let namespace = upper.namespace("bench").await?;
        let pods = Api::namespaced(upper.admin()?, namespace.name());
        Ok(TrialClusters {
            _placement: placement,
            _node: node,
            _lower_nodes: lower_nodes,
            pods,
            upper,
            lower,
        })
    }
}

// === impl TrialClusters ===

impl TrialClusters {
    /// Runs pods once, and deletes them.
    async fn run(&self, who: Candidate, count: usize) -> anyhow::Result<Vec<Figure>> {
        let prepared = |index| {
            let pod = testbed::pod(index, 1);
            if who == Candidate::Bare { bound(pod) } else { testbed::gated(pod) }
        };
        let before = self.writes().await?;
        let observer = PodObserver::start(self.pods.clone());
        let begun = Instant::now();
        create_all(&self.pods, (0..count).map(prepared)).await?;
        let seen = observer.wait("run", count, |seen| seen.running.count).await?;
        let took = seen.running.last.context("no pod runs")? - begun;
        let after = self.quiet_writes().await?;
        observer.delete_all().await?;
        let lower: Api<Pod> = Api::all(self.lower.admin()?);
        wait_for("the lower pods are gone", async || Ok(lower.list(&<_>::default()).await?.items.is_empty()))
            .await?;
        self.quiet_writes().await?;
        #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
        let each = |writes: f64| writes / count as f64;
        let above = after[0].since(&before[0], &["pods"], &OF_OTHERS_ABOVE);
        let below = after[1].since(&before[1], &["pods"], &OF_OTHERS_BELOW);
        let events = after[0].since(&before[0], &["events"], &[]);
        print_progress(&format!("    above: {above}; below: {below}"));
        Ok(vec![
            ("all pods Running", took.as_secs_f64(), "s"),
            ("writes to the upper pod", each(above.sum()), "for each pod"),
            ("writes to the lower pod", each(below.sum()), "for each pod"),
            ("writes of events above", each(events.sum()), "for each pod"),
        ])
    }

    /// The writes to both API servers.
    async fn writes(&self) -> anyhow::Result<[Writes; 2]> {
        Ok([Writes::of(&self.upper.admin()?).await?, Writes::of(&self.lower.admin()?).await?])
    }

    /// The writes, when there are no more of them.
    async fn quiet_writes(&self) -> anyhow::Result<[Writes; 2]> {
        let mut last = self.writes().await?;
        wait_for("nothing is written to pods any more", async || {
            tokio::time::sleep(QUIET).await;
            let now = self.writes().await?;
            let new = |index: usize| now[index].since(&last[index], &["pods"], &[]).sum();
            let is_quiet = new(0) + new(1) < 0.5;
            last.clone_from(&now);
            Ok(is_quiet)
        })
        .await?;
        Ok(last)
    }
}

/// The pod as a user creates it who has chosen the node.
fn bound(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!(NODE);
    pod
}
