//! The configuration of the provider `cri`.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use vk_pod_engine::{
    machine::Reserved,
    written::{self, Pause, absolute, max_pods, parallel_pulls},
};
use vk_provider::{Config, Result};

use crate::{client::Limits, socket};

/// The configuration with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Socket of the runtime; `None` to try the default sockets.
    pub socket: Option<PathBuf>,
    /// Resources of the host that are not for pods.
    pub reserved: Reserved,
    /// Maximum number of pods.
    pub max_pods: i64,
    /// Directory of container logs.
    pub log_root: PathBuf,
    /// Directory of pods; `None` for the provider's state directory.
    pub root: Option<PathBuf>,
    /// Addresses of the cluster DNS.
    pub cluster_dns: Vec<IpAddr>,
    /// Resolver configuration of the host, for pods with `dnsPolicy: Default`.
    pub resolv_conf: PathBuf,
    /// Directory of seccomp profiles of `type: Localhost`.
    pub seccomp_root: PathBuf,
    /// Whether containers without a seccomp profile use the runtime's default profile.
    pub seccomp_default: bool,
    /// Parent of the cgroups of pods; `None` for the runtime's default.
    pub cgroup_root: Option<String>,
    /// Maximum number of parallel pulls; `None` for no limit.
    pub parallel_pulls: Option<usize>,
    /// Maximum back-off between restarts of a container.
    pub max_crash_backoff: Duration,
    /// Timeouts of calls to the runtime.
    pub limits: Limits,
}

/// The configuration as written by the user.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConfigFile {
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
        ConfigFile::default().check().expect("invariant: the defaults are well formed")
    }
}

impl Settings {
    /// Parses the configuration. The error is `Invalid` and names the position.
    pub fn read(config: &Config) -> Result<Self> {
        written::read(config, ConfigFile::check)
    }
}

// === impl ConfigFile ===

impl ConfigFile {
    fn check(self) -> Result<Settings, String> {
        let socket = self.socket.map(|text| socket::parse(&text).map_err(|why| format!("socket: {why}")));
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
