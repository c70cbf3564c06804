//! The trait that every backend implements in the end, and how backends are opened.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_supervisor::Supervisor;

use crate::{
    Result,
    ability::{Abilities, Attach, Exec, Logs, PortForward, Stats},
    config::Config,
    extensions::Extensions,
    finding::Finding,
    node::{NodeChange, NodeTemplate},
    pod::{Changes, ObservedPod, PodBundle, PodRef},
};

/// Runs the pods of one virtual node.
///
/// **Concurrency.** The core calls [`create_pod`](Self::create_pod), [`update_pod`](Self::update_pod) and
/// [`delete_pod`](Self::delete_pod) for one pod one after the other, and for different pods at the same time, without a
/// limit. All other calls come at any moment, also beside those.
///
/// **Cancellation.** Dropping the future of a call is how it is cancelled. The core drops a create or an update when the
/// pod is to be deleted meanwhile, a delete when its grace is shortened, a call that has not ended after a quarter of an
/// hour (a question after a minute), and any call when the process must end; the process may also be killed at any
/// instant. So every call must be safe to abandon at any await and to repeat later, in another process, by the UID alone.
///
/// **Restart.** After a start the core calls [`pods`](Self::pods) once, then `create_pod` for every pod bound to the
/// node, and then cleans up. Only the core decides about leftovers: a provider never stops a pod because it does not
/// know its UID.
///
/// **Errors.** [`Kind`](crate::error::Kind) says what the core does with each. Nothing is retried inside a provider
/// beyond what the backend's own client does; the core retries for ever, with back-off.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Starts a pod, or adopts it when the backend has this UID already.
    ///
    /// *Idempotent by UID*: a repeated call, also after a crash in the middle, ends with exactly one instance. Returns
    /// once the backend has accepted the pod; it need not run yet. A pod of the same name with another UID is a
    /// different pod. An adopted pod is brought to what the bundle says, as by [`update_pod`](Self::update_pod): it may have
    /// changed while nobody ran.
    ///
    /// `Invalid` and `Unsupported` fail the pod for good. `Exhausted` keeps it Pending. `AlreadyExists` counts as done.
    async fn create_pod(&self, pod: PodBundle) -> Result<()>;

    /// Brings a running pod to a changed spec: image, resources, ephemeral containers, labels, annotations and the other
    /// fields that Kubernetes lets change.
    ///
    /// *Idempotent*: the bundle is the whole desired state, not a difference, and the newest one wins. `NotFound` makes
    /// the core create the pod. `Invalid` and `Unsupported` leave the pod running as it is, with an event and a condition.
    async fn update_pod(&self, pod: PodBundle) -> Result<()>;

    /// Begins to stop a pod, and returns once stopping has begun; the end shows in the status.
    ///
    /// *Repeatable*: called again with a shorter grace when somebody is in a hurry, and after a restart. Zero means at
    /// once. `grace` is what remains of the pod's grace period. `last_known` is the pod as the core saw it last, for
    /// backends that need more than the identity; it is `None` for a leftover of which the API server knows nothing.
    ///
    /// `NotFound` is success: nothing of this pod runs. The core removes the pod from the API server only after
    /// [`pod_status`](Self::pod_status) shows every container terminated, or answers `NotFound`. A provider whose backend runs more
    /// than it can show reports [`STILL_RUNNING`](crate::pod::STILL_RUNNING) until that has stopped, too.
    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()>;

    /// The status of one pod now.
    ///
    /// `NotFound` means for certain that nothing of this pod runs; a backend that cannot tell answers `Unavailable`.
    /// Reports container states, the `ContainersReady` condition, IPs and phase; the core computes `Ready` from the
    /// readiness gates and keeps the other conditions. A report with a `qosClass` counts as a whole one, made as a kubelet makes it:
    /// the core then fills in nothing that is not told.
    ///
    /// A provider may have conditions of its own: those whose type begins with `virtual-kubelet.io/`, or with a domain below it, reach
    /// the pod as they are reported, and go when they are not reported any more. `DisruptionTarget` reaches the pod when it is `True`,
    /// and stays. All other conditions belong to other controllers, and are left as they are.
    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus>;

    /// Every pod that the backend runs for this node: the truth after a restart, and compared with the API server from
    /// time to time. Must be complete; a backend that cannot list answers an error and not a part.
    async fn pods(&self) -> Result<Vec<ObservedPod>>;

    /// How changes of pods arrive. Called once, before any pod is created; a process that lost the node to another replica
    /// and takes it again calls it again, when the earlier stream is gone.
    fn changes(&self) -> Changes {
        Changes::Poll(Duration::from_secs(5))
    }

    /// Whether the backend can take and run pods now. The node is Ready while this succeeds, and NotReady with the
    /// error's text as soon as it fails.
    ///
    /// Called every few seconds, never twice at a time, and given up after a timeout. A backend that fails now and then
    /// debounces in here. Running pods are not touched when it fails.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Describes the node: capacity, addresses, system facts, labels, taints and conditions of its own. The template
    /// comes filled with the defaults and the user's settings; what the provider sets wins.
    ///
    /// Called again after every [`NodeChange::Refresh`], always with a fresh template, so it states the whole truth each
    /// time. Quick and without side effects.
    fn configure_node(&self, _node: &mut NodeTemplate) {}

    /// Tells when [`configure_node`](Self::configure_node) or [`ping`](Self::ping) would now answer differently.
    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        None
    }

    /// Container logs, if the backend has them.
    fn logs(&self) -> Option<&dyn Logs> {
        None
    }

    /// Commands in containers, if the backend can.
    fn exec(&self) -> Option<&dyn Exec> {
        None
    }

    /// Attaching to a container's own process, if the backend can.
    fn attach(&self) -> Option<&dyn Attach> {
        None
    }

    /// Connections to ports of a pod, if the backend can.
    fn port_forward(&self) -> Option<&dyn PortForward> {
        None
    }

    /// Usage figures, if the backend has them.
    fn stats(&self) -> Option<&dyn Stats> {
        None
    }
}

