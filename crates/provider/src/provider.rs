//! The [`Provider`] trait, and the [`Factory`] that opens backends.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_supervisor::Supervisor;

use crate::{
    Result,
    ability::{Abilities, Attach, Exec, Fit, Logs, PortForward, Stats},
    config::{Config, ConfigAlias},
    explanation::{ExplainRequest, Explanation},
    extensions::Extensions,
    finding::Finding,
    inventory::Inventory,
    metrics::MetricFamily,
    node::{NodeChange, NodeTemplate},
    pod::{Changes, ObservedPod, PodBundle, PodRef},
};

/// Runs the pods of one virtual node.
///
/// **Concurrency.** For one pod, the core calls [`create_pod`](Self::create_pod), [`update_pod`](Self::update_pod) and
/// [`delete_pod`](Self::delete_pod) one after the other; for different pods at the same time, without a limit. All other
/// methods can be called at any time, also while those are running.
///
/// **Cancellation.** A call is cancelled by dropping its future. The core drops a create or an update when the pod is
/// deleted, a delete when its grace period is shortened, a lifecycle call that has not returned after 15 minutes (a
/// query after one minute), and any call when the process stops; the process may also be killed at any time. Therefore
/// every call must be safe to abandon at any await and to repeat later, in another process, by the UID alone.
///
/// **Restart.** When it starts, the core calls [`pods`](Self::pods) once, then `create_pod` for every pod bound to the
/// node, and then cleans up. Only the core decides about orphaned pods: a provider never stops a pod because it does not
/// know its UID.
///
/// **Errors.** [`Kind`](crate::error::Kind) says how the core reacts to each error. A provider does not retry beyond what
/// the client of its backend does; the core retries with back-off and without a limit.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Starts a pod, or adopts it if the backend already has this UID.
    ///
    /// *Idempotent by UID*: a repeated call, also after a crash in the middle, ends with exactly one instance. Returns
    /// once the backend has accepted the pod, before it runs. A pod of the same name with another UID is a
    /// different pod. An adopted pod is updated to the bundle's spec as by [`update_pod`](Self::update_pod): it may have
    /// changed while no process was running.
    ///
    /// `Invalid` and `Unsupported` fail the pod permanently. `Exhausted` keeps it Pending. `AlreadyExists` counts as success.
    async fn create_pod(&self, pod: PodBundle) -> Result<()>;

    /// Applies a changed spec to a running pod: image, resources, ephemeral containers, labels, annotations and the other
    /// mutable fields.
    ///
    /// *Idempotent*: the bundle is the whole desired state, not a difference, and the newest one wins. `NotFound` makes
    /// the core create the pod. `Invalid` and `Unsupported` leave the pod running unchanged, with an event and a condition.
    async fn update_pod(&self, pod: PodBundle) -> Result<()>;

    /// Begins to stop a pod and returns as soon as stopping has begun; the status shows when it has ended.
    ///
    /// *Repeatable*: called again when the grace period is shortened, and after a restart. Zero means
    /// immediately. `grace` is the rest of the pod's grace period. `last_known` is the pod as the core last saw it, for
    /// backends that need more than the identity; it is `None` for an orphaned pod that is not in the API server.
    ///
    /// `NotFound` is success: nothing of this pod runs. The core removes the pod from the API server only after
    /// [`pod_status`](Self::pod_status) shows every container terminated, or returns `NotFound`. A provider whose backend runs
    /// something that container statuses cannot show reports [`STILL_RUNNING`](crate::pod::STILL_RUNNING) until that has stopped too.
    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()>;

    /// The current status of one pod.
    ///
    /// `NotFound` guarantees that nothing of this pod runs; a backend that does not know returns `Unavailable`.
    /// Reports container states, the `ContainersReady` condition, IPs and phase; the core computes `Ready` from the
    /// readiness gates and keeps the other conditions. A status with a `qosClass` counts as complete, as written by a kubelet:
    /// the core then adds no missing fields.
    ///
    /// The core omits what no kubelet would report, and records an event:
    /// a phase that goes back, containers that the pod does not have, a container in two states at once.
    ///
    /// A provider may report conditions of its own: types that begin with `virtual-kubelet.io/`, or with a subdomain of it, are
    /// copied to the pod, and removed when they are no longer reported. `DisruptionTarget` is copied when it is `True`,
    /// and stays. All other conditions belong to other controllers and are not touched.
    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus>;

    /// All pods that the backend runs for this node: the truth after a restart, and compared with the API server
    /// periodically. Must be complete; a backend that cannot list all of them returns an error.
    async fn pods(&self) -> Result<Vec<ObservedPod>>;

    /// How the core learns of changes. Called once, before any pod is created; with leader election, called again in each
    /// leadership session, after the earlier stream was dropped.
    fn changes(&self) -> Changes {
        Changes::Poll(Duration::from_secs(5))
    }

    /// Whether the backend can accept and run pods now. The node is Ready while this succeeds, and NotReady with the
    /// error's text as soon as it fails.
    ///
    /// Called every few seconds, never concurrently, and abandoned after a timeout. Debounce the errors of a flaky
    /// backend here. Running pods are not touched when it fails.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Describes the node: capacity, addresses, system information, labels, taints and additional conditions. The template
    /// contains the defaults and the user's settings; the provider's values win.
    ///
    /// Called again after every [`NodeChange::Refresh`], always with a fresh template, so set everything each
    /// time. Must be quick and without side effects.
    fn configure_node(&self, _node: &mut NodeTemplate) {}

    /// Reports when [`configure_node`](Self::configure_node) or [`ping`](Self::ping) would give another result.
    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        None
    }

    /// Metrics of the backend, read whenever `/metrics` is scraped: at any time, also while the provider is busy. Must be quick and
    /// come from memory.
    fn metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }

    /// Container logs, if the backend supports them.
    fn logs(&self) -> Option<&dyn Logs> {
        None
    }

    /// Commands in containers, if the backend supports them.
    fn exec(&self) -> Option<&dyn Exec> {
        None
    }

    /// Attaching to a container's main process, if the backend supports it.
    fn attach(&self) -> Option<&dyn Attach> {
        None
    }

    /// Connections to ports of a pod, if the backend supports them.
    fn port_forward(&self) -> Option<&dyn PortForward> {
        None
    }

    /// Resource usage, if the backend reports it.
    fn stats(&self) -> Option<&dyn Stats> {
        None
    }

    /// Whether the node would take pods, if the backend can tell.
    fn fit(&self) -> Option<&dyn Fit> {
        None
    }
}

