//! Metrics of the kubelet API.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Labels of a request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RequestLabels {
    /// The first segment of the path, or `other`.
    pub route: &'static str,
    /// The status code.
    pub code: u16,
}

/// Labels of a session.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SessionLabels {
    /// exec, attach or portForward.
    pub kind: &'static str,
}

/// Metrics of all nodes of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Answered requests.
    pub requests: Family<RequestLabels, Counter>,
    /// Open connections, except upgraded ones.
    pub connections: Gauge,
    /// Connections closed because too many had no authorized request.
    pub evicted: Counter,
    /// Open sessions.
    pub sessions: Family<SessionLabels, Gauge>,
}

// === impl Metrics ===

impl Metrics {
    /// Creates metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        let server = registry.sub_registry_with_prefix("server");
        server.register(
            "requests",
            "Requests to the kubelet API, by route and status code",
            this.requests.clone(),
        );
        server.register("connections", "Open connections to the kubelet API", this.connections.clone());
        let evicted = "Connections closed because too many had no authorized request";
        server.register("evicted_connections", evicted, this.evicted.clone());
        server.register("sessions", "Open exec, attach and port-forward sessions", this.sessions.clone());
        this
    }
}
