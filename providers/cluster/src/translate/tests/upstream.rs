//! What other projects got wrong, or were asked for, by the number of the report. `tensile_kube` without a number is a mistake that is
//! seen in its code.

use super::*;
use crate::dependencies::dependencies;

#[test]
fn tensile_kube_a_pod_for_a_scheduler_above_is_scheduled_below() {
    let upper = pod(json!({"schedulerName": "multicluster", "schedulingGates": [{"name": "g"}]}));
    let lower = spec_by(&upper, &Policy::default());
    assert_eq!((&lower["schedulerName"], &lower["schedulingGates"]), (&Value::Null, &Value::Null));
}

#[test]
fn tensile_kube_an_unknown_priority_class_and_another_number_do_not_have_the_pod_refused() {
    let upper = pod(json!({"priorityClassName": "above-only", "priority": 100_000}));
    let lower = spec_by(&upper, &Policy::default());
    assert_eq!((&lower["priorityClassName"], &lower["priority"]), (&Value::Null, &Value::Null));
}

#[test]
fn tensile_kube_a_secret_in_the_environment_is_not_written_in_clear() {
    let env = json!([{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let from = json!([{"secretRef": {"name": "all"}}]);
    let upper = pod(json!({"containers": [{"name": "web", "env": env, "envFrom": from}]}));
    let lower = spec_by(&upper, &Policy::default());
    assert_eq!((&lower["containers"][0]["env"], &lower["containers"][0]["envFrom"]), (&env, &from));
}

#[test]
fn tensile_kube_pods_of_two_upper_clusters_or_two_virtual_nodes_are_told_apart() {
    let upper = pod(json!({}));
    let ours = below(&upper);
    for other in
        [Owner { origin: "other".to_owned(), ..owner() }, Owner { node: "other".to_owned(), ..owner() }]
    {
        assert!(!other.owns(&ours.metadata));
        assert_eq!(update(&upper, &ours, &other, &Policy::default(), &ClusterClasses::default()), Ok(None));
    }
}

#[test]
fn tensile_kube_56_a_pod_is_updated_whatever_labels_it_has_above() {
    let mut upper = pod(json!({}));
    let lower = below(&upper);
    assert_eq!(upper.metadata.labels, None);
    label(&mut upper, "tier", "gold");
    let update =
        update(&upper, &lower, &owner(), &Policy::default(), &ClusterClasses::default()).unwrap().unwrap();
    assert_eq!(update.metadata_and_spec.unwrap()["metadata"]["labels"], json!({"tier": "gold"}));
}

#[test]
fn tensile_kube_what_has_not_changed_is_not_updated_again_and_again() {
    let upper = pod(json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}));
    let mut lower = below(&upper);
    // As the API server below completes it.
    let spec = lower.spec.as_mut().unwrap();
    spec.node_name = Some("worker-1".to_owned());
    spec.scheduler_name = Some("default-scheduler".to_owned());
    spec.priority = Some(0);
    spec.tolerations
        .as_mut()
        .unwrap()
        .push(Toleration { key: Some("node.kubernetes.io/not-ready".to_owned()), ..Toleration::default() });
    assert_eq!(update(&upper, &lower, &owner(), &Policy::default(), &ClusterClasses::default()), Ok(None));
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
    let secrets: Vec<String> = dependencies(&upper).secrets.into_keys().collect();
    assert_eq!(secrets, ["in-csi", "in-env", "in-projection"]);
}

#[test]
fn tensile_kube_a_volume_without_its_secret_is_no_panic() {
    let upper = pod(json!({"volumes": [
        {"name": "a", "cephfs": {"monitors": ["m"]}},
        {"name": "b", "cinder": {"volumeID": "v"}},
        {"name": "c", "rbd": {"image": "i", "monitors": ["m"]}},
    ]}));
    assert!(dependencies(&upper).secrets.is_empty());
}

#[test]
fn liqo_1185_and_1571_clients_in_a_pod_ask_the_api_server_where_it_runs() {
    let volume = json!({"name": "kube-api-access-1", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    let lower =
        spec_by(&pod(json!({"serviceAccountName": "operator", "volumes": [volume]})), &Policy::default());
    // The admission below adds the volume for this account, and the kubelet there the address.
    assert_eq!((&lower["serviceAccountName"], &lower["volumes"]), (&json!("operator"), &Value::Null));
}

#[test]
fn liqo_1194_how_long_a_pod_waits_for_a_lost_node_is_the_users_word() {
    let waits =
        json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]);
    let lower = spec_by(&pod(json!({"tolerations": waits})), &Policy::default());
    assert_eq!(lower["tolerations"], waits);
}

#[test]
fn liqo_1494_a_pod_stays_on_the_nodes_that_the_virtual_node_stands_for() {
    let policy =
        Policy { node_selector: [("pool".to_owned(), "gpu".to_owned())].into(), ..Policy::default() };
    let mut upper = pod(json!({"nodeSelector": {"pool": "cpu"}}));
    assert_eq!(spec_by(&upper, &policy)["nodeSelector"], json!({"pool": "gpu"}));
    lower_annotation(&mut upper, &json!({"nodeSelector": {"pool": "cpu"}}));
    assert_eq!(spec_by(&upper, &policy)["nodeSelector"], json!({"pool": "gpu"}));
}

#[test]
fn admiralty_20_and_119_a_namespace_without_a_place_is_said_before_anything_is_made() {
    let why = refused(&pod(json!({})), &mapped(&[("data", "data")]));
    assert!(why.contains("namespace shop has no place") && why.contains("`namespaces`"), "{why}");
}

#[test]
fn admiralty_82_a_pod_may_be_for_a_scheduler_of_the_lower_cluster() {
    let mut upper = pod(json!({"schedulerName": "above"}));
    lower_annotation(&mut upper, &json!({"schedulerName": "kueue"}));
    assert_eq!(spec_by(&upper, &Policy::default())["schedulerName"], "kueue");
}

#[test]
fn admiralty_127_constraints_for_clusters_stay_above_and_those_for_nodes_hold_below() {
    let spread =
        |key: &str| json!([{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}]);
    let mut upper = pod(json!({
        "nodeSelector": {"clusterID": "c"}, "topologySpreadConstraints": spread("clusterID"),
    }));
    let said = json!({"nodeSelector": {"disk": "ssd"}, "topologySpreadConstraints": spread("zone")});
    lower_annotation(&mut upper, &said);
    let lower = spec_by(&upper, &Policy::default());
    assert_eq!(lower["nodeSelector"], said["nodeSelector"]);
    assert_eq!(lower["topologySpreadConstraints"], said["topologySpreadConstraints"]);
}

#[test]
fn k3k_162_pods_of_two_namespaces_never_have_one_place() {
    let policy = Policy { namespaces: NamespaceMapping::Suffix("-of-upper".to_owned()), ..Policy::default() };
    let places = ['a', 'b'].map(|last| {
        let mut upper = pod(json!({}));
        upper.metadata.namespace = Some(format!("{}{last}", "n".repeat(62)));
        below_by(&upper, &policy).metadata.namespace
    });
    assert_ne!(places[0], places[1]);
}
