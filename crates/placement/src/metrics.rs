//! Metrics of placement.

use k8s_openapi::api::core::v1::Node;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tracing::debug;
use vk_provider::placement::{FitAnswer, FitQuery};

use crate::ask::{AskError, FitClient};

/// Metrics of the placement process. Clones share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) placements: Family<PlacementLabel, Counter>,
    pub(crate) trials: Family<TrialLabel, Counter>,
    pub(crate) placement_seconds: Histogram,
    pub(crate) waiting_pods: Family<CauseLabel, Gauge>,
    pub(crate) not_bound: Counter,
    pub(crate) queries: Family<QueryLabel, Counter>,
    pub(crate) query_seconds: Family<NodeLabel, Histogram>,
    pub(crate) evictions: Family<ResultLabel, Counter>,
    pub(crate) extender_calls: Family<CallLabel, Counter>,
    pub(crate) extender_seconds: Family<VerbLabel, Histogram>,
    pub(crate) snapshot_repairs: Gauge,
    pub(crate) leader: Gauge,
}

/// How a node was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PlacementLabel {
    /// `estimate` or `trial`.
    pub(crate) method: &'static str,
    /// `fits`, `unknown`, or `accepted` after a trial.
    pub(crate) answer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TrialLabel {
    /// `accepted`, `refused`, `not_scheduled` or `not_confirmed`.
    pub(crate) outcome: &'static str,
}

/// Why pods wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CauseLabel {
    /// `no_node`, `placing`, `on_trial` or `not_bound`.
    pub(crate) cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct QueryLabel {
    pub(crate) node: String,
    /// `ok` or `failed`.
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct NodeLabel {
    pub(crate) node: String,
}

/// A call of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CallLabel {
    pub(crate) verb: &'static str,
    /// `answered`, `partial` if nodes did not answer in time, or `refused`.
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct VerbLabel {
    /// `filter`, `prioritize` or `preempt`.
    pub(crate) verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    /// `evicted`, `refused` or `dry_run`.
    pub(crate) result: &'static str,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        let query_seconds =
            || Histogram::new([0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0]);
        Self {
            placements: Family::default(),
            trials: Family::default(),
            placement_seconds: Histogram::new([0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0]),
            waiting_pods: Family::default(),
            not_bound: Counter::default(),
            queries: Family::default(),
            query_seconds: Family::new_with_constructor(query_seconds),
            evictions: Family::default(),
            extender_calls: Family::default(),
            extender_seconds: Family::new_with_constructor(query_seconds),
            snapshot_repairs: Gauge::default(),
            leader: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("placement");
        registry.register(
            "placements",
            "Pods that lost their gate, by how their node was chosen and what it had answered",
            metrics.placements.clone(),
        );
        registry.register("trials", "Trials of pods on nodes by outcome", metrics.trials.clone());
        registry.register(
            "placement_seconds",
            "How long pods waited until they lost their gate",
            metrics.placement_seconds.clone(),
        );
        registry.register(
            "waiting_pods",
            "Pods that wait: for a node (no_node), for a write (placing), for the lower scheduler (on_trial), to be bound (not_bound)",
            metrics.waiting_pods.clone(),
        );
        registry.register(
            "not_bound",
            "Pods that kube-scheduler did not bind within a minute",
            metrics.not_bound.clone(),
        );
        registry.register("fit_queries", "Questions to nodes by node and result", metrics.queries.clone());
        registry.register(
            "fit_query_seconds",
            "How long nodes took to answer",
            metrics.query_seconds.clone(),
        );
        registry.register("evictions", "Evictions of pods by result", metrics.evictions.clone());
        registry.register(
            "extender_calls",
            "Calls of schedulers by verb and outcome (partial: nodes did not answer in time)",
            metrics.extender_calls.clone(),
        );
        registry.register(
            "extender_seconds",
            "How long calls of schedulers took",
            metrics.extender_seconds.clone(),
        );
        registry.register(
            "snapshot_repairs",
            "Differences in the usage of upper nodes that were found and repaired: each is a bug",
            metrics.snapshot_repairs.clone(),
        );
        registry.register("leader", "Whether this process places pods", metrics.leader.clone());
        metrics
    }

    /// Asks a node, and counts the question.
    pub(crate) async fn observe_query(
        &self,
        client: &FitClient,
        node: &Node,
        query: &FitQuery,
    ) -> Result<FitAnswer, AskError> {
        let name = node.metadata.name.clone().unwrap_or_default();
        let started = Instant::now();
        let answer = client.ask(node, query).await;
        let result = if answer.is_ok() { "ok" } else { "failed" };
        self.queries.get_or_create(&QueryLabel { node: name.clone(), result }).inc();
        self.query_seconds
            .get_or_create(&NodeLabel { node: name.clone() })
            .observe(started.elapsed().as_secs_f64());
        if let Err(error) = &answer {
            debug!(node = name, %error, "the node gave no answer");
        }
        answer
    }
}
