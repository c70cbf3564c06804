//! The mock provider, with methods for tests beyond the contract.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use vk_provider::{PodRef, Quantity, Result};
use vk_supervisor::Clock;

use crate::{
    ability::{
        files::ContainerDisks,
        fit::{FitScript, LowerNodes},
        stats::CpuTimeTotal,
    },
    config::Settings,
    connection::{HostConnection, unexpected_reply},
    fault::{Call, Fault, Faults},
    lifecycle::Lifecycle,
    pod_host::PodHost,
    remote_host::RemoteHost,
    resolved_inputs::ResolvedInputs,
    simulator::{Reply, Request},
    time::default_clock,
};

/// The mock provider of one node. Clones share the state.
#[derive(Clone)]
pub struct Mock(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) node: Arc<str>,
    pub(crate) host_ip: IpAddr,
    pub(crate) settings: Settings,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) capacity: Mutex<BTreeMap<String, Quantity>>,
    /// Where pods are, for the question whether more fit.
    pub(crate) lower_nodes: LowerNodes,
    /// Counts the changes of the capacity.
    pub(crate) described: watch::Sender<u64>,
    pub(crate) faults: Faults,
    pub(crate) connection: Arc<HostConnection>,
    pub(crate) clock: Clock,
    pub(crate) opened: Timestamp,
    /// Resolved inputs by UID.
    pub(crate) inputs: Mutex<HashMap<Arc<str>, Arc<ResolvedInputs>>>,
    /// Files that were copied into containers.
    pub(crate) disks: ContainerDisks,
    /// CPU time of all pods, including past ones.
    pub(crate) cpu_time: Mutex<CpuTimeTotal>,
}

/// Builds a [`Mock`].
#[derive(Debug)]
pub struct Builder {
    node: Arc<str>,
    host_ip: IpAddr,
    settings: Settings,
    clock: Option<Clock>,
    host: Option<PodHost>,
}

// === impl Mock ===

impl Mock {
    /// Starts building a mock for a node, with the defaults of the Go mock and a lifecycle without delays.
    pub fn builder(node: impl Into<Arc<str>>) -> Builder {
        Builder {
            node: node.into(),
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            settings: Settings::default(),
            clock: None,
            host: None,
        }
    }

    /// The name of the node.
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// Its faults, which tests can set and clear.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// The number of times a call was made.
    pub fn calls(&self, call: Call) -> u64 {
        self.0.faults.calls(call)
    }

    /// Removes a pod as if the backend had lost it.
    pub async fn vanish(&self, pod: &PodRef) -> Result<()> {
        self.done(Request::Vanish(pod.clone())).await
    }

    /// Ends a running container with this code. It may restart, depending on the restart policy.
    pub async fn finish(&self, pod: &PodRef, container: &str, exit_code: i32) -> Result<()> {
        let container = container.to_owned();
        self.done(Request::Finish { pod: pod.clone(), container, exit_code }).await
    }

    /// Changes the node's capacity for a resource and notifies the core.
    pub fn set_capacity(&self, resource: impl Into<String>, amount: Quantity) {
        let mut capacity = self.0.capacity.lock();
        capacity.insert(resource.into(), amount);
        self.0.lower_nodes.set_capacity(capacity.clone());
        drop(capacity);
        self.0.described.send_modify(|version| *version += 1);
    }

    /// Changes how it answers whether pods fit.
    pub fn set_fit(&self, script: FitScript) {
        self.0.lower_nodes.set_script(script);
    }

    /// How often each UID was created in the backend, by any process. More than once is a bug of the core, unless the pod
    /// vanished or was deleted in between.
    pub async fn journal(&self) -> Result<BTreeMap<Arc<str>, u32>> {
        match self.0.connection.call(Request::Journal).await? {
            Reply::Journal(journal) => Ok(journal),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// How often this UID was created.
    pub async fn creations(&self, uid: &str) -> Result<u32> {
        Ok(self.journal().await?.get(uid).copied().unwrap_or(0))
    }

    /// Waits until the backend process is connected; returns immediately if the pods are in this process.
    pub async fn connected(&self, limit: Duration) -> Result<()> {
        self.0.connection.wait(limit).await
    }

    pub(crate) async fn done(&self, request: Request) -> Result<()> {
        match self.0.connection.call(request).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl fmt::Debug for Mock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mock")
            .field("node", &self.0.node)
            .field("connection", &self.0.connection)
            .finish_non_exhaustive()
    }
}

// === impl Builder ===

impl Builder {
    /// Sets everything that a configuration can contain.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Sets the lifecycle of pods.
    #[must_use]
    pub fn life(mut self, life: Lifecycle) -> Self {
        self.settings.life = life;
        self
    }

    /// Sets an initial fault.
    #[must_use]
    pub fn fault(mut self, call: Call, fault: Fault) -> Self {
        self.settings.faults.insert(call, fault);
        self
    }

    /// Sets the capacity for a resource.
    #[must_use]
    pub fn capacity(mut self, resource: impl Into<String>, amount: Quantity) -> Self {
        self.settings.capacity.insert(resource.into(), amount);
        self
    }

    /// Sets how it answers whether pods fit.
    #[must_use]
    pub fn fit(mut self, script: FitScript) -> Self {
        self.settings.fit = script;
        self
    }

    /// Sets whether pods wait for the files of their volumes.
    #[must_use]
    pub fn volumes(mut self, volumes: bool) -> Self {
        self.settings.volumes = volumes;
        self
    }

    /// Sets the node's address.
    #[must_use]
    pub fn host_ip(self, host_ip: IpAddr) -> Self {
        Self { host_ip, ..self }
    }

    /// Sets the clock; ignored with [`Builder::host`], which has one.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Uses this host for the pods; other mocks may share it.
    #[must_use]
    pub fn host(self, host: PodHost) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Uses the backend process that serves this socket.
    #[must_use]
    pub fn backend(mut self, socket: impl Into<PathBuf>) -> Self {
        self.settings.backend = Some(socket.into());
        self
    }

    /// Builds the mock. Call it inside a tokio runtime: it starts a task.
    pub fn build(self) -> Mock {
        let Self { node, host_ip, settings, clock, host } = self;
        let faults = Faults::default();
        for (call, fault) in &settings.faults {
            faults.set(*call, fault.clone());
        }
        let (clock, connection) = match (host, &settings.backend) {
            (Some(host), _) => (host.clock().clone(), HostConnection::Local(host)),
            (None, Some(socket)) => {
                let remote = RemoteHost::new(socket.clone(), Arc::clone(&node));
                (clock.unwrap_or_else(default_clock), HostConnection::Remote(remote))
            }
            (None, None) => {
                let clock = clock.unwrap_or_else(default_clock);
                (clock.clone(), HostConnection::Local(PodHost::new(clock)))
            }
        };
        Mock(Arc::new(Inner {
            node,
            host_ip,
            life: Arc::new(settings.life.clone()),
            capacity: Mutex::new(settings.capacity.clone()),
            lower_nodes: LowerNodes::new(settings.fit.clone(), settings.capacity.clone()),
            settings,
            described: watch::Sender::new(0),
            faults,
            connection: Arc::new(connection),
            opened: clock.now(),
            clock,
            inputs: Mutex::default(),
            disks: ContainerDisks::default(),
            cpu_time: Mutex::default(),
        }))
    }
}
