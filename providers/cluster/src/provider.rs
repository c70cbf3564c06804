//! One virtual node: its pods run in the lower cluster.

mod abandoning;
mod changing;
mod creating;
mod fault;
mod memory;
mod reporting;
mod standing;
mod term;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use vk_kube::{Objects, UpperCluster};
use vk_provider::{
    Changes, ContainerRef, Error, NodeChange, NodeTemplate, ObservedPod, Outbox, PodBundle, PodRef, Provider,
    Result,
    ability::{Attach, Exec, Logs, PortForward, Stats},
};
use vk_supervisor::{Clock, Supervisor};

use self::{memory::Memory, standing::NodeStanding, term::Term};
use crate::{
    abandon,
    config::Settings,
    dependencies::dependencies,
    events::Twins,
    life,
    lower::{Key, Listener, Lower},
    names::Owner,
    stats::{Placed, Usage},
    stream::{Locate, Streams},
};

/// The provider of one virtual node. Clones are the same.
#[derive(Clone)]
pub struct ClusterProvider {
    node: Arc<VirtualNode>,
    streams: Streams,
    usage: Arc<Usage>,
}

/// What a [`ClusterProvider`] is made of.
pub struct Setup {
    /// The cluster that the node is of.
    pub upper: UpperCluster,
    /// The cluster that runs its pods.
    pub lower: Lower,
    /// Whose the lower pods are.
    pub owner: Owner,
    /// How the lower cluster is offered.
    pub settings: Settings,
    /// For the ages of things.
    pub clock: Clock,
    /// Owns the tasks of the node.
    pub supervisor: Supervisor,
}

struct VirtualNode {
    upper: UpperCluster,
    lower: Lower,
    owner: Owner,
    settings: Settings,
    clock: Clock,
    memory: Mutex<Memory>,
    outbox: Arc<Outbox>,
    /// What is done as long as the node is ours.
    term: Mutex<Option<Arc<Term>>>,
    /// Owns the tasks of the newest session, also after its end: the next session waits for them.
    last_session: Mutex<Option<Supervisor>>,
    supervisor: Supervisor,
    standing: NodeStanding,
    /// Whether the lower cluster is given up.
    abandoned: watch::Receiver<bool>,
    /// Whether nothing of the node is left to do.
    removed: watch::Sender<bool>,
}

// === impl ClusterProvider ===

impl ClusterProvider {
    /// Begins to follow the lower cluster.
    pub fn new(setup: Setup) -> Self {
        let Setup { upper, lower, owner, settings, clock, supervisor } = setup;
        let abandoned = abandon::watch(upper.client.clone(), owner.node.clone(), &supervisor);
        let node = Arc::new(VirtualNode {
            abandoned,
            removed: watch::Sender::new(false),
            standing: NodeStanding::default(),
            memory: Mutex::default(),
            outbox: Arc::default(),
            term: Mutex::default(),
            last_session: Mutex::default(),
            supervisor,
            upper,
            lower,
            owner,
            settings,
            clock,
        });
        let listener: Arc<dyn Listener> = Arc::<VirtualNode>::clone(&node);
        node.lower.listen(Arc::downgrade(&listener));
        standing::keep(&node);
        let client = node.lower.client().clone();
        let streams = Streams::new(client.clone(), Arc::<VirtualNode>::clone(&node));
        let placed = Arc::<VirtualNode>::clone(&node);
        let usage = Usage::new(client, node.owner.clone(), placed, node.clock.clone());
        Self { node, streams, usage: Arc::new(usage) }
    }

    /// Resolves when the lower cluster was given up and the pods are gone.
    pub(crate) async fn removed(&self) {
        let mut removed = self.node.removed.subscribe();
        // The sender lives as long as the node.
        drop(removed.wait_for(|removed| *removed).await);
    }

    /// Deletes the Node, which nobody runs any more.
    pub(crate) async fn remove_node(&self) {
        self.node.remove_node().await;
    }

    /// Reckons now what the node has.
    pub(crate) fn look(&self) {
        self.node.reckon();
    }
}

