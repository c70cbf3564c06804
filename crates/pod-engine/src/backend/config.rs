//! Sandboxes and containers as a runtime wants them. Linux only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vk_provider::PodRef;

/// A sandbox to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    /// Whose it is.
    pub pod: PodRef,
    /// Which one of this pod it is, from 0.
    pub attempt: u32,
    /// The runtime handler; empty is the runtime's default.
    pub handler: String,
    /// The host's name in the pod; empty with the host's network.
    pub hostname: String,
    /// Where its containers' logs are, absolute.
    pub log_directory: String,
    /// Name service; `None` leaves it to the runtime, which takes the host's.
    pub dns: Option<Dns>,
    /// Ports of the host.
    pub ports: Vec<PortMapping>,
    /// Labels on the runtime's object.
    pub labels: BTreeMap<String, String>,
    /// Annotations on the runtime's object.
    pub annotations: BTreeMap<String, String>,
    /// The cgroup in which the pod's is made; empty leaves it to the runtime.
    pub cgroup_parent: String,
    /// Kernel settings, with dots.
    pub sysctls: BTreeMap<String, String>,
    /// Who and with which rights the sandbox's own process runs.
    pub security: Sandboxed,
    /// What the pod takes beside its containers.
    pub overhead: Option<Resources>,
    /// What its containers take together.
    pub resources: Option<Resources>,
}

/// Rights of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandboxed {
    /// What it shares with whom.
    pub namespaces: Namespaces,
    /// Whether any container of the pod is privileged.
    pub privileged: bool,
    /// The user.
    pub user: Option<i64>,
    /// The group; only together with a user.
    pub group: Option<i64>,
    /// More groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether groups of the image count too.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Whether the root file system is read-only.
    pub read_only_root: bool,
    /// SELinux labels.
    pub selinux: Option<SeLinux>,
    /// System calls.
    pub seccomp: Seccomp,
}

/// A container to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerConfig {
    /// Its name in the pod.
    pub name: String,
    /// Which one of this name it is, from 0.
    pub attempt: u32,
    /// The image as the runtime resolved it.
    pub image: String,
    /// The image as the user wrote it.
    pub user_image: String,
    /// In place of the image's entry point; empty leaves it.
    pub command: Vec<String>,
    /// In place of the image's command; empty leaves it.
    pub args: Vec<String>,
    /// Empty leaves the image's.
    pub working_dir: String,
    /// Environment, in order. Values may be secret.
    pub env: Vec<(String, String)>,
    /// Mounts, in the order in which they are made.
    pub mounts: Vec<Mount>,
    /// Devices of the host.
    pub devices: Vec<Device>,
    /// Labels on the runtime's object.
    pub labels: BTreeMap<String, String>,
    /// Annotations on the runtime's object.
    pub annotations: BTreeMap<String, String>,
    /// The log file, below the sandbox's log directory.
    pub log_path: String,
    /// Whether it has input.
    pub stdin: bool,
    /// Whether input ends after the first who attached is gone.
    pub stdin_once: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Limits.
    pub resources: Resources,
    /// Rights.
    pub security: Security,
    /// The signal that asks it to end, such as `SIGUSR1`; `None` is the image's, or SIGTERM.
    pub stop_signal: Option<String>,
}

/// Rights of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// What it shares with whom.
    pub namespaces: Namespaces,
    /// All rights of the host.
    pub privileged: bool,
    /// The user, by number.
    pub user: Option<i64>,
    /// The user, by name, where the image names one and no number is given.
    pub username: Option<String>,
    /// The group; only together with a user.
    pub group: Option<i64>,
    /// More groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether groups of the image count too.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Whether the root file system is read-only.
    pub read_only_root: bool,
    /// Whether programs can gain no rights by starting others.
    pub no_new_privileges: bool,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// SELinux labels.
    pub selinux: Option<SeLinux>,
    /// System calls.
    pub seccomp: Seccomp,
    /// AppArmor profile, in the runtime's notation; `None` leaves it to the runtime.
    pub apparmor: Option<String>,
    /// Paths that cannot be seen.
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    pub read_only_paths: Vec<String>,
}

