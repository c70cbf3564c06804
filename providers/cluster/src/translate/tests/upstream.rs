//! Bugs and requests of other projects, by issue number. `tensile_kube` without a number is a bug found in its code.

use super::*;
use crate::dependencies::dependencies;

#[test]
fn tensile_kube_the_upper_scheduler_name_is_not_copied() {
    let upper = pod(json!({"schedulerName": "multicluster", "schedulingGates": [{"name": "g"}]}));
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!((&lower["schedulerName"], &lower["schedulingGates"]), (&Value::Null, &Value::Null));
}

#[test]
fn tensile_kube_an_unknown_priority_class_does_not_reject_the_pod() {
    let upper = pod(json!({"priorityClassName": "above-only", "priority": 100_000}));
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!((&lower["priorityClassName"], &lower["priority"]), (&Value::Null, &Value::Null));
}

#[test]
fn tensile_kube_a_secret_in_the_environment_stays_a_reference() {
    let env = json!([{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let from = json!([{"secretRef": {"name": "all"}}]);
    let upper = pod(json!({"containers": [{"name": "web", "env": env, "envFrom": from}]}));
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!((&lower["containers"][0]["env"], &lower["containers"][0]["envFrom"]), (&env, &from));
}

#[test]
fn tensile_kube_pods_of_two_upper_clusters_or_virtual_nodes_are_distinguished() {
    let upper = pod(json!({}));
    let ours = below(&upper);
    for other in
        [OwnerId { origin: "other".to_owned(), ..owner() }, OwnerId { node: "other".to_owned(), ..owner() }]
    {
        assert!(!other.owns(&ours.metadata));
        assert_eq!(
            update(&upper, &ours, &other, &TranslationPolicy::default(), &ClusterClasses::default()),
            Ok(None)
        );
    }
}

#[test]
fn tensile_kube_56_a_pod_is_updated_whatever_its_labels() {
    let mut upper = pod(json!({}));
    let lower = below(&upper);
    assert_eq!(upper.metadata.labels, None);
    label(&mut upper, "tier", "gold");
    let update = update(&upper, &lower, &owner(), &TranslationPolicy::default(), &ClusterClasses::default())
        .unwrap()
        .unwrap();
    assert_eq!(update.metadata_and_spec.unwrap()["metadata"]["labels"], json!({"tier": "gold"}));
}

#[test]
fn tensile_kube_an_unchanged_pod_is_not_updated_repeatedly() {
    let upper = pod(json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}));
    let mut lower = below_by(&upper, &permissive());
    // As completed by the lower API server.
    let spec = lower.spec.as_mut().unwrap();
    spec.node_name = Some("worker-1".to_owned());
    spec.scheduler_name = Some("default-scheduler".to_owned());
    spec.priority = Some(0);
    spec.tolerations
        .as_mut()
        .unwrap()
        .push(Toleration { key: Some("node.kubernetes.io/not-ready".to_owned()), ..Toleration::default() });
    assert_eq!(update(&upper, &lower, &owner(), &permissive(), &ClusterClasses::default()), Ok(None));
}

#[test]
fn tensile_kube_projected_volumes_csi_and_the_environment_are_dependencies() {
    let upper = pod(json!({
        "containers": [{"name": "web", "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "in-env", "key": "k"}}},
        ]}],
        "volumes": [
            {"name": "a", "projected": {"sources": [{"secret": {"name": "in-projection"}}]}},
            {"name": "b", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "in-csi"}}},
        ],
    }));
    let secrets: Vec<String> = dependencies(&upper).secrets.into_iter().collect();
    assert_eq!(secrets, ["in-csi", "in-env", "in-projection"]);
}

#[test]
fn tensile_kube_a_volume_without_a_secret_does_not_panic() {
    let upper = pod(json!({"volumes": [
        {"name": "a", "cephfs": {"monitors": ["m"]}},
        {"name": "b", "cinder": {"volumeID": "v"}},
        {"name": "c", "rbd": {"image": "i", "monitors": ["m"]}},
    ]}));
    assert!(dependencies(&upper).secrets.is_empty());
}

#[test]
fn liqo_1185_and_1571_clients_in_a_pod_use_the_lower_api_server() {
    let volume = json!({"name": "kube-api-access-1", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    let lower = spec_by(&pod(json!({"serviceAccountName": "builder", "volumes": [volume]})), &permissive());
    // The lower admission adds the volume for this account, and the lower kubelet the address.
    assert_eq!((&lower["serviceAccountName"], &lower["volumes"]), (&json!("builder"), &Value::Null));
    assert_eq!(lower["automountServiceAccountToken"], Value::Null);
}

#[test]
fn liqo_1194_toleration_seconds_of_the_user_are_kept() {
    let waits =
        json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]);
    let lower = spec_by(&pod(json!({"tolerations": waits})), &TranslationPolicy::default());
    assert_eq!(lower["tolerations"], waits);
}

#[test]
fn liqo_1494_a_pod_stays_on_the_nodes_behind_the_virtual_node() {
    let policy = TranslationPolicy {
        node_selector: [("pool".to_owned(), "gpu".to_owned())].into(),
        ..TranslationPolicy::default()
    };
    let mut upper = pod(json!({"nodeSelector": {"pool": "cpu"}}));
    assert_eq!(spec_by(&upper, &policy)["nodeSelector"], json!({"pool": "gpu"}));
    lower_annotation(&mut upper, &json!({"nodeSelector": {"pool": "cpu"}}));
    assert_eq!(spec_by(&upper, &policy)["nodeSelector"], json!({"pool": "gpu"}));
}

#[test]
fn admiralty_20_and_119_an_unmapped_namespace_is_rejected_early() {
    let why = refused(&pod(json!({})), &mapped(&[("data", "data")]));
    assert!(why.contains("namespace shop is not mapped") && why.contains("`namespaces`"), "{why}");
}

#[test]
fn admiralty_82_a_pod_can_select_a_lower_scheduler() {
    let mut upper = pod(json!({"schedulerName": "above"}));
    lower_annotation(&mut upper, &json!({"schedulerName": "kueue"}));
    assert_eq!(spec_by(&upper, &permissive())["schedulerName"], "kueue");
}

#[test]
fn admiralty_127_spread_constraints_of_the_upper_pod_are_not_copied() {
    let spread =
        |key: &str| json!([{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}]);
    let mut upper = pod(json!({
        "nodeSelector": {"clusterID": "c"}, "topologySpreadConstraints": spread("clusterID"),
    }));
    let said = json!({"nodeSelector": {"disk": "ssd"}, "topologySpreadConstraints": spread("zone")});
    lower_annotation(&mut upper, &said);
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!(lower["nodeSelector"], said["nodeSelector"]);
    assert_eq!(lower["topologySpreadConstraints"], said["topologySpreadConstraints"]);
}

#[test]
fn k3k_162_pods_of_two_namespaces_never_collide() {
    let policy = TranslationPolicy {
        namespaces: NamespaceMapping::Suffix("-of-upper".to_owned()),
        ..TranslationPolicy::default()
    };
    let places = ['a', 'b'].map(|last| {
        let mut upper = pod(json!({}));
        upper.metadata.namespace = Some(format!("{}{last}", "n".repeat(62)));
        below_by(&upper, &policy).metadata.namespace
    });
    assert_ne!(places[0], places[1]);
}
