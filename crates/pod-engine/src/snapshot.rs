//! What the runtime says about one pod at one moment. Recordings of a real kubelet's work are made of these.

use std::{cmp::Reverse, collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Labels with which a kubelet marks what it starts, and by which tools like `crictl` find it.
pub mod label {
    /// The pod's name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// The pod's namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// The pod's UID.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// The container's name in the pod.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// The virtual node that started it. What does not carry it is not ours, and is never touched.
    pub const NODE: &str = "virtual-kubelet.io/node";
}

/// Annotations with which a kubelet remembers on the runtime's object what it needs when the pod is gone.
pub mod annotation {
    /// What of the container's spec makes a restart necessary, as a number in hexadecimal notation.
    pub const HASH: &str = "io.kubernetes.container.hash";
    /// How often it was restarted.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Where in the container the termination message is.
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
    /// Containers of all of them.
    pub containers: Vec<Container>,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Which one of this pod it is, from 0.
    pub attempt: u32,
    /// Whether it is ready.
    pub state: SandboxState,
    /// When it was created.
    pub created: Timestamp,
    /// Its addresses, primary first; empty with the host's network.
    pub ips: Vec<IpAddr>,
    /// Whether it has the host's network.
    pub host_network: bool,
    /// The handler that runs it.
    #[serde(default)]
    pub handler: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Whether a sandbox is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SandboxState {
    /// It holds the pod's namespaces.
    Ready,
    /// It does not, or no more.
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
    /// Which one of this name it is, from 0.
    pub attempt: u32,
    /// The sandbox that it is in.
    pub sandbox: String,
    /// Where it stands.
    pub state: ContainerState,
    /// When it was created.
    pub created: Timestamp,
    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// Its exit code, when it has ended.
    #[serde(default)]
    pub exit_code: i32,
    /// Why it is so, in a word; `OOMKilled`, `Error`, `Completed`, `StartError`.
    #[serde(default)]
    pub reason: String,
    /// Why it is so, in a sentence: the runtime's, or the termination message that the engine has read.
    #[serde(default)]
    pub message: String,
    /// The image as it was asked for.
    pub image: String,
    /// The image as it was resolved: the status' imageID.
    pub image_ref: String,
    /// The image's id in the runtime; empty where it does not tell.
    #[serde(default)]
    pub image_id: String,
    /// Its log file, absolute.
    pub log_path: String,
    /// Who runs in it: user, group, more groups; where the runtime tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Where in the container the termination message is, by its mounts, and where that is on the host.
    #[serde(default)]
    pub mounts: Vec<Mounted>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Where a container stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContainerState {
    /// Made, and not started.
    Created,
    /// Started.
    Running,
    /// Ended.
    Exited,
    /// The runtime cannot tell.
    Unknown,
}

/// The user of a container's first process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// User.
    pub uid: i64,
    /// Group.
    pub gid: i64,
    /// More groups.
    pub supplemental_groups: Vec<i64>,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mounted {
    /// Where it appears.
    pub container_path: String,
    /// Where it is on this machine.
    pub host_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

// === impl Snapshot ===

impl Snapshot {
    /// Puts the newest first, as everything here expects it.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|sandbox| Reverse((sandbox.attempt, sandbox.created)));
        self.containers.sort_by_key(|container| Reverse(container.created));
        self.sort_each_name();
    }

    /// Orders the containers of one name among themselves: by their restart counts, because the clock may have been set back between two
    /// of them; and before all others the one that runs in the pod's sandbox, because whatever comes after a container ends it first.
    fn sort_each_name(&mut self) {
        let current = self.sandboxes.first().filter(|sandbox| sandbox.state == SandboxState::Ready);
        let current = current.map(|sandbox| sandbox.id.clone());
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, container) in self.containers.iter().enumerate() {
            places.entry(container.name.clone()).or_default().push(place);
        }
        for places in places.into_values().filter(|places| places.len() > 1) {
            let mut own: Vec<Container> =
                places.iter().map(|place| self.containers[*place].clone()).collect();
            own.sort_by_key(|container| {
                let runs = container.state == ContainerState::Running
                    && Some(&container.sandbox) == current.as_ref();
                Reverse((runs, container.restart_count(), container.created))
            });
            for (place, container) in places.into_iter().zip(own) {
                self.containers[place] = container;
            }
        }
    }

    /// The newest container of this name, in whichever sandbox.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The container with this id.
    pub fn container(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// Whether the runtime knows nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Whether anything of the pod may still run.
    pub fn is_live(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready)
            || self.containers.iter().any(Container::may_run)
    }
}

// === impl Container ===

impl Container {
    /// Whether its process may be there.
    pub fn may_run(&self) -> bool {
        matches!(self.state, ContainerState::Running | ContainerState::Unknown)
    }

    /// How often it was restarted, as its annotation says, and else by its number.
    pub fn restart_count(&self) -> u32 {
        let noted = self.annotations.get(annotation::RESTART_COUNT).and_then(|count| count.parse().ok());
        noted.unwrap_or(self.attempt)
    }
}
