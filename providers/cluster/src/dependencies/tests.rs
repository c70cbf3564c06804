use serde_json::{Value, json};

use super::*;

fn of(spec: &Value) -> Dependencies {
    dependencies(&serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap())
}

fn needs(all: &[(&str, bool)]) -> BTreeMap<String, Need> {
    all.iter().map(|(name, optional)| ((*name).to_owned(), Need { optional: *optional })).collect()
}

#[test]
fn a_pod_that_names_nothing_needs_nothing() {
    assert_eq!(of(&json!({"containers": [{"name": "web"}]})), Dependencies::default());
    assert_eq!(dependencies(&Pod::default()), Dependencies::default());
}

#[test]
fn volumes_projections_and_environment_are_followed_in_every_kind_of_container() {
    let container = |kind: &str| {
        json!([{
            "name": kind,
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": format!("{kind}-key"), "key": "k", "optional": true}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": format!("{kind}-key"), "key": "k"}}},
            ],
            "envFrom": [
                {"configMapRef": {"name": format!("{kind}-all")}},
                {"secretRef": {"name": format!("{kind}-all"), "optional": true}},
            ],
        }])
    };
    let all = of(&json!({
        "containers": container("c"),
        "initContainers": container("i"),
        "ephemeralContainers": container("e"),
        "volumes": [
            {"name": "a", "configMap": {"name": "vol", "optional": true}},
            {"name": "b", "secret": {"secretName": "vol", "optional": false}},
            {"name": "c", "projected": {"sources": [
                {"configMap": {"name": "pro"}}, {"secret": {"name": "pro", "optional": true}},
                {"serviceAccountToken": {"path": "t"}},
            ]}},
        ],
    }));
    assert_eq!(
        all.config_maps,
        needs(&[
            ("c-all", false),
            ("c-key", true),
            ("e-all", false),
            ("e-key", true),
            ("i-all", false),
            ("i-key", true),
            ("pro", false),
            ("vol", true),
        ])
    );
    assert_eq!(
        all.secrets,
        needs(&[
            ("c-all", true),
            ("c-key", false),
            ("e-all", true),
            ("e-key", false),
            ("i-all", true),
            ("i-key", false),
            ("pro", true),
            ("vol", false),
        ])
    );
}

#[test]
fn secrets_of_volume_plugins_and_registries_are_followed() {
    let secret = json!({"name": "s"});
    for volume in [
        json!({"azureFile": {"secretName": "s", "shareName": "h"}}),
        json!({"cephfs": {"monitors": ["m"], "secretRef": secret}}),
        json!({"cinder": {"volumeID": "v", "secretRef": secret}}),
        json!({"csi": {"driver": "d", "nodePublishSecretRef": secret}}),
        json!({"flexVolume": {"driver": "d", "secretRef": secret}}),
        json!({"iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t", "secretRef": secret}}),
        json!({"rbd": {"image": "i", "monitors": ["m"], "secretRef": secret}}),
        json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": secret}}),
        json!({"storageos": {"secretRef": secret}}),
    ] {
        let mut named = volume.clone();
        named["name"] = json!("v");
        let all = of(&json!({"containers": [], "volumes": [named]}));
        assert_eq!(all.secrets, needs(&[("s", false)]), "{volume}");
    }
    let all = of(&json!({"containers": [], "imagePullSecrets": [{"name": "registry"}, {"name": ""}]}));
    assert_eq!(all.secrets, needs(&[("registry", true)]));
}

#[test]
fn claims_are_followed_with_those_that_are_made_for_one_pod() {
    let all = of(&json!({"containers": [], "volumes": [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ]}));
    assert_eq!(all.claims, BTreeSet::from(["data".to_owned(), "web-scratch".to_owned()]));
}

#[test]
fn the_service_account_is_followed_unless_every_namespace_has_it() {
    for (spec, account) in [
        (json!({"containers": []}), None),
        (json!({"containers": [], "serviceAccountName": "default"}), None),
        (json!({"containers": [], "serviceAccountName": "", "serviceAccount": "old"}), Some("old")),
        (json!({"containers": [], "serviceAccountName": "new", "serviceAccount": "old"}), Some("new")),
    ] {
        assert_eq!(of(&spec).service_account.as_deref(), account);
    }
}

#[test]
fn what_is_needed_once_is_needed() {
    let volume =
        |name: &str, optional: bool| json!({"name": name, "configMap": {"name": "c", "optional": optional}});
    for volumes in [[volume("a", true), volume("b", false)], [volume("a", false), volume("b", true)]] {
        let all = of(&json!({"containers": [], "volumes": volumes}));
        assert_eq!(all.config_maps, needs(&[("c", false)]));
    }
}

#[test]
fn what_is_for_the_api_server_above_is_not_copied() {
    let all = of(&json!({"containers": [], "volumes": [
        {"name": "kube-api-access-1", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}},
        ]}},
        {"name": "default-token-1", "secret": {"secretName": "default-token-1"}},
        // A user's own volume with the certificate gets the lower cluster's.
        {"name": "ca", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
    ]}));
    assert_eq!(all, Dependencies::default());
}