/// Capabilities, without `CAP_`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Given beside the runtime's default.
    pub add: Vec<String>,
    /// Taken from the runtime's default.
    pub drop: Vec<String>,
}

/// What a sandbox or container shares with whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network: pod or node.
    pub network: Share,
    /// Processes: container, pod, node or a target.
    pub pid: Share,
    /// Semaphores and shared memory: pod or node.
    pub ipc: Share,
    /// Users; `None` is the node's.
    pub user: Option<UserNamespace>,
}

/// With whom a namespace is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// With the pod.
    #[default]
    Pod,
    /// With nobody.
    Container,
    /// With the machine.
    Node,
    /// With this container, by its id.
    Target(String),
}

/// A user namespace of the pod's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNamespace {
    /// Users.
    pub uids: Vec<IdMapping>,
    /// Groups.
    pub gids: Vec<IdMapping>,
}

/// A range of ids that stand for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    /// The first on the host.
    pub host: u32,
    /// The first in the container.
    pub container: u32,
    /// How many.
    pub length: u32,
}

/// Whether groups that the image's `/etc/group` gives to the user count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupplementalGroupsPolicy {
    /// They do.
    #[default]
    Merge,
    /// Only those of the pod.
    Strict,
}

/// A seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// None.
    #[default]
    Unconfined,
    /// The runtime's own.
    RuntimeDefault,
    /// A file on this machine, by its absolute path.
    Localhost(String),
}

/// SELinux labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeLinux {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub kind: String,
    /// Level.
    pub level: String,
}

/// Limits of a container or sandbox; 0 is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Period of the processor quota, in microseconds.
    pub cpu_period: i64,
    /// Processor time per period, in microseconds.
    pub cpu_quota: i64,
    /// Weight against others.
    pub cpu_shares: i64,
    /// Bytes of memory.
    pub memory_limit: i64,
    /// Bytes of memory and swap together.
    pub memory_swap_limit: i64,
    /// How early the kernel kills it when memory runs out.
    pub oom_score_adj: i64,
    /// Huge pages: size such as `2MB`, and bytes.
    pub hugepages: BTreeMap<String, u64>,
    /// Entries of cgroup v2.
    pub unified: BTreeMap<String, String>,
}

/// Something of the host in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Where it appears.
    pub container_path: String,
    /// Where it is on this machine. Empty for an image.
    pub host_path: String,
    /// An image whose files are mounted, in place of a path, as the runtime resolved it.
    pub image: Option<String>,
    /// The part of the image.
    pub image_sub_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Whether this holds for mounts below it too.
    pub recursive_read_only: bool,
    /// Whether SELinux labels are put on it.
    pub selinux_relabel: bool,
    /// How mounts that are made later spread.
    pub propagation: Propagation,
    /// Users, for a pod with users of its own.
    pub uids: Vec<IdMapping>,
    /// Groups.
    pub gids: Vec<IdMapping>,
}

/// How mounts that are made later spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// Not at all.
    #[default]
    Private,
    /// From the host to the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// A device of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Where it appears.
    pub container_path: String,
    /// Where it is on this machine.
    pub host_path: String,
    /// Of `r`, `w`, `m`.
    pub permissions: String,
}

/// A port of the host that leads to one of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// Protocol.
    pub protocol: Protocol,
    /// In the pod.
    pub container_port: u16,
    /// On the host.
    pub host_port: u16,
    /// The host's address; empty is all.
    pub host_ip: String,
}

/// Transport protocols of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Name service in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Servers.
    pub servers: Vec<String>,
    /// Domains that short names are looked up in.
    pub searches: Vec<String>,
    /// Options, such as `ndots:5`.
    pub options: Vec<String>,
}
