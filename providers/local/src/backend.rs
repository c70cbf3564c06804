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
//! An operation that changes state runs to completion even if its caller gives up, so that no sandbox is left half
//! made.

mod container;
mod events;
pub(crate) mod fault;
mod files;
mod leftover;
mod meter;
mod plain;
mod record;
mod registry;
mod rootfs;
mod sandbox;
mod serve;
mod signal;

use std::{
    collections::BTreeMap, future::Future, io, net::IpAddr, os::unix::fs::DirBuilderExt, path::PathBuf,
    sync::Arc, time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::UnixDatagram,
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep},
};
use vk_provider::{Error, Result};
use vk_supervisor::Clock;

pub(crate) use self::fault::words;
use self::{leftover::boot_id, registry::Registry};
use crate::{cgroup::Cgroups, image::Store, level::Level, network::Network, shim::Program, spec::Machine};

/// Default time limit of a call, as in the kubelet.
const CALL_LIMIT: Duration = Duration::from_mins(2);

/// How long the shims of removed containers may take to exit, and the polling interval.
const SHIMS_LIMIT: Duration = Duration::from_secs(5);
const SHIMS_LOOK: Duration = Duration::from_millis(10);

/// Settings of the backend.
#[derive(Clone)]
pub struct LocalSettings {
    /// The node's directory; the backend uses `local` in it.
    pub root: PathBuf,
    /// How to start a shim.
    pub program: Program,
    /// How containers are isolated.
    pub level: Level,
    /// The image store.
    pub store: Arc<Store>,
    /// The pod network; `None` means that pods use the host's network.
    pub network: Option<Network>,
    /// Why there is no pod network although one is configured.
    pub network_problem: Option<String>,
    /// The host's addresses, which are the pod IPs if there is no pod network.
    pub node_ips: Vec<IpAddr>,
    /// Parent cgroup of pods for which the engine names none.
    pub cgroup_root: String,
    /// The host's cgroups; required by level `oci`.
    pub cgroups: Option<Cgroups>,
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

impl LocalSettings {
    /// Default settings, without network and cgroups.
    pub fn new(root: impl Into<PathBuf>, program: Program, level: Level, store: Arc<Store>) -> Self {
        Self {
            root: root.into(),
            program,
            level,
            store,
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
pub struct Local {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    settings: LocalSettings,
    directory: PathBuf,
    machine: Machine,
    boot: String,
    host: String,
    registry: Mutex<Registry>,
    tasks: Mutex<JoinSet<()>>,
    events: Arc<UnixDatagram>,
    layers: Mutex<BTreeMap<String, meter::Layer>>,
}

// === impl Inner ===

impl Inner {
    /// The cgroup of the shims. They are not in the cgroup of this process, because a service manager would kill them
    /// with it.
    fn shims_cgroup(&self) -> String {
        format!("{}/shims", self.settings.cgroup_root.trim_end_matches('/'))
    }
}

// === impl Local ===

impl Local {
    /// Opens the backend: reads the records in its directory and removes what the previous process left incomplete.
    pub async fn open(settings: LocalSettings) -> Result<Self> {
        let directory = settings.root.join("local");
        let told = |what: &'static str| {
            move |error: io::Error| {
                Error::internal(format!("open provider local: {what}: {error}")).caused_by(error)
            }
        };
        if settings.level == Level::Oci && settings.cgroups.is_none() {
            return Err(Error::invalid("open provider local: level \"oci\" needs the host's cgroups"));
        }
        for part in ["", "sandboxes", "containers"] {
            make_private(&directory.join(part)).map_err(told("create its directories"))?;
        }
        let boot = match &settings.boot_id {
            Some(boot) => boot.clone(),
            None => boot_id().map_err(told("read the boot id"))?,
        };
        let host =
            std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(told("read the host name"))?;
        let machine = settings.cgroups.as_ref().map(Machine::detect).unwrap_or_default();
        let events = Arc::new(events::bind(&directory).map_err(told("bind events.sock"))?);
        let inner = Inner {
            directory,
            machine,
            boot,
            host: host.trim().to_owned(),
            registry: Mutex::default(),
            tasks: Mutex::default(),
            events,
            layers: Mutex::default(),
            settings,
        };
        let local = Self { inner: Arc::new(inner) };
        local.inner.adopt().await?;
        Ok(local)
    }

    /// Kills and removes all sandboxes and containers of this node.
    pub async fn remove_all(&self) -> Result<()> {
        let (sandboxes, containers) = {
            let registry = self.inner.registry.lock();
            (registry.sandbox_ids(), registry.container_ids())
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
        if !self.inner.registry.lock().is_empty() {
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
            cgroups.discard(&shims);
            while cgroups.exists(&shims) && Instant::now() < until {
                sleep(SHIMS_LOOK).await;
                cgroups.discard(&shims);
            }
            cgroups.discard(&self.inner.settings.cgroup_root);
        }
        Ok(())
    }

    /// Runs an operation to completion within `limit`, even if the caller stops waiting for it.
    async fn whole<T, F>(&self, limit: Duration, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        let work = work(Arc::clone(&self.inner));
        {
            let mut tasks = self.inner.tasks.lock();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                let outcome = match tokio::time::timeout(limit, work).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(fault::overdue()),
                };
                // The caller may be gone.
                let _ = tell.send(outcome);
            });
        }
        told.await.unwrap_or_else(|_| {
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

/// Creates a directory that only this user can enter.
pub(crate) fn make_private(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}
