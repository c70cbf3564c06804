//! What the process asks of the API server, and what it is answered.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use crate::Error;

/// Counts calls to the API server. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    requests: Family<Request, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    result: &'static str,
}

impl Metrics {
    /// Counters that the registry shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "api_requests",
            "Calls to the API server by verb, resource and result (ok, or the kind of error)",
            metrics.requests.clone(),
        );
        metrics
    }

    /// Counts one call.
    pub(crate) fn count<T>(&self, verb: &'static str, resource: &str, result: &Result<T, Error>) {
        let result = result.as_ref().map_or_else(|error| error.kind.name(), |_| "ok");
        self.requests.get_or_create(&Request { verb, resource: resource.to_owned(), result }).inc();
    }
}