#[async_trait]
impl Provider for ClusterProvider {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        if self.node.is_abandoned() {
            return self.node.create_nowhere(&bundle);
        }
        self.node.create(bundle).await
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        if self.node.is_abandoned() {
            return self.node.create_nowhere(&bundle);
        }
        self.node.update(bundle).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        if self.node.is_abandoned() {
            return Err(self.node.forsake(pod));
        }
        self.node.delete(pod, last_known.as_deref(), grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        if self.node.is_abandoned() {
            return self.node.status_nowhere(pod);
        }
        self.node.status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        if self.node.is_abandoned() {
            return Ok(Vec::new());
        }
        self.node.lower.known()?;
        let there = self.node.own().into_iter().map(|(pod, lower)| {
            let status = self.node.report(&pod, &lower);
            (pod, status)
        });
        let all = there.chain(self.node.elsewhere());
        let observed =
            all.map(|(pod, status)| ObservedPod { pod, node: Some(self.node.owner.node.clone()), status });
        Ok(observed.collect())
    }

    fn changes(&self) -> Changes {
        Changes::Push(term::begin(&self.node))
    }

    async fn ping(&self) -> Result<()> {
        self.node.ping().await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        self.node.describe(node);
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        let changed = self.node.standing.subscribe();
        let looks = stream::unfold(changed, |mut changed| async move {
            changed.changed().await.ok()?;
            Some((NodeChange::Refresh, changed))
        });
        Some(stream::select(looks, abandoning::farewell(&self.node)).boxed())
    }

    fn logs(&self) -> Option<&dyn Logs> {
        Some(&self.streams)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        Some(&self.streams)
    }

    fn attach(&self) -> Option<&dyn Attach> {
        Some(&self.streams)
    }

    fn port_forward(&self) -> Option<&dyn PortForward> {
        Some(&self.streams)
    }

    fn stats(&self) -> Option<&dyn Stats> {
        Some(self.usage.as_ref())
    }
}

impl fmt::Debug for ClusterProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterProvider").field("owner", &self.node.owner).finish_non_exhaustive()
    }
}

// === impl VirtualNode ===

impl VirtualNode {
    /// Where the lower pod of an upper one is, if it has a place at all.
    fn key(&self, pod: &PodRef) -> Option<Key> {
        let namespace = self.settings.namespaces.below(&pod.namespace)?;
        Some((namespace, pod.name.to_string()))
    }

    /// The upper pod that a lower one of this virtual node is of. A copy that somebody made of it, with its labels, is of none.
    fn upper_of(&self, lower: &Pod) -> Option<PodRef> {
        if !self.owner.owns(&lower.metadata) {
            return None;
        }
        let (namespace, name, uid) = life::origin(lower)?;
        let pod = PodRef::new(namespace, name, uid);
        let (there, called) = self.key(&pod)?;
        let metadata = &lower.metadata;
        let in_place =
            metadata.namespace.as_deref() == Some(&there) && metadata.name.as_deref() == Some(&called);
        in_place.then_some(pod)
    }

    /// The lower pod of an upper one, as it was told last.
    fn twin(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        let lower = self.lower.pod(&self.key(pod)?)?;
        (self.upper_of(&lower)?.uid == pod.uid).then_some(lower)
    }

    /// The same at this moment, if it was not told of.
    async fn find(&self, pod: &PodRef) -> Result<Option<Arc<Pod>>> {
        match self.twin(pod) {
            Some(lower) => Ok(Some(lower)),
            None => self.find_now(pod).await,
        }
    }

    /// The same at this moment, whatever was told.
    async fn find_now(&self, pod: &PodRef) -> Result<Option<Arc<Pod>>> {
        let Some(key) = self.key(pod) else { return Ok(None) };
        let found = self.lower.read(&key).await;
        let found = found.map_err(|error| fault::of(&format!("read pod {pod}"), error))?;
        let is_ours = |lower: &Pod| self.upper_of(lower).is_some_and(|upper| upper.uid == pod.uid);
        Ok(found.filter(is_ours).map(Arc::new))
    }

