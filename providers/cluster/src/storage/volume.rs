//! The placeholder volume of a claim in the upper cluster.

use k8s_openapi::{
    api::{
        core::v1::{
            HostPathVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
            PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::PROVISIONER;
use crate::names::{self, annotation, label};

/// The annotation with the node that the scheduler chose for the first pod of a claim.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation of volumes that names their provisioner. The volume controller does not touch such volumes.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The annotation that named the class of a claim before there was a field for it.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes with manually created volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// A volume needs a source. This path does not exist, and no kubelet ever sees it.
const PLACEHOLDER_PATH: &str = "/multicluster.virtual-kubelet.io/not-here";

/// The reclaim policy of classes that do not say otherwise.
const DELETE: &str = "Delete";

/// What to do about a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// The claim is not ours to serve.
    Nothing,
    /// Create this placeholder volume.
    Make(Box<PersistentVolume>),
    /// Its class is served in the upper cluster, which cannot work. The user gets this message.
    Mistake(String),
}

/// Whether the scheduler chose this node for a claim.
pub(super) fn is_chosen(claim: &PersistentVolumeClaim, node: &str) -> bool {
    annotation(&claim.metadata, SELECTED_NODE) == Some(node)
}

/// Whether a claim waits for a volume.
pub(super) fn is_waiting(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    volume.is_empty() && claim.metadata.deletion_timestamp.is_none()
}

/// The class of a claim.
pub(super) fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let field = || claim.spec.as_ref()?.storage_class_name.as_deref();
    annotation(&claim.metadata, CLASS).or_else(field).filter(|class| !class.is_empty())
}

/// Decides what to do about a claim on a node of a lower cluster.
pub(super) fn decide(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &str,
    cluster: &str,
) -> Decision {
    if !is_chosen(claim, node) || !is_waiting(claim) {
        return Decision::Nothing;
    }
    let name = class.metadata.name.as_deref().unwrap_or_default();
    match class.provisioner.as_str() {
        PROVISIONER => volume(claim, class, cluster).map_or(Decision::Nothing, Decision::Make),
        NO_PROVISIONER => Decision::Nothing,
        other => Decision::Mistake(format!(
            "StorageClass {name} is served by {other} in this cluster, and its volumes cannot be used \
             in the cluster behind node {node}: use a class with the provisioner {PROVISIONER}"
        )),
    }
}

/// Builds the placeholder volume of a claim; `None` if the claim has no UID or spec.
fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    cluster: &str,
) -> Option<Box<PersistentVolume>> {
    let uid = claim.metadata.uid.as_ref()?;
    let spec = claim.spec.as_ref()?;
    let here = NodeSelectorRequirement {
        key: names::CLUSTER.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![cluster.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![here]), match_fields: None };
    let text = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    Some(Box::new(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(format!("pvc-{uid}")),
            labels: Some(text(names::CLUSTER, cluster)),
            annotations: Some(text(PROVISIONED_BY, PROVISIONER)),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: spec.resources.as_ref()?.requests.clone(),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: Some(uid.clone()),
                resource_version: claim.metadata.resource_version.clone(),
                field_path: None,
            }),
            host_path: Some(HostPathVolumeSource { path: PLACEHOLDER_PATH.to_owned(), type_: None }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            // The placeholder contains no data. The lower volume has the policy of its own class.
            persistent_volume_reclaim_policy: Some(reclaim_policy(class).to_owned()),
            storage_class_name: class.metadata.name.clone(),
            volume_attributes_class_name: spec.volume_attributes_class_name.clone(),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }))
}

/// What happens to volumes of a class when their claim is deleted.
fn reclaim_policy(class: &StorageClass) -> &str {
    class.reclaim_policy.as_deref().unwrap_or(DELETE)
}

/// The claim of a placeholder of this lower cluster that is deleted with it, after the volume controller has seen that the claim is gone;
/// `None` for all other volumes.
pub(super) fn reclaimed_claim<'a>(
    volume: &'a PersistentVolume,
    cluster: &str,
) -> Option<&'a ObjectReference> {
    let spec = volume.spec.as_ref()?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_ours = annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
        && label(&volume.metadata, names::CLUSTER) == Some(cluster)
        && spec.host_path.as_ref().is_some_and(|source| source.path == PLACEHOLDER_PATH);
    let goes = spec.persistent_volume_reclaim_policy.as_deref() == Some(DELETE)
        && phase == Some("Released")
        && volume.metadata.deletion_timestamp.is_none();
    spec.claim_ref.as_ref().filter(|_| is_ours && goes)
}

