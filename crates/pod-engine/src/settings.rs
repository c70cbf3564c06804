//! Settings of the engine.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use crate::{backend::Resources, cgroup::HostCgroups};

/// Settings of the engine: the node and its host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, which labels all runtime objects of the engine.
    pub node: String,
    /// The node's addresses, primary first.
    pub node_ips: Vec<IpAddr>,
    /// The directory of pods: volumes, `/etc/hosts`, termination messages. It must survive restarts.
    pub root: PathBuf,
    /// The directory of logs: `<log_root>/<namespace>_<name>_<uid>/<container>/<attempt>.log`.
    pub log_root: PathBuf,
    /// The directory of `Localhost` seccomp profiles.
    pub seccomp_root: PathBuf,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The host's resolver configuration.
    pub resolv_conf: PathBuf,
    /// The host's `/etc/hosts`.
    pub hosts_file: PathBuf,
    /// The parent cgroup of pods; `None` leaves it to the runtime.
    pub cgroup_root: Option<String>,
    /// The host's cgroups, in which the engine creates those of pods with their limits; `None` leaves that to the runtime.
    pub cgroups: Option<HostCgroups>,
    /// The limits of all pods together.
    pub allocatable: Resources,
    /// The host's memory in bytes, from which OOM scores are computed.
    pub memory: u64,
    /// The lowest OOM score adjustment that this process may set; lower ones are raised to it.
    pub oom_score_floor: i64,
    /// Whether containers without a seccomp profile get the runtime's default.
    pub seccomp_default: bool,
    /// Maximum number of parallel pulls from one registry; `None` means no limit.
    pub parallel_pulls: Option<usize>,
    /// The directory of the records of who may use which image. All nodes on the same image store need the same one. `None` if the runtime
    /// records it with its images: [`ContainerBackend::image_access`](crate::backend::ContainerBackend::image_access).
    pub pull_records: Option<PathBuf>,
    /// The longest crash back-off.
    pub max_crash_backoff: Duration,
    /// How often the runtime is listed if it has no events.
    pub relist: Duration,
    /// How often a pod is synced without a change.
    pub resync: Duration,
}
