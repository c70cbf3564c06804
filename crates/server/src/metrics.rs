//! What the kubelet API counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A request and its answer.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Request {
    /// The first part of the path, where it is one that is served.
    pub route: &'static str,
    /// The status code.
    pub code: u16,
}

/// A kind of session.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Kind {
    /// exec, attach or portForward.
    pub kind: &'static str,
}

/// The counters of all nodes of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Requests that were answered.
    pub requests: Family<Request, Counter>,
    /// Connections that are open, upgraded ones aside.
    pub connections: Gauge,
    /// Connections that were thrown out because too many strangers waited.
    pub evicted: Counter,
    /// Sessions that go on.
    pub sessions: Family<Kind, Gauge>,
}

// === impl Metrics ===

impl Metrics {
    /// Counters in this registry.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        let server = registry.sub_registry_with_prefix("server");
        server.register(
            "requests",
            "Requests to the kubelet API, by route and status code",
            this.requests.clone(),
        );
        server.register("connections", "Open connections to the kubelet API", this.connections.clone());
        let evicted = "Connections that were closed before a known caller came, because too many waited";
        server.register("evicted_connections", evicted, this.evicted.clone());
        server.register(
            "sessions",
            "Sessions of exec, attach and port-forward that go on",
            this.sessions.clone(),
        );
        this
    }
}
