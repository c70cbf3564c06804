//! Metrics of the node controllers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Metrics of all nodes of this process. Clones share the counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) ping_seconds: Histogram,
    pub(crate) pings: Family<ResultLabel, Counter>,
    pub(crate) status_writes: Family<ResultLabel, Counter>,
    pub(crate) lease_renewals: Family<ResultLabel, Counter>,
    pub(crate) ready: Family<NodeLabel, Gauge>,
    pub(crate) leader: Family<NodeLabel, Gauge>,
    pub(crate) audit_failures: Family<NodeLabel, Gauge>,
    /// Number of watched objects that pods refer to.
    pub object_watches: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct NodeLabel {
    pub(crate) node: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
        Self {
            ping_seconds: Histogram::new(buckets),
            pings: Family::default(),
            status_writes: Family::default(),
            lease_renewals: Family::default(),
            ready: Family::default(),
            leader: Family::default(),
            audit_failures: Family::default(),
            object_watches: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "ping_seconds",
            "How long pings of the provider took",
            metrics.ping_seconds.clone(),
        );
        registry.register("pings", "Pinger of the provider by result", metrics.pings.clone());
        registry.register(
            "node_status_writes",
            "Writes of a Node's status by result",
            metrics.status_writes.clone(),
        );
        registry.register(
            "lease_renewals",
            "Renewals of node leases by result",
            metrics.lease_renewals.clone(),
        );
        registry.register(
            "node_leader",
            "1 while this process has the node's lease, 0 while it stands by for another",
            metrics.leader.clone(),
        );
        registry.register(
            "pod_watch_audit_failures",
            "Failed audits of the node's pod watch in a row; 0 while they succeed",
            metrics.audit_failures.clone(),
        );
        registry.register(
            "object_watches",
            "ConfigMaps, Secrets and the like that pods refer to and that are watched now",
            metrics.object_watches.clone(),
        );
        registry.register("node_ready", "1 while the node is Ready, else 0", metrics.ready.clone());
        metrics
    }
}
