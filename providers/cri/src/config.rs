//! The configuration of the provider `cri`.

use std::path::PathBuf;

use serde::Deserialize;
use vk_pod_engine::config::{self, ConfigDuration, EngineConfig};
use vk_provider::{Config, Result};

use crate::{client::Limits, socket};

/// The default directory of container logs, which is that of a kubelet.
const LOG_ROOT: &str = "/var/log/pods";

/// The configuration, with defaults applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The keys that all providers on the engine have.
    pub engine: EngineConfig,
    /// The socket of the runtime; `None` searches the usual paths.
    pub socket: Option<PathBuf>,
    /// Timeouts of calls to the runtime.
    pub limits: Limits,
}

/// The keys of this provider.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Keys {
    socket: Option<String>,
    request_timeout: Option<ConfigDuration>,
    pull_timeout: Option<ConfigDuration>,
}

// === impl Settings ===

impl Settings {
    /// Reads the configuration. An `Invalid` error names the key.
    pub fn read(config: &Config) -> Result<Self> {
        config::read(config, Self::check)
    }

    fn check(engine: EngineConfig, keys: Keys) -> Result<Self, String> {
        let socket = keys.socket.map(|text| socket::parse(&text).map_err(|why| format!("socket: {why}")));
        let limits = Limits::default();
        // As a kubelet's `cgroupRoot: /`: pods get a cgroup of their own below it.
        let cgroup_root = engine.cgroup_root.filter(|root| !root.trim_matches('/').is_empty());
        Ok(Self {
            engine: EngineConfig { cgroup_root, ..engine },
            socket: socket.transpose()?,
            limits: Limits {
                call: keys.request_timeout.map_or(limits.call, |ConfigDuration(limit)| limit),
                pull: keys.pull_timeout.map(|ConfigDuration(limit)| limit).or(limits.pull),
            },
        })
    }

    /// The directory in which the runtime writes container logs.
    pub fn log_root(&self) -> PathBuf {
        self.engine.log_root.clone().unwrap_or_else(|| PathBuf::from(LOG_ROOT))
    }
}

#[cfg(test)]
mod tests;
