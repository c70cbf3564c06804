//! The engine: one actor per pod.
//!
//! All work for a pod is done by one task, one thing after the other: `actor` says when, `sync`, `start` and `stop` say what. The
//! runtime's list is the truth about what runs, `relist` asks for it every second and wakes the actors of those pods that changed. What the
//! engine knows in memory it can find again: in the runtime's labels and annotations, on the disk, and in what the core says.

mod ability;
mod actor;
mod garbage;
mod health;
mod listed;
mod look;
mod meter;
mod note;
mod relist;
mod shared;
mod slot;
mod start;
mod stop;
mod stray;
mod sync;

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
    shared::Shared,
    slot::{Order, View},
};
use crate::{
    Settings,
    backend::{ContainerBackend, Runtime},
    parts,
};

/// The longest grace that is counted: longer ones are no numbers that anybody means.
const LONGEST_GRACE: Duration = Duration::from_hours(100 * 365 * 24);
/// How long a runtime may take to say who it is before anybody waits no longer for it.
const ACQUAINTANCE: Duration = Duration::from_secs(5);
/// How long a list waits for a pod that is not known yet.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);

type Describe = Box<dyn Fn(&mut NodeTemplate) + Send + Sync>;

/// Runs the pods of one node on a container runtime.
pub struct Engine {
    shared: Arc<Shared>,
    describe: Option<Describe>,
}

// === impl Engine ===

impl Engine {
    /// An engine on this runtime. Call it inside a tokio runtime: it starts its tasks on a child of the supervisor. They end when the
    /// engine is dropped; the pods go on. A runtime that is away is no error: it is found when it comes.
    pub fn new(
        backend: Arc<dyn ContainerBackend>,
        settings: Settings,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::new(backend, settings, clock, supervisor.child())?);
        let spawn = &shared.supervisor;
        spawn.spawn("relist", Kind::Critical, relist::run(Arc::clone(&shared)));
        spawn.spawn("runtime health", Kind::Critical, health::run(Arc::clone(&shared)));
        spawn.spawn("garbage", Kind::Work, garbage::run(Arc::clone(&shared)));
        Ok(Self { shared, describe: None })
    }

    /// The same, saying more about the node: capacity, addresses, conditions.
    #[must_use]
    pub fn describing(mut self, describe: impl Fn(&mut NodeTemplate) + Send + Sync + 'static) -> Self {
        self.describe = Some(Box::new(describe));
        self
    }

    /// Asks the runtime who it is, so that the node is described whole from its first description on. One that is away, or does not answer
    /// soon, is found when it comes.
    pub async fn acquaint(&self) {
        let ask = self.shared.health.ask(&self.shared);
        if !matches!(tokio::time::timeout(ACQUAINTANCE, ask).await, Ok(Ok(()))) {
            tracing::debug!("the container runtime has not answered yet");
        }
    }

    /// The runtime as it answered last; `None` before its first answer.
    pub fn runtime(&self) -> Option<Runtime> {
        self.shared.health.runtime().map(|runtime| (*runtime).clone())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.supervisor.stop();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("node", &self.shared.settings.node).finish_non_exhaustive()
    }
}

