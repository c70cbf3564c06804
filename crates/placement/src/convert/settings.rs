//! What conversion depends on besides the pod.

use crate::names;

/// Labels of virtual nodes, besides those with our prefix.
pub const DEFAULT_UPPER_KEYS: [&str; 6] = [
    "type",
    "clusterID",
    names::HOSTNAME,
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "virtual-kubelet.io/provider",
];

/// The settings of conversion. The admission policy has them in its ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Labels that mean the nodes of the upper cluster, besides those with our prefix. Requirements on other labels mean lower nodes.
    pub upper_keys: Vec<String>,
    /// Whether pods get the scheduling gate of placement. `None`: nobody has said so. They get none then, unless the placement process switches
    /// it on in the ConfigMap of the policy.
    pub gate: Option<bool>,
    /// Whether pods stay on a virtual node that is lost.
    pub tolerate_lost: bool,
}

// === impl Settings ===

impl Settings {
    /// Whether a label means nodes of the upper cluster.
    pub fn is_upper(&self, key: &str) -> bool {
        key.starts_with(names::PREFIX) || self.upper_keys.iter().any(|upper| upper == key)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            upper_keys: DEFAULT_UPPER_KEYS.map(ToOwned::to_owned).to_vec(),
            gate: None,
            tolerate_lost: false,
        }
    }
}
