//! Tests with a real containerd, one per test.

mod conformance;
mod pod_cgroup;
mod runtime;

use std::{path::PathBuf, sync::Arc};

use futures::StreamExt as _;
use serde_json::json;
use vk_provider::{Config, Context, Factory as _, NodeEvent, Provider, Result};
use vk_provider_cri::CriFactory;
use vk_testing::host::{Containerd, Host as _, HostResources, Image, containerd};

/// Selects another containerd than the one in `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";

/// Starts a containerd with the standard images.
async fn containerd() -> Containerd {
    let mut options = containerd::Options::default();
    // The images of the conformance suite. Each has other content, because the runtime would treat equal ones as the same image.
    let busybox = |tag: u8| {
        let name = format!("docker.io/library/busybox:1.{tag}");
        Image::standard().remove(0).named(&name).file("/version", &name)
    };
    options.images.extend([35, 36, 37].map(busybox));
    if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
        options.program = program.into();
    }
    Containerd::start(HostResources::any(), options).await
}

/// Socket and directories of a runtime.
#[derive(Clone, Debug)]
struct RuntimePaths {
    socket: PathBuf,
    /// A directory whose mounts are visible to the runtime.
    shared: PathBuf,
    logs: PathBuf,
    cgroup: String,
}

impl RuntimePaths {
    fn on(containerd: &Containerd) -> Self {
        let machine = containerd.resources();
        Self {
            socket: containerd.socket(),
            shared: machine.shared(),
            logs: machine.folder().join("logs"),
            cgroup: machine.cgroup(),
        }
    }

    /// Opens the provider as the binary does.
    async fn open(&self, folder: &str, context: Context) -> Result<Arc<dyn Provider>> {
        let config = json!({
            "socket": self.socket,
            "root": self.shared.join(folder),
            "logRoot": self.logs,
            "cgroupRoot": format!("/{}", self.cgroup),
        });
        let backend = CriFactory.open(Config::Inline(config), context).await?;
        match backend.nodes().next().await {
            Some(NodeEvent::Added(_, provider)) => Ok(provider),
            other => panic!("not one node: {other:?}"),
        }
    }
}
