use serde_json::{Value, json};

use super::*;
use crate::testing::{bound, cpu_pod, fit, node, pod, refusal, snapshot};

fn affinity(term: &Value) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [term]}}}}})
}

fn ported(name: &str, port: &Value) -> std::sync::Arc<k8s_openapi::api::core::v1::Pod> {
    pod(name, json!({"spec": {"containers": [{"name": "main", "ports": [port]}]}}))
}

#[test]
fn a_share_is_exact_for_small_and_large_amounts() {
    assert_eq!(share(1, 4), 250_000);
    assert_eq!(share(1 << 40, 1 << 41), 500_000);
    assert_eq!(share(i64::MAX / 4, i64::MAX), 249_999);
    assert_eq!((share(0, 0), share(1, 0), share(5, 4), share(-3, 4)), (0, MILLION, MILLION, 0));
}

#[test]
fn a_node_that_is_not_ready_takes_no_pods() {
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let snapshot = snapshot(&[node("a", unready), node("b", json!({"status": {"conditions": []}}))]);
    assert_eq!(refusal(&snapshot, &cpu_pod("p", "1")), "0 of 2 lower nodes (2 not ready)");
}

#[test]
fn a_cordoned_node_takes_only_pods_that_tolerate_it() {
    let snapshot = snapshot(&[node("a", json!({"spec": {"unschedulable": true}}))]);
    assert_eq!(refusal(&snapshot, &cpu_pod("p", "1")), "0 of 1 lower nodes (1 cordoned)");
    let tolerating = json!({"spec": {"tolerations": [
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]}});
    assert!(fit(&snapshot, &pod("p", tolerating)).fits());
}

#[test]
fn taints_keep_off_pods_that_do_not_tolerate_all_of_them() {
    let tainted = |effect: &str| {
        json!({"spec": {"taints": [{"key": "gpu", "value": "a", "effect": effect},
                                   {"key": "soft", "effect": "PreferNoSchedule"}]}})
    };
    let snapshot = snapshot(&[node("a", tainted("NoSchedule")), node("b", tainted("NoExecute"))]);
    assert_eq!(refusal(&snapshot, &cpu_pod("p", "1")), "0 of 2 lower nodes (2 taint gpu)");
    let one = json!({"spec": {"tolerations": [{"key": "gpu", "value": "a", "effect": "NoExecute"}]}});
    assert!(fit(&snapshot, &pod("p", one)).fits(), "one of the nodes");
    let other = json!({"spec": {"tolerations": [{"key": "gpu", "value": "b"}]}});
    assert!(!fit(&snapshot, &pod("p", other)).fits());
}

#[test]
fn every_operator_of_node_affinity_selects_nodes() {
    let labels = json!({"metadata": {"labels": {"zone": "a", "cores": "8"}}});
    let snapshot = snapshot(&[node("n1", labels)]);
    let by = |key: &str, operator: &str, values: &[&str]| {
        affinity(&json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
    };
    let by_name = |operator: &str, name: &str| {
        affinity(&json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}))
    };
    for (change, fits) in [
        (json!({"spec": {"nodeSelector": {"zone": "a"}}}), true),
        (json!({"spec": {"nodeSelector": {"zone": "b"}}}), false),
        (json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}}), true),
        (json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n2"}}}), false),
        (by("zone", "In", &["b", "a"]), true),
        (by("zone", "In", &["b"]), false),
        (by("zone", "NotIn", &["b"]), true),
        (by("rack", "NotIn", &["b"]), true),
        (by("zone", "NotIn", &["a"]), false),
        (by("zone", "Exists", &[]), true),
        (by("rack", "Exists", &[]), false),
        (by("rack", "DoesNotExist", &[]), true),
        (by("zone", "DoesNotExist", &[]), false),
        (by("cores", "Gt", &["7"]), true),
        (by("cores", "Gt", &["8"]), false),
        (by("cores", "Lt", &["9"]), true),
        (by("zone", "Lt", &["9"]), false),
        (by_name("In", "n1"), true),
        (by_name("In", "n2"), false),
        (by_name("NotIn", "n1"), false),
        (affinity(&json!({})), false),
    ] {
        assert_eq!(fit(&snapshot, &pod("p", change.clone())).fits(), fits, "{change}");
    }
}

#[test]
fn nodes_that_differ_only_in_their_host_name_are_told_apart() {
    let nodes: Vec<_> = (0..5).map(|index| node(&format!("n{index}"), json!({}))).collect();
    let snapshot = snapshot(&nodes);
    assert_eq!(snapshot.size().label_sets, 1);
    let there = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n3"}, "containers": [
        {"name": "main", "resources": {"requests": {"cpu": "1"}}}]}});
    let vk_provider::ability::Verdict::Fits { room, .. } = fit(&snapshot, &pod("p", there)) else {
        panic!("it fits on n3")
    };
    assert_eq!(room, 4);
}

