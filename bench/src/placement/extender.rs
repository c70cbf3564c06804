//! kube-scheduler with our extender, with one of the bench that passes everything, and without. The pods go to virtual nodes, each for a pool of
//! one lower cluster.

mod bare_extender;
mod lower_scheduler;

use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{ControlPlane, Process, control_plane};

pub(crate) use self::bare_extender::BareExtender;
use self::{
    bare_extender::FILTER_CALLS,
    lower_scheduler::{LowerScheduler, POOL, node_name},
};
use super::{
    Session,
    pod_observer::PodObserver,
    process_metrics::Samples,
    testbed::{
        self, ClusterNodes, PlacementProcess, free_ports, output, scheduler_config, wait_for,
        without_node_taints, write_certificate, write_scheduler_certificate,
    },
};
use crate::{
    candidate::{Candidate, Candidates},
    objects::{self, create_all},
    report::{Figure, print_progress, thousands},
};

const REPORT: &str = "extender-pods";
/// The CPUs of a lower node.
const CPUS: usize = 32;
const CALLS: &str = "virtual_kubelet_placement_extender_calls_total";
const QUERIES: &str = "virtual_kubelet_placement_fit_queries_total";
const QUERY_SECONDS: &str = "virtual_kubelet_placement_fit_query_seconds";
const FILTER: (&str, &str) = ("verb", "filter");
const SECONDS: &str = "virtual_kubelet_placement_extender_seconds";

#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "each is the name of a flag")]
pub(super) struct ExtenderLoad {
    /// Pods that kube-scheduler binds
    #[arg(long, default_value_t = 1000)]
    extender_pods: usize,
    /// How many shapes they have
    #[arg(long, default_value_t = 20)]
    extender_shapes: usize,
    /// Virtual nodes
    #[arg(long, default_value_t = 10)]
    extender_nodes: usize,
    /// Lower nodes behind each of them
    #[arg(long, default_value_t = 1000)]
    extender_lower_nodes: usize,
}

/// Both clusters and the virtual nodes. Clusters are the last to be dropped.
struct ExtenderClusters<'a> {
    field: &'a Candidates,
    _nodes: Process,
    _lower_scheduler: LowerScheduler,
    pods: Api<Pod>,
    /// The files of certificate, key and CA of both extenders.
    certificate: [String; 3],
    /// The files of kube-scheduler's certificate and key.
    scheduler: [String; 2],
    upper: ControlPlane,
    _lower: ControlPlane,
}

/// An extender that runs; it ends when this is dropped.
enum RunningExtender {
    None,
    Bare { _process: Process, metrics_port: u16 },
    Ours(PlacementProcess),
}

impl ExtenderLoad {
    pub(super) async fn measure(&self, session: &Session<'_>) -> anyhow::Result<()> {
        let count = self.extender_pods;
        let mut report = session.report(Candidate::BareExtender);
        print_progress(&format!(
            "{} virtual nodes of {} lower nodes each",
            self.extender_nodes,
            thousands(self.extender_lower_nodes)
        ));
        let clusters = Box::pin(self.prepare(session.field)).await?;
        report.host.record_version(&clusters.upper).await?;
        for round in 1..=session.rounds {
            let mut without = None;
            for candidate in [Candidate::NoExtender, Candidate::BareExtender, Candidate::Ours] {
                print_progress(&format!("{} pods, {candidate}, round {round}", thousands(count)));
                let mut figures = Box::pin(self.one(candidate, &clusters)).await;
                if let Ok(figures) = &mut figures {
                    let rate = figures[0].1;
                    if candidate == Candidate::NoExtender {
                        without = Some(rate);
                    } else if let Some(without) = without {
                        figures.push(("the same, compared with no extender", rate / without, "ratio"));
                    }
                }
                report.outcome(candidate, count, figures)?;
                report.save(session.out, REPORT)?;
            }
        }
        report.publish(session.out, REPORT)
    }