    /// The lower pods of this virtual node, as they were told last.
    fn own(&self) -> Vec<(PodRef, Arc<Pod>)> {
        let all = self.lower.pods_of(&self.owner);
        all.into_iter().filter_map(|lower| Some((self.upper_of(&lower)?, lower))).collect()
    }

    fn pods_in(&self, namespace: &str) -> Objects<Pod> {
        Objects::namespaced(self.lower.client().clone(), namespace)
    }

    /// Whether all is known that has to be before anything is said of a pod.
    fn known_for(&self, pod: &PodRef) -> Result<()> {
        let told = |error: Error| Error::unavailable(format!("pod {pod}: {}", error.report()));
        self.lower.known().map_err(told)
    }

    /// Has the core ask for a pod's status, as long as the node is ours.
    fn look(&self, pod: &PodRef) {
        if self.term.lock().is_some() {
            self.outbox.refresh(pod);
        }
    }

    /// What is done as long as the node is ours.
    fn term(&self) -> Result<Arc<Term>> {
        let term = self.term.lock().clone();
        term.ok_or_else(|| Error::unavailable("this process does not run the node at the moment"))
    }
}

impl Listener for VirtualNode {
    fn pod(&self, lower: &Arc<Pod>, gone: bool) {
        let Some(pod) = self.upper_of(lower) else {
            // Of another virtual node, perhaps: it takes from what this one offers.
            return self.standing.changed_below();
        };
        let stopped = self.memory.lock().saw(&pod, lower, gone);
        if stopped {
            // Nobody asks for it any more where its containers had been seen to end.
            self.let_go(&pod);
        } else if reporting::has_ended(lower)
            && let Ok(term) = self.term()
        {
            term.reflector.release(&pod);
        }
        self.look(&pod);
    }

    fn ground(&self) {
        self.standing.changed_below();
    }
}

impl Locate for VirtualNode {
    fn locate(&self, pod: &PodRef) -> Result<(String, String)> {
        let found = self.twin(pod).and_then(|_| self.key(pod));
        found.ok_or_else(|| Error::not_found(format!("pod {pod} is not in the lower cluster")))
    }

    fn runs(&self, container: &ContainerRef) -> Result<()> {
        let lower = self.twin(&container.pod);
        let status = lower.as_ref().and_then(|lower| lower.status.as_ref());
        let all = status.into_iter().flat_map(|status| {
            let lists = [
                &status.container_statuses,
                &status.init_container_statuses,
                &status.ephemeral_container_statuses,
            ];
            lists.into_iter().flatten().flatten()
        });
        let mut own = all.filter(|one| one.name == container.container);
        // What is not told of at all is the lower cluster's to say.
        match own.next().and_then(|one| one.state.as_ref()) {
            Some(state) if state.running.is_none() => {
                Err(Error::unavailable(format!("{container} does not run in the lower cluster")))
            }
            _ => Ok(()),
        }
    }
}

impl Twins for VirtualNode {
    fn twin(&self, namespace: &str, name: &str, uid: &str) -> Option<PodRef> {
        let lower = self.lower.pod(&(namespace.to_owned(), name.to_owned()))?;
        (lower.metadata.uid.as_deref() == Some(uid)).then(|| self.upper_of(&lower))?
    }

    fn users(&self, namespace: &str, claim: &str) -> Vec<PodRef> {
        // Asked for every event of every claim: most are in namespaces where nothing is ours.
        let uses = |lower: &Arc<Pod>| {
            lower.metadata.namespace.as_deref() == Some(namespace)
                && dependencies(lower).claims.contains(claim)
        };
        self.lower
            .pods_of(&self.owner)
            .iter()
            .filter(|lower| uses(lower))
            .filter_map(|lower| self.upper_of(lower))
            .collect()
    }
}

impl Placed for VirtualNode {
    fn placed(&self) -> Vec<(PodRef, Arc<Pod>)> {
        self.own()
    }
}
