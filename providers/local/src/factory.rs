//! Opens the provider from its configuration.

mod node_conditions;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use vk_pod_engine::{
    engine::Engine,
    host::{Host, HostNode},
    volume::unmount_below,
};
use vk_provider::{Abilities, Backend, Config, Context, Error, Factory, Finding, Result, SingleNode};
use vk_supervisor::{Clock, task};

use self::node_conditions::NodeConditions;
use crate::{
    backend::{LocalBackend, LocalBackendSettings},
    cgroup::{HostCgroups, MOUNT_POINT},
    config::{NetworkMode, Settings},
    doctor::{self, NodePaths},
    files::create_private_dir,
    image::{self, Store},
    isolation::{Isolation, IsolationSupport, test_overlay},
    network::{self, Network, NetworkSettings},
    shim::Program,
};

/// The factory of the provider `local`.
#[derive(Clone, Debug)]
pub struct LocalFactory {
    program: Program,
}

/// The network that pods use.
struct OpenedNetwork {
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
    ) -> Result<(LocalBackend, NodeConditions, Option<HostCgroups>)> {
        let (node_dir, images) = (settings.node_dir(context), settings.images(context));
        let created = create_private_dir(&context.shared_dir).and_then(|()| create_private_dir(&node_dir));
        created.map_err(|error| {
            Error::invalid(format!(
                "create the node's directory {}: {error}: set `stateDir` to a directory that this user can write to",
                node_dir.display()
            ))
        })?;
        let level = select_isolation(settings, &node_dir)?;
        let store = open_store(settings, images).await?;
        let opened = open_network(settings, level, &node_dir).await?;
        let cgroups = match level {
            Isolation::Oci => Some(
                HostCgroups::detect(Path::new(MOUNT_POINT))
                    .map_err(|error| Error::unavailable(format!("find the cgroups of this host: {error}")))?,
            ),
            Isolation::Process => None,
        };
        let conditions = NodeConditions::new(level, opened.network.is_some(), opened.problem.clone());
        let local = LocalBackend::open(LocalBackendSettings {
            network: opened.network,
            network_problem: opened.problem,
            node_ips: vec![context.internal_ip],
            cgroup_root: settings.engine.cgroup_root(context),
            cgroups: cgroups.clone(),
            host_image: settings.host_image,
            pull_limit: settings.pull_timeout,
            clock: clock.clone(),
            ..LocalBackendSettings::new(node_dir, self.program.clone(), level, store)
        })
        .await?;
        Ok((local, conditions, cgroups))
    }
}

#[async_trait]
impl Factory for LocalFactory {
    fn name(&self) -> &'static str {
        "local"
    }

    fn description(&self) -> &'static str {
        "containers on this host, without a daemon or an installed runtime"
    }

    fn abilities(&self) -> Abilities {
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true, fit: false }
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
        let (local, conditions, cgroups) = Box::pin(self.local(&settings, &context, &clock)).await?;
        conditions.log();
        if let Some(network) = local.network().cloned() {
            let stopping = context.supervisor.clone();
            context.supervisor.spawn("rules of the pod network", task::Kind::Work, async move {
                tokio::select! {
                    () = stopping.stopping() => {}
                    () = network.maintain_rules() => {}
                }
            });
        }
        let host = Host::local(settings.node_dir(&context)).with_min_free_space(settings.min_free_disk);
        // At level `process` pods would inherit the score.
        if cgroups.is_some()
            && let Err(error) = host.protect_from_oom_killer()
        {
            tracing::debug!(%error, "the OOM killer does not spare this process");
        }
        let config = &settings.engine;
        let cgroup_root = Some(config.cgroup_root(&context));
        let logs = settings.logs(&context);
        let engine_settings = config.engine_settings(&context, &host, logs, cgroup_root, cgroups)?;
        let engine = Engine::new(Arc::new(local), engine_settings, clock.clone(), &context.supervisor)?
            .with_node_config(move |node| conditions.apply(node));
        engine.connect().await;
        let node = HostNode::new(engine, host, config.reserved, config.max_pods, clock);
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
        let machine = Host::local(&node).with_min_free_space(settings.min_free_disk);
        let firewall = || network::firewall_conflict(&network_dir(&node));
        let paths = NodePaths { node: &node, images: &images };
        doctor::examine(&settings, &machine, &test_overlay, &firewall, &paths)
    }
}

/// Kills and removes everything that runs for a node, with its network and its cgroups. The node must not be running.
/// Does nothing if there is no such node.
pub async fn remove_node(config: Config, context: Context) -> Result<()> {
    let settings = Settings::read(&config)?;
    let node_dir = settings.node_dir(&context);
    if !node_dir.join("local").exists() {
        return Ok(());
    }
    let (local, ..) = Box::pin(LocalFactory::default().local(&settings, &context, &Clock::system())).await?;
    local.remove_all().await?;
    local.close().await?;
    // Volumes in memory belong to the engine, which is not running.
    let mounted = node_dir.canonicalize().and_then(|path| unmount_below(&path));
    mounted.map_err(|error| Error::internal(format!("unmount volumes below {}: {error}", node_dir.display())))
}

/// The configured level if the host allows it, otherwise the best one that it allows.
fn select_isolation(settings: &Settings, node_dir: &Path) -> Result<Isolation> {
    let support = IsolationSupport::check(&Host::local(node_dir), &test_overlay, node_dir);
    match (settings.level, support.best()) {
        (Some(Isolation::Oci), Isolation::Process) => {
            let why = support.reasons();
            Err(Error::invalid(format!("level: this host does not allow oci: {why}; or set `level: auto`")))
        }
        (Some(level), _) => Ok(level),
        (None, level) => {
            if level == Isolation::Process {
                tracing::warn!(why = support.reasons(), "pods run as plain processes, without isolation");
            }
            Ok(level)
        }
    }
}

async fn open_store(settings: &Settings, images: PathBuf) -> Result<Arc<Store>> {
    let settings =
        image::Settings { plain_http: settings.insecure_registries.clone(), ..image::Settings::default() };
    // Opening may have to clean up after a previous process.
    let opened = tokio::task::spawn_blocking(move || Store::open(&images, settings)).await;
    let opened = opened.map_err(|error| Error::internal(format!("open the image store: {error}")))?;
    Ok(opened?)
}

/// Opens the pod network: a bridge, if one is configured and possible.
async fn open_network(settings: &Settings, level: Isolation, node_dir: &Path) -> Result<OpenedNetwork> {
    let host = |problem| Ok(OpenedNetwork { network: None, problem });
    match (level, settings.network) {
        (Isolation::Process, NetworkMode::Bridge) => {
            return Err(Error::invalid(
                "network: a bridge needs level oci, and this node has level process: set `network: auto`",
            ));
        }
        (Isolation::Process, _) => {
            return host(Some("plain processes use the host's network".to_owned()));
        }
        (Isolation::Oci, NetworkMode::Host) => return host(None),
        (Isolation::Oci, _) => {}
    }
    let wanted = NetworkSettings { dir: network_dir(node_dir), subnet: settings.pod_cidr, nat: true };
    match Network::open(wanted).await {
        Ok(network) => {
            let problems = [network.nat_error(), network.source_check_error(), network.firewall_conflict()];
            let problem = problems.into_iter().flatten().next().map(str::to_owned);
            tracing::info!(bridge = network.bridge(), subnet = %network.subnet(), "opened the pod network");
            Ok(OpenedNetwork { network: Some(network), problem })
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

#[cfg(test)]
mod tests;
