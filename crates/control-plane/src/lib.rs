//! Starts a real Kubernetes control plane on this machine: etcd and kube-apiserver, and on request kube-controller-manager and
//! kube-scheduler, on free loopback ports.
//!
//! Every component runs in its own process group and ends with the process that started it, no matter how that process ends: drop, panic,
//! exit without dropping, or kill -9. A temporary data folder is removed as well.
//!
//! `virtual-kubelet dev` starts one of its own. Tests use `vk_testing`, which re-exports this crate, and share control planes
//! ([`ControlPlane::shared`]).
//!
//! ```no_run
//! # async fn example() -> Result<(), vk_control_plane::Error> {
//! use vk_control_plane::{ControlPlane, Options};
//!
//! let cluster = ControlPlane::start(Options::with_controllers()).await?;
//! let namespace = cluster.namespace("logs").await?;
//! let node = cluster.node_client("worker-1")?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::fs::{File, TryLockError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

mod bootstrap;
mod certs;
mod cleanup;
mod component;
mod error;
mod flags;
mod identity;
mod kubeconfig;
mod kubectl;
mod lifecycle;
mod namespace;
mod options;
mod ports;
mod process;
mod programs;
mod scheduler_config;
mod test_run;

pub use certs::Certificate;
pub use error::{Error, Result};
pub use kubectl::{Output, kubectl};
pub use namespace::Namespace;
pub use options::{AUDIT_METADATA, Options};
pub use test_run::SHARED_CONTROL_PLANES;

use certs::Pki;
use cleanup::CleanupProcess;
use component::{Component, Probe};
use flags::ApiServerFiles;
use namespace::NamespaceSetup;
use ports::Ports;
use process::Launch;
use programs::Programs;

/// Another process can take a port between our check and the component's bind. That is rare; a new attempt chooses other ports.
const ATTEMPTS: u32 = 5;
const MASTERS: &str = "system:masters";
const ADMIN_KUBECONFIG: &str = "admin.kubeconfig";
const SCHEDULER_KUBECONFIG: &str = "scheduler.kubeconfig";
const SCHEDULER_CONFIG: &str = "scheduler.yaml";

/// A running control plane. Dropping it kills its processes and removes temporary files, and returns when that is done.
pub struct ControlPlane {
    /// `None` when another process runs this control plane.
    components: Option<Components>,
    /// Whether a controller-manager creates the default objects of namespaces.
    has_controllers: bool,
    pki: Pki,
    admin: Certificate,
    admin_kubeconfig: PathBuf,
    url: String,
    programs: Programs,
    data_dir: PathBuf,
    audit_log: Option<PathBuf>,
    deadline: Duration,
}

/// The processes of a control plane. Fields drop in this order.
struct Components {
    scheduler: Option<Component>,
    controller_manager: Option<Component>,
    api_server: Component,
    etcd: Component,
    /// After the components: it kills those that still run.
    _cleanup: CleanupProcess,
    /// Last: the data folder may be used again only when everything has ended.
    _lock: Option<File>,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts a control plane and waits until pods can be created in namespace `default`.
    pub async fn start(options: Options) -> Result<Self> {
        let programs = Programs::find(options.programs.as_deref())?;
        for attempt in 1..ATTEMPTS {
            let error = match Box::pin(Self::attempt(&options, &programs)).await {
                Ok(cluster) => return Ok(cluster),
                Err(error) => error,
            };
            match error.port_conflict() {
                // Another attempt would ask for the same port.
                Some("kube-apiserver") if options.port.is_some() => return Err(error),
                Some(component) => tracing::info!(component, attempt, "port is taken, trying others"),
                None => return Err(error),
            }
        }
        Box::pin(Self::attempt(&options, &programs)).await
    }

