//! Opens the provider from its configuration.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use vk_pod_engine::{
    cgroup::{HostCgroups, MOUNT_POINT},
    config::EngineConfig,
    engine::Engine,
    host::{Host, HostNode},
};
use vk_provider::{Abilities, Backend, Config, Context, Error, Factory, Finding, Result, SingleNode};
use vk_supervisor::Clock;

use crate::{
    client::Cri,
    config::Settings,
    doctor,
    socket::{self, SOCKETS},
};

/// The factory of the provider `cri`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CriFactory;

#[async_trait]
impl Factory for CriFactory {
    fn name(&self) -> &'static str {
        "cri"
    }

    fn description(&self) -> &'static str {
        "containers on this machine, by containerd or another runtime that speaks CRI v1"
    }

    fn abilities(&self) -> Abilities {
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true, fit: false }
    }

    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let settings = Settings::read(&config)?;
        if context.operating_system != "linux" {
            return Err(Error::invalid(format!(
                "the provider cri runs pods on linux, and the node's `os` is {}",
                context.operating_system
            )));
        }
        let socket = match &settings.socket {
            Some(socket) => socket.clone(),
            None => socket::find(&SOCKETS)?,
        };
        let pull_records = pull_records(&context.shared_dir, &socket);
        let cri = Cri::new(socket, settings.limits);
        // If the runtime is down, the node waits for it and is NotReady. A runtime that is unsuitable is an error.
        match cri.version().await {
            Ok(version) => tracing::info!(
                runtime = version.runtime_name,
                version = version.runtime_version,
                socket = %cri.socket().display(),
                "connected to the container runtime"
            ),
            Err(error) if *error.kind() == vk_provider::error::Kind::Unsupported => {
                return Err(Error::invalid(error.message().to_owned()));
            }
            Err(error) => {
                tracing::warn!(error = error.message(), "the container runtime does not answer yet");
            }
        }
        let config = &settings.engine;
        let host = Host::local(config.node_dir(&context));
        let clock = Clock::system();
        if let Err(error) = host.protect_from_oom_killer() {
            tracing::debug!(%error, "the OOM killer does not spare this process");
        }
        let (cgroup_root, cgroups) = pod_cgroups(config, &context);
        let mut engine_settings =
            config.engine_settings(&context, &host, settings.log_root(), cgroup_root, cgroups)?;
        engine_settings.pull_records = Some(pull_records);
        let engine = Engine::new(Arc::new(cri), engine_settings, clock.clone(), &context.supervisor)?;
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
        let host = Host::local(settings.engine.node_dir(&context));
        doctor::examine(&settings, &context.node_name, &host).await
    }
}

/// The records of who may use which image of a runtime: one directory for all nodes on it.
fn pull_records(shared_dir: &Path, socket: &Path) -> PathBuf {
    // Both names are in use for the same directory.
    let socket = match socket.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => socket.to_owned(),
    };
    let name = socket.to_string_lossy().replace('%', "%25").replace('/', "%2F");
    shared_dir.join("image-access").join(name)
}

/// The parent cgroup of pods, and the host's cgroups in which the engine creates those of pods with their limits. If it cannot, only
/// a configured parent is passed to the runtime.
fn pod_cgroups(config: &EngineConfig, context: &Context) -> (Option<String>, Option<HostCgroups>) {
    let cgroups = HostCgroups::detect(MOUNT_POINT).and_then(|cgroups| {
        cgroups.check_writable()?;
        Ok(cgroups)
    });
    match cgroups {
        Ok(cgroups) => (Some(config.cgroup_root(context)), Some(cgroups)),
        Err(error) => {
            tracing::warn!(%error, "the cgroups of pods are left to the runtime: pod-level limits and `reserved` are not enforced");
            (config.cgroup_root.clone(), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn nodes_on_one_runtime_share_the_records_of_its_images() {
        let of = |socket: &str| pull_records(Path::new("/state"), Path::new(socket));
        let records = Path::new("/state/image-access/%2Frun%2Fcontainerd%2Fcontainerd.sock");
        assert_eq!(of("/run/containerd/containerd.sock"), records);
        assert_eq!(of("/var/run/containerd/containerd.sock"), records);
        assert_ne!(of("/run/crio/crio.sock"), records);
    }

    #[test]
    fn two_nodes_never_share_a_directory() {
        let context = |node: &str| Context {
            node_name: node.to_owned(),
            internal_ip: [192, 0, 2, 1].into(),
            kubelet_port: 10250,
            operating_system: "linux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            cluster: None,
            state_dir: PathBuf::from("/state").join(node),
            shared_dir: PathBuf::from("/state"),
            extensions: vk_provider::Extensions::default(),
            supervisor: vk_provider::Supervisor::new(),
        };
        let read = |config: Value| Settings::read(&Config::Inline(config)).unwrap();
        let configured = read(json!({ "root": "/data" }));
        assert_eq!(configured.engine.node_dir(&context("one")), PathBuf::from("/data/one"));
        assert_eq!(configured.engine.node_dir(&context("two")), PathBuf::from("/data/two"));
        let plain = read(json!({}));
        assert_eq!(plain.engine.node_dir(&context("one")), PathBuf::from("/state/one"));
    }
}
