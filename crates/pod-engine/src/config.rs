//! The configuration of providers on this engine: the keys that all of them share, and helpers to read their own.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::{Map, Value};
use vk_provider::{Config, Context, Error, Quantity, Result, config::explain};

use crate::{
    Settings,
    cgroup::HostCgroups,
    host::{Host, ReservedResources},
};

/// How often the runtime is listed if it has no events, as in a kubelet.
const RELIST: Duration = Duration::from_secs(1);
/// How often a pod is synced without a change, as in a kubelet.
const RESYNC: Duration = Duration::from_mins(1);

/// The settings that every provider on this engine has, with defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Resources that are not available to pods.
    pub reserved: ReservedResources,
    /// Maximum number of pods.
    pub max_pods: i64,
    /// The directory of container logs; `None` is the provider's default.
    pub log_root: Option<PathBuf>,
    /// The directory in which the node's directory is created; `None` is the provider's state directory.
    pub root: Option<PathBuf>,
    /// Name servers of the cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// The host's resolver configuration, for pods that use the host's DNS.
    pub resolv_conf: PathBuf,
    /// The directory of seccomp profiles of `type: Localhost`.
    pub seccomp_root: PathBuf,
    /// Whether containers without a seccomp profile get the default one.
    pub seccomp_default: bool,
    /// The parent cgroup of pods; `None` is the provider's default.
    pub cgroup_root: Option<String>,
    /// Maximum number of parallel pulls from one registry; `None` means no limit.
    pub parallel_pulls: Option<usize>,
    /// The longest crash back-off of a container.
    pub max_crash_backoff: Duration,
}

/// The shared keys as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EngineKeys {
    reserved: ReservedResources,
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
    max_crash_backoff: Option<ConfigDuration>,
}

/// The names of [`EngineKeys`].
const ENGINE_KEYS: [&str; 11] = [
    "reserved",
    "maxPods",
    "logRoot",
    "root",
    "clusterDNS",
    "resolvConf",
    "seccompRoot",
    "seccompDefault",
    "cgroupRoot",
    "parallelPulls",
    "maxCrashBackoff",
];

/// A quantity, with or without quotes, that is not negative.
#[derive(Clone, Copy, Debug)]
pub struct ConfigQuantity(pub Quantity);

/// A duration such as `30s` or `1h30m`, longer than zero.
#[derive(Clone, Copy, Debug)]
pub struct ConfigDuration(pub Duration);

/// Reads a provider's configuration: the shared keys, and the provider's own keys `K`, which must deny unknown fields. `check` validates them
/// and applies defaults. An `Invalid` error names the key.
pub fn read<K: DeserializeOwned + Default, S>(
    config: &Config,
    check: impl FnOnce(EngineConfig, K) -> Result<S, String>,
) -> Result<S> {
    let source = match config.path() {
        Some(path) => format!("provider config {}", path.display()),
        None => "providerConfig".to_owned(),
    };
    let keys = match config.parse::<Value>()?.unwrap_or_default() {
        Value::Null => Ok((EngineKeys::default(), K::default())),
        Value::Object(keys) => split(keys),
        // A list would be read as the values of the keys in order.
        _ => Err("keys with values are expected, such as `maxPods: 50`".to_owned()),
    };
    let checked = keys.and_then(|(shared, own)| check(EngineConfig::check(shared)?, own));
    checked.map_err(|why| Error::invalid(format!("{source}: {why}")))
}

/// Deserializes the shared keys and the rest. `serde(flatten)` would accept unknown keys.
fn split<K: DeserializeOwned>(keys: Map<String, Value>) -> Result<(EngineKeys, K), String> {
    let (shared, own): (Map<_, _>, Map<_, _>) =
        keys.into_iter().partition(|(key, _)| ENGINE_KEYS.contains(&key.as_str()));
    Ok((deserialize(shared)?, deserialize(own)?))
}

fn deserialize<T: DeserializeOwned>(keys: Map<String, Value>) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(keys)).map_err(|error| {
        let mut why = error.inner().to_string();
        if error.path().iter().len() <= 1 && why.starts_with("unknown field") {
            // The shared keys are allowed too.
            let shared: Vec<String> = ENGINE_KEYS.iter().map(|key| format!("`{key}`")).collect();
            why = format!("{}, {}", why.replacen("expected `", "expected one of `", 1), shared.join(", "));
        }
        let (path, why) = (error.path().to_string(), explain(&why));
        if path == "." { why } else { format!("{path}: {why}") }
    })
}

/// Checks that a path is absolute, or takes the default.
pub fn absolute_path(key: &str, path: Option<PathBuf>, default: &str) -> Result<PathBuf, String> {
    let path = path.unwrap_or_else(|| Path::new(default).to_owned());
    if path.is_absolute() {
        return Ok(path);
    }
    Err(format!("{key}: {} is not an absolute path: write one such as {default}", path.display()))
}

// === impl EngineConfig ===

impl Default for EngineConfig {
    fn default() -> Self {
        Self::check(EngineKeys::default()).expect("invariant: the defaults are valid")
    }
}

