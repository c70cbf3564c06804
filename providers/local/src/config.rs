//! The configuration of the provider `local`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use vk_pod_engine::config::{self, ConfigDuration, ConfigQuantity, EngineConfig, absolute_path};
use vk_provider::{Config, Context, Result};

use crate::{isolation::Isolation, network::Subnet};

/// The configuration, with defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The keys that all providers on the engine have.
    pub engine: EngineConfig,
    /// The isolation level; `None` selects the best one that the host allows.
    pub level: Option<Isolation>,
    /// Allow `image: host`, the root file system of the host, at level `process`.
    pub host_image: bool,
    /// Free bytes below which the node reports `DiskPressure`; `None` is a tenth of the disk.
    pub min_free_disk: Option<u64>,
    /// The image store; `None` is next to the directories of the nodes.
    pub image_dir: Option<PathBuf>,
    /// The time limit of a pull, if any.
    pub pull_timeout: Option<Duration>,
    /// Registries to use without TLS.
    pub insecure_registries: Vec<String>,
    /// The network of pods.
    pub network: NetworkMode,
    /// The range of pod addresses; `None` selects a free network.
    pub pod_cidr: Option<Subnet>,
}

/// The network of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NetworkMode {
    /// A bridge if one can be created, otherwise the network of the host.
    #[default]
    Auto,
    /// A bridge; refuse to start without it.
    Bridge,
    /// The network of the host, for every pod.
    Host,
}

/// The keys of this provider.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Keys {
    level: ConfigLevel,
    host_image: bool,
    min_free_disk: Option<ConfigQuantity>,
    image_dir: Option<PathBuf>,
    pull_timeout: Option<ConfigDuration>,
    insecure_registries: Vec<String>,
    network: NetworkMode,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ConfigLevel {
    #[default]
    Auto,
    Oci,
    Process,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self::check(EngineConfig::default(), Keys::default()).expect("invariant: the defaults are valid")
    }
}

impl Settings {
    /// Reads the configuration. An `Invalid` error names the key.
    pub fn read(config: &Config) -> Result<Self> {
        config::read(config, Self::check)
    }

    fn check(engine: EngineConfig, keys: Keys) -> Result<Self, String> {
        let image_dir = |path| absolute_path("imageDir", Some(path), "/var/lib/virtual-kubelet/images");
        let bytes =
            |ConfigQuantity(bytes): ConfigQuantity| u64::try_from(bytes.to_units()).unwrap_or_default();
        let cgroup_root = engine.cgroup_root.map(cgroup).transpose()?;
        Ok(Self {
            engine: EngineConfig { cgroup_root, ..engine },
            level: match keys.level {
                ConfigLevel::Auto => None,
                ConfigLevel::Oci => Some(Isolation::Oci),
                ConfigLevel::Process => Some(Isolation::Process),
            },
            host_image: keys.host_image,
            min_free_disk: keys.min_free_disk.map(bytes),
            image_dir: keys.image_dir.map(image_dir).transpose()?,
            pull_timeout: keys.pull_timeout.map(|ConfigDuration(limit)| limit),
            insecure_registries: keys
                .insecure_registries
                .into_iter()
                .map(registry)
                .collect::<Result<_, _>>()?,
            network: keys.network,
            pod_cidr: keys
                .pod_cidr
                .map(|text| text.parse().map_err(|why| format!("podCIDR: {why}")))
                .transpose()?,
        })
    }

    /// The node's own directory: everything in it that belongs to no pod of the node is removed.
    pub fn node_dir(&self, context: &Context) -> PathBuf {
        self.engine.node_dir(context)
    }

    /// The directory of container logs; by default in the node's directory.
    pub fn logs(&self, context: &Context) -> PathBuf {
        self.engine.log_root.clone().unwrap_or_else(|| self.node_dir(context).join("logs"))
    }

    /// The image store, which the nodes of a host share.
    pub fn images(&self, context: &Context) -> PathBuf {
        self.image_dir.clone().unwrap_or_else(|| images_below(&context.shared_dir))
    }
}

/// The default image store, in the state directory of the process.
pub fn images_below(state_dir: &Path) -> PathBuf {
    state_dir.join("images")
}

/// Checks a cgroup path.
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
