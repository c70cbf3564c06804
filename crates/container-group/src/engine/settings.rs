//! The engine's settings.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};
use vk_provider::{NodeTemplate, Quantity};

/// Adds to the description of the node.
pub(super) type ConfigureNode = Box<dyn Fn(&mut NodeTemplate) + Send + Sync>;

/// The settings of one node.
pub struct Settings {
    /// The cluster's name in the account: no other cluster there may have it.
    pub cluster: String,
    /// The node's name.
    pub node: String,
    /// The node's addresses, primary first.
    pub node_ips: Vec<IpAddr>,
    /// What container ids begin with, such as `eci`.
    pub runtime: String,
    /// Tags of the user for every group.
    pub tags: Vec<(String, String)>,
    /// The most that the node offers; the remaining quota can lower it.
    pub capacity: BTreeMap<String, Quantity>,
    /// Whether pods show the price that the backend knows.
    pub prices: bool,
    /// What becomes of files that change.
    pub file_updates: FileUpdates,
    /// Adds to the node: labels, zones, architecture.
    pub configure_node: Option<ConfigureNode>,
}

/// What becomes of the files of a running group when their source changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FileUpdates {
    /// The group keeps the files that it was created with; an event says so.
    #[default]
    Keep,
    /// The group is updated in place, where the cloud can.
    Replace,
}

// === impl Settings ===

impl Settings {
    /// Settings with nothing but names.
    pub fn new(cluster: impl Into<String>, node: impl Into<String>, runtime: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            node: node.into(),
            node_ips: Vec::new(),
            runtime: runtime.into(),
            tags: Vec::new(),
            capacity: BTreeMap::new(),
            prices: false,
            file_updates: FileUpdates::default(),
            configure_node: None,
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("cluster", &self.cluster)
            .field("node", &self.node)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
