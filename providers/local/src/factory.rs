//! Opens the provider from its configuration.

mod describe;
mod sweep;

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use vk_pod_engine::{
    engine::Engine,
    machine::{Machine, Node},
    settings,
};
use vk_provider::{Abilities, Backend, Config, Context, Error, Factory, Finding, Result, SingleNode};
use vk_supervisor::{Clock, Supervisor};

use self::describe::Described;
use crate::{
    backend::{Local, LocalSettings},
    cgroup::{Cgroups, MOUNTED},
    config::{NetworkMode, Settings},
    doctor::{self, Places},
    image::{self, Store},
    level::{Allowed, Level, try_overlay},
    network::{self, Network, NetworkSettings},
    shim::Program,
};

pub use self::sweep::sweep;

/// How often all containers are listed. Shims report events; this catches what they could not report.
const RELIST: Duration = Duration::from_secs(1);
/// How often each pod is synced without an event, as in the kubelet.
const RESYNC: Duration = Duration::from_mins(1);

/// The factory of the provider `local`.
#[derive(Clone, Debug)]
pub struct LocalFactory {
    program: Program,
}

/// The network that pods use.
struct Networked {
    network: Option<Network>,
    /// Why pods use the host's network, or what the pod network cannot do; `None` if the host's network is configured.
    problem: Option<String>,
}

// === impl LocalFactory ===

impl Default for LocalFactory {
    /// Shims are processes of this program, which must have the subcommand `shim`, as `virtual-kubelet` does.
    fn default() -> Self {
        // Not by its path, where another version may have been installed.
        Self::with_program(Program { path: "/proc/self/exe".into(), args: vec!["shim".to_owned()] })
    }
}

impl LocalFactory {
    /// A factory whose shims run another program.
    pub fn with_program(program: Program) -> Self {
        Self { program }
    }

    /// Opens the backend of a node.
    async fn local(
        &self,
        settings: &Settings,
        context: &Context,
        clock: &Clock,
    ) -> Result<(Local, Described)> {
        let (node_dir, images) = (settings.node_dir(context), settings.images(context));
        private(&context.shared_dir).and_then(|()| private(&node_dir)).map_err(|error| {
            Error::invalid(format!(
                "create the node's directory {}: {error}: set `stateDir` to a directory that this user can write to",
                node_dir.display()
            ))
        })?;
        let level = choose(settings, &node_dir)?;
        let store = store(settings, images).await?;
        let networked = networked(settings, level, &node_dir).await?;
        let cgroups = match level {
            Level::Oci => Some(
                Cgroups::detect(Path::new(MOUNTED))
                    .map_err(|error| Error::unavailable(format!("find the cgroups of this host: {error}")))?,
            ),
            Level::Process => None,
        };
        let described = Described::new(level, networked.network.is_some(), networked.problem.clone());
        let local = Local::open(LocalSettings {
            network: networked.network,
            network_problem: networked.problem,
            node_ips: vec![context.internal_ip],
            cgroup_root: cgroup_root(settings, context),
            cgroups,
            host_image: settings.host_image,
            pull_limit: settings.pull_timeout,
            clock: clock.clone(),
            ..LocalSettings::new(node_dir, self.program.clone(), level, store)
        })
        .await?;
        Ok((local, described))
    }
}

