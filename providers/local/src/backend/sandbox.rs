//! Sandboxes: the namespaces, the network and the cgroup of a pod.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::join_all;
use vk_pod_engine::{
    backend::{SandboxConfig, Share},
    snapshot::{Sandbox, SandboxState},
};
use vk_provider::{Error, Result, error::Kind};

use super::{
    Inner, blocking, fault, files, leftover, make_private, plain,
    record::{self, DRAFT, RECORD, STOPPED, SandboxRecord},
    registry::KnownSandbox,
    rootfs,
};
use crate::{
    level::Level,
    namespace::{self, Kind as Namespace, Pin},
    shim,
};

impl Inner {
    pub(super) fn sandbox_directory(&self, id: &str) -> PathBuf {
        self.directory.join("sandboxes").join(id)
    }

    /// Creates a sandbox. If a step fails, everything is removed again.
    pub(super) async fn run_sandbox(self: &Arc<Self>, config: SandboxConfig) -> Result<String> {
        self.check_sandbox(&config)?;
        let id = record::new_id();
        let directory = self.sandbox_directory(&id);
        let mut record = SandboxRecord {
            id: id.clone(),
            created: self.settings.clock.now(),
            boot: self.boot.clone(),
            ips: Vec::new(),
            pins: Vec::new(),
            pause: false,
            cgroup: self.settings.cgroups.as_ref().map(|_| self.pod_cgroup(&config)),
            config,
        };
        // A timeout also removes everything again.
        let filled =
            tokio::time::timeout(self.settings.call_limit, self.fill_sandbox(&directory, &mut record));
        let outcome = filled.await.unwrap_or_else(|_| Err(fault::overdue()));
        let outcome = match outcome {
            Ok(()) => record::write(&directory.join(RECORD), &record)
                .map_err(|error| fault::at("failed to write", &directory.join(RECORD), &error)),
            Err(error) => Err(error),
        };
        let known = Arc::new(KnownSandbox::new(record, directory, false));
        match outcome {
            Ok(()) => {
                self.registry.lock().sandboxes.insert(id.clone(), known);
                Ok(id)
            }
            Err(error) => {
                if let Err(second) = self.dismantle(&known).await {
                    tracing::warn!(
                        error = second.report(),
                        sandbox = id,
                        "removing an incomplete sandbox failed"
                    );
                }
                Err(error)
            }
        }
    }

    fn check_sandbox(&self, config: &SandboxConfig) -> Result<()> {
        if !config.handler.is_empty() {
            let message =
                format!("failed to get sandbox runtime: no runtime for {:?} is configured", config.handler);
            return Err(fault::told(Kind::Internal, message));
        }
        if config.security.namespaces.user.is_some() {
            return Err(fault::told(
                Kind::Unsupported,
                "user namespaces are not supported by the runtime \"local\": leave `spec.hostUsers` out or set it to true",
            ));
        }
        if self.settings.level == Level::Process {
            return plain::check_sandbox(config).map_err(|reason| fault::told(Kind::Unsupported, reason));
        }
        if self.settings.network.is_none()
            && !config.ports.is_empty()
            && config.security.namespaces.network != Share::Node
        {
            return Err(fault::told(
                Kind::Unsupported,
                "hostPort needs a pod network, and this node has none: leave `hostPort` out, or listen on \
                 that port with `hostNetwork: true`",
            ));
        }
        Ok(())
    }

    pub(super) fn pod_cgroup(&self, config: &SandboxConfig) -> String {
        let given = config.cgroup_parent.trim_end_matches('/');
        if given.is_empty() {
            let root = self.settings.cgroup_root.trim_end_matches('/');
            return format!("{root}/pod{}", config.pod.uid);
        }
        if given.starts_with('/') { given.to_owned() } else { format!("/{given}") }
    }

