//! The engine: one task per pod.
//!
//! All work on a pod is done by its task (`actor`), one step after the other. The parts of the task own their state: `observer` the
//! runtime's state, `reporter` the status, `starter` and `stopper` the containers, `mounts` the volumes, `checkpoint` the file for
//! the next process; `sync` and `termination` are the two sequences of steps. The runtime's list is the source of truth: `relist`
//! requests it every second and wakes the tasks of pods that changed. All state in memory can be rebuilt: from the runtime's labels and
//! annotations, from the disk, and from the core.

mod ability;
mod actor;
mod checkpoint;
mod context;
mod health;
mod housekeeping;
mod image_pulls;
mod mounts;
mod observer;
mod pod_cgroups;
mod pod_handle;
mod relist;
mod removal;
mod reporter;
mod starter;
mod stats;
mod stopper;
mod sync;
mod termination;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{future::join_all, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::time::Instant;
use vk_provider::{
    Changes, Error, NodeChange, NodeTemplate, ObservedPod, PodBundle, PodRef, Provider, Result,
    ability::{Attach, Exec, Logs, PortForward, Stats},
};
use vk_supervisor::{Clock, Supervisor, task::Kind};

use self::{
    context::EngineContext,
    pod_handle::{PodView, StopRequest},
};
use crate::{
    Settings,
    backend::{ContainerBackend, RuntimeInfo},
    containers::{find_container, pod_containers},
};

/// The longest supported grace period.
const MAX_GRACE: Duration = Duration::from_hours(100 * 365 * 24);
/// How long [`Engine::connect`] waits for the runtime.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a list waits for a pod that was not observed yet.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// The feature of nodes that restart all containers of a pod in place.
const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";

type ConfigureNode = Box<dyn Fn(&mut NodeTemplate) + Send + Sync>;

/// Runs the pods of one node on a container runtime.
pub struct Engine {
    context: Arc<EngineContext>,
    configure_node: Option<ConfigureNode>,
}

// === impl Engine ===

impl Engine {
    /// An engine on this runtime. Must be called in a tokio runtime: it starts its tasks on a child of the supervisor. They end when the
    /// engine is dropped; the pods continue. The runtime may be unavailable: the engine waits for it.
    pub fn new(
        backend: Arc<dyn ContainerBackend>,
        settings: Settings,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Result<Self> {
        let context = Arc::new(EngineContext::new(backend, settings, clock, supervisor.child())?);
        let spawn = &context.supervisor;
        spawn.spawn("relist", Kind::Critical, relist::run(Arc::clone(&context)));
        spawn.spawn("runtime health", Kind::Critical, health::run(Arc::clone(&context)));
        spawn.spawn("garbage", Kind::Work, housekeeping::run(Arc::clone(&context)));
        Ok(Self { context, configure_node: None })
    }

    /// Sets a function that adds to the node: capacity, addresses, conditions.
    #[must_use]
    pub fn with_node_config(mut self, configure: impl Fn(&mut NodeTemplate) + Send + Sync + 'static) -> Self {
        self.configure_node = Some(Box::new(configure));
        self
    }

    /// Waits shortly for the runtime, so that the first description of the node is complete. If it does not answer, the engine finds it
    /// later.
    pub async fn connect(&self) {
        let probe = self.context.health.probe(&self.context);
        if !matches!(tokio::time::timeout(CONNECT_TIMEOUT, probe).await, Ok(Ok(()))) {
            tracing::debug!("the container runtime has not answered yet");
        }
    }

    /// The last description of the runtime; `None` before its first answer.
    pub fn runtime(&self) -> Option<RuntimeInfo> {
        self.context.health.runtime().map(|runtime| (*runtime).clone())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.context.supervisor.stop();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("node", &self.context.settings.node).finish_non_exhaustive()
    }
}

#[async_trait]
impl Provider for Engine {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = check(&bundle)?;
        self.context.with_pod(&pod, |handle| {
            *handle.bundle.lock() = Some(bundle);
            handle.wake();
        });
        Ok(())
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = check(&bundle)?;
        let missing = || Error::not_found(format!("update pod {pod}: it is not on this node"));
        if self.context.find_pod(&pod).await?.is_none() {
            return Err(missing());
        }
        self.context.with_pod(&pod, |handle| {
            let mut known = handle.bundle.lock();
            let Some(known) = known.as_mut() else {
                // A pod of an earlier process must be created, which adopts it.
                return Err(missing());
            };
            if is_resized(&known.pod, &bundle.pod) {
                return Err(Error::unsupported(format!(
                    "update pod {pod}: this node cannot change the resources of running containers; delete the pod and create it \
                     again with the new resources"
                )));
            }
            *known = bundle;
            handle.wake();
            Ok(())
        })
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        let missing = || Error::not_found(format!("delete pod {pod}: it is not on this node"));
        let handle = self.context.find_pod(pod).await?.ok_or_else(missing)?;
        let deadline = Instant::now() + grace.min(MAX_GRACE);
        let remove = last_known.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        handle.stop.send_if_modified(|request| {
            let Some(request) = request else {
                *request = Some(StopRequest { deadline, last_known, remove });
                return true;
            };
            // A repeated request can only shorten the grace period. The task is woken only if something changes.
            let changed = deadline < request.deadline
                || (remove && !request.remove)
                || (request.last_known.is_none() && last_known.is_some());
            request.deadline = request.deadline.min(deadline);
            request.remove |= remove;
            request.last_known = last_known.or_else(|| request.last_known.take());
            changed
        });
        Ok(())
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let missing = || Error::not_found(format!("status of pod {pod}: it is not on this node"));
        let handle = self.context.find_pod(pod).await?.ok_or_else(missing)?;
        let view = handle.observed().await;
        if view.removed {
            return Err(missing());
        }
        status_of(&handle.pod, view)
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let listing = self.context.backend.list(&self.context.node_labels()).await.map_err(|error| {
            Error::unavailable("list the pods of this node: the container runtime does not answer")
                .caused_by(error)
        })?;
        self.context.apply_listing(listing, None);
        let handles = self.context.pods();
        let views = join_all(handles.iter().map(|handle| async {
            let observed = tokio::time::timeout(OBSERVE_TIMEOUT, handle.observed()).await;
            observed.unwrap_or_else(|_| handle.view.borrow().clone())
        }))
        .await;
        let mut pods = Vec::with_capacity(handles.len());
        for (handle, view) in handles.iter().zip(views).filter(|(_, view)| !view.removed) {
            // The pod exists. If it cannot be observed its last known status is returned, so that it does not hide the others.
            let status = match self.context.last_status(handle, &view).await {
                Some(status) => status,
                None => status_of(&handle.pod, view)?,
            };
            pods.push(ObservedPod {
                pod: handle.pod.clone(),
                node: Some(self.context.settings.node.clone()),
                status,
            });
        }
        Ok(pods)
    }

