//! A real etcd and kube-apiserver, and on request kube-controller-manager and kube-scheduler.
//!
//! Every program runs in a process group of its own and ends with the process that started it, whatever its
//! end: a drop, a panic, a static that is never dropped, or kill -9. With a temporary data folder, that goes
//! too.

use std::fmt;
use std::fs::{File, TryLockError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

mod assets;
mod bootstrap;
mod certs;
mod component;
mod error;
mod flags;
mod guard;
mod identity;
mod kubeconfig;
mod lifecycle;
mod namespace;
mod options;
mod ports;
mod process;
mod shared;

pub use certs::Certificate;
pub use error::{Error, Result};
pub use namespace::Namespace;
pub use options::{AUDIT_METADATA, Options};

use assets::Assets;
use certs::Pki;
use component::{Component, Probe};
use flags::ApiServerFiles;
use guard::Guard;
use namespace::Furnishing;
use ports::Ports;
use process::Launch;

/// Ports can be lost to another process between our look and the component's: rare, and rarer twice.
const ATTEMPTS: u32 = 5;
const MASTERS: &str = "system:masters";

/// A running control plane. Dropping it kills its processes and removes what was temporary, and returns when
/// that is done.
pub struct ControlPlane {
    etcd: Component,
    api_server: Component,
    controllers: Option<Controllers>,
    pki: Pki,
    admin: Certificate,
    admin_kubeconfig: PathBuf,
    url: String,
    assets: Assets,
    data_dir: PathBuf,
    audit_log: Option<PathBuf>,
    deadline: Duration,
    /// After the components, which it would have to kill otherwise.
    _guard: Guard,
    /// Last: the data folder is free for the next one only when all is over.
    _lock: Option<File>,
}

/// The components that act on objects.
struct Controllers {
    manager: Component,
    scheduler: Option<Component>,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts a control plane and waits until it takes pods.
    pub async fn start(options: Options) -> Result<Self> {
        let assets = Assets::find(options.programs.as_deref())?;
        for attempt in 1..ATTEMPTS {
            let error = match Box::pin(Self::attempt(&options, &assets)).await {
                Ok(cluster) => return Ok(cluster),
                Err(error) => error,
            };
            match error.port_conflict() {
                // Another try would ask for the same port.
                Some("kube-apiserver") if options.port.is_some() => return Err(error),
                Some(component) => tracing::info!(component, attempt, "its port was taken: trying others"),
                None => return Err(error),
            }
        }
        Box::pin(Self::attempt(&options, &assets)).await
    }

    async fn attempt(options: &Options, assets: &Assets) -> Result<Self> {
        let begin = Instant::now();
        let cluster = Self::prepare(options, assets)?;
        let deadline = cluster.deadline;
        cluster.etcd.start(deadline).await?;
        cluster.api_server.start(deadline).await?;
        tracing::info!(url = cluster.url, elapsed = ?begin.elapsed(), "the API server is ready");
        if let Some(controllers) = &cluster.controllers {
            // Both at once: each needs a second or more by itself.
            let scheduler = async {
                match &controllers.scheduler {
                    Some(scheduler) => scheduler.start(deadline).await,
                    None => Ok(()),
                }
            };
            tokio::try_join!(controllers.manager.start(deadline), scheduler)?;
        }
        namespace::furnish(&cluster.admin()?, "default", cluster.furnishing(), deadline).await?;
        tracing::info!(url = cluster.url, elapsed = ?begin.elapsed(), "the control plane is ready");
        Ok(cluster)
    }

    /// Everything but the processes: folders, keys, ports and command lines.
    fn prepare(options: &Options, assets: &Assets) -> Result<Self> {
        let guard = Guard::new()?;
        let data_dir = options.data_dir.clone().unwrap_or_else(|| guard.folder().join("data"));
        let logs = data_dir.join("logs");
        std::fs::create_dir_all(&logs).map_err(Error::file("make", &logs))?;
        // Flags and kubeconfigs name files in it, and components have their own working folder.
        let data_dir = data_dir.canonicalize().map_err(Error::file("find", &data_dir))?;
        let lock = options.data_dir.is_some().then(|| lock(&data_dir)).transpose()?;

        let pki = Pki::open(&data_dir.join("pki"))?;
        let ports = Ports::choose(options.port, options.bind_address)?;
        let url = format!("https://{}", SocketAddr::new(reachable(options.bind_address), ports.api_server));
        let admin = pki.cluster.client("kubernetes-admin", &[MASTERS])?;
        let admin_kubeconfig = data_dir.join("admin.kubeconfig");
        let ca_pem = pki.cluster.cert_pem();
        certs::write(&admin_kubeconfig, &kubeconfig::kubeconfig(&url, ca_pem, &admin))?;

        let launch = |component: &'static str, args: Vec<String>| -> Result<Launch> {
            Ok(Launch {
                component,
                program: assets.program(component)?,
                args,
                pid_file: guard.pid_file(component),
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

        let controllers = if options.controllers {
            let loopback = |port| format!("https://127.0.0.1:{port}");
            let identity = |name: &str, user: &str| -> Result<PathBuf> {
                let path = data_dir.join(format!("{name}.kubeconfig"));
                let text = kubeconfig::kubeconfig(&url, ca_pem, &pki.cluster.client(user, &[])?);
                certs::write(&path, &text)?;
                Ok(path)
            };
            let serving = pki.cluster.serving("kube-components", &["127.0.0.1".to_owned()])?;
            let serving = pki.store("components", &serving)?;

            let config = identity("controller-manager", "system:kube-controller-manager")?;
            let mut args = flags::controller_manager(&ports, &pki, &serving, &config);
            args.extend_from_slice(&options.extra_controller_manager_args);
            let manager = Component::new(
                launch("kube-controller-manager", args)?,
                secure(loopback(ports.controller_manager), "/healthz"),
            );

            let scheduler = if options.scheduler {
                let config = identity("scheduler", "system:kube-scheduler")?;
                let mut args = flags::scheduler(&ports, &pki, &serving, &config);
                args.extend_from_slice(&options.extra_scheduler_args);
                let probe = secure(loopback(ports.scheduler), "/healthz");
                Some(Component::new(launch("kube-scheduler", args)?, probe))
            } else {
                None
            };
            Some(Controllers { manager, scheduler })
        } else {
            None
        };

        Ok(Self {
            etcd,
            api_server,
            controllers,
            admin,
            admin_kubeconfig,
            url,
            assets: assets.clone(),
            audit_log,
            deadline: options.deadline,
            data_dir,
            pki,
            _guard: guard,
            _lock: lock,
        })
    }

    /// Where the API server is, as `https://ADDRESS:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where etcd, keys and logs are.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The audit log, when there is an audit policy.
    pub fn audit_log(&self) -> Option<&Path> {
        self.audit_log.as_deref()
    }

    /// The path of kubectl, of the same version as the API server.
    pub fn kubectl(&self) -> Result<PathBuf> {
        self.assets.program("kubectl")
    }

    /// Creates a namespace with a name of its own that begins with `prefix`, and waits until it takes pods.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        Namespace::create(&self.admin()?, prefix, self.furnishing(), self.deadline).await
    }

    fn furnishing(&self) -> Furnishing<'_> {
        if self.controllers.is_some() {
            Furnishing::Awaited
        } else {
            Furnishing::Ours { ca_pem: self.ca_pem() }
        }
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("url", &self.url)
            .field("data_dir", &self.data_dir)
            .field("controllers", &self.controllers.is_some())
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

/// Two control planes on one folder would ruin each other's data. The kernel releases the lock at our end.
fn lock(data_dir: &Path) -> Result<File> {
    let path = data_dir.join("lock");
    let file = File::create(&path).map_err(Error::file("make", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::DataDirInUse(data_dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(Error::file("lock", &path)(source)),
    }
}

/// An address to connect to for one to listen on.
fn reachable(bind: IpAddr) -> IpAddr {
    match bind {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}