#[test]
fn a_resource_that_is_short_is_named_and_lasts_only_if_the_node_is_too_small() {
    let mut snapshot = snapshot(&[node("a", json!({})), node("b", json!({}))]);
    snapshot.apply_pod(&bound(&cpu_pod("x", "3"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("y", "3"), "b"));
    let lasting = |cpu: &str| match fit(&snapshot, &cpu_pod("p", cpu)) {
        vk_provider::ability::Verdict::Refused { why, lasting } => Some((why[0].to_string(), lasting)),
        _ => None,
    };
    assert_eq!(lasting("1"), None);
    assert_eq!(lasting("2"), Some(("2 insufficient cpu".to_owned(), false)));
    assert_eq!(lasting("5"), Some(("2 insufficient cpu".to_owned(), true)));
}

#[test]
fn extended_resources_and_the_number_of_pods_count() {
    let gpus = json!({"status": {"allocatable": {"example.com/gpu": "2", "pods": "2"}}});
    let mut snapshot = snapshot(&[node("a", gpus)]);
    let gpu = |name: &str, count: &str| {
        let resources = json!({"requests": {"example.com/gpu": count}, "limits": {"example.com/gpu": count}});
        pod(name, json!({"spec": {"containers": [{"name": "main", "resources": resources}]}}))
    };
    assert!(fit(&snapshot, &gpu("p", "2")).fits());
    assert_eq!(refusal(&snapshot, &gpu("p", "3")), "0 of 1 lower nodes (1 insufficient example.com/gpu)");
    snapshot.apply_pod(&bound(&gpu("x", "1"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("y", "0"), "a"));
    assert_eq!(refusal(&snapshot, &cpu_pod("p", "0")), "0 of 1 lower nodes (1 too many pods)");
    snapshot.remove_pod("y");
    assert_eq!(refusal(&snapshot, &gpu("p", "2")), "0 of 1 lower nodes (1 insufficient example.com/gpu)");
    let other =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"x.io/y": "1"}}}]}});
    assert_eq!(refusal(&snapshot, &pod("p", other)), "0 of 1 lower nodes (1 insufficient x.io/y)");
}

#[test]
fn a_host_port_is_taken_on_its_address_or_on_all_of_them() {
    let mut snapshot = snapshot(&[node("a", json!({}))]);
    snapshot.apply_pod(&bound(
        &ported("x", &json!({"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"})),
        "a",
    ));
    for (port, fits) in [
        (json!({"containerPort": 1, "hostPort": 80}), false),
        (json!({"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"}), false),
        (json!({"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.2"}), true),
        (json!({"containerPort": 1, "hostPort": 80, "protocol": "UDP"}), true),
        (json!({"containerPort": 1, "hostPort": 81}), true),
        (json!({"containerPort": 80}), true),
    ] {
        assert_eq!(fit(&snapshot, &ported("p", &port)).fits(), fits, "{port}");
    }
    let taken = refusal(&snapshot, &ported("p", &json!({"containerPort": 1, "hostPort": 80})));
    assert_eq!(taken, "0 of 1 lower nodes (1 host port in use)");
}

#[test]
fn every_node_counts_once_and_the_largest_number_comes_first() {
    let tainted = json!({"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}});
    let small = json!({"status": {"allocatable": {"cpu": "1", "memory": "1Gi"}}});
    let nodes = [
        node("a", tainted),
        node("b", small.clone()),
        node("c", small),
        node(
            "d",
            json!({"spec": {"unschedulable": true, "taints": [{"key": "gpu", "effect": "NoSchedule"}]}}),
        ),
    ];
    let wants = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2", "memory": "2Gi"}}}]}});
    let text = refusal(&snapshot(&nodes), &pod("p", wants));
    assert_eq!(text, "0 of 4 lower nodes (2 insufficient cpu, 1 cordoned, 1 taint gpu)");
}

#[test]
fn the_volumes_of_bound_claims_choose_the_node() {
    let zone = |name: &str| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": name}}});
    let mut snapshot = snapshot(&[node("a", zone("z1")), node("b", zone("z2"))]);
    let claim = |phase: &str, modes: &[&str]| {
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "data"},
            "spec": {"volumeName": "pv", "accessModes": modes}, "status": {"phase": phase},
        }))
        .unwrap()
    };
    let volume = |spec: Value, labels: Value| {
        serde_json::from_value(json!({"metadata": {"name": "pv", "labels": labels}, "spec": spec})).unwrap()
    };
    let on = |name: &str| {
        json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}]}}})
    };
    let user = pod(
        "p",
        json!({"spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}}),
    );
    let there = |snapshot: &crate::Snapshot| fit(snapshot, &user).to_string();

    assert_eq!(there(&snapshot), "unknown: unbound claims");
    snapshot.apply_claim(&claim("Pending", &["ReadWriteOnce"]));
    assert_eq!(there(&snapshot), "unknown: unbound claims");
    snapshot.apply_claim(&claim("Bound", &["ReadWriteOnce"]));
    assert_eq!(there(&snapshot), "unknown: volumes that are not known");
    snapshot.apply_volume(&volume(on("a"), Value::Null));
    assert_eq!(there(&snapshot), "fits (room for 10, 10% full)");
    snapshot.apply_volume(&volume(on("c"), Value::Null));
    assert_eq!(there(&snapshot), "0 of 2 lower nodes (2 volume node affinity)");
    snapshot.apply_volume(&volume(json!({}), json!({"topology.kubernetes.io/zone": "z2__z3"})));
    assert_eq!(there(&snapshot), "fits (room for 10, 10% full)");
    snapshot.apply_volume(&volume(json!({}), json!({"failure-domain.beta.kubernetes.io/zone": "z4"})));
    assert_eq!(there(&snapshot), "0 of 2 lower nodes (2 volume node affinity)");
    snapshot.apply_volume(&volume(on("a"), Value::Null));
    snapshot.apply_claim(&claim("Bound", &["ReadWriteOncePod"]));
    assert_eq!(there(&snapshot), "unknown: a claim for a single pod");
    snapshot.remove_claim("team", "data");
    assert_eq!(there(&snapshot), "unknown: unbound claims");
}