    async fn fill_sandbox(self: &Arc<Self>, directory: &Path, record: &mut SandboxRecord) -> Result<()> {
        {
            let (this, directory, record) = (Arc::clone(self), directory.to_owned(), record.clone());
            blocking("make sandbox", move || this.prepare_sandbox(&directory, &record)).await?;
        }
        if self.settings.level == Level::Process {
            record.ips = self.own_ips(&record.config);
            return Ok(());
        }
        let shares = &record.config.security.namespaces;
        let own_network = shares.network != Share::Node && self.settings.network.is_some();
        let hostname = Some(record.config.hostname.clone())
            .filter(|name| shares.network != Share::Node && !name.is_empty());
        let pin = Pin { network: own_network, ipc: shares.ipc != Share::Node, hostname };
        let pins = [
            (pin.network, Namespace::Net),
            (pin.ipc, Namespace::Ipc),
            (pin.hostname.is_some(), Namespace::Uts),
        ];
        record.pins = pins.iter().filter(|(made, _)| *made).map(|(_, kind)| kind.file().to_owned()).collect();
        namespace::pin(directory, &pin)
            .await
            .map_err(|error| fault::system("failed to create namespaces for the sandbox", &error))?;
        record.ips = match &self.settings.network {
            Some(network) if own_network => {
                let path = Namespace::Net.path(directory);
                network.attach(&record.id, &path, &record.config.ports).await.map_err(|error| {
                    // containerd's text.
                    let message = format!("failed to setup network for sandbox {:?}: {error}", record.id);
                    fault::told(Kind::Internal, message)
                })?
            }
            _ => self.own_ips(&record.config),
        };
        namespace::tune(directory, &record.config.sysctls)
            .await
            .map_err(|error| fault::system("failed to set sysctls", &error))?;
        if record.config.security.namespaces.pid == Share::Pod {
            let join: Vec<PathBuf> = record.pins.iter().map(|name| directory.join(name)).collect();
            shim::pause(&self.settings.program, directory, &join)
                .await
                .map_err(|error| fault::system("failed to start the pause process", &error))?;
            record.pause = true;
        }
        Ok(())
    }

    /// The IPs of a pod on the host's network: none if it asked for `hostNetwork`, otherwise the node's.
    fn own_ips(&self, config: &SandboxConfig) -> Vec<std::net::IpAddr> {
        if config.security.namespaces.network == Share::Node {
            Vec::new()
        } else {
            self.settings.node_ips.clone()
        }
    }

