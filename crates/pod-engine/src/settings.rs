//! What the engine has to know about the node and the machine.

use std::{net::IpAddr, path::PathBuf, time::Duration};

/// The node and the machine, as the engine's owner knows them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, which marks everything that is ours on the runtime.
    pub node: String,
    /// The node's addresses, primary first.
    pub node_ips: Vec<IpAddr>,
    /// Where pods' directories are: volumes, `/etc/hosts`, termination messages. Survives restarts.
    pub root: PathBuf,
    /// Where logs are: `<log_root>/<namespace>_<name>_<uid>/<container>/<attempt>.log`.
    pub log_root: PathBuf,
    /// Where the kubelet's seccomp profiles are, for `Localhost` profiles.
    pub seccomp_root: PathBuf,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The host's resolver configuration.
    pub resolv_conf: PathBuf,
    /// The host's `/etc/hosts`.
    pub hosts_file: PathBuf,
    /// The cgroup below which the pods' are made; `None` leaves it to the runtime.
    pub cgroup_root: Option<String>,
    /// Bytes of memory of the machine: what OOM scores are computed from.
    pub memory: u64,
    /// The lowest OOM score that this process may give to another; scores below are raised to it.
    pub oom_score_floor: i64,
    /// Whether containers without a seccomp profile get the runtime's default one.
    pub seccomp_default: bool,
    /// How many pulls run at a time; `None` is without limit.
    pub parallel_pulls: Option<usize>,
    /// The longest crash back-off.
    pub max_crash_backoff: Duration,
    /// How often the runtime is asked for everything, where it has no events.
    pub relist: Duration,
    /// How often a pod is looked at without any reason.
    pub resync: Duration,
}
