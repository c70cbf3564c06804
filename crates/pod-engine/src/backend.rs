//! What a container runtime does for the engine.
//!
//! The shape is that of the Container Runtime Interface, because every runtime can be seen that way, in types of our own: nothing
//! here knows gRPC. Every call can be repeated; stopping and removing what is stopped or gone succeeds.

mod config;
mod runtime;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use vk_provider::{
    Result,
    ability::{AttachOptions, ExecOptions, Forward, Started},
    resolve::PullCredentials,
};

pub use self::{
    config::{
        Capabilities, ContainerConfig, Device, Dns, IdMapping, Mount, Namespaces, PortMapping, Propagation,
        Protocol, Resources, Sandboxed, SeLinux, Seccomp, Security, Share, SupplementalGroupsPolicy,
        UserNamespace,
    },
    runtime::{Condition, Handler, Image, Runtime},
    usage::{ContainerUsage, CpuUsage, FsUsage, InterfaceUsage, MemoryUsage, PodUsage},
};
pub use config::SandboxConfig;

use crate::image::Disk;
use crate::snapshot::{Container, ContainerState, Sandbox, SandboxState};

/// Runs sandboxes and containers on one machine.
///
/// **Errors.** [`Error::message`](vk_provider::Error::message) is what went wrong in the runtime's own words, and nothing else: it is
/// shown on pods where a kubelet would show it. The cause, where there is one, is the same with its origin, as in
/// `rpc error: code = NotFound desc = ...`, for the places where a kubelet shows that ([`told`]). `NotFound` is for sandboxes and
/// containers that do not exist, `Unavailable` for a runtime that does not answer.
///
/// **Deadlines.** No call hangs: the backend gives each a time limit, and a stop its grace beside. Only a pull may take long.
#[async_trait]
pub trait ContainerBackend: Send + Sync + 'static {
    /// Who the runtime is and whether it can run pods now.
    async fn runtime(&self) -> Result<Runtime>;

    /// Creates a sandbox and starts it, with its network. Returns its id. A sandbox that could not be started whole is not left
    /// behind.
    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<String>;

    /// Stops what runs in a sandbox and gives its network back.
    async fn stop_sandbox(&self, id: &str) -> Result<()>;

    /// Removes a sandbox with its containers, by force.
    async fn remove_sandbox(&self, id: &str) -> Result<()>;

    /// A sandbox in full.
    async fn sandbox(&self, id: &str) -> Result<Sandbox>;

    /// Creates a container in a sandbox. Returns its id.
    async fn create_container(
        &self,
        sandbox: &str,
        container: &ContainerConfig,
        config: &SandboxConfig,
    ) -> Result<String>;

    /// Starts a created container.
    async fn start_container(&self, id: &str) -> Result<()>;

    /// Asks a container to end, and kills it when the grace is over. Returns when it has ended.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;

    /// Removes a container, by force.
    async fn remove_container(&self, id: &str) -> Result<()>;

    /// A container in full.
    async fn container(&self, id: &str) -> Result<Container>;

    /// All sandboxes and containers that carry these labels, in brief: cheap, because it is asked every second.
    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Listing>;

    /// Runs a command in a container and waits for it. Also where the time is over this is `Ok`: see [`Ran`].
    async fn run(&self, container: &str, command: &[String], limit: Duration) -> Result<Ran>;

    /// Starts a command with streams.
    async fn exec(&self, container: &str, command: &[String], options: &ExecOptions) -> Result<Started>;

    /// Attaches to the container's own process.
    async fn attach(&self, container: &str, options: &AttachOptions) -> Result<Started>;

    /// A connection to a port in a sandbox.
    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Forward>;

    /// Lets the runtime write a container's log into a new file of the same name.
    async fn reopen_log(&self, container: &str) -> Result<()>;

    /// An image that is there; `None` when it is not.
    async fn image(&self, image: &str, handler: &str) -> Result<Option<Image>>;

    /// All images that are there.
    async fn images(&self) -> Result<Vec<Image>>;

    /// Pulls an image, with one set of credentials or anonymously. Returns the reference under which it can be started.
    async fn pull(
        &self,
        image: &str,
        credentials: Option<&PullCredentials>,
        sandbox: &SandboxConfig,
    ) -> Result<String>;

    /// Removes an image.
    async fn remove_image(&self, image: &str) -> Result<()>;

    /// What names the images of all containers on the runtime, whoever made them and in whichever state they are, and the images that they
    /// mount as volumes: by ids, names with digests, names with tags, all that the runtime tells. An answer is complete, or an error.
    async fn used_images(&self) -> Result<BTreeSet<String>>;

    /// What the image store takes.
    async fn image_fs(&self) -> Result<Vec<FsUsage>>;

    /// How full the file system is that has this directory of the machine; `None` where nobody can tell.
    async fn disk(&self, mount_point: &str) -> Option<Disk> {
        Disk::holding(mount_point).await
    }

    /// What the sandboxes that carry these labels, and their containers, use.
    async fn usage(&self, labels: &BTreeMap<String, String>) -> Result<Vec<PodUsage>>;

    /// Tells that something happened to a pod, by its UID, sooner than the next [`list`](Self::list) would show it. A hint and no
    /// more: events may be lost, late or of pods that are gone. `None` where the runtime has no events; the stream ends when they
    /// stop to come, and may be asked for again.
    fn events(&self) -> Option<BoxStream<'static, String>> {
        None
    }
}

/// Everything of ours on the runtime, in brief.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sandboxes.
    pub sandboxes: Vec<SandboxEntry>,
    /// Containers.
    pub containers: Vec<ContainerEntry>,
}

/// A sandbox in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxEntry {
    /// Its id.
    pub id: String,
    /// The pod, as its labels say.
    pub pod: vk_provider::PodRef,
    /// Whether it is ready.
    pub state: SandboxState,
    /// Which one of this pod it is, from 0.
    pub attempt: u32,
}

/// A container in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerEntry {
    /// Its id.
    pub id: String,
    /// The pod, as its labels say.
    pub pod: vk_provider::PodRef,
    /// The sandbox that it is in.
    pub sandbox: String,
    /// Its name in the pod.
    pub name: String,
    /// Where it stands.
    pub state: ContainerState,
    /// Which one of this name it is, from 0.
    pub attempt: u32,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It ended.
    Ended {
        /// Its exit code.
        code: i32,
        /// What it wrote, the error output after the output; bounded by the runtime.
        output: Vec<u8>,
    },
    /// The time was over, and it was killed.
    TimedOut {
        /// How the runtime says it.
        message: String,
    },
}

/// An error as a kubelet shows it where it does not strip the origin: the cause where there is one, else the message.
pub fn told(error: &vk_provider::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.message().to_owned(), ToString::to_string)
}
