//! Opens the provider from its configuration.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use vk_pod_engine::{
    engine::Engine,
    machine::{Machine, Node},
    settings,
};
use vk_provider::{Abilities, Backend, Config, Context, Error, Factory, Finding, Result, SingleNode};
use vk_supervisor::Clock;

use crate::{
    client::Cri,
    config::Settings,
    doctor,
    socket::{self, SOCKETS},
};

/// Interval at which the runtime is listed, as in a kubelet.
const RELIST: Duration = Duration::from_secs(1);
/// Interval at which pods without changes are synchronised, as in a kubelet.
const RESYNC: Duration = Duration::from_mins(1);

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
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true }
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
        let root = root(&settings, &context);
        let machine = Machine::here(&root);
        let memory = machine
            .memory()
            .ok_or_else(|| Error::internal("read the size of the memory from /proc/meminfo"))?;
        let clock = Clock::system();
        let engine_settings = settings::Settings {
            node: context.node_name.clone(),
            node_ips: vec![context.internal_ip],
            root,
            log_root: settings.log_root.clone(),
            seccomp_root: settings.seccomp_root.clone(),
            cluster_dns: settings.cluster_dns.clone(),
            cluster_domain: context.cluster_domain.clone(),
            resolv_conf: settings.resolv_conf.clone(),
            hosts_file: PathBuf::from("/etc/hosts"),
            cgroup_root: settings.cgroup_root.clone(),
            memory,
            oom_score_floor: machine.oom_score_floor(),
            seccomp_default: settings.seccomp_default,
            parallel_pulls: settings.parallel_pulls,
            max_crash_backoff: settings.max_crash_backoff,
            relist: RELIST,
            resync: RESYNC,
        };
        let engine = Engine::new(Arc::new(cri), engine_settings, clock.clone(), &context.supervisor)?;
        engine.acquaint().await;
        let node = Node::new(engine, machine, settings.reserved, settings.max_pods, clock);
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
        let machine = Machine::here(root(&settings, &context));
        doctor::examine(&settings, &context.node_name, &machine).await
    }
}

/// The directory of the node. It must not be shared: files that belong to no pod of the node are removed.
fn root(settings: &Settings, context: &Context) -> PathBuf {
    match &settings.root {
        Some(root) => root.join(&context.node_name),
        // Already specific to the node.
        None => context.state_dir.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn two_nodes_never_share_a_directory() {
        let context = |node: &str| Context {
            node_name: node.to_owned(),
            internal_ip: [192, 0, 2, 1].into(),
            kubelet_port: 10250,
            operating_system: "linux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            state_dir: PathBuf::from("/state").join(node),
            shared_dir: PathBuf::from("/state"),
            extensions: vk_provider::Extensions::default(),
            supervisor: vk_provider::Supervisor::new(),
        };
        let read = |config: Value| Settings::read(&Config::Inline(config)).unwrap();
        let configured = read(json!({ "root": "/data" }));
        assert_eq!(root(&configured, &context("one")), PathBuf::from("/data/one"));
        assert_eq!(root(&configured, &context("two")), PathBuf::from("/data/two"));
        let plain = read(json!({}));
        assert_eq!(root(&plain, &context("one")), PathBuf::from("/state/one"));
    }
}
