use serde_json::{Value, json};

use super::*;

fn of(spec: &Value) -> Dependencies {
    dependencies(&serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap())
}

fn names<const N: usize>(all: [&str; N]) -> BTreeSet<String> {
    all.map(str::to_owned).into()
}

#[test]
fn a_pod_without_references_has_no_dependencies() {
    assert_eq!(of(&json!({"containers": [{"name": "web"}]})), Dependencies::default());
    assert_eq!(dependencies(&Pod::default()), Dependencies::default());
}

#[test]
fn references_in_volumes_and_environment_of_all_containers_are_found() {
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
    assert_eq!(all.config_maps, names(["c-all", "c-key", "e-all", "e-key", "i-all", "i-key", "pro", "vol",]));
    assert_eq!(all.secrets, names(["c-all", "c-key", "e-all", "e-key", "i-all", "i-key", "pro", "vol",]));
    assert_eq!(all.optional_config_maps, names(["c-key", "e-key", "i-key", "vol"]));
    assert_eq!(all.optional_secrets, names(["c-all", "e-all", "i-all", "pro"]));
}

#[test]
fn one_mandatory_reference_makes_an_object_mandatory() {
    let source = |optional: bool| json!({"secretRef": {"name": "s", "optional": optional}});
    for order in [[true, false], [false, true]] {
        let all = of(&json!({"containers": [{"name": "web", "envFrom": order.map(source)}]}));
        assert_eq!((all.secrets, all.optional_secrets), (names(["s"]), names([])), "{order:?}");
    }
}

#[test]
fn secrets_of_volume_plugins_and_registries_are_found() {
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
        assert_eq!(all.secrets, names(["s"]), "{volume}");
    }
    let all = of(&json!({"containers": [], "imagePullSecrets": [{"name": "registry"}, {"name": ""}]}));
    assert_eq!(all.secrets, names(["registry"]));
    assert_eq!(all.optional_secrets, names(["registry"]), "a kubelet pulls without it");
}

#[test]
fn claims_include_those_of_generic_ephemeral_volumes() {
    let all = of(&json!({"containers": [], "volumes": [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ]}));
    assert_eq!(all.claims, BTreeSet::from(["data".to_owned(), "web-scratch".to_owned()]));
}

#[test]
fn the_default_service_account_is_no_dependency() {
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
fn volumes_injected_for_the_upper_api_server_are_ignored() {
    let all = of(&json!({"containers": [], "volumes": [
        {"name": "kube-api-access-1", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}},
        ]}},
        {"name": "default-token-1", "secret": {"secretName": "default-token-1"}},
        // A volume of the user with the CA certificate gets that of the lower cluster.
        {"name": "ca", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
    ]}));
    assert_eq!(all, Dependencies::default());
}