    async fn prepare<'a>(&self, field: &'a Candidates) -> anyhow::Result<ExtenderClusters<'a>> {
        // Nobody keeps the lower nodes alive, so no controller may watch them.
        let options = control_plane::Options {
            scheduler: true,
            scheduler_config: Some(scheduler_config(&json!([]))),
            ..control_plane::Options::with_signing()
        };
        let (upper, lower) = tokio::try_join!(
            ControlPlane::start(without_node_taints(options)),
            ControlPlane::start(without_node_taints(control_plane::Options::default()))
        )?;
        let (above, below) = (upper.namespace("above").await?, lower.namespace("below").await?);
        let names: Vec<String> = (0..self.extender_nodes).map(|index| format!("vk-{index}")).collect();
        let lower_nodes: Api<Node> = Api::all(lower.admin()?);
        let of_pool = |pool: &String| {
            let pool = pool.clone();
            (0..self.extender_lower_nodes).map(move |index| {
                let mut node = objects::node(&node_name(&pool, index));
                node["metadata"]["labels"][POOL] = json!(pool);
                node
            })
        };
        create_all(&lower_nodes, names.iter().flat_map(of_pool)).await?;
        let lower_scheduler = LowerScheduler::start(&lower.admin()?, below.name(), self.extender_lower_nodes);
        let virtual_node = |name: &String| json!({"name": name, "nodeSelector": {POOL: name}});
        let config = json!({
            "namespaces": {above.name(): below.name()},
            "nodes": names.iter().map(virtual_node).collect::<Vec<_>>(),
        });
        let nodes = ClusterNodes { names: &names, config, lower: &lower }.start(field, &upper).await?;
        self.wait_for_capacity(&Api::all(upper.admin()?), &names).await?;
        let certificate = write_certificate(&upper, upper.data_dir())?;
        let scheduler = write_scheduler_certificate(&upper, upper.data_dir())?;
        let pods = Api::namespaced(upper.admin()?, above.name());
        Ok(ExtenderClusters {
            field,
            _nodes: nodes,
            _lower_scheduler: lower_scheduler,
            pods,
            certificate,
            scheduler,
            upper,
            _lower: lower,
        })
    }

    /// Waits until the virtual nodes advertise all their lower nodes.
    async fn wait_for_capacity(&self, nodes: &Api<Node>, names: &[String]) -> anyhow::Result<()> {
        let cpus = (self.extender_lower_nodes * CPUS).to_string();
        let advertises = |node: &Node| {
            let amounts = node.status.as_ref().and_then(|status| status.capacity.as_ref());
            let cpu = amounts.and_then(|amounts| amounts.get("cpu"));
            // Amounts of thousands are written as `32k`.
            cpu.is_some_and(|cpu| cpu.0.replace('k', "000") == cpus)
        };
        wait_for(&format!("the virtual nodes advertise {cpus} CPUs each"), async || {
            for name in names {
                let node = nodes.get(name).await?;
                if !advertises(&node) || !vk_provider::placement::declares_fit(&node) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    /// Lets kube-scheduler bind all pods once.
    async fn one(&self, who: Candidate, clusters: &ExtenderClusters<'_>) -> anyhow::Result<Vec<Figure>> {
        let (extender, config) = clusters.start_extender(who).await?;
        clusters.upper.restart_scheduler(&config).await?;
        let observer = PodObserver::start(clusters.pods.clone());
        // Creating pods takes as long as binding them, so all are there before.
        clusters.upper.pause_scheduler().await?;
        let count = self.extender_pods;
        create_all(&clusters.pods, (0..count).map(|index| testbed::pod(index, self.extender_shapes))).await?;
        observer.wait("exist", count, |seen| seen.there.unwrap_or_default()).await?;
        let begun = Instant::now();
        clusters.upper.resume_scheduler().await?;
        let seen = observer.wait("are bound", count, |seen| seen.bound.count).await?;
        let took = seen.bound.last.context("no pod is bound")? - begun;
        #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
        let mut figures = vec![("bound pods", count as f64 / took.as_secs_f64(), "pods/s")];
        let calls = extender.filter_calls().await?;
        // kube-scheduler goes on without an extender that it cannot call.
        #[expect(clippy::cast_precision_loss, reason = "a number of pods")]
        let is_called = calls.is_none_or(|calls| calls >= count as f64);
        anyhow::ensure!(is_called, "kube-scheduler has called the extender {calls:?} times for {count} pods");
        if let RunningExtender::Ours(placement) = &extender {
            figures.extend(call_figures(placement).await?);
        }
        observer.delete_all().await?;
        Ok(figures)
    }
}

// === impl ExtenderClusters ===

impl ExtenderClusters<'_> {
    /// Starts an extender. Returns it with the configuration of kube-scheduler.
    async fn start_extender(&self, who: Candidate) -> anyhow::Result<(RunningExtender, String)> {
        if who == Candidate::NoExtender {
            return Ok((RunningExtender::None, scheduler_config(&json!([]))));
        }
        let [certificate, key, ca] = &self.certificate;
        let port = free_ports(1)?;
        let listen = format!("127.0.0.1:{port}");
        let extender = if who == Candidate::Ours {
            let tls = ["--tlscert", certificate, "--tlskey", key, "--client-ca", ca];
            let flags = [&["--extender-listen", &*listen][..], &tls].concat();
            RunningExtender::Ours(
                PlacementProcess::start_without_leading(self.field, &self.upper, &flags).await?,
            )
        } else {
            let metrics_port = free_ports(1)?;
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bare-extender", "--port", &port.to_string()]);
            command.args(["--metrics-port", &metrics_port.to_string()]);
            command.args(["--certificate", certificate, "--key", key]);
            let mut process = self.field.start(who, "placement", command)?;
            wait_for("the extender of the bench serves its metrics", async || {
                anyhow::ensure!(
                    process.ended()?.is_none(),
                    "the extender of the bench has ended: see its log"
                );
                Ok(Samples::of_process(metrics_port).await.is_ok())
            })
            .await?;
            RunningExtender::Bare { _process: process, metrics_port }
        };
        // What users of our extender get, for both.
        let url = format!("https://{listen}");
        let [own, own_key] = &self.scheduler;
        let print = ["placement", "print", "scheduler", "--url", &url, "--ca", ca];
        let print = [&print[..], &["--client-cert", own, "--client-key", own_key]].concat();
        let printed: Value = serde_saphyr::from_str(&output(self.field, &print)?)
            .context("read the output of `placement print scheduler`")?;
        let extenders = &printed["extenders"];
        anyhow::ensure!(
            extenders.as_array().is_some_and(|all| all.len() == 1),
            "it has no extender: {printed}"
        );
        Ok((extender, scheduler_config(extenders)))
    }
}

// === impl RunningExtender ===

impl RunningExtender {
    /// How often kube-scheduler has asked it for nodes.
    async fn filter_calls(&self) -> anyhow::Result<Option<f64>> {
        Ok(match self {
            Self::None => None,
            Self::Bare { metrics_port, .. } => {
                Some(Samples::of_process(*metrics_port).await?.sum(FILTER_CALLS, &[]))
            }
            Self::Ours(placement) => Some(placement.metrics().await?.sum(CALLS, &[FILTER])),
        })
    }
}

/// How our extender has answered. A call that was not answered in full let nodes pass that have not said anything.
async fn call_figures(placement: &PlacementProcess) -> anyhow::Result<Vec<Figure>> {
    let metrics = placement.metrics().await?;
    let answered = metrics.sum(CALLS, &[FILTER, ("outcome", "answered")]);
    let all = metrics.sum(CALLS, &[FILTER]);
    let mean = |name: &str, labels: &[(&str, &str)]| {
        let count = metrics.sum(&format!("{name}_count"), labels);
        metrics.sum(&format!("{name}_sum"), labels) / count.max(1.0) * 1000.0
    };
    let (queries, failed) = (metrics.sum(QUERIES, &[]), metrics.sum(QUERIES, &[("result", "failed")]));
    let usage = placement.usage()?;
    Ok(vec![
        ("filter calls answered in full", answered / all * 100.0, "%"),
        ("mean of a filter call", mean(SECONDS, &[FILTER]), "ms"),
        ("mean of a prioritize call", mean(SECONDS, &[("verb", "prioritize")]), "ms"),
        ("queries to nodes", queries / all, "for each filter call"),
        ("queries to nodes that failed", failed / queries.max(1.0) * 100.0, "%"),
        ("mean of a query to a node", mean(QUERY_SECONDS, &[]), "ms"),
        ("processor time of the extender", usage.cpu.as_secs_f64(), "s"),
        ("resident, extender", usage.megabytes(), "MB"),
    ])
}
