//! Tests of the translation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::*;

mod api_access;
mod conversion;
mod fields;
mod pod_security;
pub(super) mod properties;
mod scheduling;
mod upstream;

/// An upper pod `shop/web`.
pub(super) fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "web", "image": "web:1"}]);
    }
    Pod {
        metadata: ObjectMeta {
            name: Some("web".to_owned()),
            namespace: Some("shop".to_owned()),
            uid: Some("uid-1".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(serde_json::from_value(spec).unwrap()),
        status: None,
    }
}

pub(super) fn owner() -> OwnerId {
    OwnerId { origin: "upper".to_owned(), node: "vk-node".to_owned() }
}

pub(super) fn mapped(pairs: &[(&str, &str)]) -> TranslationPolicy {
    let map = pairs.iter().map(|(upper, lower)| ((*upper).to_owned(), (*lower).to_owned()));
    TranslationPolicy { namespaces: NamespaceMapping::Map(map.collect()), ..TranslationPolicy::default() }
}

/// A policy that allows what samples contain.
/// The driver `d`, and all kinds of disks and shares.
const DRIVERS: [&str; 20] = [
    "d",
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "fc",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

pub(super) fn permissive() -> TranslationPolicy {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    TranslationPolicy {
        pod_security: PodSecurity::Privileged,
        access: ApiAccess::Lower,
        accounts: Accounts { default: None, by_upper: [("builder".to_owned(), "builder".to_owned())].into() },
        allowed: AllowedChoices {
            api_access: true,
            schedulers: names(&["volcano", "kueue"]),
            priority_classes: names(&["high"]),
            runtime_classes: names(&["gvisor", "kata"]),
            tolerations: vec![
                serde_json::from_value(json!({"key": "gpu", "operator": "Exists"})).unwrap(),
                serde_json::from_value(json!({"key": "below", "operator": "Exists"})).unwrap(),
                serde_json::from_value(json!({"key": "spot", "operator": "Exists"})).unwrap(),
            ],
            volume_drivers: names(&DRIVERS),
        },
        ..TranslationPolicy::default()
    }
}

pub(super) fn annotate(pod: &mut Pod, key: &str, value: &str) {
    pod.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

pub(super) fn label(pod: &mut Pod, key: &str, value: &str) {
    pod.metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

pub(super) fn lower_annotation(pod: &mut Pod, said: &Value) {
    annotate(pod, names::LOWER, &said.to_string());
}

pub(super) fn below(upper: &Pod) -> Pod {
    below_by(upper, &TranslationPolicy::default())
}

pub(super) fn below_by(upper: &Pod, policy: &TranslationPolicy) -> Pod {
    translate(upper, &owner(), policy, &ClusterClasses::default()).unwrap().pod
}

pub(super) fn refused(upper: &Pod, policy: &TranslationPolicy) -> String {
    translate(upper, &owner(), policy, &ClusterClasses::default()).unwrap_err().to_string()
}

/// The spec of the lower pod, in JSON.
pub(super) fn spec_by(upper: &Pod, policy: &TranslationPolicy) -> Value {
    serde_json::to_value(below_by(upper, policy).spec).unwrap()
}

#[test]
fn the_name_is_the_same_and_the_namespace_is_mapped() {
    let lower = below(&pod(json!({})));
    assert_eq!(
        (lower.metadata.name.as_deref(), lower.metadata.namespace.as_deref()),
        (Some("web"), Some("shop"))
    );
    let lower = below_by(&pod(json!({})), &mapped(&[("shop", "team-a")]));
    assert_eq!(lower.metadata.namespace.as_deref(), Some("team-a"));
    assert_eq!(names::annotation(&lower.metadata, names::ORIGIN_NAMESPACE), Some("shop"));
    assert_eq!(names::annotation(&lower.metadata, names::ORIGIN_NAME), Some("web"));
}

#[test]
fn labels_are_copied_without_ignored_ones_and_ours_are_added() {
    let mut upper = pod(json!({}));
    label(&mut upper, "app", "web");
    label(&mut upper, "pod-group.scheduling.sigs.k8s.io", "group");
    label(&mut upper, "multicluster.virtual-kubelet.io/origin", "somebody else");
    label(&mut upper, "multicluster.virtual-kubelet.io/trial", "1");
    let labels = serde_json::to_value(below(&upper).metadata.labels).unwrap();
    assert_eq!(
        labels,
        json!({
            "app": "web",
            "virtual-pod": "true",
            "multicluster.virtual-kubelet.io/origin": "upper",
            "multicluster.virtual-kubelet.io/node": "vk-node",
            "multicluster.virtual-kubelet.io/origin-uid": "uid-1",
        })
    );
}

#[test]
fn annotations_are_copied_without_ignored_ones() {
    let mut upper = pod(json!({}));
    annotate(&mut upper, "team", "shop");
    annotate(&mut upper, "secret-of-ours", "x");
    annotate(&mut upper, "kubectl.kubernetes.io/last-applied-configuration", "{}");
    annotate(&mut upper, names::API_ACCESS, "none");
    annotate(&mut upper, names::INPUT, "not ours");
    annotate(&mut upper, names::CLUSTER_SELECTOR, "{}");
    let policy = TranslationPolicy {
        ignored_annotations: vec!["secret-of-ours".to_owned()],
        ..TranslationPolicy::default()
    };
    let translated = translate(&upper, &owner(), &policy, &ClusterClasses::default()).unwrap();
    let mut annotations = translated.pod.metadata.annotations.unwrap();
    assert_eq!(annotations.remove(names::INPUT), Some(translated.input));
    assert!(annotations.remove(names::APPLIED).is_some());
    assert_eq!(
        serde_json::to_value(annotations).unwrap(),
        json!({
            "team": "shop",
            "multicluster.virtual-kubelet.io/origin-namespace": "shop",
            "multicluster.virtual-kubelet.io/origin-name": "web",
        })
    );
}

#[test]
fn owners_finalizers_and_other_metadata_are_not_copied() {
    let mut upper = pod(json!({}));
    upper.metadata = serde_json::from_value(json!({
        "name": "web", "namespace": "shop", "uid": "uid-1", "generateName": "web-", "resourceVersion": "7",
        "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3,
        "deletionTimestamp": "2026-01-01T00:00:00Z", "selfLink": "/x", "finalizers": ["example.com/f"],
        "managedFields": [{"manager": "m"}],
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r"}],
    }))
    .unwrap();
    upper.status = Some(serde_json::from_value(json!({"phase": "Running"})).unwrap());
    let lower = below(&upper);
    let meta = serde_json::to_value(&lower.metadata).unwrap();
    let fields: Vec<&String> = meta.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["annotations", "labels", "name", "namespace"]);
    assert_eq!(lower.status, None);
    assert_eq!(lower, below(&pod(json!({}))), "none of it is part of the sum either");
}

#[test]
fn a_pod_with_resource_claims_is_rejected() {
    let upper = pod(json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-1"}]}));
    let why = refused(&upper, &TranslationPolicy::default());
    assert!(why.starts_with("spec.resourceClaims: gpu: "), "{why}");
}

#[test]
fn a_priority_class_is_kept_if_it_is_mapped_or_allowed_and_exists() {
    let upper = pod(json!({"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "Never"}));
    let class = |policy: &TranslationPolicy, classes: &ClusterClasses| {
        let spec = translate(&upper, &owner(), policy, classes).unwrap().pod.spec.unwrap();
        assert_eq!((spec.priority, spec.preemption_policy), (None, None), "the lower admission sets them");
        spec.priority_class_name
    };
    let there = ClusterClasses { priority_classes: ["high".to_owned()].into(), ..ClusterClasses::default() };
    let renamed = TranslationPolicy {
        priority_classes: [("high".to_owned(), "gold".to_owned())].into(),
        ..TranslationPolicy::default()
    };
    assert_eq!(class(&permissive(), &ClusterClasses::default()), None);
    assert_eq!(class(&TranslationPolicy::default(), &there), None, "nobody allowed it");
    assert_eq!(class(&permissive(), &there).as_deref(), Some("high"));
    assert_eq!(class(&renamed, &there).as_deref(), Some("gold"));
}

#[test]
fn a_runtime_class_is_rejected_unless_it_is_mapped_or_allowed_and_exists() {
    let translated = |upper: &Pod, policy: &TranslationPolicy, classes: &ClusterClasses| {
        translate(upper, &owner(), policy, classes)
            .map(|translated| translated.pod.spec.unwrap().runtime_class_name)
            .map_err(|why| why.to_string())
    };
    let there = ClusterClasses { runtime_classes: ["gvisor".to_owned()].into(), ..ClusterClasses::default() };
    let renamed = TranslationPolicy {
        runtime_classes: [("gvisor".to_owned(), "sandbox".to_owned())].into(),
        ..TranslationPolicy::default()
    };
    let mut upper = pod(json!({"runtimeClassName": "gvisor", "overhead": {"cpu": "1"}}));
    assert_eq!(translated(&upper, &permissive(), &there).unwrap().as_deref(), Some("gvisor"));
    assert_eq!(translated(&upper, &renamed, &there).unwrap().as_deref(), Some("sandbox"));
    let why = translated(&upper, &TranslationPolicy::default(), &there).unwrap_err();
    assert!(why.contains("`allow.runtimeClasses`"), "{why}");
    let why = translated(&upper, &permissive(), &ClusterClasses::default()).unwrap_err();
    assert!(why.contains("no RuntimeClass gvisor"), "{why}");
    lower_annotation(&mut upper, &json!({"runtimeClassName": "kata"}));
    assert_eq!(translated(&upper, &permissive(), &there).unwrap().as_deref(), Some("kata"));
    let opted_in = pod(json!({"runtimeClassName": "virtual-kubelet"}));
    assert_eq!(translated(&opted_in, &TranslationPolicy::default(), &there).unwrap(), None);
}

#[test]
fn choices_of_the_annotation_are_rejected_unless_they_are_allowed() {
    for (field, option) in [
        ("schedulerName", "`allow.schedulers`"),
        ("priorityClassName", "`allow.priorityClasses`"),
        ("runtimeClassName", "`allow.runtimeClasses`"),
    ] {
        let mut upper = pod(json!({}));
        lower_annotation(&mut upper, &json!({field: "somebody"}));
        for policy in [TranslationPolicy::default(), permissive()] {
            let why = refused(&upper, &policy);
            assert!(why.contains(field) && why.contains(option) && why.contains("somebody"), "{why}");
        }
    }
}

#[test]
fn volumes_that_lead_to_objects_of_the_lower_cluster_are_rejected() {
    let closed = TranslationPolicy::default();
    for (source, words) in [
        (json!({"csi": {"driver": "secrets-store.csi.k8s.io"}}), "`allow.volumeDrivers`"),
        (json!({"flexVolume": {"driver": "x"}}), "`allow.volumeDrivers`"),
        // By the credentials and the address of the lower machines.
        (json!({"gcePersistentDisk": {"pdName": "of another tenant"}}), "`allow.volumeDrivers`"),
        (json!({"glusterfs": {"endpoints": "e", "path": "p"}}), "`allow.volumeDrivers`"),
        (json!({"nfs": {"path": "/p", "server": "s"}}), "`allow.volumeDrivers`"),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "p"}}]}}),
            "trust bundles",
        ),
        (
            json!({"projected": {"sources": [{"podCertificate": {"signerName": "a/b", "keyType": "ED25519"}}]}}),
            "`apiAccess`",
        ),
    ] {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let why = refused(&pod(json!({"volumes": [volume]})), &closed);
        assert!(why.starts_with("volume v (") && why.contains(words), "{why}");
    }
    let allowed = pod(json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}));
    assert_eq!(spec_by(&allowed, &permissive())["volumes"][0]["csi"]["driver"], "d");
    let optional = json!({"name": "b", "path": "p", "optional": true});
    let optional = pod(
        json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": optional}]}}]}),
    );
    assert_eq!(spec_by(&optional, &closed)["volumes"][0]["projected"]["sources"], json!([]));
}

#[test]
fn a_generic_ephemeral_volume_uses_the_copied_claim() {
    let template = json!({"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}});
    let upper = pod(json!({"volumes": [{"name": "scratch", "ephemeral": template}]}));
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!(
        lower["volumes"],
        json!([{"name": "scratch", "persistentVolumeClaim": {"claimName": "web-scratch"}}])
    );
    assert!(crate::dependencies::dependencies(&upper).claims.contains("web-scratch"));
}

#[test]
fn a_pod_without_name_or_uid_is_rejected() {
    for (field, words) in [("name", "no name"), ("namespace", "no namespace"), ("uid", "no UID")] {
        let mut upper = pod(json!({}));
        let meta = &mut upper.metadata;
        match field {
            "name" => meta.name = None,
            "namespace" => meta.namespace = None,
            _ => meta.uid = Some(String::new()),
        }
        assert!(refused(&upper, &TranslationPolicy::default()).contains(words));
    }
    assert!(
        refused(&Pod { spec: None, ..pod(json!({})) }, &TranslationPolicy::default()).contains("no spec")
    );
}
