//! One virtual node: its pods run in the lower cluster.

pub mod abandonment;
mod backend_health;
mod leadership;
mod lower_error;
mod node_status;
mod pod_creation;
mod pod_deletion;
mod pod_records;
mod pod_status;
mod pod_update;

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
use vk_supervisor::Clock;

use self::{
    backend_health::BackendHealth, leadership::LeadershipSession, node_status::NodeStatus,
    pod_records::PodRecords,
};
use crate::{
    config::Settings,
    dependencies::dependencies,
    events::PodLookup,
    lower_cluster::{Key, LowerCluster, LowerClusterListener},
    names::Owner,
    pod_plan,
    stats::{PodSource, UsageStats},
    stream::{PodLocator, PodStreams},
};

/// The provider of one virtual node. Clones are the same.
#[derive(Clone)]
pub struct ClusterProvider {
    node: Arc<VirtualNode>,
    streams: PodStreams,
    usage: Arc<UsageStats>,
}

/// What a [`ClusterProvider`] is made of.
pub struct ClusterProviderOptions {
    /// The cluster that the node is of.
    pub upper: UpperCluster,
    /// The cluster that runs its pods.
    pub lower: LowerCluster,
    /// Whose the lower pods are.
    pub owner: Owner,
    /// How the lower cluster is offered.
    pub settings: Settings,
    /// For the ages of things.
    pub clock: Clock,
}

struct VirtualNode {
    upper: UpperCluster,
    lower: LowerCluster,
    owner: Owner,
    settings: Settings,
    clock: Clock,
    records: Mutex<PodRecords>,
    outbox: Arc<Outbox>,
    /// What is done as long as the node is ours.
    session: Mutex<Option<Arc<LeadershipSession>>>,
    health: BackendHealth,
    node_status: NodeStatus,
    /// Whether the lower cluster is given up.
    abandoned: watch::Receiver<bool>,
    /// Whether nothing of the node is left to do.
    removed: watch::Sender<bool>,
}

// === impl ClusterProvider ===

impl ClusterProvider {
    /// Begins to follow the lower cluster.
    pub fn new(options: ClusterProviderOptions) -> Self {
        let ClusterProviderOptions { upper, lower, owner, settings, clock } = options;
        let abandoned = abandonment::watch(upper.client.clone(), owner.node.clone(), &upper.supervisor);
        let node = Arc::new(VirtualNode {
            abandoned,
            removed: watch::Sender::new(false),
            health: BackendHealth::default(),
            node_status: NodeStatus::default(),
            records: Mutex::default(),
            outbox: Arc::default(),
            session: Mutex::default(),
            upper,
            lower,
            owner,
            settings,
            clock,
        });
        let listener: Arc<dyn LowerClusterListener> = Arc::<VirtualNode>::clone(&node);
        node.lower.listen(Arc::downgrade(&listener));
        node_status::spawn_updates(&node);
        let client = node.lower.client().clone();
        let streams = PodStreams::new(client.clone(), Arc::<VirtualNode>::clone(&node));
        let placed = Arc::<VirtualNode>::clone(&node);
        let usage = UsageStats::new(client, node.owner.clone(), placed, node.clock.clone());
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

    /// Computes the resources of the node now.
    pub(crate) fn update_resources(&self) {
        self.node.update_resources();
    }
}

#[async_trait]
impl Provider for ClusterProvider {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        if self.node.is_abandoned() {
            return self.node.create_abandoned(&bundle);
        }
        self.node.create(bundle).await
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        if self.node.is_abandoned() {
            return self.node.create_abandoned(&bundle);
        }
        self.node.update(bundle).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        if self.node.is_abandoned() {
            return Err(self.node.forget_abandoned(pod));
        }
        self.node.delete(pod, last_known.as_deref(), grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        if self.node.is_abandoned() {
            return self.node.abandoned_status(pod);
        }
        self.node.status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        if self.node.is_abandoned() {
            return Ok(Vec::new());
        }
        self.node.lower.check_synced()?;
        let there = self.node.own_pods().into_iter().map(|(pod, lower)| {
            let status = self.node.report(&pod, &lower);
            (pod, status)
        });
        let all = there.chain(self.node.pods_without_lower());
        let observed =
            all.map(|(pod, status)| ObservedPod { pod, node: Some(self.node.owner.node.clone()), status });
        Ok(observed.collect())
    }

    fn changes(&self) -> Changes {
        Changes::Push(leadership::begin(&self.node))
    }

    async fn ping(&self) -> Result<()> {
        self.node.ping().await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        self.node.describe(node);
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        let changed = self.node.node_status.subscribe();
        let looks = stream::unfold(changed, |mut changed| async move {
            changed.changed().await.ok()?;
            Some((NodeChange::Refresh, changed))
        });
        Some(stream::select(looks, abandonment::final_event(&self.node)).boxed())
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
        let namespace = self.settings.namespaces.to_lower(&pod.namespace)?;
        Some((namespace, pod.name.to_string()))
    }

