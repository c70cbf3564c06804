//! Sandboxes and containers as the engine wants them, on this machine and with no daemon.
//!
//! Everything that must be known after a restart is on disk, below `local/` in the node's directory:
//!
//! ```text
//! sandboxes/ID/   draft.json, record.json, stopped, net ipc uts (mounted namespaces), shm/, resolv.conf, hostname
//! containers/ID/  record.json, config.json, rootfs/ upper/ work/ images/N/, and what the shim keeps there
//! events.sock     where shims say that something happened
//! ```
//!
//! A record is written once, when the thing is whole. What has none was being made when we were killed, and is removed at the
//! next start. Nothing outside of this directory is ever removed, but the cgroups that a record or draft names.
//!
//! Work that changes something runs to its end even where the caller gives up: half a sandbox helps nobody.

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

use self::{leftover::boot_id, registry::Registry};
use crate::{cgroup::Cgroups, image::Store, level::Level, network::Network, shim::Program, spec::Machine};

/// How long a call may take, unless it says otherwise: as long as a kubelet waits.
const CALL_LIMIT: Duration = Duration::from_mins(2);

/// How long the supervisors of containers that are gone may take to end, and how often is looked.
const SHIMS_LIMIT: Duration = Duration::from_secs(5);
const SHIMS_LOOK: Duration = Duration::from_millis(10);

/// What the backend is opened with.
#[derive(Clone)]
pub struct LocalSettings {
    /// The node's directory. Ours is `local` in it.
    pub root: PathBuf,
    /// How a shim is started.
    pub program: Program,
    /// How well containers are kept apart.
    pub level: Level,
    /// The images.
    pub store: Arc<Store>,
    /// The pods' network; without it, pods have the machine's.
    pub network: Option<Network>,
    /// Why there is none, where there should be.
    pub network_problem: Option<String>,
    /// The machine's addresses, which pods have where there is no network for them.
    pub node_ips: Vec<IpAddr>,
    /// The cgroup in which those pods have theirs for which the engine names none.
    pub cgroup_root: String,
    /// The machine's cgroups. Level `oci` needs them.
    pub cgroups: Option<Cgroups>,
    /// The most processes that a container may have.
    pub pids_limit: Option<i64>,
    /// Whether `image: host` stands for the machine's own programs; level `process` only.
    pub host_image: bool,
    /// How long a call may take.
    pub call_limit: Duration,
    /// How long a pull may take; `None` is as long as it takes.
    pub pull_limit: Option<Duration>,
    /// What this start of the machine is called; `None` asks the kernel.
    pub boot_id: Option<String>,
    /// The clock.
    pub clock: Clock,
}

impl LocalSettings {
    /// Settings with neither network nor cgroups, and else as usual.
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

/// Pods as containers of this machine.
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
    /// The cgroup of the supervisors: not that of this process, with which a service manager would end them.
    fn shims_cgroup(&self) -> String {
        format!("{}/shims", self.settings.cgroup_root.trim_end_matches('/'))
    }
}

// === impl Local ===

impl Local {
    /// Opens the backend on its directory: reads what is there, and removes what was being made when the last process was killed.
    pub async fn open(settings: LocalSettings) -> Result<Self> {
        let directory = settings.root.join("local");
        let told = |what: &'static str| {
            move |error: io::Error| {
                Error::internal(format!("open provider local: {what}: {error}")).caused_by(error)
            }
        };
        if settings.level == Level::Oci && settings.cgroups.is_none() {
            return Err(Error::invalid("open provider local: the level \"oci\" needs the machine's cgroups"));
        }
        for part in ["", "sandboxes", "containers"] {
            make_private(&directory.join(part)).map_err(told("make its directories"))?;
        }
        let boot = match &settings.boot_id {
            Some(boot) => boot.clone(),
            None => boot_id().map_err(told("read the boot id"))?,
        };
        let host =
            std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(told("read the host's name"))?;
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

    /// Stops and removes everything of this node, by force.
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

    /// Gives the bridge and the empty cgroups back, when nothing is left that needs them.
    pub async fn close(&self) -> Result<()> {
        if !self.inner.registry.lock().is_empty() {
            return Ok(());
        }
        if let Some(network) = &self.inner.settings.network {
            network.close().await.map_err(|error| {
                Error::internal(format!("close the pods' network: {error}")).caused_by(error)
            })?;
        }
        if let Some(cgroups) = &self.inner.settings.cgroups {
            // The last supervisors end a moment after their containers.
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

    /// Runs work that changes something to its end, within the time limit of calls, also when nobody waits for it any more.
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
                // Nobody may be waiting.
                let _ = tell.send(outcome);
            });
        }
        told.await.unwrap_or_else(|_| {
            Err(Error::new(vk_provider::error::Kind::Cancelled, "the provider is closing"))
        })
    }
}

/// Work on files and mounts, which may take a while.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal(format!("{what}: {error}")).caused_by(error))?
}

/// A directory that only this user can enter.
pub(crate) fn make_private(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}
