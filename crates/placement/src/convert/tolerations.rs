//! Tolerations of virtual nodes.

use k8s_openapi::api::core::v1::{PodSpec, Toleration};

use super::{
    Settings,
    changes::{Changes, pointer},
};
use crate::names;

const EXISTS: &str = "Exists";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Adds the toleration of virtual nodes and, if configured, those of lost nodes. A toleration that the pod has for the same taint stands.
pub(super) fn convert(spec: &PodSpec, settings: &Settings, changes: &mut Changes) {
    let list = spec.tolerations.as_deref().unwrap_or_default();
    let mut added = Vec::new();
    if !list.iter().any(|one| concerns(one, names::TAINT, NO_SCHEDULE)) {
        added.push(toleration(names::TAINT, NO_SCHEDULE));
    }
    if settings.tolerate_lost {
        let limited: Vec<_> = list.iter().enumerate().filter(|(_, one)| has_default_limit(one)).collect();
        let missing = names::LOST_TAINTS.into_iter();
        let missing: Vec<_> =
            missing.filter(|taint| !list.iter().any(|one| concerns(one, taint, NO_EXECUTE))).collect();
        if !limited.is_empty() || !missing.is_empty() {
            changes.annotate(names::TOLERATES_LOST, true.to_string());
        }
        for (index, _) in limited {
            let index = index.to_string();
            changes.remove(pointer(["spec", "tolerations", index.as_str(), "tolerationSeconds"]));
        }
        added.extend(missing.into_iter().map(|taint| toleration(taint, NO_EXECUTE)));
    }
    changes.append("tolerations", spec.tolerations.is_some(), &added);
}

/// Whether a toleration is about taints with this key and effect.
fn concerns(toleration: &Toleration, key: &str, effect: &str) -> bool {
    let own_key = toleration.key.as_deref().unwrap_or_default();
    let own_effect = toleration.effect.as_deref().unwrap_or_default();
    let every_key = own_key.is_empty() && toleration.operator.as_deref() == Some(EXISTS);
    (own_key == key || every_key) && (own_effect.is_empty() || own_effect == effect)
}

/// Whether a toleration is one that the API server gives to every pod. Another limit is the choice of the pod.
fn has_default_limit(toleration: &Toleration) -> bool {
    toleration.key.as_deref().is_some_and(|key| names::LOST_TAINTS.contains(&key))
        && toleration.operator.as_deref() == Some(EXISTS)
        && toleration.effect.as_deref() == Some(NO_EXECUTE)
        && toleration.toleration_seconds == Some(names::DEFAULT_TOLERATION_SECONDS)
}

fn toleration(key: &str, effect: &str) -> Toleration {
    Toleration {
        key: Some(key.to_owned()),
        operator: Some(EXISTS.to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    }
}