/// Opens backends of one kind. There is one factory per provider name; the binary's registry lists them.
#[async_trait]
pub trait Factory: Send + Sync + 'static {
    /// The name that users write: `--provider NAME`.
    fn name(&self) -> &'static str;

    /// One line that describes the backend.
    fn description(&self) -> &'static str;

    /// The optional features of its providers, for `virtual-kubelet providers`.
    fn abilities(&self) -> Abilities;

    /// Whether the backend adds capacity on demand. If so, the core does not reject pods for lack of resources.
    fn elastic(&self) -> bool {
        false
    }

    /// Whether its providers need [`Context::cluster`]: backends that several clusters share, to tell whose things they hold. The id is read
    /// only then, because not every identity may read it.
    fn needs_cluster_id(&self) -> bool {
        false
    }

    /// The names of the nodes that [`Backend::nodes`] adds with this configuration, as far as they are known before it is opened: the
    /// process checks at start whether it may act for them.
    fn node_names(&self, _config: &Config, node_name: &str) -> Vec<String> {
        vec![node_name.to_owned()]
    }

    /// Reads the configuration and connects. `Invalid` means that the configuration is wrong: the message says where, and
    /// what to write instead; the process ends. `Unavailable` is retried by the caller.
    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>>;

    /// Checks whether the backend could run here, for `virtual-kubelet doctor`. Returns one finding per check, with a remedy
    /// where something is wrong. Must change nothing, and must return soon even if the backend does not answer.
    async fn examine(&self, _config: Config, _context: Context) -> Vec<Finding> {
        Vec::new()
    }

    /// Says what would become of a pod, for `virtual-kubelet explain-pod`: whether it runs, its size and price, and what becomes of its
    /// fields. There is no cluster, and there may be no credentials: nothing is called unless
    /// [`ask_backend`](ExplainRequest::ask_backend) is set, and then nothing is changed.
    ///
    /// An error means that the configuration is wrong (`Invalid`). A pod that does not run is an explanation; so is a backend that does not
    /// answer: [`BackendAnswer::Failed`](crate::explanation::BackendAnswer::Failed).
    ///
    /// The default is for providers that pass pods through as they are.
    async fn explain(
        &self,
        _config: Config,
        _context: Context,
        _request: ExplainRequest,
    ) -> Result<Explanation> {
        Ok(Explanation::unchanged())
    }

    /// What the backend holds for virtual nodes, for `virtual-kubelet groups`; `None` if the provider has no such list. Errors are as those of
    /// [`open`](Self::open).
    async fn inventory(&self, _config: Config, _context: Context) -> Result<Option<Arc<dyn Inventory>>> {
        Ok(None)
    }

    /// The environment variables that set keys of the provider's configuration, such as those of a Go provider. Of two variables for one key
    /// the first that is set wins; empty ones count as unset. They override the file. The core passes their values with the configuration.
    fn variables(&self) -> &'static [ConfigAlias] {
        &[]
    }
}