    fn changes(&self) -> Changes {
        Changes::Push(self.context.outbox.changes())
    }

    async fn ping(&self) -> Result<()> {
        self.context.health.check(&self.context).await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        if let Some(runtime) = self.context.health.runtime() {
            node.system.container_runtime_version = format!("{}://{}", runtime.name, runtime.version);
        }
        // The scheduler keeps pods with such a rule away from other nodes.
        node.declared_features.insert(RESTART_ALL_CONTAINERS.to_owned());
        if let Some(configure) = &self.configure_node {
            configure(node);
        }
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        Some(self.context.health.changes())
    }

    fn logs(&self) -> Option<&dyn Logs> {
        Some(self)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }

    fn attach(&self) -> Option<&dyn Attach> {
        Some(self)
    }

    fn port_forward(&self) -> Option<&dyn PortForward> {
        Some(self)
    }

    fn stats(&self) -> Option<&dyn Stats> {
        Some(self)
    }
}

/// The pod's identity, if the pod is valid.
fn check(bundle: &PodBundle) -> Result<PodRef> {
    let Some(pod) = bundle.reference() else {
        return Err(Error::invalid("create a pod: it has no namespace, no name or no UID"));
    };
    if bundle.pod.spec.as_ref().is_none_or(|spec| spec.containers.is_empty()) {
        return Err(Error::invalid(format!("create pod {pod}: it has no containers")));
    }
    Ok(pod)
}

/// Whether the resources of existing containers change.
fn is_resized(known: &Pod, wanted: &Pod) -> bool {
    let whole = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone());
    whole(known) != whole(wanted)
        || pod_containers(known).any(|container| {
            let same = find_container(wanted, &container.spec.name);
            same.is_some_and(|same| same.spec.resources != container.spec.resources)
        })
}

/// The observed status, or why it is unknown.
fn status_of(pod: &PodRef, view: PodView) -> Result<PodStatus> {
    if let Some(status) = view.status {
        return Ok((*status).clone());
    }
    let why = view.error.unwrap_or_default();
    Err(Error::unavailable(format!("status of pod {pod}: {why}")))
}
