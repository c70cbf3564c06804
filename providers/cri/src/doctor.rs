//! Whether pods could run here: what `virtual-kubelet doctor` asks of this provider.

mod cgroup;
mod kubelet;
mod rights;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::net::UnixStream;
use vk_pod_engine::{ContainerBackend as _, backend::RuntimeCondition, host::Host};
use vk_provider::{Finding, error::Kind};

use crate::{
    client::{Cri, Limits},
    config::Settings,
    socket::{self, SOCKETS},
};

/// A runtime that takes longer is as good as none for somebody who waits for the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known about the runtime beside what it does for pods.
#[derive(Clone, Debug, Default)]
struct Peer {
    name: String,
    /// The process that listens on the socket, where it can be seen.
    pid: Option<i32>,
    /// Its configuration, where it shows it.
    config: Value,
    cgroup_driver: Option<String>,
}

/// Looks at everything, in the order in which it would fail.
pub async fn examine(settings: &Settings, node: &str, machine: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    let peer = match found(settings) {
        Err(finding) => {
            findings.push(*finding);
            Peer::default()
        }
        Ok(socket) => {
            findings.push(Finding::ok("runtime socket", socket.display().to_string()));
            let (peer, more) = runtime(&socket, node).await;
            findings.extend(more);
            peer
        }
    };
    findings.push(kubelet::process(settings.socket.as_deref(), machine));
    findings.extend(rights::examine(&peer, machine));
    findings.extend(cgroup::examine(&peer, settings, machine));
    findings
}

fn found(settings: &Settings) -> Result<PathBuf, Box<Finding>> {
    let candidates = match &settings.socket {
        Some(socket) => vec![socket.clone()],
        None => SOCKETS.iter().map(PathBuf::from).collect(),
    };
    socket::find(&candidates).map_err(|_| {
        let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        let remedy = "install and start containerd or CRI-O, or set `socket` in the provider's configuration";
        Box::new(Finding::error("runtime socket", format!("none at {}", tried.join(", ")), remedy))
    })
}

async fn runtime(socket: &Path, node: &str) -> (Peer, Vec<Finding>) {
    let cri = Cri::new(socket, Limits { call: PATIENCE, pull: Some(PATIENCE) });
    let mut peer = Peer { pid: listener(socket).await, ..Peer::default() };
    let version = match cri.version().await {
        Ok(version) => version,
        Err(error) if *error.kind() == Kind::Unsupported => return (peer, vec![unspoken(&cri).await]),
        Err(error) => {
            let remedy = "start the runtime, see its log, and run this as a user who may use the socket";
            return (peer, vec![Finding::error("runtime", error.message(), remedy)]);
        }
    };
    peer.name.clone_from(&version.runtime_name);
    let who = format!(
        "{} {}, interface {}",
        version.runtime_name, version.runtime_version, version.runtime_api_version
    );
    let mut findings = vec![Finding::ok("runtime", who)];
    match cri.runtime().await {
        Ok(runtime) => {
            peer.cgroup_driver = runtime.cgroup_driver;
            let remedy = "see the runtime's log";
            findings.push(condition("runtime ready", &runtime.ready, remedy));
            let remedy = "put a CNI configuration into /etc/cni/net.d and its plugins into /opt/cni/bin, or where the \
                          runtime's configuration says";
            findings.push(condition("pod network", &runtime.network, remedy));
        }
        Err(error) => {
            findings.push(Finding::error("runtime ready", error.message(), "see the runtime's log"));
        }
    }
    peer.config = cri.shown_config().await;
    findings.push(kubelet::pods(&cri, node).await);
    (peer, findings)
}

fn condition(what: &str, condition: &RuntimeCondition, remedy: &str) -> Finding {
    if condition.ok {
        return Finding::ok(what, "yes");
    }
    Finding::error(what, format!("no: {}: {}", condition.reason, condition.message), remedy)
}

/// Why the runtime does not speak version 1: it may be old, or not be asked to speak at all.
async fn unspoken(cri: &Cri) -> Finding {
    match cri.old_version().await {
        Ok(version) => Finding::error(
            "runtime",
            format!(
                "{} {} speaks only version v1alpha2 of the Container Runtime Interface",
                version.runtime_name, version.runtime_version
            ),
            "upgrade it: containerd 1.6 and CRI-O 1.23 are the first that speak v1",
        ),
        Err(_) => Finding::error(
            "runtime",
            "it answers, and does not speak the Container Runtime Interface",
            "take `cri` out of `disabled_plugins` in /etc/containerd/config.toml (Docker's packages put it there) and \
             restart containerd",
        ),
    }
}

/// The process that listens on a socket.
async fn listener(socket: &Path) -> Option<i32> {
    let stream = tokio::time::timeout(PATIENCE, UnixStream::connect(socket)).await.ok()?.ok()?;
    stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests;
