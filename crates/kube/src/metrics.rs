//! Metrics of calls to the API server and of node certificates.

use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::Error;

/// Counts calls to the API server. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    requests: Family<ApiRequestLabels, Counter>,
    certificates: Family<CertificateLabels, Gauge>,
    snapshot_repairs: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    purpose: &'static str,
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiRequestLabels {
    verb: &'static str,
    resource: String,
    result: &'static str,
}

impl Metrics {
    /// Creates metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "api_requests",
            "Calls to the API server by verb, resource and result (ok, or the kind of error)",
            metrics.requests.clone(),
        );
        registry.register(
            "certificate_expiration_timestamp_seconds",
            "When the certificate that a node got from the cluster expires, by purpose (client, serving) and node",
            metrics.certificates.clone(),
        );
        registry.register(
            "snapshot_repairs",
            "Differences that were found, and repaired, in what is known of the nodes of another cluster; each is a bug",
            metrics.snapshot_repairs.clone(),
        );
        metrics
    }

    /// Records when a certificate expires.
    pub(crate) fn certificate(&self, purpose: &'static str, node: &str, until: Timestamp) {
        let labels = CertificateLabels { purpose, node: node.to_owned() };
        self.certificates.get_or_create(&labels).set(until.as_second());
    }

    /// Counts differences that were found in the snapshot of a cluster.
    pub fn count_snapshot_repairs(&self, differences: usize) {
        self.snapshot_repairs.inc_by(differences as u64);
    }

    /// Counts one call.
    pub(crate) fn count<T>(&self, verb: &'static str, resource: &str, result: &Result<T, Error>) {
        let result = result.as_ref().map_or_else(|error| error.kind.name(), |_| "ok");
        self.requests.get_or_create(&ApiRequestLabels { verb, resource: resource.to_owned(), result }).inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn repairs_of_a_snapshot_are_counted_by_their_differences() {
        let mut registry = Registry::with_prefix("virtual_kubelet");
        let metrics = Metrics::register(&mut registry);
        for differences in [2, 3] {
            metrics.count_snapshot_repairs(differences);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.lines().any(|line| line == "virtual_kubelet_snapshot_repairs_total 5"), "{text}");
    }
}
