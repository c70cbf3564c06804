//! The backend of the pod engine on this host: sandboxes and containers without a daemon.
//!
//! All state that must survive a restart is on disk, in `local/` below the node's directory:
//!
//! ```text
//! sandboxes/ID/   draft.json, record.json, stopped, net ipc uts (mounted namespaces), shm/, resolv.conf, hostname
//! containers/ID/  record.json, config.json, rootfs/ upper/ work/ images/N/, and the shim's files
//! events.sock     shims send the UID of a pod here when one of its containers changes
//! ```
//!
//! A record is written last, once the sandbox or container is complete. A directory without a record was being created
//! when this process was killed; the next start removes it. Only this directory and the cgroups named by a record or
//! draft are ever removed.
//!
//! No file has the command line or the environment of a container, which may contain Secrets: this process keeps them
//! until the container is started, its shim as long as it runs.
//!
//! An operation that changes state runs to completion even if its caller gives up, so that no sandbox is left half
//! made.

mod container;
mod container_backend;
mod container_store;
pub(crate) mod error;
mod events;
mod process;
mod record;
mod recovery;
mod rootfs;
mod sandbox;
mod signal;
mod usage;

use std::{future::Future, io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    net::UnixDatagram,
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep},
};
use vk_provider::{Error, Result};
use vk_supervisor::Clock;

use self::{container_store::ContainerStore, recovery::boot_id};
use crate::{
    cgroup::HostCgroups, files, image::Store, isolation::Isolation, network::Network, shim::Program,
    spec::HostFeatures,
};

/// Default time limit of a call, as in the kubelet.
const CALL_LIMIT: Duration = Duration::from_mins(2);

/// How long the shims of removed containers may take to exit, and the polling interval.
const SHIMS_LIMIT: Duration = Duration::from_secs(5);
const SHIMS_POLL: Duration = Duration::from_millis(10);

/// Settings of the backend.
#[derive(Clone)]
pub struct LocalBackendSettings {
    /// The node's directory; the backend uses `local` in it.
    pub root: PathBuf,
    /// How to start a shim.
    pub program: Program,
    /// How containers are isolated.
    pub isolation: Isolation,
    /// The image store.
    pub images: Arc<Store>,
    /// The pod network; `None` means that pods use the host's network.
    pub network: Option<Network>,
    /// Why there is no pod network although one is configured.
    pub network_problem: Option<String>,
    /// The host's addresses, which are the pod IPs if there is no pod network.
    pub node_ips: Vec<IpAddr>,
    /// Parent cgroup of pods for which the engine names none.
    pub cgroup_root: String,
    /// The host's cgroups; required by level `oci`.
    pub cgroups: Option<HostCgroups>,
    /// Maximum number of processes in a container.
    pub pids_limit: Option<i64>,
    /// Whether `image: host` runs the host's own programs; level `process` only.
    pub host_image: bool,
    /// Time limit of a call.
    pub call_limit: Duration,
    /// Time limit of a pull; `None` means no limit.
    pub pull_limit: Option<Duration>,
    /// The boot id; `None` reads it from the kernel.
    pub boot_id: Option<String>,
    /// The clock.
    pub clock: Clock,
}

impl LocalBackendSettings {
    /// Default settings, without network and cgroups.
    pub fn new(root: impl Into<PathBuf>, program: Program, isolation: Isolation, images: Arc<Store>) -> Self {
        Self {
            root: root.into(),
            program,
            isolation,
            images,
            network: None,
            network_problem: None,
            node_ips: Vec::new(),
            cgroup_root: "/virtual-kubelet".to_owned(),
            cgroups: None,
            pids_limit: None,
            host_image: false,
            call_limit: CALL_LIMIT,
            pull_limit: None,
            boot_id: None,
            clock: Clock::system(),
        }
    }
}

/// The backend that runs pods as containers or processes of this host.
#[derive(Clone)]
pub struct LocalBackend {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    settings: LocalBackendSettings,
    directory: PathBuf,
    host_features: HostFeatures,
    boot: String,
    hostname: String,
    store: Mutex<ContainerStore>,
    tasks: Mutex<JoinSet<()>>,
    events: Arc<UnixDatagram>,
    layers: usage::LayerSizes,
}

