//! Opens the provider from its configuration.

mod describe;
mod sweep;

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use vk_pod_engine::{
    engine::Engine,
    host::{Host, HostNode},
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

/// The factory of the provider `local`.
#[derive(Clone, Debug)]
pub struct LocalFactory {
    program: Program,
}

/// Where pods get their network from on this machine.
struct Networked {
    network: Option<Network>,
    /// Why it is the machine's own, or what it cannot do; `None` where that was asked for.
    problem: Option<String>,
}

// === impl LocalFactory ===

impl Default for LocalFactory {
    /// Shims are processes of this very program, which must answer to the verb `shim` as `virtual-kubelet` does.
    fn default() -> Self {
        // Not by its name: that may be another version by now.
        Self::with_program(Program { path: "/proc/self/exe".into(), args: vec!["shim".to_owned()] })
    }
}

impl LocalFactory {
    /// A factory whose shims are processes of another program.
    pub fn with_program(program: Program) -> Self {
        Self { program }
    }

    /// The runtime of a node, with what there is to tell about it.
    async fn local(
        &self,
        settings: &Settings,
        context: &Context,
        clock: &Clock,
    ) -> Result<(Local, Described)> {
        let (node_dir, images) = (settings.node_dir(context), settings.images(context));
        private(&context.shared_dir).and_then(|()| private(&node_dir)).map_err(|error| {
            Error::invalid(format!(
                "make the node's directory {}: {error}: set `stateDir` to a directory that this user may write to",
                node_dir.display()
            ))
        })?;
        let level = choose(settings, &node_dir)?;
        let store = store(settings, images).await?;
        let networked = networked(settings, level, &node_dir).await?;
        let cgroups =
            match level {
                Level::Oci => Some(Cgroups::detect(Path::new(MOUNTED)).map_err(|error| {
                    Error::unavailable(format!("find the cgroups of this machine: {error}"))
                })?),
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
                "the provider local runs pods on linux, and the node's `os` is {}",
                context.operating_system
            )));
        }
        let clock = Clock::system();
        let (local, described) = Box::pin(self.local(&settings, &context, &clock)).await?;
        described.log();
        let host = Host::local(settings.node_dir(&context)).with_min_free_space(settings.min_free_disk);
        let cgroup_root = Some(cgroup_root(&settings, &context));
        let config = &settings.engine;
        let engine_settings =
            config.engine_settings(&context, &host, settings.logs(&context), cgroup_root)?;
        let engine = Engine::new(Arc::new(local), engine_settings, clock.clone(), &Supervisor::new())?
            .with_node_config(move |node| described.describe(node));
        engine.connect().await;
        let node = HostNode::new(engine, host, config.reserved, config.max_pods, clock);
        Ok(Arc::new(SingleNode::new(&context, node)))
    }

    async fn examine(&self, config: Config, context: Context) -> Vec<Finding> {
        let settings = match Settings::read(&config) {
            Ok(settings) => settings,
            Err(error) => {
                let remedy = "correct it; see the guide of the provider for its keys";
                return vec![Finding::error("configuration", error.message(), remedy)];
            }
        };
        let (node, images) = (settings.node_dir(&context), settings.images(&context));
        let machine = Host::local(&node).with_min_free_space(settings.min_free_disk);
        let firewall = || network::obstacle(&network_dir(&node));
        let places = Places { node: &node, images: &images };
        doctor::examine(&settings, &machine, &try_overlay, &firewall, &places)
    }
}

/// The level that is asked for, where the machine allows it; else the best that it does.
fn choose(settings: &Settings, node_dir: &Path) -> Result<Level> {
    let allowed = Allowed::on(&Host::local(node_dir), &try_overlay, node_dir);
    match (settings.level, allowed.level()) {
        (Some(Level::Oci), Level::Process) => {
            let why = allowed.why();
            Err(Error::invalid(format!(
                "level: this machine does not allow oci: {why}; or set `level: auto`"
            )))
        }
        (Some(level), _) => Ok(level),
        (None, level) => {
            if level == Level::Process {
                tracing::warn!(why = allowed.why(), "pods run as plain processes: nothing keeps them apart");
            }
            Ok(level)
        }
    }
}

async fn store(settings: &Settings, images: PathBuf) -> Result<Arc<Store>> {
    let settings =
        image::Settings { plain_http: settings.insecure_registries.clone(), ..image::Settings::default() };
    // It may have to clean up after an earlier process.
    let opened = tokio::task::spawn_blocking(move || Store::open(&images, settings)).await;
    let opened = opened.map_err(|error| Error::internal(format!("open the image store: {error}")))?;
    Ok(opened?)
}

/// A bridge, where one is wanted and can be made.
async fn networked(settings: &Settings, level: Level, node_dir: &Path) -> Result<Networked> {
    let host = |problem| Ok(Networked { network: None, problem });
    match (level, settings.network) {
        (Level::Process, NetworkMode::Bridge) => {
            return Err(Error::invalid(
                "network: a bridge needs level oci, and this node has level process: set `network: auto`",
            ));
        }
        (Level::Process, _) => {
            return host(Some("plain processes have the machine's network".to_owned()));
        }
        (Level::Oci, NetworkMode::Host) => return host(None),
        (Level::Oci, _) => {}
    }
    let wanted = NetworkSettings { dir: network_dir(node_dir), subnet: settings.pod_cidr, nat: true };
    match Network::open(wanted).await {
        Ok(network) => {
            let problem = network.limits().or_else(|| network.obstacle()).map(str::to_owned);
            tracing::info!(bridge = network.bridge(), subnet = %network.subnet(), "pods have a network of their own");
            Ok(Networked { network: Some(network), problem })
        }
        Err(error) if settings.network == NetworkMode::Bridge => {
            Err(Error::unavailable(format!("network: no bridge can be made: {error}")))
        }
        Err(error) => host(Some(error.to_string())),
    }
}

fn network_dir(node_dir: &Path) -> PathBuf {
    node_dir.join("local").join("network")
}

/// A group of the node's own, so that nothing of another node or process is in it.
fn cgroup_root(settings: &Settings, context: &Context) -> String {
    settings.engine.cgroup_root.clone().unwrap_or_else(|| {
        // Processes may run nodes of one name, in directories of their own.
        let place = settings.node_dir(context).into_os_string().into_encoded_bytes();
        let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &place);
        let mark = sum.as_ref().iter().take(4).fold(0_u32, |mark, byte| mark << 8 | u32::from(*byte));
        format!("/virtual-kubelet-{}-{mark:08x}", context.node_name)
    })
}

/// A directory that only its owner sees.
fn private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // One that was there before may be open to others, and secrets are written below.
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