impl EngineConfig {
    fn check(keys: EngineKeys) -> Result<Self, String> {
        let optional = |key: &str, path: Option<PathBuf>, example: &str| {
            path.map(|path| absolute_path(key, Some(path), example)).transpose()
        };
        Ok(Self {
            reserved: keys.reserved,
            max_pods: match keys.max_pods.unwrap_or(110) {
                pods if pods < 1 => {
                    return Err(format!("maxPods: {pods} is not a number of pods: write 1 or more"));
                }
                pods => pods,
            },
            log_root: optional("logRoot", keys.log_root, "/var/log/pods")?,
            root: optional("root", keys.root, "/var/lib/virtual-kubelet")?,
            cluster_dns: keys.cluster_dns,
            resolv_conf: absolute_path("resolvConf", keys.resolv_conf, "/etc/resolv.conf")?,
            seccomp_root: absolute_path("seccompRoot", keys.seccomp_root, "/var/lib/kubelet/seccomp")?,
            seccomp_default: keys.seccomp_default,
            cgroup_root: keys.cgroup_root,
            parallel_pulls: match keys.parallel_pulls.unwrap_or(5) {
                0 => None,
                pulls => Some(usize::try_from(pulls).map_err(|_| {
                    format!(
                        "parallelPulls: {pulls} is not a number of pulls: write 1 or more, or 0 for no limit"
                    )
                })?),
            },
            max_crash_backoff: keys
                .max_crash_backoff
                .map_or(Duration::from_mins(5), |ConfigDuration(backoff)| backoff),
        })
    }

    /// The node's own directory: everything in it that belongs to no pod of the node is removed.
    pub fn node_dir(&self, context: &Context) -> PathBuf {
        match &self.root {
            Some(root) => root.join(&context.node_name),
            // It is per node already.
            None => context.state_dir.clone(),
        }
    }

    /// The parent cgroup of the node's pods. Unless one is configured its name is unique, so that no other node or process is in
    /// it.
    pub fn cgroup_root(&self, context: &Context) -> String {
        self.cgroup_root.clone().unwrap_or_else(|| {
            // Several processes may run nodes with the same name in different directories.
            let place = self.node_dir(context).into_os_string().into_encoded_bytes();
            let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &place);
            let mark = sum.as_ref().iter().take(4).fold(0_u32, |mark, byte| mark << 8 | u32::from(*byte));
            format!("/virtual-kubelet-{}-{mark:08x}", context.node_name)
        })
    }

    /// The engine's settings on this host, with the provider's log directory and the parent cgroup of pods. `cgroups` are those
    /// in which the engine creates it. The runtime records who may use which image; otherwise set [`Settings::pull_records`].
    pub fn engine_settings(
        &self,
        context: &Context,
        host: &Host,
        log_root: PathBuf,
        cgroup_root: Option<String>,
        cgroups: Option<HostCgroups>,
    ) -> Result<Settings> {
        let memory = host.memory();
        Ok(Settings {
            node: context.node_name.clone(),
            node_ips: vec![context.internal_ip],
            root: self.node_dir(context),
            log_root,
            seccomp_root: self.seccomp_root.clone(),
            cluster_dns: self.cluster_dns.clone(),
            cluster_domain: context.cluster_domain.clone(),
            resolv_conf: self.resolv_conf.clone(),
            hosts_file: PathBuf::from("/etc/hosts"),
            cgroup_root,
            cgroups,
            allocatable: host.allocatable_limits(&self.reserved),
            memory: memory.ok_or_else(|| Error::internal("read the memory size from /proc/meminfo"))?,
            oom_score_floor: host.oom_score_floor(),
            seccomp_default: self.seccomp_default,
            parallel_pulls: self.parallel_pulls,
            pull_records: None,
            max_crash_backoff: self.max_crash_backoff,
            relist: RELIST,
            resync: RESYNC,
        })
    }
}

// === impl ConfigQuantity ===

impl<'de> Deserialize<'de> for ConfigQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            other => return Err(D::Error::custom(format!("{other} is not a quantity"))),
        };
        let quantity: Result<Quantity, _> = text.trim().parse();
        match quantity {
            Ok(quantity) if !quantity.is_negative() => Ok(Self(quantity)),
            Ok(_) => Err(D::Error::custom(format!("{text:?} is less than nothing"))),
            Err(_) => Err(D::Error::custom(format!(
                "{text:?} is not a quantity: write a number with an optional suffix, such as 250m, 2 or 64Mi"
            ))),
        }
    }
}

/// Reads an optional [`ConfigQuantity`].
pub(crate) fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    Ok(Option::<ConfigQuantity>::deserialize(deserializer)?.map(|ConfigQuantity(quantity)| quantity))
}

// === impl ConfigDuration ===

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed: Option<SignedDuration> = text.trim().parse().ok();
        let parsed = parsed.and_then(|parsed| Duration::try_from(parsed).ok());
        parsed.filter(|parsed| !parsed.is_zero()).map(Self).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a duration: write one such as 30s, 5m or 1h30m"))
        })
    }
}
