//! The provider of one virtual node, whose pods run in the lower cluster.

pub mod abandonment;
mod backend_health;
mod fit;
mod leadership;
mod lost_labels;
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
    ability::{Attach, Exec, Fit, Logs, PortForward, Stats},
};
use vk_supervisor::{Clock, Supervisor};

use self::{
    backend_health::BackendHealth, leadership::LeadershipSession, node_status::NodeStatus,
    pod_records::PodRecords,
};
use crate::{
    config::Settings,
    copies::{Kind, UpperWatches, diff::CopyKey},
    events::PodLookup,
    lower_cluster::{LowerCluster, LowerClusterListener, ObjectKey},
    names::OwnerId,
    pod_plan,
    stats::{PodSource, UsageStats},
    status::{has_ended, has_stopped},
    stream::{PodLocator, PodStreams},
};

/// The provider of one virtual node. Clones share state.
#[derive(Clone)]
pub struct ClusterProvider {
    node: Arc<VirtualNode>,
    streams: PodStreams,
    usage: Arc<UsageStats>,
}

/// What a [`ClusterProvider`] needs.
pub struct ClusterProviderOptions {
    /// The cluster that has the virtual node.
    pub upper: UpperCluster,
    /// The watches of upper objects that all virtual nodes of the lower cluster share.
    pub upper_watches: Arc<UpperWatches>,
    /// The cluster that runs its pods.
    pub lower: LowerCluster,
    /// The owner of the lower pods.
    pub owner: OwnerId,
    /// The settings of this virtual node.
    pub settings: Settings,
    /// The clock that deadlines are compared with.
    pub clock: Clock,
    /// Owns the tasks of the node.
    pub supervisor: Supervisor,
}

struct VirtualNode {
    upper: UpperCluster,
    upper_watches: Arc<UpperWatches>,
    lower: LowerCluster,
    owner: OwnerId,
    settings: Settings,
    clock: Clock,
    records: Mutex<PodRecords>,
    outbox: Arc<Outbox>,
    /// The current leadership session; `None` while another process runs the node.
    session: Mutex<Option<Arc<LeadershipSession>>>,
    /// Owns the tasks of the last session, even after its end: the next session waits for them.
    last_session: Mutex<Option<Supervisor>>,
    supervisor: Supervisor,
    health: BackendHealth,
    node_status: NodeStatus,
    /// Whether the lower cluster was abandoned.
    abandoned: watch::Receiver<bool>,
    /// Set when an abandoned node has no pods left.
    removed: watch::Sender<bool>,
}

// === impl ClusterProvider ===

impl ClusterProvider {
    /// Starts to follow the lower cluster.
    pub fn new(options: ClusterProviderOptions) -> Self {
        let ClusterProviderOptions { upper, upper_watches, lower, owner, settings, clock, supervisor } =
            options;
        let abandoned = abandonment::watch(upper.client.clone(), owner.node.clone(), &supervisor);
        let node = Arc::new(VirtualNode {
            abandoned,
            removed: watch::Sender::new(false),
            health: BackendHealth::default(),
            node_status: NodeStatus::default(),
            records: Mutex::default(),
            outbox: Arc::default(),
            session: Mutex::default(),
            last_session: Mutex::default(),
            supervisor,
            upper,
            upper_watches,
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

    /// Resolves when the lower cluster was abandoned and all upper pods are gone.
    pub(crate) async fn removed(&self) {
        let mut removed = self.node.removed.subscribe();
        // The sender lives as long as the node.
        drop(removed.wait_for(|removed| *removed).await);
    }

    /// Deletes the Node object after the core stopped running it.
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
        let statuses = self.node.statuses().await?.into_iter();
        let observed = statuses.map(|(pod, status)| ObservedPod {
            pod,
            node: Some(self.node.owner.node.clone()),
            status,
        });
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
        let events = stream::select(self.node.node_status.events(), abandonment::final_event(&self.node));
        Some(stream::select(looks, events).boxed())
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

    fn fit(&self) -> Option<&dyn Fit> {
        Some(self)
    }
}

impl fmt::Debug for ClusterProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterProvider").field("owner", &self.node.owner).finish_non_exhaustive()
    }
}

// === impl VirtualNode ===

impl VirtualNode {
    /// The key of the lower pod of an upper pod; `None` if its namespace is not mapped.
    fn key(&self, pod: &PodRef) -> Option<ObjectKey> {
        let namespace = self.settings.namespaces.to_lower(&pod.namespace)?;
        Some((namespace, pod.name.to_string()))
    }

