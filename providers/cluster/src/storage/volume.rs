//! What a claim gets above, by its class and by the node that was chosen for it.

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
use crate::names::{self, annotation};

/// Where the scheduler says which node it chose for the first pod that uses a claim.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Where a volume says who made it. The volume controller leaves such volumes to them.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// How the class of a claim was said before it had a field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes whose volumes are made by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// A volume has to be something. This is nowhere, and no kubelet ever sees it.
const NOWHERE: &str = "/multicluster.virtual-kubelet.io/not-here";

/// What to do about a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// It is none of our business.
    Nothing,
    /// This volume is to stand for what is below.
    Make(Box<PersistentVolume>),
    /// What is made for it above cannot be used below: this is said to its user.
    Mistake(String),
}

/// Whether the scheduler chose a node for a claim.
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

/// What to do about a claim that waits for a volume on a node of a lower cluster.
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
        PROVISIONER => volume(claim, name, cluster).map_or(Decision::Nothing, Decision::Make),
        NO_PROVISIONER => Decision::Nothing,
        other => Decision::Mistake(format!(
            "the StorageClass {name} is served by {other} in this cluster, and a volume that is made here cannot be used \
             in the cluster behind the node {node}: use a class whose provisioner is {PROVISIONER}"
        )),
    }
}

/// The volume that stands above for what a claim gets below; `None` for a claim that does not say which it is.
fn volume(claim: &PersistentVolumeClaim, class: &str, cluster: &str) -> Option<Box<PersistentVolume>> {
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
            host_path: Some(HostPathVolumeSource { path: NOWHERE.to_owned(), type_: None }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            // Nothing is kept in it, and we delete no volumes. What is below has the policy of the class there.
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            storage_class_name: Some(class.to_owned()),
            volume_attributes_class_name: spec.volume_attributes_class_name.clone(),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }))
}

/// Whether a volume is the one that stands for a claim.
pub(super) fn is_of(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
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
    fn a_claim_of_our_class_gets_a_volume_that_draws_its_pods_to_the_lower_cluster() {
        let claim = claim(&json!({}), &json!({}));
        let Decision::Make(volume) = decide(&claim, &of(PROVISIONER), "vk", "berlin") else { panic!() };
        assert!(is_of(&volume, &claim));
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
    fn what_is_bound_or_going_or_for_another_node_is_left_alone() {
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
    fn a_class_that_somebody_serves_above_is_told_as_the_mistake_that_it_is() {
        let waiting = claim(&json!({}), &json!({}));
        let verdict = decide(&waiting, &of("ebs.csi.aws.com"), "vk", "berlin");
        let Decision::Mistake(message) = verdict else { panic!("{verdict:?}") };
        for word in ["below", "ebs.csi.aws.com", "node vk", PROVISIONER] {
            assert!(message.contains(word), "{message}");
        }
        assert_eq!(decide(&waiting, &of(NO_PROVISIONER), "vk", "berlin"), Decision::Nothing, "made by hand");
    }

    #[test]
    fn a_volume_of_another_claim_or_maker_is_not_ours() {
        let claim = claim(&json!({}), &json!({}));
        let Decision::Make(volume) = decide(&claim, &of(PROVISIONER), "vk", "berlin") else { panic!() };
        let mut other = volume.clone();
        other.spec.as_mut().unwrap().claim_ref.as_mut().unwrap().uid = Some("u2".to_owned());
        assert!(!is_of(&other, &claim));
        let mut other = volume;
        other.metadata.annotations = None;
        assert!(!is_of(&other, &claim));
        assert!(!is_of(&PersistentVolume::default(), &PersistentVolumeClaim::default()));
    }

    #[test]
    fn the_class_of_a_claim_is_its_annotation_or_its_field() {
        assert_eq!(class(&claim(&json!({}), &json!({}))), Some("below"));
        assert_eq!(class(&claim(&json!({"annotations": {CLASS: "old"}}), &json!({}))), Some("old"));
        assert_eq!(class(&claim(&json!({}), &json!({"storageClassName": ""}))), None);
    }
}
