//! The interface between the engine and a container runtime.
//!
//! It has the shape of the Container Runtime Interface, in types of our own: nothing here depends on gRPC. Every call can be repeated;
//! stopping or removing an object that is stopped or gone succeeds.

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
        Capabilities, ContainerConfig, ContainerSecurity, Device, Dns, IdMapping, Mount, Namespaces,
        PortMapping, Propagation, Protocol, Resources, SandboxSecurity, SeLinux, Seccomp, Share,
        SupplementalGroupsPolicy, UserNamespace,
    },
    runtime::{Image, RuntimeCondition, RuntimeHandler, RuntimeInfo},
    usage::{ContainerUsage, CpuUsage, FsUsage, InterfaceUsage, MemoryUsage, PodUsage},
};
pub use config::SandboxConfig;

use crate::{
    image::{Access, DiskUsage},
    snapshot::{Container, ContainerState, Sandbox, SandboxState},
};

/// Runs sandboxes and containers on one machine.
///
/// **Errors.** [`Error::message`](vk_provider::Error::message) is the runtime's own error message and nothing else: it is shown
/// on pods where a kubelet would show it. The cause, if any, is the same message with its origin, as in
/// `rpc error: code = NotFound desc = ...`, for the places where a kubelet shows that ([`full_message`]). `NotFound` is for sandboxes and
/// containers that do not exist, `Unavailable` for a runtime that does not answer.
///
/// **Deadlines.** No call hangs: the backend applies a timeout to each, plus the grace period for a stop. Only a pull may take long.
#[async_trait]
pub trait ContainerBackend: Send + Sync + 'static {
    /// Name, version and readiness of the runtime.
    async fn runtime(&self) -> Result<RuntimeInfo>;

    /// Creates and starts a sandbox with its network. Returns its id. A sandbox that failed to start is not left behind.
    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<String>;

    /// Stops all containers of a sandbox and releases its network.
    async fn stop_sandbox(&self, id: &str) -> Result<()>;

    /// Removes a sandbox with its containers, by force.
    async fn remove_sandbox(&self, id: &str) -> Result<()>;

    /// The details of a sandbox.
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

    /// Sends the stop signal to a container, and kills it after the grace period. Returns when it has exited.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;

    /// Removes a container, by force.
    async fn remove_container(&self, id: &str) -> Result<()>;

    /// The details of a container.
    async fn container(&self, id: &str) -> Result<Container>;

    /// All sandboxes and containers with these labels, without details. Called every second, so it must be cheap.
    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Listing>;

    /// Runs a command in a container and waits for it. A timeout is `Ok`: see [`ExecOutput`].
    async fn run(&self, container: &str, command: &[String], limit: Duration) -> Result<ExecOutput>;

    /// Starts a command with attached streams.
    async fn exec(&self, container: &str, command: &[String], options: &ExecOptions) -> Result<Started>;

    /// Attaches to the container's main process.
    async fn attach(&self, container: &str, options: &AttachOptions) -> Result<Started>;

    /// Opens a connection to a port in a sandbox.
    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Forward>;

    /// Makes the runtime reopen a container's log file, after rotation.
    async fn reopen_log(&self, container: &str) -> Result<()>;

    /// A local image; `None` if it is not present.
    async fn image(&self, image: &str, handler: &str) -> Result<Option<Image>>;

    /// All local images.
    async fn images(&self) -> Result<Vec<Image>>;

    /// Pulls an image, with one set of credentials or anonymously. Returns the reference to start it by: its id, a digest,
    /// or nothing if the runtime did not say.
    async fn pull(
        &self,
        image: &str,
        credentials: Option<&PullCredentials>,
        sandbox: &SandboxConfig,
    ) -> Result<String>;

    /// Who may use a local image under this name without pulling it. Asked only of runtimes that record it themselves, with the image, so
    /// that no image is ever present without it.
    async fn image_access(&self, image: &str, id: &str) -> Result<Access> {
        let _ = (image, id);
        Ok(Access::Unknown)
    }

    /// Removes an image.
    async fn remove_image(&self, image: &str) -> Result<()>;

    /// All ids, digests and tags of the images that any container on the runtime uses or mounts, whoever created it and in any state. The
    /// answer is complete, or an error.
    async fn used_images(&self) -> Result<BTreeSet<String>>;

    /// Disk usage of the image store.
    async fn image_fs(&self) -> Result<Vec<FsUsage>>;

    /// Usage of the file system that contains this directory; `None` if it is unknown.
    async fn disk(&self, mount_point: &str) -> Option<DiskUsage> {
        DiskUsage::measure(mount_point).await
    }

    /// Resource usage of the sandboxes with these labels, and of their containers.
    async fn usage(&self, labels: &BTreeMap<String, String>) -> Result<Vec<PodUsage>>;

    /// UIDs of pods that changed, sooner than the next [`list`](Self::list) shows it. Only a hint: events may be lost, late or of pods
    /// that are gone. `None` if the runtime has no events. When the stream ends it can be requested again.
    fn events(&self) -> Option<BoxStream<'static, String>> {
        None
    }
}

/// The listed sandboxes and containers.
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
    /// The pod, from its labels.
    pub pod: vk_provider::PodRef,
    /// Whether it is ready.
    pub state: SandboxState,
    /// Its attempt number in the pod, from 0.
    pub attempt: u32,
}

/// A container in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerEntry {
    /// Its id.
    pub id: String,
    /// The pod, from its labels.
    pub pod: vk_provider::PodRef,
    /// Its sandbox.
    pub sandbox: String,
    /// Its name in the pod.
    pub name: String,
    /// Its state.
    pub state: ContainerState,
    /// Its attempt number, from 0.
    pub attempt: u32,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutput {
    /// It exited.
    Exited {
        /// Its exit code.
        code: i32,
        /// Its stdout followed by its stderr; limited by the runtime.
        output: Vec<u8>,
    },
    /// It exceeded the timeout and was killed.
    TimedOut {
        /// The runtime's message.
        message: String,
    },
}

/// The error as a kubelet shows it where it keeps the origin: the cause if there is one, else the message.
pub fn full_message(error: &vk_provider::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.message().to_owned(), ToString::to_string)
}