    /// The upper pod of a lower pod of this virtual node. Somebody's copy of a lower pod, labels included, has none.
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

    /// The lower pod of an upper pod, from the watch.
    fn lower_pod(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        let lower = self.lower.pod(&self.key(pod)?)?;
        (self.upper_pod_of(&lower)?.uid == pod.uid).then_some(lower)
    }

    /// The lower pod of an upper pod, read from the API server if the watch has not reported it. The upper pod is the last known one.
    async fn find_lower_pod(&self, pod: &PodRef, upper: Option<&Pod>) -> Result<Option<Arc<Pod>>> {
        match self.lower_pod(pod) {
            Some(lower) => Ok(Some(lower)),
            None => self.read_lower_pod(pod, upper).await,
        }
    }

    /// The lower pod of an upper pod, always read from the API server, by its name.
    async fn read_lower_pod(&self, pod: &PodRef, upper: Option<&Pod>) -> Result<Option<Arc<Pod>>> {
        let Some(key) = self.key(pod) else { return Ok(None) };
        let found = self.lower.read(&key).await;
        let found =
            found.map_err(|error| lower_error::to_provider_error(&format!("read pod {pod}"), error))?;
        match found.map(Arc::new) {
            Some(found) => Ok(self.identify(pod, upper, found).await),
            None => Ok(None),
        }
    }

    /// The lower pods of this virtual node, from the watch.
    fn own_pods(&self) -> Vec<(PodRef, Arc<Pod>)> {
        let all = self.lower.pods_of(&self.owner);
        all.into_iter().filter_map(|lower| Some((self.upper_pod_of(&lower)?, lower))).collect()
    }

    /// The lower pods of a namespace, for writes: only while this process runs the node.
    fn pods_in(&self, namespace: &str) -> Result<Objects<Pod>> {
        Ok(Objects::namespaced(self.session()?.lower.clone(), namespace))
    }

    /// Fails unless everything was listed that a statement about a pod depends on.
    fn check_synced_for(&self, pod: &PodRef) -> Result<()> {
        let with_pod = |error: Error| Error::unavailable(format!("pod {pod}: {}", error.report()));
        self.lower.check_synced().map_err(with_pod)
    }

    /// Asks the core to fetch the status of a pod, while this process runs the node.
    fn request_status(&self, pod: &PodRef) {
        if self.session.lock().is_some() {
            self.outbox.refresh(pod);
        }
    }

    /// The current leadership session.
    fn session(&self) -> Result<Arc<LeadershipSession>> {
        let session = self.session.lock().clone();
        session.ok_or_else(|| Error::unavailable("this process is not the leader of the node"))
    }
}

impl LowerClusterListener for VirtualNode {
    fn pod_changed(&self, lower: &Arc<Pod>, deleted: bool) {
        let Some(pod) = self.upper_pod_of(lower) else { return };
        let stopped = self.records.lock().observe(&pod, lower, deleted);
        if stopped && has_stopped(lower) {
            // The core does not ask again for a pod whose containers it has seen terminated. For others the API server is asked: the pod
            // may have lost its labels.
            self.forget_pod(&pod);
        } else if has_ended(lower)
            && let Ok(session) = self.session()
        {
            session.copier.release(&pod);
        }
        self.request_status(&pod);
    }

    fn capacity_changed(&self) {
        self.node_status.capacity_changed();
    }

    fn identity_changed(&self) {
        self.node_status.mark_changed();
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
        // If the status is unknown, the lower API server decides.
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
        // This is called for each event of each claim, again and again for those of strangers.
        let key = CopyKey { kind: Kind::Claim, namespace: namespace.to_owned(), name: claim.to_owned() };
        self.lower.users(&key).iter().filter_map(|lower| self.upper_pod_of(lower)).collect()
    }
}

impl PodSource for VirtualNode {
    fn pods(&self) -> Vec<(PodRef, Arc<Pod>)> {
        self.own_pods()
    }
}
