//! What makes the containers of `dev` end with it, whatever its end.
//!
//! Containers outlive the process that runs their node, which is right anywhere but here. So a second process of ours holds the read end of
//! a pipe whose only write end is ours. When we are gone it reads as ended, by an orderly end as by kill -9, and the guardian removes
//! what the nodes have left.

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

use super::State;
use crate::config::Resolved;

/// What remains to be done after the end.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Will {
    /// Nodes that have containers.
    nodes: Vec<Node>,
    /// A folder that goes.
    folder: Option<PathBuf>,
}

/// A node whose containers go.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Node {
    name: String,
    /// The state directory of the process.
    state_dir: PathBuf,
    /// The provider's configuration.
    config: Value,
}

/// The process that does what remains to be done.
#[derive(Debug)]
pub(super) struct Guardian {
    process: Child,
    /// Closing this is the signal.
    alive: ChildStdin,
}

// === impl Guardian ===

impl Guardian {
    pub(super) fn start(state: State, config: &Resolved) -> anyhow::Result<Self> {
        let mut will = Will { nodes: nodes(config), folder: None };
        let mut process = Command::new("/proc/self/exe")
            .arg("dev-guardian")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A Ctrl-C at the terminal goes to our group only.
            .process_group(0)
            .spawn()
            .context("cannot start the process that cleans up in the end")?;
        let Some(mut alive) = process.stdin.take() else { bail!("a process has no standard input") };
        will.folder = state.hand_over();
        let text = serde_json::to_string(&will).context("cannot write down what to clean up")?;
        writeln!(alive, "{text}").context("cannot tell what to clean up")?;
        Ok(Self { process, alive })
    }

    /// Lets it do its work, and waits until that is done.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        let Self { mut process, alive } = self;
        drop(alive);
        let ended = spawn_blocking(move || process.wait()).await?.context("cannot wait for the clean-up")?;
        if !ended.success() {
            bail!("the clean-up failed: see above");
        }
        Ok(())
    }
}

/// The nodes of the configuration that have containers on this machine.
#[cfg(feature = "local")]
fn nodes(config: &Resolved) -> Vec<Node> {
    let ours = config.nodes.iter().filter(|node| node.provider == "local");
    ours.map(|node| Node {
        name: node.name.clone(),
        state_dir: config.state_dir.clone(),
        // One that cannot be read opens no provider either.
        config: node.provider_config.parse::<Value>().ok().flatten().unwrap_or_default(),
    })
    .collect()
}

#[cfg(not(feature = "local"))]
fn nodes(_: &Resolved) -> Vec<Node> {
    Vec::new()
}

/// Is the guardian: waits for the end of standard input, and does what its first line says.
pub async fn guard() -> anyhow::Result<()> {
    // What everybody is told is not meant for us.
    let _deaf: Vec<Signal> =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
            .into_iter()
            .map(signal)
            .collect::<Result<_, _>>()
            .context("cannot catch signals")?;
    let text = spawn_blocking(|| {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    })
    .await?
    .context("cannot read standard input")?;
    // A parent that ended before it had said anything has left nothing.
    let Some(line) = text.lines().next() else { return Ok(()) };
    let will: Will = serde_json::from_str(line).context("cannot read what to clean up")?;
    let mut outcome = Ok(());
    for node in &will.nodes {
        if let Err(error) = sweep(node).await {
            outcome = Err(error.context(format!("cannot remove the containers of node {}", node.name)));
        }
    }
    // With something mounted in it, the folder is better left to somebody who can see what it is.
    outcome?;
    match &will.folder {
        Some(folder) => {
            std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
        }
        None => Ok(()),
    }
}

#[cfg(feature = "local")]
async fn sweep(node: &Node) -> anyhow::Result<()> {
    let context = vk_provider::Context {
        node_name: node.name.clone(),
        internal_ip: std::net::Ipv4Addr::LOCALHOST.into(),
        kubelet_port: 0,
        operating_system: "linux".to_owned(),
        cluster_domain: String::new(),
        state_dir: node.state_dir.join(&node.name),
        shared_dir: node.state_dir.clone(),
        extensions: vk_provider::Extensions::default(),
    };
    let config = vk_provider::Config::Inline(node.config.clone());
    Ok(Box::pin(vk_provider_local::factory::remove_node(config, context)).await?)
}

#[cfg(not(feature = "local"))]
#[expect(clippy::unused_async, reason = "the same call with and without the provider")]
async fn sweep(node: &Node) -> anyhow::Result<()> {
    bail!("this build has no provider for {}", node.name)
}
