//! Removes the containers of `dev` when it ends, also after a crash.
//!
//! Containers outlive the process that runs their node, which is not wanted for `dev`. A second process holds the read end of
//! a pipe whose only write end is ours. When we end, even by kill -9, it reads end-of-file and cleans up.

use std::{
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
};

use super::StateDir;
use crate::config::EffectiveConfig;

/// What to clean up.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct CleanupPlan {
    /// Nodes with containers.
    nodes: Vec<CleanupNode>,
    /// A directory to remove.
    folder: Option<PathBuf>,
}

/// A node whose containers are removed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CleanupNode {
    name: String,
    /// The state directory of the process.
    state_dir: PathBuf,
    /// The provider's configuration.
    config: Value,
}

/// The process that cleans up.
#[derive(Debug)]
pub(super) struct CleanupProcess {
    process: Child,
    /// Closing this starts the cleanup.
    alive: ChildStdin,
}

// === impl CleanupProcess ===

impl CleanupProcess {
    pub(super) fn start(state: StateDir, config: &EffectiveConfig) -> anyhow::Result<Self> {
        let mut plan = CleanupPlan { nodes: nodes(config), folder: None };
        let mut process = Command::new("/proc/self/exe")
            .arg("dev-guardian")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C at the terminal must not reach it.
            .process_group(0)
            .spawn()
            .context("start the cleanup process")?;
        let Some(mut alive) = process.stdin.take() else {
            bail!("the cleanup process has no standard input")
        };
        plan.folder = state.hand_over();
        let text = serde_json::to_string(&plan).context("encode the cleanup plan")?;
        writeln!(alive, "{text}").context("send the cleanup plan")?;
        Ok(Self { process, alive })
    }

    /// Starts the cleanup and waits for it.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        let Self { mut process, alive } = self;
        drop(alive);
        let ended = spawn_blocking(move || process.wait()).await?.context("wait for the cleanup")?;
        if !ended.success() {
            bail!("the cleanup failed; see above");
        }
        Ok(())
    }
}

/// The configured nodes with containers on this machine.
#[cfg(feature = "local")]
fn nodes(config: &EffectiveConfig) -> Vec<CleanupNode> {
    let ours = config.nodes.iter().filter(|node| node.provider == "local");
    ours.map(|node| CleanupNode {
        name: node.name.clone(),
        state_dir: config.state_dir.clone(),
        // An unreadable configuration does not open a provider either.
        config: node.provider_config.parse::<Value>().ok().flatten().unwrap_or_default(),
    })
    .collect()
}

#[cfg(not(feature = "local"))]
fn nodes(_: &EffectiveConfig) -> Vec<CleanupNode> {
    Vec::new()
}

/// Runs in the cleanup process: waits for end-of-file on standard input, then executes the plan from its first line.
pub async fn run_cleanup() -> anyhow::Result<()> {
    // Ignore signals that are sent to everyone.
    let _ignored_signals: Vec<Signal> =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
            .into_iter()
            .map(signal)
            .collect::<Result<_, _>>()
            .context("catch signals")?;
    let text = spawn_blocking(|| {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    })
    .await?
    .context("read standard input")?;
    // A parent that ended before sending a plan has left nothing.
    let Some(line) = text.lines().next() else { return Ok(()) };
    let plan: CleanupPlan = serde_json::from_str(line).context("parse the cleanup plan")?;
    let mut outcome = Ok(());
    for node in &plan.nodes {
        if let Err(error) = sweep(node).await {
            outcome = Err(error.context(format!("remove the containers of node {}", node.name)));
        }
    }
    // Something may still be mounted in the directory after an error, so keep it.
    outcome?;
    match &plan.folder {
        Some(folder) => {
            std::fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))
        }
        None => Ok(()),
    }
}

#[cfg(feature = "local")]
async fn sweep(node: &CleanupNode) -> anyhow::Result<()> {
    let context = vk_provider::Context {
        node_name: node.name.clone(),
        internal_ip: std::net::Ipv4Addr::LOCALHOST.into(),
        kubelet_port: 0,
        operating_system: "linux".to_owned(),
        cluster_domain: String::new(),
        cluster: None,
        state_dir: node.state_dir.join(&node.name),
        shared_dir: node.state_dir.clone(),
        extensions: vk_provider::Extensions::default(),
        supervisor: vk_provider::Supervisor::new(),
    };
    let config = vk_provider::Config::Inline(node.config.clone());
    Ok(Box::pin(vk_provider_local::factory::remove_node(config, context)).await?)
}

#[cfg(not(feature = "local"))]
#[expect(clippy::unused_async, reason = "the same call with and without the provider")]
async fn sweep(node: &CleanupNode) -> anyhow::Result<()> {
    bail!("this build has no provider for {}", node.name)
}
