//! What an upper pod says of the lower cluster.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, Toleration, TopologySpreadConstraint},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Deserialize;

use super::Reject;
use crate::names;

/// What holds below instead of what the upper scheduler was told. What it does not say is as for other pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Lower {
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) affinity: Option<Affinity>,
    pub(super) tolerations: Option<Vec<Toleration>>,
    pub(super) topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    pub(super) scheduler_name: Option<String>,
    pub(super) priority_class_name: Option<String>,
    pub(super) runtime_class_name: Option<String>,
}

// === impl Lower ===

impl Lower {
    /// Reads it from our annotation, or from tensile-kube's where there is none.
    pub(super) fn of(upper: &ObjectMeta) -> Result<Self, Reject> {
        let read = |key: &'static str| names::annotation(upper, key).map(|text| (key, text));
        let Some((key, text)) = read(names::LOWER).or_else(|| read(names::CLUSTER_SELECTOR)) else {
            return Ok(Self::default());
        };
        serde_json::from_str(text).map_err(|error| {
            Reject(format!(
                "annotation {key}: {error}: it is JSON with nodeSelector, affinity, tolerations, topologySpreadConstraints, \
                 schedulerName, priorityClassName, runtimeClassName, as in the spec of a pod"
            ))
        })
    }
}
