//! On a real containerd, each test on one of its own.

mod conformance;
mod runtime;

use std::{path::PathBuf, sync::Arc};

use futures::StreamExt as _;
use serde_json::json;
use vk_provider::{Config, Context, Factory as _, NodeEvent, Provider, Result};
use vk_provider_cri::CriFactory;
use vk_testing::host::{Containerd, Host as _, HostResources, Image, containerd};

/// Names another containerd than that of `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";

/// A containerd with the usual images, on any machine that is free.
async fn containerd() -> Containerd {
    let mut options = containerd::Options::default();
    // What the pods of the conformance suite ask for. Each is another image, or the runtime takes one for the other.
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

/// Where the runtime is, and where its files may be.
#[derive(Clone, Debug)]
struct Place {
    socket: PathBuf,
    /// Mounts in it are seen by the runtime too.
    shared: PathBuf,
    logs: PathBuf,
    cgroup: String,
}

impl Place {
    fn on(containerd: &Containerd) -> Self {
        let machine = containerd.resources();
        Self {
            socket: containerd.socket(),
            shared: machine.shared(),
            logs: machine.folder().join("logs"),
            cgroup: machine.cgroup(),
        }
    }

    /// Opens the provider as the command does.
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
