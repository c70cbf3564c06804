//! The checks of `virtual-kubelet doctor` for this provider.

mod capabilities;
mod cgroup;
mod kubelet;

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

/// Timeout of calls. Short, because a user waits for the result.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Properties of the runtime that several checks need.
#[derive(Clone, Debug, Default)]
struct RuntimeInfo {
    name: String,
    /// The process that listens on the socket, if visible.
    pid: Option<i32>,
    /// Its configuration, if it exposes it.
    config: Value,
    cgroup_driver: Option<String>,
}

/// Runs all checks, in the order in which pods would fail.
pub async fn examine(settings: &Settings, node: &str, machine: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    let info = match find_socket(settings) {
        Err(finding) => {
            findings.push(*finding);
            RuntimeInfo::default()
        }
        Ok(socket) => {
            findings.push(Finding::ok("runtime socket", socket.display().to_string()));
            let (info, more) = runtime(&socket, node).await;
            findings.extend(more);
            info
        }
    };
    findings.push(kubelet::other_kubelet(settings.socket.as_deref(), machine));
    findings.extend(capabilities::examine(&info, machine));
    findings.extend(cgroup::examine(&info, settings, machine));
    findings
}

fn find_socket(settings: &Settings) -> Result<PathBuf, Box<Finding>> {
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

async fn runtime(socket: &Path, node: &str) -> (RuntimeInfo, Vec<Finding>) {
    let cri = Cri::new(socket, Limits { call: TIMEOUT, pull: Some(TIMEOUT) });
    let mut info = RuntimeInfo { pid: listening_process(socket).await, ..RuntimeInfo::default() };
    let version = match cri.version().await {
        Ok(version) => version,
        Err(error) if *error.kind() == Kind::Unsupported => {
            return (info, vec![missing_interface(&cri).await]);
        }
        Err(error) => {
            let remedy = "start the runtime, see its log, and run this as a user who may use the socket";
            return (info, vec![Finding::error("runtime", error.message(), remedy)]);
        }
    };
    info.name.clone_from(&version.runtime_name);
    let version = format!(
        "{} {}, interface {}",
        version.runtime_name, version.runtime_version, version.runtime_api_version
    );
    let mut findings = vec![Finding::ok("runtime", version)];
    match cri.runtime().await {
        Ok(runtime) => {
            info.cgroup_driver = runtime.cgroup_driver;
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
    info.config = cri.verbose_config().await;
    findings.push(kubelet::foreign_pods(&cri, node).await);
    (info, findings)
}

fn condition(what: &str, condition: &RuntimeCondition, remedy: &str) -> Finding {
    if condition.ok {
        return Finding::ok(what, "yes");
    }
    Finding::error(what, format!("no: {}: {}", condition.reason, condition.message), remedy)
}

/// Why the runtime does not implement version 1: it may be too old, or the interface may be disabled.
async fn missing_interface(cri: &Cri) -> Finding {
    match cri.v1alpha2_version().await {
        Ok(version) => Finding::error(
            "runtime",
            format!(
                "{} {} implements only version v1alpha2 of the Container Runtime Interface",
                version.runtime_name, version.runtime_version
            ),
            "upgrade it: v1 needs containerd 1.6 or CRI-O 1.23",
        ),
        Err(_) => Finding::error(
            "runtime",
            "it answers, but does not implement the Container Runtime Interface",
            "take `cri` out of `disabled_plugins` in /etc/containerd/config.toml (Docker's packages put it there) and \
             restart containerd",
        ),
    }
}

/// The process that listens on a socket.
async fn listening_process(socket: &Path) -> Option<i32> {
    let stream = tokio::time::timeout(TIMEOUT, UnixStream::connect(socket)).await.ok()?.ok()?;
    stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests;