    fn prepare_sandbox(&self, directory: &Path, record: &SandboxRecord) -> Result<()> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| fault::at("failed to make", &path, &error)
        };
        make_private(directory).map_err(failed(directory))?;
        let draft = directory.join(DRAFT);
        record::write(&draft, record).map_err(failed(&draft))?;
        let config = &record.config;
        let text = config.dns.as_ref().map_or_else(files::host_resolv_conf, files::resolv_conf);
        let path = directory.join("resolv.conf");
        files::write(&path, &text).map_err(failed(&path))?;
        let name = if config.hostname.is_empty() { &self.host } else { &config.hostname };
        let path = directory.join("hostname");
        files::write(&path, &format!("{name}\n")).map_err(failed(&path))?;
        if self.settings.level == Level::Process {
            return Ok(());
        }
        if config.security.namespaces.ipc != Share::Node {
            let path = directory.join("shm");
            make_private(&path).map_err(failed(&path))?;
            rootfs::shared_memory(&path).map_err(failed(&path))?;
        }
        if let (Some(cgroups), Some(cgroup)) = (&self.settings.cgroups, &record.cgroup) {
            cgroups.create(cgroup, config.resources.as_ref()).map_err(|error| {
                fault::told(Kind::Internal, format!("failed to create the pod's cgroup: {error}"))
            })?;
        }
        Ok(())
    }

    pub(super) async fn stop_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(known) = self.registry.lock().sandbox(id) else { return Ok(()) };
        let containers = self.registry.lock().containers_in(id);
        let ends = join_all(containers.iter().map(|container| self.end(container))).await;
        ends.into_iter().collect::<Result<Vec<()>>>()?;
        self.take_down(&known).await?;
        if !known.is_stopped() {
            let path = known.directory.join(STOPPED);
            std::fs::write(&path, b"").map_err(|error| fault::at("failed to write", &path, &error))?;
            known.set_stopped();
        }
        Ok(())
    }

    /// Removes the network and the namespaces of a sandbox.
    async fn take_down(&self, known: &KnownSandbox) -> Result<()> {
        leftover::end_pause(&known.directory);
        if let Some(network) = &self.settings.network {
            network.detach(&known.record.id).await.map_err(|error| {
                let message = format!("failed to destroy network for sandbox {:?}: {error}", known.record.id);
                fault::told(Kind::Internal, message)
            })?;
        }
        if self.settings.level == Level::Oci {
            namespace::unpin(&known.directory)
                .await
                .map_err(|error| fault::system("failed to remove the sandbox's namespaces", &error))?;
        }
        Ok(())
    }

    async fn dismantle(&self, known: &KnownSandbox) -> Result<()> {
        self.take_down(known).await?;
        if let Some(cgroup) = &known.record.cgroup
            && !self.registry.lock().shares_cgroup(&known.record.id, cgroup)
        {
            self.remove_cgroup(cgroup).await?;
        }
        let directory = known.directory.clone();
        blocking("remove sandbox", move || leftover::bury(&directory)).await
    }

    pub(super) async fn remove_cgroup(&self, cgroup: &str) -> Result<()> {
        let Some(cgroups) = self.settings.cgroups.clone() else { return Ok(()) };
        let (cgroup, root) = (cgroup.to_owned(), self.settings.cgroup_root.clone());
        blocking("remove cgroup", move || {
            let failed = |error: std::io::Error| {
                fault::told(Kind::Internal, format!("failed to remove cgroup: {error}"))
            };
            cgroups.kill(&cgroup).map_err(failed)?;
            cgroups.remove(&cgroup).map_err(failed)?;
            cgroups.prune(&cgroup, &root);
            Ok(())
        })
        .await
    }

    pub(super) async fn remove_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(known) = self.registry.lock().sandbox(id) else { return Ok(()) };
        self.stop_sandbox(id).await?;
        let containers = self.registry.lock().containers_in(id);
        let removals = containers.iter().map(|container| self.remove_container(&container.record.id));
        join_all(removals).await.into_iter().collect::<Result<Vec<()>>>()?;
        self.dismantle(&known).await?;
        self.registry.lock().sandboxes.remove(id);
        Ok(())
    }

    /// Whether the namespaces and the pause process of the sandbox still exist.
    pub(super) fn sandbox_state(&self, known: &KnownSandbox) -> SandboxState {
        let record = &known.record;
        let directory = &known.directory;
        let held = || {
            let kinds = [Namespace::Net, Namespace::Ipc, Namespace::Uts];
            let mut pinned = kinds.iter().filter(|kind| record.pins.iter().any(|name| name == kind.file()));
            pinned.all(|kind| namespace::pinned(directory, *kind))
                && (!record.pause || shim::paused(directory).is_some())
        };
        if !known.is_stopped() && record.boot == self.boot && held() {
            SandboxState::Ready
        } else {
            SandboxState::NotReady
        }
    }

    pub(super) fn sandbox_status(&self, id: &str) -> Result<Sandbox> {
        let known = self.registry.lock().sandbox(id)?;
        let record = &known.record;
        Ok(Sandbox {
            id: record.id.clone(),
            attempt: record.config.attempt,
            state: self.sandbox_state(&known),
            created: record.created,
            ips: record.ips.clone(),
            host_network: record.config.security.namespaces.network == Share::Node,
            handler: record.config.handler.clone(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        })
    }

    /// The network namespace of a running sandbox; `None` means the host's.
    pub(super) fn network_namespace(&self, id: &str) -> Result<Option<PathBuf>> {
        let known = self.registry.lock().sandbox(id)?;
        if self.sandbox_state(&known) != SandboxState::Ready {
            return Err(Error::unavailable(format!("sandbox container {id:?} is not running")));
        }
        let own = known.record.pins.iter().any(|name| name == Namespace::Net.file());
        Ok(own.then(|| Namespace::Net.path(&known.directory)))
    }
}
