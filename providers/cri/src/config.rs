//! The provider's configuration.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;
use vk_provider::{Config, Error, Quantity, Result, config::explain};

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

/// What of the machine is not for pods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reserved {
    /// Processors.
    pub cpu: Option<Quantity>,
    /// Memory.
    pub memory: Option<Quantity>,
    /// Disk.
    pub ephemeral_storage: Option<Quantity>,
}

/// The configuration as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Written {
    socket: Option<String>,
    reserved: WrittenReserved,
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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct WrittenReserved {
    cpu: Option<Amount>,
    memory: Option<Amount>,
    ephemeral_storage: Option<Amount>,
}

/// An amount with or without quotes, not less than nothing.
#[derive(Clone, Copy, Debug)]
struct Amount(Quantity);

/// A duration as people write it, more than none.
#[derive(Clone, Copy, Debug)]
struct Pause(Duration);

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Written::default().check().expect("invariant: the defaults are well formed")
    }
}

impl Settings {
    /// Reads the configuration. `Invalid` says where the mistake is.
    pub fn read(config: &Config) -> Result<Self> {
        let Some(value) = config.parse::<Value>()? else { return Ok(Self::default()) };
        let place = match config.path() {
            Some(path) => format!("provider config {}", path.display()),
            None => "providerConfig".to_owned(),
        };
        let written = match value {
            Value::Null => Ok(Written::default()),
            // A list would be read as the keys' values in their order.
            value if !value.is_object() => {
                Err("keys with values are expected, such as `maxPods: 50`".to_owned())
            }
            value => serde_path_to_error::deserialize(value).map_err(|error| {
                let (path, why) = (error.path().to_string(), explain(&error.inner().to_string()));
                if path == "." { why } else { format!("{path}: {why}") }
            }),
        };
        written.and_then(Written::check).map_err(|why| Error::invalid(format!("{place}: {why}")))
    }
}

// === impl Written ===

impl Written {
    fn check(self) -> Result<Settings, String> {
        let socket = self.socket.map(|text| socket::path(&text).map_err(|why| format!("socket: {why}")));
        let max_pods = self.max_pods.unwrap_or(110);
        if max_pods < 1 {
            return Err(format!("maxPods: {max_pods} is no number of pods: write 1 or more"));
        }
        let parallel_pulls = match self.parallel_pulls {
            None => Some(5),
            Some(0) => None,
            Some(pulls) => Some(usize::try_from(pulls).map_err(|_| {
                format!("parallelPulls: {pulls} is no number of pulls: write 1 or more, or 0 for no limit")
            })?),
        };
        let amount = |amount: Option<Amount>| amount.map(|Amount(quantity)| quantity);
        let limits = Limits::default();
        Ok(Settings {
            socket: socket.transpose()?,
            reserved: Reserved {
                cpu: amount(self.reserved.cpu),
                memory: amount(self.reserved.memory),
                ephemeral_storage: amount(self.reserved.ephemeral_storage),
            },
            max_pods,
            log_root: absolute("logRoot", self.log_root, "/var/log/pods")?,
            root: self.root.map(|root| absolute("root", Some(root), "/")).transpose()?,
            cluster_dns: self.cluster_dns,
            resolv_conf: absolute("resolvConf", self.resolv_conf, "/etc/resolv.conf")?,
            seccomp_root: absolute("seccompRoot", self.seccomp_root, "/var/lib/kubelet/seccomp")?,
            seccomp_default: self.seccomp_default,
            cgroup_root: self.cgroup_root.filter(|root| !root.is_empty()),
            parallel_pulls,
            max_crash_backoff: self.max_crash_backoff.map_or(Duration::from_mins(5), |Pause(pause)| pause),
            limits: Limits {
                call: self.request_timeout.map_or(limits.call, |Pause(limit)| limit),
                pull: self.pull_timeout.map(|Pause(limit)| limit).or(limits.pull),
            },
        })
    }
}

/// Runtime and process may have different working directories, so that a path that begins in one is no place.
fn absolute(key: &str, path: Option<PathBuf>, default: &str) -> Result<PathBuf, String> {
    let path = path.unwrap_or_else(|| Path::new(default).to_owned());
    if path.is_absolute() {
        return Ok(path);
    }
    Err(format!("{key}: {} is not an absolute path: write one such as {default}", path.display()))
}

// === impl Amount ===

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            other => return Err(D::Error::custom(format!("{other} is not a quantity"))),
        };
        let amount: Result<Quantity, _> = text.trim().parse();
        match amount {
            Ok(amount) if !amount.is_negative() => Ok(Self(amount)),
            Ok(_) => Err(D::Error::custom(format!("{text:?} is less than nothing"))),
            Err(_) => Err(D::Error::custom(format!(
                "{text:?} is not a quantity: write a number with an optional suffix, such as 250m, 2 or 64Mi"
            ))),
        }
    }
}

// === impl Pause ===

impl<'de> Deserialize<'de> for Pause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let read: Option<SignedDuration> = text.trim().parse().ok();
        let read = read.and_then(|read| Duration::try_from(read).ok()).filter(|read| !read.is_zero());
        read.map(Self).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a duration: write one such as 30s, 5m or 1h30m"))
        })
    }
}

#[cfg(test)]
mod tests;
