//! Tests of the translation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::*;

mod api_access;
mod fields;
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
    annotate(&mut upper, names::API_ACCESS, "lower");
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
fn a_priority_class_is_kept_if_it_exists_or_is_mapped() {
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
    assert_eq!(class(&TranslationPolicy::default(), &ClusterClasses::default()), None);
    assert_eq!(class(&TranslationPolicy::default(), &there).as_deref(), Some("high"));
    assert_eq!(class(&renamed, &there).as_deref(), Some("gold"));
}

#[test]
fn an_unknown_runtime_class_is_rejected_unless_it_is_mapped() {
    let translated = |upper: &Pod, policy: &TranslationPolicy, classes: &ClusterClasses| {
        translate(upper, &owner(), policy, classes)
            .map(|translated| translated.pod.spec.unwrap().runtime_class_name)
    };
    let there = ClusterClasses { runtime_classes: ["gvisor".to_owned()].into(), ..ClusterClasses::default() };
    let renamed = TranslationPolicy {
        runtime_classes: [("gvisor".to_owned(), "sandbox".to_owned())].into(),
        ..TranslationPolicy::default()
    };
    let mut upper = pod(json!({"runtimeClassName": "gvisor", "overhead": {"cpu": "1"}}));
    assert_eq!(translated(&upper, &TranslationPolicy::default(), &there).unwrap().as_deref(), Some("gvisor"));
    assert_eq!(translated(&upper, &renamed, &there).unwrap().as_deref(), Some("sandbox"));
    let why = translated(&upper, &TranslationPolicy::default(), &ClusterClasses::default())
        .unwrap_err()
        .to_string();
    assert!(why.contains("no RuntimeClass gvisor"), "{why}");
    lower_annotation(&mut upper, &json!({"runtimeClassName": "kata"}));
    assert_eq!(translated(&upper, &renamed, &there).unwrap().as_deref(), Some("kata"));
    let opted_in = pod(json!({"runtimeClassName": "virtual-kubelet"}));
    assert_eq!(translated(&opted_in, &TranslationPolicy::default(), &there).unwrap(), None);
}

#[test]
fn host_access_is_copied_or_rejected() {
    let taken = json!({
        "hostNetwork": true, "hostPID": true, "hostIPC": true,
        "securityContext": {"windowsOptions": {"hostProcess": true}},
        "volumes": [{"name": "logs", "hostPath": {"path": "/var/log"}}],
        "containers": [{"name": "web", "securityContext": {"privileged": true}}],
        "initContainers": [{"name": "init", "securityContext": {"windowsOptions": {"hostProcess": true}}}],
    });
    let upper = pod(taken.clone());
    let lower = spec_by(&upper, &TranslationPolicy::default());
    for (field, value) in taken.as_object().unwrap() {
        assert_eq!(lower[field], *value);
    }
    let closed = TranslationPolicy { host_access: false, ..TranslationPolicy::default() };
    let why = refused(&upper, &closed);
    for words in [
        "spec.hostNetwork",
        "spec.hostPID",
        "spec.hostIPC",
        "spec.securityContext.windowsOptions.hostProcess",
        "volume logs (hostPath /var/log)",
        "container web (privileged)",
        "container init (hostProcess)",
        "hostAccess: false",
    ] {
        assert!(why.contains(words), "{words} in {why}");
    }
    translate(&pod(json!({"hostNetwork": false})), &owner(), &closed, &ClusterClasses::default()).unwrap();
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