/// Whether a volume is the placeholder of a claim.
pub(super) fn is_placeholder_of(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let uid = reference.and_then(|reference| reference.uid.as_ref());
    annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
        && uid.is_some()
        && uid == claim.metadata.uid.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(metadata: &Value, spec: &Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"namespace": "shop", "name": "data", "uid": "u1", "resourceVersion": "7",
                "annotations": {SELECTED_NODE: "vk"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "below", "volumeMode": "Block",
                "resources": {"requests": {"storage": "5Gi"}}},
        });
        for (part, more) in [("metadata", metadata), ("spec", spec)] {
            claim[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        serde_json::from_value(claim).unwrap()
    }

    fn of(provisioner: &str) -> StorageClass {
        let class = json!({"metadata": {"name": "below"}, "provisioner": provisioner});
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn a_claim_of_our_class_gets_a_placeholder_with_node_affinity() {
        let claim = claim(&json!({}), &json!({}));
        let Decision::Make(volume) = decide(&claim, &of(PROVISIONER), "vk", "berlin") else { panic!() };
        assert!(is_placeholder_of(&volume, &claim));
        let volume = serde_json::to_value(volume).unwrap();
        assert_eq!(volume["metadata"]["name"], "pvc-u1");
        assert_eq!(volume["metadata"]["annotations"][PROVISIONED_BY], PROVISIONER);
        let spec = &volume["spec"];
        assert_eq!(spec["claimRef"]["uid"], "u1");
        assert_eq!(
            (&spec["claimRef"]["namespace"], &spec["claimRef"]["name"]),
            (&json!("shop"), &json!("data"))
        );
        assert_eq!((&spec["capacity"]["storage"], &spec["volumeMode"]), (&json!("5Gi"), &json!("Block")));
        assert_eq!(
            (&spec["accessModes"], &spec["storageClassName"]),
            (&json!(["ReadWriteOnce"]), &json!("below"))
        );
        let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!(*term, json!({"key": names::CLUSTER, "operator": "In", "values": ["berlin"]}));
    }

    #[test]
    fn a_placeholder_has_the_reclaim_policy_of_its_class() {
        let claim = claim(&json!({}), &json!({}));
        for (class, policy) in [(None, "Delete"), (Some("Delete"), "Delete"), (Some("Retain"), "Retain")] {
            let class = StorageClass { reclaim_policy: class.map(str::to_owned), ..of(PROVISIONER) };
            let Decision::Make(volume) = decide(&claim, &class, "vk", "berlin") else { panic!() };
            assert_eq!(volume.spec.unwrap().persistent_volume_reclaim_policy.as_deref(), Some(policy));
        }
    }

    #[test]
    fn only_a_released_placeholder_of_ours_with_the_policy_delete_is_reclaimed() {
        let claim = claim(&json!({}), &json!({}));
        let Decision::Make(volume) = decide(&claim, &of(PROVISIONER), "vk", "berlin") else { panic!() };
        let mut volume = *volume;
        assert!(reclaimed_claim(&volume, "berlin").is_none(), "it is not released");
        volume.status.get_or_insert_default().phase = Some("Released".to_owned());
        assert_eq!(reclaimed_claim(&volume, "berlin").unwrap().uid.as_deref(), Some("u1"));
        assert!(reclaimed_claim(&volume, "paris").is_none(), "another cluster's");
        let changes: [fn(&mut PersistentVolume); 4] = [
            |volume| volume.metadata.annotations = None,
            |volume| volume.metadata.labels = None,
            |volume| volume.spec.as_mut().unwrap().host_path = None,
            |volume| {
                volume.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Retain".to_owned());
            },
        ];
        for change in changes {
            let mut other = volume.clone();
            change(&mut other);
            assert!(reclaimed_claim(&other, "berlin").is_none(), "{other:?}");
        }
    }

    #[test]
    fn bound_and_deleted_claims_and_those_of_other_nodes_are_ignored() {
        let others = [
            claim(&json!({"annotations": {SELECTED_NODE: "other"}}), &json!({})),
            claim(&json!({"annotations": {}}), &json!({})),
            claim(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), &json!({})),
            claim(&json!({}), &json!({"volumeName": "pv"})),
        ];
        for claim in others {
            for provisioner in [PROVISIONER, "ebs.csi.aws.com"] {
                assert_eq!(decide(&claim, &of(provisioner), "vk", "berlin"), Decision::Nothing, "{claim:?}");
            }
        }
    }

    #[test]
    fn a_class_with_an_upper_provisioner_is_reported_as_a_mistake() {
        let waiting = claim(&json!({}), &json!({}));
        let verdict = decide(&waiting, &of("ebs.csi.aws.com"), "vk", "berlin");
        let Decision::Mistake(message) = verdict else { panic!("{verdict:?}") };
        for word in ["below", "ebs.csi.aws.com", "node vk", PROVISIONER] {
            assert!(message.contains(word), "{message}");
        }
        assert_eq!(
            decide(&waiting, &of(NO_PROVISIONER), "vk", "berlin"),
            Decision::Nothing,
            "created manually"
        );
    }

    #[test]
    fn a_volume_of_another_claim_or_provisioner_is_not_ours() {
        let claim = claim(&json!({}), &json!({}));
        let Decision::Make(volume) = decide(&claim, &of(PROVISIONER), "vk", "berlin") else { panic!() };
        let mut other = volume.clone();
        other.spec.as_mut().unwrap().claim_ref.as_mut().unwrap().uid = Some("u2".to_owned());
        assert!(!is_placeholder_of(&other, &claim));
        let mut other = volume;
        other.metadata.annotations = None;
        assert!(!is_placeholder_of(&other, &claim));
        assert!(!is_placeholder_of(&PersistentVolume::default(), &PersistentVolumeClaim::default()));
    }

    #[test]
    fn the_class_of_a_claim_is_its_annotation_or_its_field() {
        assert_eq!(class(&claim(&json!({}), &json!({}))), Some("below"));
        assert_eq!(class(&claim(&json!({"annotations": {CLASS: "old"}}), &json!({}))), Some("old"));
        assert_eq!(class(&claim(&json!({}), &json!({"storageClassName": ""}))), None);
    }
}
