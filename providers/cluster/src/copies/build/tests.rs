use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::*;

fn owner() -> OwnerId {
    OwnerId { origin: "upper".to_owned(), node: "vk".to_owned() }
}

fn claim(spec: &Value, annotations: &Value, context: CopyContext<'_>) -> Value {
    let metadata = json!({"name": "c", "namespace": "web", "uid": "u1", "annotations": annotations});
    let upper: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
    let key = CopyKey { kind: Kind::Claim, namespace: "shop".to_owned(), name: "c".to_owned() };
    let desired = build(&upper, &key, &owner(), context).unwrap();
    serde_json::from_str(&desired.body).unwrap()
}

fn context(classes: &BTreeMap<String, String>, has_volume: bool) -> CopyContext<'_> {
    static NOTHING: KeptMetadata = KeptMetadata { labels: BTreeSet::new(), annotations: BTreeSet::new() };
    CopyContext { storage_classes: classes, has_volume, has_source: false, metadata: &NOTHING }
}

#[test]
fn the_copy_has_the_content_and_only_the_labels_and_annotations_that_are_allowed() {
    let upper: ConfigMap = serde_json::from_value(json!({
        "metadata": {
            "name": "a", "namespace": "web", "uid": "u1", "resourceVersion": "7",
            "labels": {"app": "x", "argocd.argoproj.io/secret-type": "cluster", names::ORIGIN: "desired"},
            "annotations": {"note": "y", "other": "z", names::ORIGIN_NAME: "desired"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u2"}],
            "finalizers": ["example.com/x"],
        },
        "data": {"key": "1"}, "binaryData": {"b": "eA=="},
    }))
    .unwrap();
    let key = CopyKey { kind: Kind::ConfigMap, namespace: "shop".to_owned(), name: "a".to_owned() };
    let built = |metadata: &KeptMetadata| {
        let classes = BTreeMap::new();
        let context = CopyContext { metadata, ..context(&classes, false) };
        build(&upper, &key, &owner(), context).unwrap()
    };
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    let desired = built(&KeptMetadata { labels: keys(&["app"]), annotations: keys(&["note", "absent"]) });
    let lower: Value = serde_json::from_str(&desired.body).unwrap();
    assert_eq!((&lower["data"], &lower["binaryData"]), (&json!({"key": "1"}), &json!({"b": "eA=="})));
    let metadata = lower["metadata"].as_object().unwrap();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["annotations", "labels", "name", "namespace"]);
    assert_eq!(metadata["labels"], json!({"app": "x", names::ORIGIN: "upper"}));
    let annotations = metadata["annotations"].as_object().unwrap();
    assert_eq!((&annotations["note"], annotations.get("other")), (&json!("y"), None));
    assert_eq!(annotations[names::ORIGIN_NAMESPACE], "web");
    assert_eq!(annotations[names::ORIGIN_NAME], "a");
    assert!(!format!("{desired:?}").contains("eA=="), "what it contains is not logged");
    let desired = built(&KeptMetadata::default());
    assert_eq!(desired.labels.into_keys().collect::<Vec<_>>(), [names::ORIGIN], "none by default");
    assert!(desired.annotations.keys().all(|key| key.starts_with(names::PREFIX)));
}

#[test]
fn a_claim_is_not_bound_before_it_is() {
    let spec = json!({"volumeName": "pv-1", "resources": {"requests": {"storage": "1Gi"}}});
    let annotations = json!({
        "pv.kubernetes.io/bind-completed": "yes",
        "volume.kubernetes.io/selected-node": "vk",
        "volume.beta.kubernetes.io/storage-provisioner": "p",
    });
    let classes = BTreeMap::new();
    let lower = claim(&spec, &annotations, context(&classes, false));
    assert_eq!(lower["spec"].get("volumeName"), None);
    let annotations: Vec<&String> = lower["metadata"]["annotations"].as_object().unwrap().keys().collect();
    assert!(annotations.iter().all(|key| key.starts_with(names::PREFIX)), "{annotations:?}");
    let lower = claim(&spec, &json!({}), context(&classes, true));
    assert_eq!(lower["spec"]["volumeName"], "pv-1", "the volume exists in the lower cluster");
}

#[test]
fn the_class_of_a_claim_is_called_what_it_is_called_below() {
    let classes: BTreeMap<String, String> = [("fast".to_owned(), "ssd".to_owned())].into();
    let class = |spec: &Value, annotations: &Value| {
        claim(spec, annotations, context(&classes, false))["spec"].get("storageClassName").cloned()
    };
    let none = json!({});
    assert_eq!(class(&json!({"storageClassName": "fast"}), &none), Some(json!("ssd")));
    assert_eq!(class(&json!({"storageClassName": "slow"}), &none), Some(json!("slow")));
    assert_eq!(class(&json!({"storageClassName": ""}), &none), Some(json!("")), "an empty class stays empty");
    assert_eq!(class(&json!({}), &none), None, "the lower cluster's own");
    let legacy = json!({"volume.beta.kubernetes.io/storage-class": "fast"});
    assert_eq!(class(&json!({}), &legacy), Some(json!("ssd")));
}

#[test]
fn a_claim_is_cloned_only_from_a_copy_of_ours() {
    let classes = BTreeMap::new();
    let cloned = |source: &Value, has_source: bool| {
        let context = CopyContext { has_source, ..context(&classes, false) };
        claim(&json!({"dataSource": source, "dataSourceRef": source}), &json!({}), context)["spec"].clone()
    };
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let other = json!({"kind": "PersistentVolumeClaim", "name": "other"});
    for (source, has_source) in [(&snapshot, true), (&snapshot, false), (&other, false)] {
        let spec = cloned(source, has_source);
        assert!(spec.get("dataSource").is_none() && spec.get("dataSourceRef").is_none(), "{spec}");
    }
    assert_eq!(cloned(&other, true)["dataSource"]["name"], "other");
}

#[test]
fn a_claim_names_a_volume_or_another_claim_only_if_that_may_be_used() {
    let claim = |spec: Value, phase: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).unwrap()
    };
    let named = json!({"volumeName": "pv-1"});
    assert_eq!(claim(named.clone(), "Pending").volume(), None, "anybody can name any volume");
    assert_eq!(claim(named, "Bound").volume(), Some("pv-1"));
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}});
    assert_eq!(claim(source, "Bound").source_claim(), Some("other"));
    let elsewhere = json!({"kind": "PersistentVolumeClaim", "name": "other", "namespace": "theirs"});
    assert_eq!(claim(json!({"dataSourceRef": elsewhere}), "Bound").source_claim(), None);
}

#[test]
fn an_object_is_ours_by_the_label_of_our_cluster_alone() {
    let lower = |origin: &str| -> ConfigMap {
        let annotations = json!({names::ORIGIN_NAMESPACE: "web", names::ORIGIN_NAME: "a"});
        let metadata = json!({"name": "a", "labels": {names::ORIGIN: origin}, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };
    assert!(observe(&lower("upper"), &owner()).source.is_some());
    assert_eq!(observe(&lower("other"), &owner()).source, None);
    assert_eq!(observe(&ConfigMap::default(), &owner()).source, None);
}
