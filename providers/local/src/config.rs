//! The provider's configuration.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use vk_pod_engine::{
    machine::Reserved,
    written::{self, Amount, Pause, absolute, max_pods, parallel_pulls},
};
use vk_provider::{Config, Context, Result};

use crate::{isolation::Isolation, network::Subnet};

/// What is configured, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How containers are kept apart; `None` takes the best that the machine allows.
    pub level: Option<Isolation>,
    /// Whether pods may have the machine's own root file system, as `image: host`.
    pub host_image: bool,
    /// What of the machine is not for pods.
    pub reserved: Reserved,
    /// How many pods the node takes.
    pub max_pods: i64,
    /// Bytes of disk that must be free for pods to be taken; `None` is a tenth of it.
    pub min_free_disk: Option<u64>,
    /// Where containers' logs are; `None` is below the node's directory.
    pub log_root: Option<PathBuf>,
    /// Where the node's directory is made; `None` is the provider's state directory.
    pub root: Option<PathBuf>,
    /// Where images are; `None` is beside the nodes' directories.
    pub image_dir: Option<PathBuf>,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// The host's resolver configuration, for pods with the host's name service.
    pub resolv_conf: PathBuf,
    /// Where seccomp profiles of `type: Localhost` are.
    pub seccomp_root: PathBuf,
    /// Whether containers without a seccomp profile get the default one.
    pub seccomp_default: bool,
    /// The cgroup below which the pods' are made; `None` is one of the node's own.
    pub cgroup_root: Option<String>,
    /// How many pulls run at a time; `None` is without limit.
    pub parallel_pulls: Option<usize>,
    /// How long a pull may take; `None` is as long as it takes.
    pub pull_timeout: Option<Duration>,
    /// Registries that are asked without TLS.
    pub insecure_registries: Vec<String>,
    /// The longest pause between two starts of a container that keeps ending.
    pub max_crash_backoff: Duration,
    /// Where pods get their network from.
    pub network: NetworkMode,
    /// Where pods' addresses are taken from; `None` is a network that is free.
    pub pod_cidr: Option<Subnet>,
}

/// Where pods get their network from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NetworkMode {
    /// A bridge where one can be made, else the machine's own.
    #[default]
    Auto,
    /// A bridge of the node, or nothing.
    Bridge,
    /// The machine's own, for every pod.
    Host,
}

/// The configuration as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Written {
    level: WrittenLevel,
    host_image: bool,
    reserved: written::Reserved,
    max_pods: Option<i64>,
    min_free_disk: Option<Amount>,
    log_root: Option<PathBuf>,
    root: Option<PathBuf>,
    image_dir: Option<PathBuf>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<IpAddr>,
    resolv_conf: Option<PathBuf>,
    seccomp_root: Option<PathBuf>,
    seccomp_default: bool,
    cgroup_root: Option<String>,
    parallel_pulls: Option<i64>,
    pull_timeout: Option<Pause>,
    insecure_registries: Vec<String>,
    max_crash_backoff: Option<Pause>,
    network: NetworkMode,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum WrittenLevel {
    #[default]
    Auto,
    Oci,
    Process,
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

    /// Where the node's files are. Its own: what is found there and belongs to no pod of the node is removed.
    pub fn node_dir(&self, context: &Context) -> PathBuf {
        match &self.root {
            Some(root) => root.join(&context.node_name),
            // This is the node's already.
            None => context.state_dir.clone(),
        }
    }

    /// Where containers' logs are. A node's own, unless somebody else is to find them.
    pub fn logs(&self, context: &Context) -> PathBuf {
        self.log_root.clone().unwrap_or_else(|| self.node_dir(context).join("logs"))
    }

    /// Where images are: one place for the nodes of a machine.
    pub fn images(&self, context: &Context) -> PathBuf {
        self.image_dir.clone().unwrap_or_else(|| images_below(&context.shared_dir))
    }
}

/// Where images are by default, below the state directory of the process.
pub fn images_below(state_dir: &Path) -> PathBuf {
    state_dir.join("images")
}

// === impl Written ===

impl Written {
    fn check(self) -> Result<Settings, String> {
        let place = |key: &str, path: Option<PathBuf>, example: &str| {
            path.map(|path| absolute(key, Some(path), example)).transpose()
        };
        Ok(Settings {
            level: match self.level {
                WrittenLevel::Auto => None,
                WrittenLevel::Oci => Some(Isolation::Oci),
                WrittenLevel::Process => Some(Isolation::Process),
            },
            host_image: self.host_image,
            reserved: self.reserved.into(),
            max_pods: max_pods(self.max_pods)?,
            min_free_disk: self
                .min_free_disk
                .map(|Amount(bytes)| u64::try_from(bytes.to_units()).unwrap_or_default()),
            log_root: place("logRoot", self.log_root, "/var/log/pods")?,
            root: place("root", self.root, "/var/lib/virtual-kubelet")?,
            image_dir: place("imageDir", self.image_dir, "/var/lib/virtual-kubelet/images")?,
            cluster_dns: self.cluster_dns,
            resolv_conf: absolute("resolvConf", self.resolv_conf, "/etc/resolv.conf")?,
            seccomp_root: absolute("seccompRoot", self.seccomp_root, "/var/lib/kubelet/seccomp")?,
            seccomp_default: self.seccomp_default,
            cgroup_root: self.cgroup_root.map(cgroup).transpose()?,
            parallel_pulls: parallel_pulls(self.parallel_pulls)?,
            pull_timeout: self.pull_timeout.map(|Pause(limit)| limit),
            insecure_registries: self
                .insecure_registries
                .into_iter()
                .map(registry)
                .collect::<Result<_, _>>()?,
            max_crash_backoff: self.max_crash_backoff.map_or(Duration::from_mins(5), |Pause(pause)| pause),
            network: self.network,
            pod_cidr: self
                .pod_cidr
                .map(|text| text.parse().map_err(|why| format!("podCIDR: {why}")))
                .transpose()?,
        })
    }
}

/// A path below each controller's directory.
fn cgroup(path: String) -> Result<String, String> {
    let good = path.starts_with('/')
        && path.len() > 1
        && path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
    if good {
        return Ok(path);
    }
    Err(format!("cgroupRoot: {path:?} is no path of a cgroup: write one such as /virtual-kubelet"))
}

/// A registry as image names begin with it.
fn registry(name: String) -> Result<String, String> {
    if name.is_empty() || name.contains('/') || name.contains(char::is_whitespace) {
        return Err(format!(
            "insecureRegistries: {name:?} is no registry: write the part of the image's name before the first slash, such as \
             localhost:5000"
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
