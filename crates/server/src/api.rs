//! The state of one node's API.

use std::{fmt, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vk_provider::{ContainerRef, PodRef, Provider};
use vk_supervisor::{Clock, Supervisor};

use crate::{
    Metrics,
    auth::{Authenticator, Authorizer},
    http_error::HttpError,
    metrics,
};

/// Lists the pods of a node as the API server has them.
pub trait PodLister: Send + Sync {
    /// Lists all pods.
    fn list(&self) -> Vec<Arc<Pod>>;

    /// Finds a pod.
    fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let matches = |pod: &Arc<Pod>| {
            pod.metadata.namespace.as_deref() == Some(namespace) && pod.metadata.name.as_deref() == Some(name)
        };
        self.list().into_iter().find(matches)
    }
}

/// Encodes the process' regular metrics.
pub type MetricsEncoder = Arc<dyn Fn() -> String + Send + Sync>;

/// Endpoints that are off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugHandlers {
    /// The directory served under `/logs/`.
    pub logs: Option<PathBuf>,
    /// Serve `/debug/pprof/`.
    pub profiling: bool,
}

/// Everything that a node's API needs.
pub struct Api {
    /// The node's name.
    pub node: String,
    /// Runs the pods.
    pub provider: Arc<dyn Provider>,
    /// The node's pods.
    pub pods: Arc<dyn PodLister>,
    /// Identifies callers.
    pub authenticator: Arc<Authenticator>,
    /// Decides what callers may do.
    pub authorizer: Arc<Authorizer>,
    /// The wall clock.
    pub clock: Clock,
    /// Metrics of the kubelet API.
    pub metrics: Metrics,
    /// The body of `/metrics`.
    pub encode_metrics: MetricsEncoder,
    /// The body of `/configz`: the configuration in the kubelet's format.
    pub configuration: Value,
    /// Endpoints that are off by default.
    pub debug_handlers: DebugHandlers,
    /// Limits of exec, attach and port-forward sessions.
    pub streaming: vk_streaming::SessionLimits,
    /// Owns the session tasks.
    pub supervisor: Supervisor,
    /// The node's supervisor: sessions end when it stops.
    pub node_supervisor: Supervisor,
    /// Limits concurrent sessions; see [`Api::DEFAULT_MAX_SESSIONS`].
    pub sessions: Arc<Semaphore>,
    /// Limits concurrent queries whether pods fit; see [`Api::DEFAULT_MAX_FIT_QUERIES`].
    pub fit_queries: Arc<Semaphore>,
}

/// Counts an open session until dropped.
pub(crate) struct SessionGuard {
    metrics: Metrics,
    kind: &'static str,
    _permit: OwnedSemaphorePermit,
}

// === impl Api ===

impl Api {
    /// Default limit of concurrent exec, attach and port-forward sessions.
    pub const DEFAULT_MAX_SESSIONS: usize = 4096;

    /// Default limit of concurrent queries whether pods fit. Each takes a thread and holds its pods in memory.
    pub const DEFAULT_MAX_FIT_QUERIES: usize = 16;

    /// The pod in a path, with this UID if one is given.
    pub(crate) fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<(PodRef, Arc<Pod>)> {
        let pod = self.pods.get(namespace, name)?;
        let reference = PodRef::of(&pod)?;
        uid.is_none_or(|uid| uid == &*reference.uid).then_some((reference, pod))
    }

    /// The container in a path. The errors are the kubelet's.
    pub(crate) fn container(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Result<ContainerRef, HttpError> {
        let (reference, pod) =
            self.pod(namespace, name, uid).ok_or_else(|| HttpError::not_found("pod does not exist"))?;
        if !has_container(&pod, container) {
            return Err(HttpError::not_found(format!("container not found ({container:?})")));
        }
        Ok(reference.container(container))
    }

    /// Opens a session, unless there are too many.
    pub(crate) fn begin_session(&self, kind: &'static str) -> Result<SessionGuard, HttpError> {
        let permit = Arc::clone(&self.sessions).try_acquire_owned().map_err(|_| {
            let message = "too many sessions are open on this node: close one, or try again later";
            HttpError::new(http::StatusCode::TOO_MANY_REQUESTS, message)
        })?;
        self.metrics.sessions.get_or_create(&metrics::SessionLabels { kind }).inc();
        Ok(SessionGuard { metrics: self.metrics.clone(), kind, _permit: permit })
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("node", &self.node).finish_non_exhaustive()
    }
}

// === impl SessionGuard ===

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.metrics.sessions.get_or_create(&metrics::SessionLabels { kind: self.kind }).dec();
    }
}

/// Whether a pod has a container of this name, including init and ephemeral containers.
pub(crate) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let regular =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|container| &container.name);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    regular.chain(ephemeral).any(|other| other == name)
}