/// Opens a backend of one kind. There is one per provider name; the binary's registry lists them.
#[async_trait]
pub trait Factory: Send + Sync + 'static {
    /// The name that users write: `--provider NAME`.
    fn name(&self) -> &'static str;

    /// One line that says what the backend is.
    fn description(&self) -> &'static str;

    /// What its providers offer beside running pods, for `virtual-kubelet providers`.
    fn abilities(&self) -> Abilities;

    /// Whether the backend adds capacity as pods come, so that the core shall not refuse a pod for lack of it.
    fn elastic(&self) -> bool {
        false
    }

    /// Reads the configuration and connects. `Invalid` when the configuration is wrong: the message says where and what
    /// to write instead. `Unavailable` is retried by the caller, `Invalid` ends the process.
    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>>;

    /// Looks whether the backend could run here, for `virtual-kubelet doctor`: one finding for each thing that was looked at,
    /// with the remedy for what is wrong. Changes nothing, and ends soon also where nobody answers.
    async fn examine(&self, _config: Config, _context: Context) -> Vec<Finding> {
        Vec::new()
    }
}

/// An opened backend: one node, many, or nodes that come and go.
pub trait Backend: Send + Sync + 'static {
    /// The nodes that this backend offers: first all that exist now, then changes. The end of the stream means that no
    /// more changes come, not that the nodes are gone. Called once.
    fn nodes(&self) -> BoxStream<'static, NodeEvent>;
}

/// One item of [`Backend::nodes`].
#[derive(Clone)]
pub enum NodeEvent {
    /// A node to be registered under this name, with the provider for its pods.
    Added(String, Arc<dyn Provider>),
    /// A node that is no more.
    Removed(String),
}

/// What the process tells a backend when it opens it.
#[derive(Clone, Debug)]
pub struct Context {
    /// The name that the user gave to the node. A backend with several nodes derives theirs from it.
    pub node_name: String,
    /// The address under which the node's kubelet API is reached.
    pub internal_ip: IpAddr,
    /// The port of the node's kubelet API.
    pub kubelet_port: u16,
    /// `linux` or `windows`: what the node's pods run on.
    pub operating_system: String,
    /// The cluster's DNS domain, such as `cluster.local`.
    pub cluster_domain: String,
    /// A folder that the provider may fill for this node and that survives restarts.
    pub state_dir: PathBuf,
    /// A folder for what nodes of this machine share, such as images. It survives restarts too.
    pub shared_dir: PathBuf,
    /// What else the process lends to backends that ask for it.
    pub extensions: Extensions,
    /// Owns the backend's background tasks: start them with [`Supervisor::spawn`], and let them end when
    /// [`Supervisor::stopping`] resolves. The process waits for them when it stops, and stops when a
    /// [critical](vk_supervisor::task::Kind::Critical) one ends unexpectedly. It stops after the node's last call has returned.
    pub supervisor: Supervisor,
}

/// The backend of a provider that is exactly one node.
pub struct SingleNode {
    name: String,
    provider: Arc<dyn Provider>,
}

// === impl SingleNode ===

impl SingleNode {
    /// A backend with this provider as its only node, under the name that the user gave.
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
