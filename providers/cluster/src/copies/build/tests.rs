use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use serde_json::json;

use super::{super::Kind, *};

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
    CopyContext { storage_classes: classes, has_volume }
}

#[test]
fn the_copy_has_what_is_the_users_and_nothing_of_the_upper_server() {
    let upper: ConfigMap = serde_json::from_value(json!({
        "metadata": {
            "name": "a", "namespace": "web", "uid": "u1", "resourceVersion": "7",
            "labels": {"app": "x", names::ORIGIN: "desired"},
            "annotations": {"note": "y", LAST_APPLIED: "{}", names::ORIGIN_NAME: "desired"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u2"}],
            "finalizers": ["example.com/x"],
        },
        "data": {"key": "1"}, "binaryData": {"b": "eA=="},
    }))
    .unwrap();
    let key = CopyKey { kind: Kind::ConfigMap, namespace: "shop".to_owned(), name: "a".to_owned() };
    let desired = build(&upper, &key, &owner(), context(&BTreeMap::new(), false)).unwrap();
    let lower: Value = serde_json::from_str(&desired.body).unwrap();
    assert_eq!((&lower["data"], &lower["binaryData"]), (&json!({"key": "1"}), &json!({"b": "eA=="})));
    let metadata = lower["metadata"].as_object().unwrap();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["annotations", "labels", "name", "namespace"]);
    assert_eq!(metadata["labels"], json!({"app": "x", names::ORIGIN: "upper"}));
    let annotations = metadata["annotations"].as_object().unwrap();
    assert_eq!((&annotations["note"], annotations.get(LAST_APPLIED)), (&json!("y"), None));
    assert_eq!(annotations[names::ORIGIN_NAMESPACE], "web");
    assert_eq!(annotations[names::ORIGIN_NAME], "a");
    assert!(!format!("{desired:?}").contains("eA=="), "what it contains is not logged");
}

#[test]
fn a_claim_is_not_bound_before_it_is() {
    let spec = json!({"volumeName": "pv-1", "resources": {"requests": {"storage": "1Gi"}}});
    let annotations = json!({
        "pv.kubernetes.io/bind-completed": "yes",
        "volume.kubernetes.io/selected-node": "vk",
        "volume.beta.kubernetes.io/storage-provisioner": "p",
        "mine": "kept",
    });
    let classes = BTreeMap::new();
    let lower = claim(&spec, &annotations, context(&classes, false));
    assert_eq!(lower["spec"].get("volumeName"), None);
    let annotations: Vec<&String> = lower["metadata"]["annotations"].as_object().unwrap().keys().collect();
    assert!(
        annotations.iter().all(|key| *key == "mine" || key.starts_with(names::PREFIX)),
        "{annotations:?}"
    );
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
fn a_claim_is_made_of_other_claims_alone() {
    let classes = BTreeMap::new();
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let lower = claim(
        &json!({"dataSource": snapshot, "dataSourceRef": snapshot}),
        &json!({}),
        context(&classes, false),
    );
    assert!(lower["spec"].get("dataSource").is_none() && lower["spec"].get("dataSourceRef").is_none());
    let other = json!({"kind": "PersistentVolumeClaim", "name": "other"});
    let lower = claim(&json!({"dataSource": other}), &json!({}), context(&classes, false));
    assert_eq!(lower["spec"]["dataSource"]["name"], "other");
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