    async fn attempt(options: &Options, programs: &Programs) -> Result<Self> {
        let begin = Instant::now();
        let cluster = Self::prepare(options, programs)?;
        let deadline = cluster.deadline;
        if let Some(components) = &cluster.components {
            components.etcd.start(deadline).await?;
            components.api_server.start(deadline).await?;
            tracing::info!(url = cluster.url, elapsed = ?begin.elapsed(), "API server is ready");
            let start = async |component: &Option<Component>| match component {
                Some(component) => component.start(deadline).await,
                None => Ok(()),
            };
            // At the same time: each takes a second or more.
            tokio::try_join!(start(&components.controller_manager), start(&components.scheduler))?;
        }
        namespace::prepare(&cluster.admin()?, "default", cluster.setup(), deadline).await?;
        tracing::info!(url = cluster.url, elapsed = ?begin.elapsed(), "control plane is ready");
        Ok(cluster)
    }

    /// Prepares folders, keys, ports and command lines; starts no component.
    fn prepare(options: &Options, programs: &Programs) -> Result<Self> {
        let cleanup = CleanupProcess::new()?;
        let data_dir = options.data_dir.clone().unwrap_or_else(|| cleanup.folder().join("data"));
        let logs = data_dir.join("logs");
        std::fs::create_dir_all(&logs).map_err(Error::file("make", &logs))?;
        // Flags and kubeconfigs contain paths in it, and components have their own working directory.
        let data_dir = data_dir.canonicalize().map_err(Error::file("find", &data_dir))?;
        let lock = options.data_dir.is_some().then(|| lock(&data_dir)).transpose()?;

        let pki = Pki::open(&data_dir.join("pki"))?;
        let ports = Ports::choose(options.port, options.bind_address)?;
        let url = format!("https://{}", SocketAddr::new(reachable(options.bind_address), ports.api_server));
        let admin = pki.cluster.client("kubernetes-admin", &[MASTERS])?;
        let admin_kubeconfig = data_dir.join(ADMIN_KUBECONFIG);
        let ca_pem = pki.cluster.cert_pem();
        certs::write(&admin_kubeconfig, &kubeconfig::kubeconfig(&url, ca_pem, &admin))?;

        let launch = |component: &'static str, args: Vec<String>| -> Result<Launch> {
            Ok(Launch {
                component,
                program: programs.program(component)?,
                args,
                pid_file: cleanup.pid_file(component),
                log: logs.join(format!("{component}.log")),
            })
        };
        let secure = |url: String, path: &'static str| Probe::Secure {
            url,
            path,
            ca_pem: ca_pem.to_owned(),
            identity: admin.clone(),
        };

        let etcd_args = flags::etcd(&data_dir.join("etcd"), &ports, options.data_dir.is_none());
        let etcd = Component::new(
            launch("etcd", etcd_args)?,
            Probe::Plain { port: ports.etcd_client, path: "/health" },
        );

        let files = api_server_files(options, &pki)?;
        let mut args = flags::api_server(options, &ports, &pki, &files);
        let audit_log = match &options.audit_policy {
            Some(text) => {
                let (policy, log) = (data_dir.join("audit-policy.yaml"), logs.join("audit.log"));
                certs::write(&policy, text)?;
                args.extend(flags::audit(&policy, &log));
                Some(log)
            }
            None => None,
        };
        args.extend_from_slice(&options.extra_api_server_args);
        let api_server = Component::new(launch("kube-apiserver", args)?, secure(url.clone(), "/readyz"));

        let (controller_manager, scheduler) = if options.controllers {
            let loopback = |port| format!("https://127.0.0.1:{port}");
            let identity = |file: &str, user: &str| -> Result<PathBuf> {
                let path = data_dir.join(file);
                let text = kubeconfig::kubeconfig(&url, ca_pem, &pki.cluster.client(user, &[])?);
                certs::write(&path, &text)?;
                Ok(path)
            };
            let serving = pki.cluster.serving("kube-components", &["127.0.0.1".to_owned()])?;
            let serving = pki.store("components", &serving)?;

            let config = identity("controller-manager.kubeconfig", "system:kube-controller-manager")?;
            let mut args = flags::controller_manager(&ports, &pki, &serving, &config);
            args.extend_from_slice(&options.extra_controller_manager_args);
            let manager = Component::new(
                launch("kube-controller-manager", args)?,
                secure(loopback(ports.controller_manager), "/healthz"),
            );

            let scheduler = if options.scheduler {
                let config = identity(SCHEDULER_KUBECONFIG, "system:kube-scheduler")?;
                let mut args = flags::scheduler(&ports, &pki, &serving, &config);
                if let Some(text) = &options.scheduler_config {
                    let file = data_dir.join(SCHEDULER_CONFIG);
                    scheduler_config::write(&file, text, &config)?;
                    args.push(flags::scheduler_config(&file));
                }
                args.extend_from_slice(&options.extra_scheduler_args);
                let probe = secure(loopback(ports.scheduler), "/healthz");
                Some(Component::new(launch("kube-scheduler", args)?, probe))
            } else {
                None
            };
            (Some(manager), scheduler)
        } else {
            (None, None)
        };

        let components =
            Components { scheduler, controller_manager, api_server, etcd, _cleanup: cleanup, _lock: lock };
        Ok(Self {
            components: Some(components),
            has_controllers: options.controllers,
            admin,
            admin_kubeconfig,
            url,
            programs: programs.clone(),
            audit_log,
            deadline: options.deadline,
            data_dir,
            pki,
        })
    }

    /// A handle to a control plane that another process runs. It can create clients and namespaces, but not stop components.
    pub fn attach(url: &str, data_dir: &Path, has_controllers: bool) -> Result<Self> {
        let pki = Pki::open(&data_dir.join("pki"))?;
        Ok(Self {
            components: None,
            has_controllers,
            admin: pki.cluster.client("kubernetes-admin", &[MASTERS])?,
            admin_kubeconfig: data_dir.join(ADMIN_KUBECONFIG),
            url: url.to_owned(),
            programs: Programs::find(None)?,
            audit_log: None,
            deadline: Options::default().deadline,
            data_dir: data_dir.to_owned(),
            pki,
        })
    }

    /// The URL of the API server: `https://ADDRESS:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The folder with etcd's data, keys and logs.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The audit log, if the control plane was started with an audit policy.
    pub fn audit_log(&self) -> Option<&Path> {
        self.audit_log.as_deref()
    }

    /// The path of kubectl, of the same version as the API server.
    pub fn kubectl(&self) -> Result<PathBuf> {
        self.programs.program("kubectl")
    }

    /// Creates a namespace with a unique name that starts with `prefix`, and waits until pods can be created in it.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        Namespace::create(&self.admin()?, prefix, self.setup(), self.deadline).await
    }

    fn setup(&self) -> NamespaceSetup<'_> {
        if self.has_controllers {
            NamespaceSetup::ByControllers
        } else {
            NamespaceSetup::ByUs { ca_pem: self.ca_pem() }
        }
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("url", &self.url)
            .field("data_dir", &self.data_dir)
            .field("has_controllers", &self.has_controllers)
            .finish_non_exhaustive()
    }
}

