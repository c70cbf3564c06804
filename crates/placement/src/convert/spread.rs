//! Topology spread constraints.

use k8s_openapi::api::core::v1::{PodSpec, TopologySpreadConstraint};
use vk_provider::label_selector;

use super::{
    Settings,
    changes::{Changes, pointer},
    reason,
};
use crate::names;

const HARD: &str = "DoNotSchedule";
const SOFT: &str = "ScheduleAnyway";

/// Makes hard constraints over lower nodes soft: the upper scheduler does not see where pods are in the lower cluster, and a node without the
/// topology key could not be used.
pub(super) fn convert(spec: &PodSpec, settings: &Settings, changes: &mut Changes) {
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    let soft: Vec<&str> = constraints
        .iter()
        .filter(|constraint| constraint.when_unsatisfiable != HARD)
        .map(|constraint| constraint.topology_key.as_str())
        .collect();
    let is_lower = |constraint: &TopologySpreadConstraint| {
        let key = &constraint.topology_key;
        constraint.when_unsatisfiable == HARD
            && (key == names::HOSTNAME || !settings.is_upper(key))
            && label_selector::is_key(key)
    };
    let mut conflict = false;
    for (index, constraint) in constraints.iter().enumerate().filter(|(_, constraint)| is_lower(constraint)) {
        if soft.contains(&constraint.topology_key.as_str()) {
            conflict = true;
            continue;
        }
        let index = index.to_string();
        let path = |field: &str| pointer(["spec", "topologySpreadConstraints", index.as_str(), field]);
        changes.replace(path("whenUnsatisfiable"), SOFT);
        let mut entry = constraint.topology_key.clone();
        if let Some(domains) = constraint.min_domains {
            // Only hard constraints have it.
            changes.remove(path("minDomains"));
            entry = format!("{entry}:{domains}");
        }
        changes.spread(entry);
    }
    if conflict {
        changes.keep(reason::SOFT_EXISTS);
    }
}
