//! Pods behind the scheduling gate: how fast the placement process removes the gates of pods that all have room, beside a bare client that
//! removes them as fast as it can. A mock node runs the pods, and the real kube-scheduler binds them.

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use vk_testing::{ControlPlane, control_plane};

use super::{
    Session,
    pod_observer::PodObserver,
    testbed::{self, MockNodes, PlacementProcess, scheduler_config},
};
use crate::{
    candidate::{Candidate, Candidates},
    host_info::HostInfo,
    objects::{CONCURRENCY, create_all},
    report::{Figure, print_progress, thousands},
};

const REPORT: &str = "gated-pods";

#[derive(Debug, Args)]
pub(super) struct GateLoad {
    /// Pods behind the scheduling gate, one run for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1000])]
    count: Vec<usize>,
}

impl GateLoad {
    pub(super) async fn measure(&self, session: &Session<'_>) -> anyhow::Result<()> {
        let mut report = session.report(Candidate::Bare);
        for &count in &self.count {
            for round in 1..=session.rounds {
                for &candidate in &session.field.selected {
                    print_progress(&format!("{} gated pods, {candidate}, round {round}", thousands(count)));
                    let figures = Box::pin(one(candidate, session.field, count, &mut report.host)).await;
                    report.outcome(candidate, count, figures)?;
                    report.save(session.out, REPORT)?;
                }
            }
        }
        report.publish(session.out, REPORT)
    }
}

async fn one(
    who: Candidate,
    field: &Candidates,
    count: usize,
    host: &mut HostInfo,
) -> anyhow::Result<Vec<Figure>> {
    let mut options = control_plane::Options::with_controllers();
    options.scheduler_config = Some(scheduler_config(&json!([])));
    let cluster = ControlPlane::start(options).await?;
    host.record_version(&cluster).await?;
    let client = cluster.admin()?;
    let namespace = cluster.namespace("bench").await?;
    let nodes = MockNodes {
        pattern: "bench-{}",
        count: 1,
        is_tainted: true,
        config: json!({"cpu": "100k", "memory": "100Ti", "pods": "100k", "fit": {"lowerNodes": 10}}),
    };
    let _node = nodes.start(field, who, &cluster).await?;
    let pods: Api<Pod> = Api::namespaced(client, namespace.name());
    create_all(&pods, (0..count).map(|index| testbed::gated(testbed::pod(index, 1)))).await?;
    let observer = PodObserver::start(pods.clone());
    observer.wait("exist", count, |seen| seen.there.unwrap_or_default()).await?;

    let mut figures = Vec::new();
    let seen = if who == Candidate::Ours {
        let process = PlacementProcess::start(field, &cluster, &["--gates", "estimate"]).await?;
        let seen = observer.wait("run", count, |seen| seen.running.count).await?;
        let usage = process.usage()?;
        figures.push(("memory with the pods", usage.megabytes(), "MB"));
        figures.push(("processor time", usage.cpu.as_secs_f64(), "s"));
        seen
    } else {
        remove_gates(&pods, count).await?;
        observer.wait("run", count, |seen| seen.running.count).await?
    };
    let rate = |until: Option<tokio::time::Instant>| {
        let (first, last) = seen.ungated.first.zip(until).context("no pod lost its gate")?;
        #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
        anyhow::Ok(count as f64 / (last - first).as_secs_f64())
    };
    figures.insert(0, ("gates removed", rate(seen.ungated.last)?, "pods/s"));
    figures.insert(1, ("gated pods to Running", rate(seen.running.last)?, "pods/s"));
    Ok(figures)
}

/// The bare client: one write for each pod.
async fn remove_gates(pods: &Api<Pod>, count: usize) -> anyhow::Result<()> {
    let patch = json!({"spec": {"schedulingGates": [{"name": testbed::GATE, "$patch": "delete"}]}});
    stream::iter(0..count)
        .map(|index| {
            let patch = &patch;
            async move {
                let name = testbed::pod_name(index);
                pods.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await
}
