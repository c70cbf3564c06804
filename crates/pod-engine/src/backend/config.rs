//! Configurations of sandboxes and containers for a runtime. Linux only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vk_provider::PodRef;
pub use vk_provider::dns::Dns;

/// The configuration of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    /// Its pod.
    pub pod: PodRef,
    /// Its attempt number in the pod, from 0.
    pub attempt: u32,
    /// The runtime handler; empty is the runtime's default.
    pub handler: String,
    /// The host name of the pod; empty with host networking.
    pub hostname: String,
    /// The absolute log directory of its containers.
    pub log_directory: String,
    /// DNS configuration; `None` leaves it to the runtime, which uses the host's.
    pub dns: Option<Dns>,
    /// Host ports.
    pub ports: Vec<PortMapping>,
    /// Labels on the runtime's object.
    pub labels: BTreeMap<String, String>,
    /// Annotations on the runtime's object.
    pub annotations: BTreeMap<String, String>,
    /// The parent cgroup of the pod; empty leaves it to the runtime.
    pub cgroup_parent: String,
    /// Sysctls, in dotted notation.
    pub sysctls: BTreeMap<String, String>,
    /// Security settings of the sandbox's own process.
    pub security: SandboxSecurity,
    /// Resource overhead of the pod beside its containers.
    pub overhead: Option<Resources>,
    /// Total resources of its containers.
    pub resources: Option<Resources>,
}

/// Security settings of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSecurity {
    /// Namespace sharing.
    pub namespaces: Namespaces,
    /// Whether any container of the pod is privileged.
    pub privileged: bool,
    /// The user id.
    pub user: Option<i64>,
    /// The group id; only together with a user.
    pub group: Option<i64>,
    /// Supplemental groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether the groups in the image are added.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Whether the root file system is read-only.
    pub read_only_root: bool,
    /// SELinux labels.
    pub selinux: Option<SeLinux>,
    /// Seccomp profile.
    pub seccomp: Seccomp,
}

/// The configuration of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerConfig {
    /// Its name in the pod.
    pub name: String,
    /// Its attempt number, from 0.
    pub attempt: u32,
    /// The image as the runtime resolved it.
    pub image: String,
    /// The image as the user wrote it.
    pub user_image: String,
    /// Replaces the image's entry point; empty keeps it.
    pub command: Vec<String>,
    /// Replaces the image's command; empty keeps it.
    pub args: Vec<String>,
    /// The working directory; empty keeps the image's.
    pub working_dir: String,
    /// Environment, in order. Values may be secret.
    pub env: Vec<(String, String)>,
    /// Mounts, in mount order.
    pub mounts: Vec<Mount>,
    /// Host devices.
    pub devices: Vec<Device>,
    /// Labels on the runtime's object.
    pub labels: BTreeMap<String, String>,
    /// Annotations on the runtime's object.
    pub annotations: BTreeMap<String, String>,
    /// The log file, relative to the sandbox's log directory.
    pub log_path: String,
    /// Whether stdin stays open.
    pub stdin: bool,
    /// Whether stdin closes when the first attached client disconnects.
    pub stdin_once: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Resource limits.
    pub resources: Resources,
    /// Security settings.
    pub security: ContainerSecurity,
    /// The stop signal, such as `SIGUSR1`; `None` is the image's, or SIGTERM.
    pub stop_signal: Option<String>,
}

/// Security settings of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerSecurity {
    /// Namespace sharing.
    pub namespaces: Namespaces,
    /// Whether it is privileged.
    pub privileged: bool,
    /// The user id.
    pub user: Option<i64>,
    /// The user name, if the image has one and no user id is given.
    pub username: Option<String>,
    /// The group id; only together with a user.
    pub group: Option<i64>,
    /// Supplemental groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether the groups in the image are added.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Whether the root file system is read-only.
    pub read_only_root: bool,
    /// Whether `no_new_privs` is set.
    pub no_new_privileges: bool,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// SELinux labels.
    pub selinux: Option<SeLinux>,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// AppArmor profile, in the runtime's notation; `None` leaves it to the runtime.
    pub apparmor: Option<String>,
    /// Masked paths.
    pub masked_paths: Vec<String>,
    /// Read-only paths.
    pub read_only_paths: Vec<String>,
}

/// Capabilities, without the prefix `CAP_`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Added to the runtime's default.
    pub add: Vec<String>,
    /// Dropped from the runtime's default.
    pub drop: Vec<String>,
}

/// Namespace sharing of a sandbox or container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network: pod or node.
    pub network: Share,
    /// Processes: container, pod, node or a target.
    pub pid: Share,
    /// IPC: pod or node.
    pub ipc: Share,
    /// User namespace; `None` is the node's.
    pub user: Option<UserNamespace>,
}

/// The scope of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// Shared by the containers of the pod.
    #[default]
    Pod,
    /// Private to the container.
    Container,
    /// The node's namespace.
    Node,
    /// That of another container, by its id.
    Target(String),
}

/// The user namespace of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNamespace {
    /// User id mappings.
    pub uids: Vec<IdMapping>,
    /// Group id mappings.
    pub gids: Vec<IdMapping>,
}

/// A mapped range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    /// The first id on the host.
    pub host: u32,
    /// The first id in the container.
    pub container: u32,
    /// Number of ids.
    pub length: u32,
}

/// Whether the user's groups in the image's `/etc/group` are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupplementalGroupsPolicy {
    /// They are added.
    #[default]
    Merge,
    /// Only the pod's groups are set.
    Strict,
}

/// A seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// No profile.
    #[default]
    Unconfined,
    /// The runtime's default profile.
    RuntimeDefault,
    /// A profile file on the host, by its absolute path.
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

/// Resource limits of a container or sandbox; 0 means not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// CPU quota period in microseconds.
    pub cpu_period: i64,
    /// CPU quota per period in microseconds.
    pub cpu_quota: i64,
    /// CPU shares.
    pub cpu_shares: i64,
    /// Memory limit in bytes.
    pub memory_limit: i64,
    /// Limit of memory plus swap in bytes.
    pub memory_swap_limit: i64,
    /// OOM score adjustment.
    pub oom_score_adj: i64,
    /// Huge page limits: page size such as `2MB`, and bytes.
    pub hugepages: BTreeMap<String, u64>,
    /// Raw cgroup v2 settings.
    pub unified: BTreeMap<String, String>,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The path in the container.
    pub container_path: String,
    /// The path on the host. Empty for an image.
    pub host_path: String,
    /// The resolved image to mount instead of a host path.
    pub image: Option<String>,
    /// The sub path in the image.
    pub image_sub_path: String,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Whether mounts below it are read-only too.
    pub recursive_read_only: bool,
    /// Whether it is relabelled for SELinux.
    pub selinux_relabel: bool,
    /// Mount propagation.
    pub propagation: Propagation,
    /// User id mappings, for a pod with a user namespace.
    pub uids: Vec<IdMapping>,
    /// Group id mappings.
    pub gids: Vec<IdMapping>,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// No propagation.
    #[default]
    Private,
    /// From the host to the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// A host device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The path in the container.
    pub container_path: String,
    /// The path on the host.
    pub host_path: String,
    /// A combination of `r`, `w` and `m`.
    pub permissions: String,
}

/// A host port mapped to a port of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// Protocol.
    pub protocol: Protocol,
    /// The port in the pod.
    pub container_port: u16,
    /// The port on the host.
    pub host_port: u16,
    /// The host address; empty means all addresses.
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