/// An opened backend: one node, many, or nodes that come and go.
pub trait Backend: Send + Sync + 'static {
    /// The nodes of this backend: first all that exist now, then changes. The end of the stream means that no more changes
    /// will come, not that the nodes are gone. Called once.
    fn nodes(&self) -> BoxStream<'static, NodeEvent>;
}

/// One item of [`Backend::nodes`].
#[derive(Clone)]
pub enum NodeEvent {
    /// Register a node under this name, with this provider for its pods.
    Added(String, Arc<dyn Provider>),
    /// The node no longer exists.
    Removed(String),
}

/// The environment in which a backend is opened.
#[derive(Clone, Debug)]
pub struct Context {
    /// The node name from the configuration. A backend with several nodes derives their names from it.
    pub node_name: String,
    /// The address of the node's kubelet API.
    pub internal_ip: IpAddr,
    /// The port of the node's kubelet API.
    pub kubelet_port: u16,
    /// The operating system of the node's pods: `linux` or `windows`.
    pub operating_system: String,
    /// The cluster's DNS domain, such as `cluster.local`.
    pub cluster_domain: String,
    /// The identity of the cluster: the UID of its namespace `kube-system`, so that several clusters can share an account of a backend.
    /// `None` if the process may not read it, or if there is no cluster.
    pub cluster: Option<String>,
    /// A directory for the state of this node. It survives restarts.
    pub state_dir: PathBuf,
    /// A directory for state that the nodes of this host share, such as images. It survives restarts.
    pub shared_dir: PathBuf,
    /// Objects of the process that some backends need, found by type.
    pub extensions: Extensions,
    /// Owns the backend's background tasks. Start them with [`Supervisor::spawn`], and end them when
    /// [`Supervisor::stopping`] resolves, which is after the last call of the nodes has returned. The process waits for these
    /// tasks when it stops; it stops with an error when a [critical](vk_supervisor::task::Kind::Critical) one ends unexpectedly.
    pub supervisor: Supervisor,
}

/// A backend with exactly one node.
pub struct SingleNode {
    name: String,
    provider: Arc<dyn Provider>,
}

// === impl SingleNode ===

impl SingleNode {
    /// Creates a backend whose only node has the configured name and this provider.
    pub fn new(context: &Context, provider: impl Provider) -> Self {
        Self { name: context.node_name.clone(), provider: Arc::new(provider) }
    }
}

impl Backend for SingleNode {
    fn nodes(&self) -> BoxStream<'static, NodeEvent> {
        let added = NodeEvent::Added(self.name.clone(), Arc::clone(&self.provider));
        stream::iter([added]).boxed()
    }
}

impl std::fmt::Debug for NodeEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Added(name, _) => f.debug_tuple("Added").field(name).finish(),
            Self::Removed(name) => f.debug_tuple("Removed").field(name).finish(),
        }
    }
}
