//! The provider's configuration.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use vk_pod_engine::config::{self, ConfigDuration, ConfigQuantity, EngineConfig, absolute_path};
use vk_provider::{Config, Context, Result};

use crate::{level::Level, network::Subnet};

/// The configuration, with defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The keys that all providers on the engine have.
    pub engine: EngineConfig,
    /// How containers are kept apart; `None` takes the best that the machine allows.
    pub level: Option<Level>,
    /// Whether pods may have the machine's own root file system, as `image: host`.
    pub host_image: bool,
    /// Bytes of disk that must be free for pods to be taken; `None` is a tenth of it.
    pub min_free_disk: Option<u64>,
    /// Where images are; `None` is beside the nodes' directories.
    pub image_dir: Option<PathBuf>,
    /// How long a pull may take; `None` is as long as it takes.
    pub pull_timeout: Option<Duration>,
    /// Registries that are asked without TLS.
    pub insecure_registries: Vec<String>,
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

/// The keys of this provider.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Keys {
    level: WrittenLevel,
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
enum WrittenLevel {
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
    /// Reads the configuration. `Invalid` says where the mistake is.
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
                WrittenLevel::Auto => None,
                WrittenLevel::Oci => Some(Level::Oci),
                WrittenLevel::Process => Some(Level::Process),
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

    /// Where containers' logs are. A node's own, unless somebody else is to find them.
    pub fn logs(&self, context: &Context) -> PathBuf {
        self.engine.log_root.clone().unwrap_or_else(|| self.node_dir(context).join("logs"))
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