#[async_trait]
impl Factory for LocalFactory {
    fn name(&self) -> &'static str {
        "local"
    }

    fn description(&self) -> &'static str {
        "containers on this machine, with no daemon and nothing installed"
    }

    fn abilities(&self) -> Abilities {
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true }
    }

    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let settings = Settings::read(&config)?;
        if context.operating_system != "linux" {
            return Err(Error::invalid(format!(
                "the provider local runs pods on linux only, and the node's `os` is {}",
                context.operating_system
            )));
        }
        let clock = Clock::system();
        let (local, described) = Box::pin(self.local(&settings, &context, &clock)).await?;
        described.log();
        let root = settings.node_dir(&context);
        let machine = Machine::here(&root).with_least_space(settings.min_free_disk);
        let memory =
            machine.memory().ok_or_else(|| Error::internal("read the memory size from /proc/meminfo"))?;
        let engine_settings = settings::Settings {
            node: context.node_name.clone(),
            node_ips: vec![context.internal_ip],
            root,
            log_root: settings.logs(&context),
            seccomp_root: settings.seccomp_root.clone(),
            cluster_dns: settings.cluster_dns.clone(),
            cluster_domain: context.cluster_domain.clone(),
            resolv_conf: settings.resolv_conf.clone(),
            hosts_file: PathBuf::from("/etc/hosts"),
            cgroup_root: Some(cgroup_root(&settings, &context)),
            memory,
            oom_score_floor: machine.oom_score_floor(),
            seccomp_default: settings.seccomp_default,
            parallel_pulls: settings.parallel_pulls,
            max_crash_backoff: settings.max_crash_backoff,
            relist: RELIST,
            resync: RESYNC,
        };
        let engine = Engine::new(Arc::new(local), engine_settings, clock.clone(), &Supervisor::new())?
            .describing(move |node| described.describe(node));
        engine.acquaint().await;
        let node = Node::new(engine, machine, settings.reserved, settings.max_pods, clock);
        Ok(Arc::new(SingleNode::new(&context, node)))
    }

    async fn examine(&self, config: Config, context: Context) -> Vec<Finding> {
        let settings = match Settings::read(&config) {
            Ok(settings) => settings,
            Err(error) => {
                let remedy = "correct it; the provider's guide lists the keys";
                return vec![Finding::error("configuration", error.message(), remedy)];
            }
        };
        let (node, images) = (settings.node_dir(&context), settings.images(&context));
        let machine = Machine::here(&node).with_least_space(settings.min_free_disk);
        let firewall = || network::obstacle(&network_dir(&node));
        let places = Places { node: &node, images: &images };
        doctor::examine(&settings, &machine, &try_overlay, &firewall, &places)
    }
}

/// The configured level if the host allows it, otherwise the best one that it allows.
fn choose(settings: &Settings, node_dir: &Path) -> Result<Level> {
    let allowed = Allowed::on(&Machine::here(node_dir), &try_overlay, node_dir);
    match (settings.level, allowed.level()) {
        (Some(Level::Oci), Level::Process) => {
            let why = allowed.why();
            Err(Error::invalid(format!("level: this host does not allow oci: {why}; or set `level: auto`")))
        }
        (Some(level), _) => Ok(level),
        (None, level) => {
            if level == Level::Process {
                tracing::warn!(why = allowed.why(), "pods run as plain processes, without isolation");
            }
            Ok(level)
        }
    }
}

async fn store(settings: &Settings, images: PathBuf) -> Result<Arc<Store>> {
    let settings =
        image::Settings { plain_http: settings.insecure_registries.clone(), ..image::Settings::default() };
    // Opening may have to clean up after a previous process.
    let opened = tokio::task::spawn_blocking(move || Store::open(&images, settings)).await;
    let opened = opened.map_err(|error| Error::internal(format!("open the image store: {error}")))?;
    Ok(opened?)
}

/// Opens the pod network: a bridge, if one is configured and possible.
async fn networked(settings: &Settings, level: Level, node_dir: &Path) -> Result<Networked> {
    let host = |problem| Ok(Networked { network: None, problem });
    match (level, settings.network) {
        (Level::Process, NetworkMode::Bridge) => {
            return Err(Error::invalid(
                "network: a bridge needs level oci, and this node has level process: set `network: auto`",
            ));
        }
        (Level::Process, _) => {
            return host(Some("plain processes use the host's network".to_owned()));
        }
        (Level::Oci, NetworkMode::Host) => return host(None),
        (Level::Oci, _) => {}
    }
    let wanted = NetworkSettings { dir: network_dir(node_dir), subnet: settings.pod_cidr, nat: true };
    match Network::open(wanted).await {
        Ok(network) => {
            let problem = network.limits().or_else(|| network.obstacle()).map(str::to_owned);
            tracing::info!(bridge = network.bridge(), subnet = %network.subnet(), "opened the pod network");
            Ok(Networked { network: Some(network), problem })
        }
        Err(error) if settings.network == NetworkMode::Bridge => {
            Err(Error::unavailable(format!("network: create the bridge: {error}")))
        }
        Err(error) => host(Some(error.to_string())),
    }
}

fn network_dir(node_dir: &Path) -> PathBuf {
    node_dir.join("local").join("network")
}

/// The node's cgroup. Its name is unique, so that no other node or process is in it.
fn cgroup_root(settings: &Settings, context: &Context) -> String {
    settings.cgroup_root.clone().unwrap_or_else(|| {
        // Several processes may run nodes with the same name in different directories.
        let place = settings.node_dir(context).into_os_string().into_encoded_bytes();
        let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &place);
        let mark = sum.as_ref().iter().take(4).fold(0_u32, |mark, byte| mark << 8 | u32::from(*byte));
        format!("/virtual-kubelet-{}-{mark:08x}", context.node_name)
    })
}

/// Creates a directory that only its owner can enter.
fn private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // An existing directory may be accessible to others, and secrets are stored below it.
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
