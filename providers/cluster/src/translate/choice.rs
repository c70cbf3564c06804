//! What the users of pods may choose in the lower cluster. What the operator does not allow, they may not.

use k8s_openapi::api::core::v1::{PodSpec, Toleration, Volume};
use serde::Deserialize;

use super::{ApiAccess, Rejection, pod_security::restricted_kind};

/// Taints that every cluster sets on lost nodes. How long a pod stays bound to such a node concerns nobody else.
const LOST_NODE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What pods may choose for themselves: `allow` in the configuration. Everything is empty by default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AllowedChoices {
    /// Pods may have a token of the lower API server if they ask for it.
    pub api_access: bool,
    /// Names of lower schedulers.
    pub schedulers: Vec<String>,
    /// Names of lower PriorityClasses.
    pub priority_classes: Vec<String>,
    /// Names of lower RuntimeClasses.
    pub runtime_classes: Vec<String>,
    /// Tolerations. Each allows those that tolerate no more than it does.
    pub tolerations: Vec<Toleration>,
    /// Drivers of inline CSI volumes and of flexVolumes, and kinds of disks and shares such as `nfs`. Their parameters can name
    /// what belongs to others in the lower cluster.
    pub volume_drivers: Vec<String>,
}

// === impl AllowedChoices ===

impl AllowedChoices {
    /// Whether a lower pod may have a toleration of the upper pod or of its annotation.
    pub(super) fn allows_toleration(&self, toleration: &Toleration) -> bool {
        let key = toleration.key.as_deref().unwrap_or_default();
        let harmless = LOST_NODE.contains(&key) && toleration.effect.as_deref() == Some("NoExecute");
        harmless || self.tolerations.iter().any(|allowed| covers(allowed, toleration))
    }

    /// Rejects volumes that lead to objects of the lower cluster which are not copies.
    pub(super) fn check_volumes(&self, spec: &PodSpec, access: ApiAccess) -> Result<(), Rejection> {
        for volume in spec.volumes.iter().flatten() {
            self.check_driver(volume)?;
            let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
            for source in sources {
                let bundle = source.cluster_trust_bundle.as_ref();
                if bundle.is_some_and(|bundle| bundle.optional != Some(true)) {
                    return Err(Rejection(format!(
                        "volume {} (clusterTrustBundle): trust bundles of the upper cluster are not copied: use a ConfigMap",
                        volume.name
                    )));
                }
                // Not a field of every API version that this is built for.
                let source = serde_json::to_value(source).unwrap_or_default();
                if access == ApiAccess::None && source.get("podCertificate").is_some() {
                    return Err(Rejection(format!(
                        "volume {} (podCertificate): the pod has no access to the lower API server, which would issue it: see \
                         `apiAccess` in the configuration of the provider",
                        volume.name
                    )));
                }
            }
        }
        Ok(())
    }

    fn check_driver(&self, volume: &Volume) -> Result<(), Rejection> {
        let csi = volume.csi.as_ref().map(|source| &source.driver);
        let driver = csi.or_else(|| volume.flex_volume.as_ref().map(|source| &source.driver)).cloned();
        // Disks and shares are reached with the credentials and the address of the lower machines. `hostAccess` decides about
        // hostPath.
        let kind = || restricted_kind(volume).filter(|kind| kind != "hostPath");
        let Some(driver) = driver.or_else(kind).filter(|driver| !self.volume_drivers.contains(driver)) else {
            return Ok(());
        };
        Err(Rejection(format!(
            "volume {} ({driver}): its parameters can name what belongs to others in the lower cluster: use a claim, or add \
             {driver} to `allow.volumeDrivers` in the configuration of the provider",
            volume.name
        )))
    }
}

/// Rejects a name that a pod may not choose.
pub(super) fn check_name(field: &str, name: &str, allowed: &[String], option: &str) -> Result<(), Rejection> {
    if allowed.iter().any(|one| one == name) {
        return Ok(());
    }
    Err(Rejection(format!(
        "{field}: pods may not choose {name} in the lower cluster: remove it from the pod, or add it to `{option}` in the \
         configuration of the provider"
    )))
}

/// Whether a toleration tolerates every taint that the other one tolerates.
fn covers(allowed: &Toleration, other: &Toleration) -> bool {
    let exists = |one: &Toleration| one.operator.as_deref() == Some("Exists");
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let same_effect = text(&allowed.effect).is_empty() || allowed.effect == other.effect;
    if text(&allowed.key).is_empty() {
        return exists(allowed) && same_effect;
    }
    let same_value = exists(allowed) || (!exists(other) && text(&allowed.value) == text(&other.value));
    text(&allowed.key) == text(&other.key)
        && same_effect
        && same_value
        && (exists(allowed) || text(&allowed.operator) == text(&other.operator))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn toleration(value: &Value) -> Toleration {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn a_toleration_covers_those_that_tolerate_no_more() {
        let key = json!({"key": "gpu", "operator": "Exists"});
        let value = json!({"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"});
        let everything = json!({"operator": "Exists"});
        for (allowed, other, covered) in [
            (&key, &key, true),
            (&key, &value, true),
            (&value, &value, true),
            (&everything, &key, true),
            (&everything, &everything, true),
            (&value, &key, false),
            (&key, &everything, false),
            (&value, &everything, false),
            (&key, &json!({"key": "disk", "operator": "Exists"}), false),
            (
                &value,
                &json!({"key": "gpu", "operator": "Equal", "value": "b", "effect": "NoSchedule"}),
                false,
            ),
            (&value, &json!({"key": "gpu", "operator": "Equal", "value": "a"}), false),
        ] {
            assert_eq!(covers(&toleration(allowed), &toleration(other)), covered, "{allowed} {other}");
        }
    }

    #[test]
    fn only_tolerations_of_lost_nodes_are_allowed_without_configuration() {
        let nothing = AllowedChoices::default();
        let lost = |effect: &str| {
            toleration(
                &json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": effect}),
            )
        };
        assert!(nothing.allows_toleration(&lost("NoExecute")));
        assert!(!nothing.allows_toleration(&lost("NoSchedule")));
        for taint in ["node-role.kubernetes.io/control-plane", "gpu", "node.kubernetes.io/memory-pressure"] {
            assert!(!nothing.allows_toleration(&toleration(&json!({"key": taint, "operator": "Exists"}))));
        }
        assert!(!nothing.allows_toleration(&toleration(&json!({"operator": "Exists"}))));
    }
}
