//! The provider's configuration.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use vk_pod_engine::{
    machine::Reserved,
    written::{self, Pause, absolute, max_pods, parallel_pulls},
};
use vk_provider::{Config, Result};

use crate::{client::Limits, socket};

/// What is configured, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the runtime is; `None` looks in the usual places.
    pub socket: Option<PathBuf>,
    /// What of the machine is not for pods.
    pub reserved: Reserved,
    /// How many pods the node takes.
    pub max_pods: i64,
    /// Where the runtime writes containers' logs.
    pub log_root: PathBuf,
    /// Where pods' directories are; `None` is the provider's state directory.
    pub root: Option<PathBuf>,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// The host's resolver configuration, for pods with the host's name service.
    pub resolv_conf: PathBuf,
    /// Where seccomp profiles of `type: Localhost` are.
    pub seccomp_root: PathBuf,
    /// Whether containers without a seccomp profile get the runtime's default one.
    pub seccomp_default: bool,
    /// The cgroup below which the pods' are made; `None` leaves it to the runtime.
    pub cgroup_root: Option<String>,
    /// How many pulls run at a time; `None` is without limit.
    pub parallel_pulls: Option<usize>,
    /// The longest pause between two starts of a container that keeps ending.
    pub max_crash_backoff: Duration,
    /// How long calls to the runtime may take.
    pub limits: Limits,
}

/// The configuration as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Written {
    socket: Option<String>,
    reserved: written::Reserved,
    max_pods: Option<i64>,
    log_root: Option<PathBuf>,
    root: Option<PathBuf>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<IpAddr>,
    resolv_conf: Option<PathBuf>,
    seccomp_root: Option<PathBuf>,
    seccomp_default: bool,
    cgroup_root: Option<String>,
    parallel_pulls: Option<i64>,
    max_crash_backoff: Option<Pause>,
    request_timeout: Option<Pause>,
    pull_timeout: Option<Pause>,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Written::default().check().expect("invariant: the defaults are well formed")
    }
}

impl Settings {
    /// Reads the configuration. `Invalid` says where the mistake is.
    pub fn read(config: &Config) -> Result<Self> {
        written::read(config, Written::check)
    }
}

// === impl Written ===

impl Written {
    fn check(self) -> Result<Settings, String> {
        let socket = self.socket.map(|text| socket::path(&text).map_err(|why| format!("socket: {why}")));
        let limits = Limits::default();
        Ok(Settings {
            socket: socket.transpose()?,
            reserved: self.reserved.into(),
            max_pods: max_pods(self.max_pods)?,
            log_root: absolute("logRoot", self.log_root, "/var/log/pods")?,
            root: self.root.map(|root| absolute("root", Some(root), "/")).transpose()?,
            cluster_dns: self.cluster_dns,
            resolv_conf: absolute("resolvConf", self.resolv_conf, "/etc/resolv.conf")?,
            seccomp_root: absolute("seccompRoot", self.seccomp_root, "/var/lib/kubelet/seccomp")?,
            seccomp_default: self.seccomp_default,
            cgroup_root: self.cgroup_root.filter(|root| !root.is_empty()),
            parallel_pulls: parallel_pulls(self.parallel_pulls)?,
            max_crash_backoff: self.max_crash_backoff.map_or(Duration::from_mins(5), |Pause(pause)| pause),
            limits: Limits {
                call: self.request_timeout.map_or(limits.call, |Pause(limit)| limit),
                pull: self.pull_timeout.map(|Pause(limit)| limit).or(limits.pull),
            },
        })
    }
}

#[cfg(test)]
mod tests;
