//! One node's API: what it is made of, and its router.

use std::{fmt, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vk_provider::{ContainerRef, PodRef, Provider};
use vk_supervisor::{Clock, Supervisor};

use crate::{Metrics, auth::Gate, metrics, refusal::Refusal};

/// The pods of a node as the API server has them.
pub trait Pods: Send + Sync {
    /// All of them.
    fn all(&self) -> Vec<Arc<Pod>>;

    /// One of them.
    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let is = |pod: &Arc<Pod>| {
            pod.metadata.namespace.as_deref() == Some(namespace) && pod.metadata.name.as_deref() == Some(name)
        };
        self.all().into_iter().find(is)
    }
}

/// Writes the process' own metrics.
pub type Exposition = Arc<dyn Fn() -> String + Send + Sync>;

/// What is served only where somebody asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// The folder that is shown under `/logs/`.
    pub logs: Option<PathBuf>,
    /// Whether there is `/debug/pprof/`.
    pub profiling: bool,
}

/// All that a node's API needs.
pub struct Api {
    /// The node's name.
    pub node: String,
    /// What runs its pods.
    pub provider: Arc<dyn Provider>,
    /// Its pods.
    pub pods: Arc<dyn Pods>,
    /// Lets callers in.
    pub gate: Arc<Gate>,
    /// The wall clock.
    pub clock: Clock,
    /// What is counted.
    pub metrics: Metrics,
    /// What `/metrics` shows.
    pub exposition: Exposition,
    /// What `/configz` shows: the configuration in the kubelet's words.
    pub configuration: Value,
    /// What is served only where somebody asks for it.
    pub switches: Switches,
    /// Limits of time and size of sessions.
    pub streaming: vk_streaming::Limits,
    /// Owns the sessions.
    pub owner: Supervisor,
    /// Sessions end when this stops.
    pub node_supervisor: Supervisor,
    /// How many sessions there may be at a time; see [`Api::SESSIONS`].
    pub sessions: Arc<Semaphore>,
}

/// A session that goes on; when it is dropped it is over.
pub(crate) struct Open {
    metrics: Metrics,
    kind: &'static str,
    _place: OwnedSemaphorePermit,
}

// === impl Api ===

impl Api {
    /// How many sessions of exec, attach and port-forward a node has at a time unless told otherwise.
    pub const SESSIONS: usize = 4096;

    /// The pod that a path names. With a UID it must be that one.
    pub(crate) fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<(PodRef, Arc<Pod>)> {
        let pod = self.pods.find(namespace, name)?;
        let reference = PodRef::of(&pod)?;
        uid.is_none_or(|uid| uid == &*reference.uid).then_some((reference, pod))
    }

    /// The container that a path names, for whoever wants to reach into it; refused in the kubelet's words.
    pub(crate) fn container(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Result<ContainerRef, Refusal> {
        let (reference, pod) =
            self.pod(namespace, name, uid).ok_or_else(|| Refusal::not_found("pod does not exist"))?;
        if !has_container(&pod, container) {
            return Err(Refusal::not_found(format!("container not found ({container:?})")));
        }
        Ok(reference.container(container))
    }

    /// A place for one more session.
    pub(crate) fn session(&self, kind: &'static str) -> Result<Open, Refusal> {
        let place = Arc::clone(&self.sessions).try_acquire_owned().map_err(|_| {
            let message = "too many sessions are open on this node: close one, or try again later";
            Refusal::new(http::StatusCode::TOO_MANY_REQUESTS, message)
        })?;
        self.metrics.sessions.get_or_create(&metrics::Kind { kind }).inc();
        Ok(Open { metrics: self.metrics.clone(), kind, _place: place })
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("node", &self.node).finish_non_exhaustive()
    }
}

// === impl Open ===

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.sessions.get_or_create(&metrics::Kind { kind: self.kind }).dec();
    }
}

/// Whether a pod has a container of this name, of whatever kind.
pub(crate) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let own =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|container| &container.name);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    own.chain(ephemeral).any(|known| known == name)
}
