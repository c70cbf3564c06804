//! Sandboxes: the namespaces, the network and the cgroup of a pod.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::join_all;
use vk_pod_engine::{
    backend::{Dns, SandboxConfig, Share},
    snapshot::{Sandbox, SandboxState},
};
use vk_provider::{Error, Result, error::Kind};

use super::{
    Inner, blocking,
    container_store::LocalSandbox,
    error, process,
    record::{self, DRAFT, RECORD, STOPPED, SandboxRecord},
    recovery, rootfs,
};
use crate::{
    files,
    isolation::Isolation,
    namespace::{self, Kind as Namespace, PodNamespaces},
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
            tokio::time::timeout(self.settings.call_limit, self.set_up_sandbox(&directory, &mut record));
        let outcome = filled.await.unwrap_or_else(|_| Err(error::deadline_exceeded()));
        let outcome = match outcome {
            Ok(()) => files::write_json(&directory.join(RECORD), &record)
                .map_err(|error| error::path_error("failed to write", &directory.join(RECORD), &error)),
            Err(error) => Err(error),
        };
        let entry = Arc::new(LocalSandbox::new(record, directory, false));
        match outcome {
            Ok(()) => {
                self.store.lock().sandboxes.insert(id.clone(), entry);
                Ok(id)
            }
            Err(error) => {
                if let Err(second) = self.destroy_sandbox(&entry).await {
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
            return Err(error::cri_error(Kind::Internal, message));
        }
        if config.security.namespaces.user.is_some() {
            return Err(error::cri_error(
                Kind::Unsupported,
                "user namespaces are not supported by the runtime \"local\": leave `spec.hostUsers` out or set it to true",
            ));
        }
        if self.settings.isolation == Isolation::Process {
            return process::check_sandbox(config)
                .map_err(|reason| error::cri_error(Kind::Unsupported, reason));
        }
        if self.settings.network.is_none()
            && !config.ports.is_empty()
            && config.security.namespaces.network != Share::Node
        {
            return Err(error::cri_error(
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

    async fn set_up_sandbox(self: &Arc<Self>, directory: &Path, record: &mut SandboxRecord) -> Result<()> {
        {
            let (this, directory, record) = (Arc::clone(self), directory.to_owned(), record.clone());
            blocking("make sandbox", move || this.prepare_sandbox(&directory, &record)).await?;
        }
        if self.settings.isolation == Isolation::Process {
            record.ips = self.host_network_ips(&record.config);
            return Ok(());
        }
        let shares = &record.config.security.namespaces;
        let own_network = shares.network != Share::Node && self.settings.network.is_some();
        let hostname = Some(record.config.hostname.clone())
            .filter(|name| shares.network != Share::Node && !name.is_empty());
        let pin = PodNamespaces { network: own_network, ipc: shares.ipc != Share::Node, hostname };
        let pins = [
            (pin.network, Namespace::Net),
            (pin.ipc, Namespace::Ipc),
            (pin.hostname.is_some(), Namespace::Uts),
        ];
        record.pins = pins.iter().filter(|(made, _)| *made).map(|(_, kind)| kind.file().to_owned()).collect();
        namespace::pin(directory, &pin)
            .await
            .map_err(|error| error::io_error("failed to create namespaces for the sandbox", &error))?;
        record.ips = match &self.settings.network {
            Some(network) if own_network => {
                let path = Namespace::Net.path(directory);
                network.attach(&record.id, &path, &record.config.ports).await.map_err(|error| {
                    // containerd's text.
                    let message = format!("failed to setup network for sandbox {:?}: {error}", record.id);
                    error::cri_error(Kind::Internal, message)
                })?
            }
            _ => self.host_network_ips(&record.config),
        };
        namespace::set_sysctls(directory, &record.config.sysctls)
            .await
            .map_err(|error| error::io_error("failed to set sysctls", &error))?;
        if record.config.security.namespaces.pid == Share::Pod {
            let join: Vec<PathBuf> = record.pins.iter().map(|name| directory.join(name)).collect();
            shim::start_pause_process(&self.settings.program, directory, &self.shims_cgroup(), &join)
                .await
                .map_err(|error| error::io_error("failed to start the pause process", &error))?;
            record.pause = true;
        }
        Ok(())
    }

    /// The IPs of a pod on the host's network: none if it asked for `hostNetwork`, otherwise the node's.
    fn host_network_ips(&self, config: &SandboxConfig) -> Vec<std::net::IpAddr> {
        if config.security.namespaces.network == Share::Node {
            Vec::new()
        } else {
            self.settings.node_ips.clone()
        }
    }

    fn prepare_sandbox(&self, directory: &Path, record: &SandboxRecord) -> Result<()> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| error::path_error("failed to make", &path, &error)
        };
        files::create_private_dir(directory).map_err(failed(directory))?;
        let draft = directory.join(DRAFT);
        files::write_json(&draft, record).map_err(failed(&draft))?;
        let config = &record.config;
        let text = config.dns.as_ref().map_or_else(host_resolv_conf, resolv_conf);
        let path = directory.join("resolv.conf");
        write_pod_file(&path, &text).map_err(failed(&path))?;
        let name = if config.hostname.is_empty() { &self.hostname } else { &config.hostname };
        let path = directory.join("hostname");
        write_pod_file(&path, &format!("{name}\n")).map_err(failed(&path))?;
        if self.settings.isolation == Isolation::Process {
            return Ok(());
        }
        if config.security.namespaces.ipc != Share::Node {
            let path = directory.join("shm");
            files::create_private_dir(&path).map_err(failed(&path))?;
            rootfs::mount_shm(&path).map_err(failed(&path))?;
        }
        if let (Some(cgroups), Some(cgroup)) = (&self.settings.cgroups, &record.cgroup) {
            // The engine sets its limits.
            cgroups.create(cgroup, None).map_err(|error| {
                error::cri_error(Kind::Internal, format!("failed to create the pod's cgroup: {error}"))
            })?;
        }
        Ok(())
    }

    pub(super) async fn stop_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(entry) = self.store.lock().sandbox(id) else { return Ok(()) };
        let containers = self.store.lock().containers_in(id);
        let ends = join_all(containers.iter().map(|container| self.kill_container(container))).await;
        ends.into_iter().collect::<Result<Vec<()>>>()?;
        self.tear_down(&entry).await?;
        if !entry.is_stopped() {
            let path = entry.directory.join(STOPPED);
            std::fs::write(&path, b"")
                .map_err(|error| error::path_error("failed to write", &path, &error))?;
            entry.set_stopped();
        }
        Ok(())
    }

    /// Removes the network and the namespaces of a sandbox.
    async fn tear_down(&self, entry: &LocalSandbox) -> Result<()> {
        recovery::kill_pause_process(&entry.directory);
        if let Some(network) = &self.settings.network {
            network.detach(&entry.record.id).await.map_err(|error| {
                let message = format!("failed to destroy network for sandbox {:?}: {error}", entry.record.id);
                error::cri_error(Kind::Internal, message)
            })?;
        }
        if self.settings.isolation == Isolation::Oci {
            namespace::unpin(&entry.directory)
                .await
                .map_err(|error| error::io_error("failed to remove the sandbox's namespaces", &error))?;
        }
        Ok(())
    }

    async fn destroy_sandbox(&self, entry: &LocalSandbox) -> Result<()> {
        self.tear_down(entry).await?;
        if let Some(cgroup) = &entry.record.cgroup
            && !self.store.lock().shares_cgroup(&entry.record.id, cgroup)
        {
            self.remove_cgroup(cgroup).await?;
        }
        let directory = entry.directory.clone();
        blocking("remove sandbox", move || recovery::remove_directory(&directory)).await
    }

    pub(super) async fn remove_cgroup(&self, cgroup: &str) -> Result<()> {
        let Some(cgroups) = self.settings.cgroups.clone() else { return Ok(()) };
        let cgroup = cgroup.to_owned();
        blocking("remove cgroup", move || {
            let failed = |error: std::io::Error| {
                error::cri_error(Kind::Internal, format!("failed to remove cgroup: {error}"))
            };
            cgroups.kill(&cgroup).map_err(failed)?;
            cgroups.remove(&cgroup).map_err(failed)
        })
        .await
    }

    pub(super) async fn remove_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(entry) = self.store.lock().sandbox(id) else { return Ok(()) };
        self.stop_sandbox(id).await?;
        let containers = self.store.lock().containers_in(id);
        let removals = containers.iter().map(|container| self.remove_container(&container.record.id));
        join_all(removals).await.into_iter().collect::<Result<Vec<()>>>()?;
        self.destroy_sandbox(&entry).await?;
        self.store.lock().sandboxes.remove(id);
        Ok(())
    }

    /// Whether the namespaces and the pause process of the sandbox still exist.
    pub(super) fn sandbox_state(&self, entry: &LocalSandbox) -> SandboxState {
        let record = &entry.record;
        let directory = &entry.directory;
        let held = || {
            let kinds = [Namespace::Net, Namespace::Ipc, Namespace::Uts];
            let mut pinned = kinds.iter().filter(|kind| record.pins.iter().any(|name| name == kind.file()));
            pinned.all(|kind| namespace::is_pinned(directory, *kind))
                && (!record.pause || shim::pause_process_pid(directory).is_some())
        };
        if !entry.is_stopped() && record.boot == self.boot && held() {
            SandboxState::Ready
        } else {
            SandboxState::NotReady
        }
    }

    pub(super) fn sandbox_status(&self, id: &str) -> Result<Sandbox> {
        let entry = self.store.lock().sandbox(id)?;
        let record = &entry.record;
        Ok(Sandbox {
            id: record.id.clone(),
            attempt: record.config.attempt,
            state: self.sandbox_state(&entry),
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
        let entry = self.store.lock().sandbox(id)?;
        if self.sandbox_state(&entry) != SandboxState::Ready {
            return Err(Error::unavailable(format!("sandbox container {id:?} is not running")));
        }
        let own = entry.record.pins.iter().any(|name| name == Namespace::Net.file());
        Ok(own.then(|| Namespace::Net.path(&entry.directory)))
    }
}

/// The text of `resolv.conf`, in the order in which containerd writes it.
fn resolv_conf(dns: &Dns) -> String {
    // Writing to a `String` cannot fail.
    let mut text = String::new();
    if !dns.searches.is_empty() {
        let _ = writeln!(text, "search {}", dns.searches.join(" "));
    }
    for server in &dns.servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !dns.options.is_empty() {
        let _ = writeln!(text, "options {}", dns.options.join(" "));
    }
    text
}

/// The host's `resolv.conf`; empty if it has none.
fn host_resolv_conf() -> String {
    fs::read_to_string("/etc/resolv.conf").unwrap_or_default()
}

/// Writes a file that every user in the pod can read.
fn write_pod_file(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())?;
    // Regardless of the umask.
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_the_format_of_resolvers() {
        let dns = Dns {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["a.svc".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        let expected = "search a.svc svc\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n";
        assert_eq!(resolv_conf(&dns), expected);
        assert_eq!(resolv_conf(&Dns::default()), "");
    }
}