    /// The upper pod that a lower one of this virtual node is of. A copy that somebody made of it, with its labels, is of none.
    fn upper_pod_of(&self, lower: &Pod) -> Option<PodRef> {
        if !self.owner.owns(&lower.metadata) {
            return None;
        }
        let (namespace, name, uid) = pod_plan::upper_pod_of(lower)?;
        let pod = PodRef::new(namespace, name, uid);
        let (there, called) = self.key(&pod)?;
        let metadata = &lower.metadata;
        let in_place =
            metadata.namespace.as_deref() == Some(&there) && metadata.name.as_deref() == Some(&called);
        in_place.then_some(pod)
    }

    /// The lower pod of an upper one, as it was told last.
    fn lower_pod(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        let lower = self.lower.pod(&self.key(pod)?)?;
        (self.upper_pod_of(&lower)?.uid == pod.uid).then_some(lower)
    }

    /// The same at this moment, if it was not told of.
    async fn find_lower_pod(&self, pod: &PodRef) -> Result<Option<Arc<Pod>>> {
        match self.lower_pod(pod) {
            Some(lower) => Ok(Some(lower)),
            None => self.read_lower_pod(pod).await,
        }
    }

    /// The same at this moment, whatever was told.
    async fn read_lower_pod(&self, pod: &PodRef) -> Result<Option<Arc<Pod>>> {
        let Some(key) = self.key(pod) else { return Ok(None) };
        let found = self.lower.read(&key).await;
        let found =
            found.map_err(|error| lower_error::to_provider_error(&format!("read pod {pod}"), error))?;
        let is_ours = |lower: &Pod| self.upper_pod_of(lower).is_some_and(|upper| upper.uid == pod.uid);
        Ok(found.filter(is_ours).map(Arc::new))
    }

    /// The lower pods of this virtual node, as they were told last.
    fn own_pods(&self) -> Vec<(PodRef, Arc<Pod>)> {
        let all = self.lower.pods_of(&self.owner);
        all.into_iter().filter_map(|lower| Some((self.upper_pod_of(&lower)?, lower))).collect()
    }

    fn pods_in(&self, namespace: &str) -> Objects<Pod> {
        Objects::namespaced(self.lower.client().clone(), namespace)
    }

    /// Whether all is known that has to be before anything is said of a pod.
    fn check_synced_for(&self, pod: &PodRef) -> Result<()> {
        let told = |error: Error| Error::unavailable(format!("pod {pod}: {}", error.report()));
        self.lower.check_synced().map_err(told)
    }

    /// Has the core ask for a pod's status, as long as the node is ours.
    fn request_status(&self, pod: &PodRef) {
        if self.session.lock().is_some() {
            self.outbox.refresh(pod);
        }
    }

    /// What is done as long as the node is ours.
    fn session(&self) -> Result<Arc<LeadershipSession>> {
        let session = self.session.lock().clone();
        session.ok_or_else(|| Error::unavailable("this process does not run the node at the moment"))
    }
}

impl LowerClusterListener for VirtualNode {
    fn pod_changed(&self, lower: &Arc<Pod>, deleted: bool) {
        let Some(pod) = self.upper_pod_of(lower) else {
            // Of another virtual node, perhaps: it takes from what this one offers.
            return self.node_status.capacity_changed();
        };
        let stopped = self.records.lock().observe(&pod, lower, deleted);
        if stopped {
            // Nobody asks for it any more where its containers had been seen to end.
            self.forget_pod(&pod);
        } else if pod_status::has_ended(lower)
            && let Ok(session) = self.session()
        {
            session.copier.release(&pod);
        }
        self.request_status(&pod);
    }

    fn capacity_changed(&self) {
        self.node_status.capacity_changed();
    }
}

impl PodLocator for VirtualNode {
    fn locate(&self, pod: &PodRef) -> Result<(String, String)> {
        let found = self.lower_pod(pod).and_then(|_| self.key(pod));
        found.ok_or_else(|| Error::not_found(format!("pod {pod} is not in the lower cluster")))
    }

    fn check_running(&self, container: &ContainerRef) -> Result<()> {
        let lower = self.lower_pod(&container.pod);
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

impl PodLookup for VirtualNode {
    fn upper_pod(&self, namespace: &str, name: &str, uid: &str) -> Option<PodRef> {
        let lower = self.lower.pod(&(namespace.to_owned(), name.to_owned()))?;
        (lower.metadata.uid.as_deref() == Some(uid)).then(|| self.upper_pod_of(&lower))?
    }

    fn claim_users(&self, namespace: &str, claim: &str) -> Vec<PodRef> {
        // Asked for every event of every claim: most are in namespaces where nothing is ours.
        let uses = |lower: &Arc<Pod>| {
            lower.metadata.namespace.as_deref() == Some(namespace)
                && dependencies(lower).claims.contains(claim)
        };
        self.lower
            .pods_of(&self.owner)
            .iter()
            .filter(|lower| uses(lower))
            .filter_map(|lower| self.upper_pod_of(lower))
            .collect()
    }
}

impl PodSource for VirtualNode {
    fn pods(&self) -> Vec<(PodRef, Arc<Pod>)> {
        self.own_pods()
    }
}