// === impl Inner ===

impl Inner {
    /// The cgroup of the shims. They are not in the cgroup of this process, because a service manager would kill them
    /// with it.
    fn shims_cgroup(&self) -> String {
        format!("{}/shims", self.settings.cgroup_root.trim_end_matches('/'))
    }
}

// === impl LocalBackend ===

impl LocalBackend {
    /// The pod network, if there is one.
    pub fn network(&self) -> Option<&Network> {
        self.inner.settings.network.as_ref()
    }

    /// Opens the backend: reads the records in its directory and removes what the previous process left incomplete.
    pub async fn open(settings: LocalBackendSettings) -> Result<Self> {
        let directory = settings.root.join("local");
        let failed = |what: &'static str| {
            move |error: io::Error| {
                Error::internal(format!("open provider local: {what}: {error}")).caused_by(error)
            }
        };
        if settings.isolation == Isolation::Oci && settings.cgroups.is_none() {
            return Err(Error::invalid("open provider local: level \"oci\" needs the host's cgroups"));
        }
        for part in ["", "sandboxes", "containers"] {
            files::create_private_dir(&directory.join(part)).map_err(failed("create its directories"))?;
        }
        let boot = match &settings.boot_id {
            Some(boot) => boot.clone(),
            None => boot_id().map_err(failed("read the boot id"))?,
        };
        let host =
            std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(failed("read the host name"))?;
        let host_features = settings.cgroups.as_ref().map(HostFeatures::detect).unwrap_or_default();
        let events = Arc::new(events::bind(&directory).map_err(failed("bind events.sock"))?);
        let inner = Inner {
            directory,
            host_features,
            boot,
            hostname: host.trim().to_owned(),
            store: Mutex::default(),
            tasks: Mutex::default(),
            events,
            layers: usage::LayerSizes::default(),
            settings,
        };
        let local = Self { inner: Arc::new(inner) };
        local.inner.recover().await?;
        Ok(local)
    }

    /// Kills and removes all sandboxes and containers of this node.
    pub async fn remove_all(&self) -> Result<()> {
        let (sandboxes, containers) = {
            let store = self.inner.store.lock();
            (store.sandbox_ids(), store.container_ids())
        };
        let mut first = Ok(());
        for id in sandboxes {
            first = first.and(self.inner.remove_sandbox(&id).await);
        }
        for id in containers {
            first = first.and(self.inner.remove_container(&id).await);
        }
        first
    }

    /// Removes the bridge and the empty cgroups, unless a sandbox or container still exists.
    pub async fn close(&self) -> Result<()> {
        if !self.inner.store.lock().is_empty() {
            return Ok(());
        }
        if let Some(network) = &self.inner.settings.network {
            network.close().await.map_err(|error| {
                Error::internal(format!("close the pod network: {error}")).caused_by(error)
            })?;
        }
        if let Some(cgroups) = &self.inner.settings.cgroups {
            // The last shims exit a moment after their containers.
            let (shims, until) = (self.inner.shims_cgroup(), Instant::now() + SHIMS_LIMIT);
            cgroups.remove_empty(&shims);
            while cgroups.exists(&shims) && Instant::now() < until {
                sleep(SHIMS_POLL).await;
                cgroups.remove_empty(&shims);
            }
            cgroups.remove_empty(&self.inner.settings.cgroup_root);
        }
        Ok(())
    }

    /// Runs an operation to completion within `limit`, even if the caller stops waiting for it.
    async fn run_to_completion<T, F>(&self, limit: Duration, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let work = work(Arc::clone(&self.inner));
        {
            let mut tasks = self.inner.tasks.lock();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                let outcome = match tokio::time::timeout(limit, work).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(error::deadline_exceeded()),
                };
                // The caller may be gone.
                let _ = sender.send(outcome);
            });
        }
        receiver.await.unwrap_or_else(|_| {
            Err(Error::new(vk_provider::error::Kind::Cancelled, "the provider is closing"))
        })
    }
}

/// Runs blocking work on files and mounts off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal(format!("{what}: {error}")).caused_by(error))?
}