fn api_server_files(options: &Options, pki: &Pki) -> Result<ApiServerFiles> {
    let mut names: Vec<String> = [
        "localhost",
        "127.0.0.1",
        "::1",
        flags::SERVICE_ADDRESS,
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(str::to_owned)
    .into();
    names.extend([options.bind_address.to_string(), options.advertise_address.to_string()]);
    names.extend_from_slice(&options.extra_names);
    names.sort();
    names.dedup();
    let serving = pki.cluster.serving("kube-apiserver", &names)?;
    let kubelet_client = pki.cluster.client("kube-apiserver-kubelet-client", &[MASTERS])?;
    let proxy_client = pki.front_proxy.client(flags::AGGREGATOR, &[])?;
    Ok(ApiServerFiles {
        serving: pki.store("kube-apiserver", &serving)?,
        kubelet_client: pki.store("kubelet-client", &kubelet_client)?,
        proxy_client: pki.store("proxy-client", &proxy_client)?,
    })
}

/// Locks a data folder: two control planes would corrupt each other's data. The kernel releases the lock when this process ends.
fn lock(data_dir: &Path) -> Result<File> {
    let path = data_dir.join("lock");
    let file = File::create(&path).map_err(Error::file("make", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::DataDirInUse(data_dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(Error::file("lock", &path)(source)),
    }
}

/// The address to connect to when the API server listens on `bind`.
fn reachable(bind: IpAddr) -> IpAddr {
    match bind {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}
