//! Claims of pods and the volumes that they are bound to.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use vk_provider::node_selector::{self, LabelLookup};

/// Set by the volume controller when a claim is bound on both sides.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Labels of volumes and nodes that the plugin VolumeZone compares, each with its successor.
const TOPOLOGY_LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];
/// Separates the zones of a volume that is in several.
const ZONE_SEPARATOR: &str = "__";

/// All known claims and volumes.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    claims: HashMap<(String, String), ClaimInfo>,
    volumes: HashMap<String, VolumeInfo>,
}

#[derive(Debug)]
struct ClaimInfo {
    /// The volume that it is bound to.
    volume: Option<String>,
    /// Only one pod at a time may use it.
    single_pod: bool,
}

/// Where a volume can be used.
#[derive(Debug, Default)]
pub(crate) struct VolumeInfo {
    affinity: Option<NodeSelector>,
    topology: BTreeMap<&'static str, Vec<String>>,
}

// === impl Volumes ===

impl Volumes {
    pub(crate) fn apply_claim(&mut self, claim: &PersistentVolumeClaim) {
        let (meta, spec) = (&claim.metadata, claim.spec.as_ref());
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else { return };
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let annotated = meta.annotations.as_ref().is_some_and(|all| all.contains_key(BIND_COMPLETED));
        let bound = (phase == Some("Bound") || annotated) && meta.deletion_timestamp.is_none();
        let volume = spec.and_then(|spec| spec.volume_name.clone()).filter(|name| bound && !name.is_empty());
        let modes = spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
        let single_pod = modes.iter().any(|mode| mode == "ReadWriteOncePod");
        self.claims.insert((namespace.clone(), name.clone()), ClaimInfo { volume, single_pod });
    }

    pub(crate) fn remove_claim(&mut self, namespace: &str, name: &str) {
        self.claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub(crate) fn apply_volume(&mut self, volume: &PersistentVolume) {
        let Some(name) = &volume.metadata.name else { return };
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.clone());
        let labels = volume.metadata.labels.as_ref();
        let zones = |(key, _): (&'static str, &str)| {
            let zones = labels?.get(key)?.split(ZONE_SEPARATOR).map(|zone| zone.trim().to_owned());
            Some((key, zones.collect::<Vec<_>>()))
        };
        // As in kube-scheduler, a label that cannot be read does not count.
        let readable = |(_, zones): &(&str, Vec<String>)| zones.iter().all(|zone| !zone.is_empty());
        let topology = TOPOLOGY_LABELS.into_iter().filter_map(zones).filter(readable).collect();
        self.volumes.insert(name.clone(), VolumeInfo { affinity, topology });
    }

    pub(crate) fn remove_volume(&mut self, name: &str) {
        self.volumes.remove(name);
    }

    /// The volumes of claims, and what cannot be evaluated about them.
    pub(crate) fn of(&self, claims: &[(String, String)]) -> (Vec<&VolumeInfo>, Option<&'static str>) {
        let (mut volumes, mut unknown) = (Vec::new(), None);
        for key in claims {
            let claim = self.claims.get(key);
            let volume = claim.and_then(|claim| self.volumes.get(claim.volume.as_ref()?));
            match (claim, volume) {
                (Some(claim), Some(_)) if claim.single_pod => unknown = Some("a claim for a single pod"),
                (Some(claim), None) if claim.volume.is_some() => unknown = Some("volumes that are not known"),
                (_, None) => unknown = Some("unbound claims"),
                _ => {}
            }
            volumes.extend(volume);
        }
        (volumes, unknown)
    }
}

// === impl VolumeInfo ===

impl VolumeInfo {
    /// Whether pods on a node can use the volume.
    pub(crate) fn is_usable_on(&self, labels: LabelLookup<'_>, name: &str) -> bool {
        self.affinity.as_ref().is_none_or(|affinity| node_selector::matches(affinity, labels, name))
            && self.matches_topology(labels)
    }

    /// Nodes without any of the labels are in a cluster with a single zone.
    fn matches_topology(&self, labels: LabelLookup<'_>) -> bool {
        if self.topology.is_empty() || TOPOLOGY_LABELS.iter().all(|(key, _)| labels(key).is_none()) {
            return true;
        }
        self.topology.iter().all(|(key, zones)| {
            let successor =
                TOPOLOGY_LABELS.iter().find(|(known, _)| known == key).map(|(_, successor)| *successor);
            let actual = labels(key).or_else(|| labels(successor?));
            actual.is_some_and(|actual| zones.iter().any(|zone| zone == actual))
        })
    }

    /// Whether it depends on the name of a node, besides its labels.
    pub(crate) fn names_nodes(&self) -> bool {
        self.affinity.as_ref().is_some_and(crate::filter::has_match_fields)
    }
}
