//! The runtime's state of one pod at one time. The recordings of a real kubelet consist of these.

use std::{cmp::Reverse, collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Labels that a kubelet sets on runtime objects, and by which tools like `crictl` find them.
pub mod label {
    /// The pod's name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// The pod's namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// The pod's UID.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// The container's name in the pod.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// The virtual node that created the object. Objects without it belong to others and are never touched.
    pub const NODE: &str = "virtual-kubelet.io/node";
}

/// Annotations in which a kubelet stores what it needs when the pod is gone.
pub mod annotation {
    /// The hash of the container's spec, in hexadecimal notation.
    pub const HASH: &str = "io.kubernetes.container.hash";
    /// The restart count.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// The path of the termination message in the container.
    pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// The preStop handler as JSON.
    pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    /// The container's ports as JSON, for a preStop handler that names one.
    pub const PORTS: &str = "io.kubernetes.container.ports";
    /// The pod's deletionGracePeriodSeconds.
    pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
    /// The pod's terminationGracePeriodSeconds.
    pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// The pod's sandboxes and containers, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Containers of all sandboxes.
    pub containers: Vec<Container>,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Its attempt number in the pod, from 0.
    pub attempt: u32,
    /// Whether it is ready.
    pub state: SandboxState,
    /// When it was created.
    pub created: Timestamp,
    /// Its addresses, primary first; empty with host networking.
    pub ips: Vec<IpAddr>,
    /// Whether it uses host networking.
    pub host_network: bool,
    /// Its runtime handler.
    #[serde(default)]
    pub handler: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SandboxState {
    /// It holds the pod's namespaces.
    Ready,
    /// It does not, or no longer.
    NotReady,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its name in the pod.
    pub name: String,
    /// Its attempt number, from 0.
    pub attempt: u32,
    /// Its sandbox.
    pub sandbox: String,
    /// Its state.
    pub state: ContainerState,
    /// When it was created.
    pub created: Timestamp,
    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// Its exit code, if it has exited.
    #[serde(default)]
    pub exit_code: i32,
    /// The reason of its state: `OOMKilled`, `Error`, `Completed`, `StartError`.
    #[serde(default)]
    pub reason: String,
    /// The runtime's message, or the termination message that the engine has read.
    #[serde(default)]
    pub message: String,
    /// The requested image.
    pub image: String,
    /// The resolved image: `imageID` of the status.
    pub image_ref: String,
    /// The image's id in the runtime; empty if unknown.
    #[serde(default)]
    pub image_id: String,
    /// The absolute path of its log file.
    pub log_path: String,
    /// The user of its main process, if the runtime reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Its mounts, by which the termination message is found on the host.
    #[serde(default)]
    pub mounts: Vec<Mounted>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created, and not started.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// Unknown to the runtime.
    Unknown,
}

/// The user of a container's main process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Supplemental groups.
    pub supplemental_groups: Vec<i64>,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mounted {
    /// The path in the container.
    pub container_path: String,
    /// The path on the host.
    pub host_path: String,
    /// Whether it is read-only.
    pub read_only: bool,
}

// === impl Snapshot ===

impl Snapshot {
    /// Sorts sandboxes and containers, newest first.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|sandbox| Reverse((sandbox.attempt, sandbox.created)));
        self.containers.sort_by_key(|container| Reverse(container.created));
        self.sort_each_name();
    }

    /// Sorts the containers of each name: first the one that runs in the current sandbox, because a later instance is created only after it
    /// has ended; then by restart count, because the clock may have been set back.
    fn sort_each_name(&mut self) {
        let current = self.sandboxes.first().filter(|sandbox| sandbox.state == SandboxState::Ready);
        let current = current.map(|sandbox| sandbox.id.clone());
        let mut indexes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, container) in self.containers.iter().enumerate() {
            indexes.entry(container.name.clone()).or_default().push(index);
        }
        for indexes in indexes.into_values().filter(|indexes| indexes.len() > 1) {
            let mut own: Vec<Container> =
                indexes.iter().map(|index| self.containers[*index].clone()).collect();
            own.sort_by_key(|container| {
                let runs = container.state == ContainerState::Running
                    && Some(&container.sandbox) == current.as_ref();
                Reverse((runs, container.restart_count(), container.created))
            });
            for (index, container) in indexes.into_iter().zip(own) {
                self.containers[index] = container;
            }
        }
    }

    /// The newest container with this name, in any sandbox.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The container with this id.
    pub fn container(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// The runtime handler of the pod.
    pub fn handler(&self) -> &str {
        self.sandboxes.first().map_or("", |sandbox| &sandbox.handler)
    }

    /// Whether the runtime has nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Whether anything of the pod may run.
    pub fn is_live(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready)
            || self.containers.iter().any(Container::may_run)
    }
}

// === impl Container ===

impl Container {
    /// Whether its process may exist.
    pub fn may_run(&self) -> bool {
        matches!(self.state, ContainerState::Running | ContainerState::Unknown)
    }

    /// Its restart count: that of its annotation, else its attempt number.
    pub fn restart_count(&self) -> u32 {
        let annotated = self.annotations.get(annotation::RESTART_COUNT).and_then(|count| count.parse().ok());
        annotated.unwrap_or(self.attempt)
    }
}