#[async_trait]
impl Provider for Engine {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = check(&bundle)?;
        self.shared.claim(&pod, |slot| {
            *slot.bundle.lock() = Some(bundle);
            slot.wake();
        });
        Ok(())
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = check(&bundle)?;
        let missing = || Error::not_found(format!("update pod {pod}: it is not on this node"));
        if self.shared.find(&pod).await?.is_none() {
            return Err(missing());
        }
        self.shared.claim(&pod, |slot| {
            let mut known = slot.bundle.lock();
            let Some(known) = known.as_mut() else {
                // What an earlier process started is created anew, which adopts it.
                return Err(missing());
            };
            if resized(&known.pod, &bundle.pod) {
                return Err(Error::unsupported(format!(
                    "update pod {pod}: resources of running containers cannot be changed on this node; delete the pod and create it \
                     anew with the new resources"
                )));
            }
            *known = bundle;
            slot.wake();
            Ok(())
        })
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        let missing = || Error::not_found(format!("delete pod {pod}: nothing of it runs on this node"));
        let slot = self.shared.find(pod).await?.ok_or_else(missing)?;
        let by = Instant::now() + grace.min(LONGEST_GRACE);
        let forget = last_known.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        slot.stop.send_if_modified(|order| {
            let Some(order) = order else {
                *order = Some(Order { by, last_known, forget });
                return true;
            };
            // Somebody who is in a hurry makes a grace shorter; nobody makes it longer. What says nothing new disturbs nobody.
            let news = by < order.by
                || (forget && !order.forget)
                || (order.last_known.is_none() && last_known.is_some());
            order.by = order.by.min(by);
            order.forget |= forget;
            order.last_known = last_known.or_else(|| order.last_known.take());
            news
        });
        Ok(())
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let missing = || Error::not_found(format!("status of pod {pod}: nothing of it is on this node"));
        let slot = self.shared.find(pod).await?.ok_or_else(missing)?;
        let view = slot.known().await;
        if view.gone {
            return Err(missing());
        }
        shown(&slot.pod, view)
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let listing = self.shared.backend.list(&self.shared.mark()).await.map_err(|error| {
            Error::unavailable("list the pods of this node: the container runtime does not answer")
                .caused_by(error)
        })?;
        self.shared.compare(listing, None);
        let slots = self.shared.slots();
        let views = join_all(slots.iter().map(|slot| async {
            let known = tokio::time::timeout(KNOWN_WITHIN, slot.known()).await;
            known.unwrap_or_else(|_| slot.view.borrow().clone())
        }))
        .await;
        let mut pods = Vec::with_capacity(slots.len());
        for (slot, view) in slots.iter().zip(views).filter(|(_, view)| !view.gone) {
            // It is there, as the list says. One that cannot be looked at is shown as it was known last, and hides no other.
            let status = match self.shared.remembered(slot, &view).await {
                Some(status) => status,
                None => shown(&slot.pod, view)?,
            };
            pods.push(ObservedPod {
                pod: slot.pod.clone(),
                node: Some(self.shared.settings.node.clone()),
                status,
            });
        }
        Ok(pods)
    }

    fn changes(&self) -> Changes {
        Changes::Push(self.shared.outbox.changes())
    }

    async fn ping(&self) -> Result<()> {
        self.shared.health.check(&self.shared).await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        if let Some(runtime) = self.shared.health.runtime() {
            node.system.container_runtime_version = format!("{}://{}", runtime.name, runtime.version);
        }
        if let Some(describe) = &self.describe {
            describe(node);
        }
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        Some(self.shared.health.changes())
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

/// The pod's identity, where it can be run at all.
fn check(bundle: &PodBundle) -> Result<PodRef> {
    let Some(pod) = bundle.reference() else {
        return Err(Error::invalid("create a pod: it has no namespace, no name or no UID"));
    };
    if bundle.pod.spec.as_ref().is_none_or(|spec| spec.containers.is_empty()) {
        return Err(Error::invalid(format!("create pod {pod}: it has no containers")));
    }
    Ok(pod)
}

/// Whether containers that are there shall have other resources.
fn resized(known: &Pod, wanted: &Pod) -> bool {
    let whole = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone());
    whole(known) != whole(wanted)
        || parts::parts(known).any(|part| {
            let same = parts::part(wanted, &part.container.name);
            same.is_some_and(|same| same.container.resources != part.container.resources)
        })
}

/// The status, or why nobody knows it.
fn shown(pod: &PodRef, view: View) -> Result<PodStatus> {
    if let Some(status) = view.status {
        return Ok((*status).clone());
    }
    let why = view.trouble.unwrap_or_default();
    Err(Error::unavailable(format!("status of pod {pod}: the container runtime does not answer: {why}")))
}
