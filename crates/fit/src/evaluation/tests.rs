use serde_json::{Value, json};

use super::*;
use crate::testing::{bound, cpu_pod, fit, node, pod, snapshot};

fn three_nodes() -> Snapshot {
    snapshot(&["a", "b", "c"].map(|name| node(name, json!({}))))
}

fn shown(verdicts: &[Verdict]) -> Vec<String> {
    verdicts.iter().map(ToString::to_string).collect()
}

#[test]
fn room_is_how_many_like_it_fit_on_all_nodes() {
    let mut snapshot = three_nodes();
    assert_eq!(fit(&snapshot, &cpu_pod("p", "1500m")).to_string(), "fits (room for 6, 38% full)");
    snapshot.apply_pod(&bound(&cpu_pod("x", "1"), "a"));
    assert_eq!(fit(&snapshot, &cpu_pod("p", "1500m")).to_string(), "fits (room for 6, 38% full)");
    snapshot.apply_pod(&bound(&cpu_pod("y", "1500m"), "a"));
    assert_eq!(fit(&snapshot, &cpu_pod("p", "1500m")).to_string(), "fits (room for 5, 38% full)");
    let port =
        json!({"spec": {"containers": [{"name": "main", "ports": [{"containerPort": 1, "hostPort": 80}]}]}});
    assert_eq!(fit(&snapshot, &pod("p", port)).to_string(), "fits (room for 3, 10% full)");
}

#[test]
fn each_pod_is_evaluated_as_if_those_before_it_were_present() {
    let snapshot = three_nodes();
    let pods: Vec<_> = (0..5).map(|index| cpu_pod(&index.to_string(), "3")).collect();
    let verdicts = snapshot.fit(&Query { pods: &pods, ..Query::default() });
    let expected = [
        "fits (room for 3, 75% full)",
        "fits (room for 2, 75% full)",
        "fits (room for 1, 75% full)",
        "0 of 3 lower nodes (3 insufficient cpu)",
        "0 of 3 lower nodes (3 insufficient cpu)",
    ];
    assert_eq!(shown(&verdicts), expected);
}

#[test]
fn a_refused_pod_takes_no_room_from_those_after_it() {
    let snapshot = three_nodes();
    let pods = [cpu_pod("large", "5"), cpu_pod("small", "4"), cpu_pod("tiny", "1"), cpu_pod("last", "4")];
    let verdicts = snapshot.fit(&Query { pods: &pods, ..Query::default() });
    let fits: Vec<bool> = verdicts.iter().map(Verdict::fits).collect();
    assert_eq!(fits, [false, true, true, true]);
}

#[test]
fn held_pods_are_present_and_those_that_the_node_has_count_once() {
    let mut snapshot = three_nodes();
    let held = [cpu_pod("h1", "4"), cpu_pod("h2", "4")];
    let query = Query { held: &held, pods: &[cpu_pod("p", "1")], ..Query::default() };
    assert_eq!(shown(&snapshot.fit(&query)), ["fits (room for 4, 25% full)"]);
    snapshot.apply_pod(&bound(&held[0], "b"));
    snapshot.apply_pod(&held[1]);
    assert_eq!(shown(&snapshot.fit(&query)), ["fits (room for 4, 25% full)"]);
    snapshot.apply_pod(&cpu_pod("other", "4"));
    assert_eq!(shown(&snapshot.fit(&query)), ["0 of 3 lower nodes (3 insufficient cpu)"]);
}

#[test]
fn pods_to_be_without_leave_their_room() {
    let mut snapshot = three_nodes();
    for (uid, node) in [("x", "a"), ("y", "b"), ("z", "c")] {
        snapshot.apply_pod(&bound(&cpu_pod(uid, "4"), node));
    }
    snapshot.apply_pod(&cpu_pod("waits", "4"));
    let without = |uids: &[&str], cpu: &str| {
        let uids: Vec<Arc<str>> = uids.iter().map(|uid| (*uid).into()).collect();
        let query = Query { pods: &[cpu_pod("p", cpu)], without: &uids, ..Query::default() };
        snapshot.fit(&query).remove(0).fits()
    };
    assert!(!without(&[], "1"));
    assert!(!without(&["nobody"], "1"));
    assert!(!without(&["y"], "1"), "the waiting pod takes the room");
    assert!(without(&["y", "waits"], "4"));
    assert!(without(&["x", "y", "z"], "4"));
}

#[test]
fn many_equal_pods_spread_as_the_scheduler_spreads_them() {
    let snapshot = three_nodes();
    let held: Vec<_> = (0..6).map(|index| cpu_pod(&format!("h{index}"), "1")).collect();
    let query = Query { held: &held, pods: &[cpu_pod("p", "2")], ..Query::default() };
    assert_eq!(shown(&snapshot.fit(&query)), ["fits (room for 3, 100% full)"]);
    let query = Query { held: &held, pods: &[cpu_pod("p", "3")], ..Query::default() };
    assert_eq!(shown(&snapshot.fit(&query)), ["0 of 3 lower nodes (3 insufficient cpu)"]);
}

#[test]
fn only_the_nodes_of_the_question_count() {
    let zone = |name: &str, zone: &str| node(name, json!({"metadata": {"labels": {"zone": zone}}}));
    let snapshot = snapshot(&[zone("a", "1"), zone("b", "2"), zone("c", "2")]);
    let in_zone = |labels: LabelLookup<'_>| labels("zone") == Some("2");
    let query = Query { pods: &[cpu_pod("p", "4")], nodes: Some(&in_zone), ..Query::default() };
    assert_eq!(shown(&snapshot.fit(&query)), ["fits (room for 2, 100% full)"]);
    let host = |labels: LabelLookup<'_>| labels("kubernetes.io/hostname") == Some("c");
    let query = Query { pods: &[cpu_pod("p", "5")], nodes: Some(&host), ..Query::default() };
    assert_eq!(shown(&snapshot.fit(&query)), ["0 of 1 lower nodes (1 insufficient cpu)"]);
}

#[test]
fn what_is_not_modelled_is_unknown_and_never_a_fit() {
    let snapshot = three_nodes();
    let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}]});
    let spread = |when: &str| json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when}]});
    let table = [
        (json!({"affinity": {"podAffinity": terms}}), "unknown: required pod affinity"),
        (json!({"affinity": {"podAntiAffinity": terms}}), "unknown: required pod anti-affinity"),
        (spread("DoNotSchedule"), "unknown: hard topology spread"),
        (spread("ScheduleAnyway"), "fits (room for 30, 10% full)"),
        (
            json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}),
            "unknown: resource claims",
        ),
        (json!({"schedulerName": "volcano"}), "unknown: another scheduler"),
        (json!({"schedulerName": "default-scheduler"}), "fits (room for 30, 10% full)"),
        (json!({"volumes": [{"name": "v", "ephemeral": {}}]}), "unknown: unbound claims"),
        (json!({"volumes": [{"name": "v", "emptyDir": {}}]}), "fits (room for 30, 10% full)"),
        (
            json!({"volumes": [{"name": "v", "csi": {"driver": "x"}}]}),
            "unknown: volumes with attach rules of their own",
        ),
    ];
    for (spec, expected) in table {
        assert_eq!(fit(&snapshot, &pod("p", json!({"spec": spec}))).to_string(), expected, "{spec}");
    }
}

#[test]
fn a_refusal_stands_also_for_a_pod_with_rules_that_are_not_modelled() {
    let snapshot = three_nodes();
    let large = json!({
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "9"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
    });
    assert!(matches!(
        fit(&snapshot, &pod("p", json!({"spec": large}))),
        Verdict::Refused { lasting: true, .. }
    ));
}

#[test]
fn an_autoscaling_cluster_and_device_classes_leave_a_refusal_open() {
    let mut snapshot = three_nodes();
    snapshot.set_settings(Settings { autoscales: true, ..Settings::default() });
    assert_eq!(fit(&snapshot, &cpu_pod("p", "9")).to_string(), "unknown: an autoscaling cluster");
    assert!(fit(&snapshot, &cpu_pod("p", "1")).fits());
    let device_class_resources = ["example.com/gpu".to_owned()].into();
    snapshot.set_settings(Settings { autoscales: false, device_class_resources });
    let gpu: Value =
        json!({"containers": [{"name": "main", "resources": {"requests": {"example.com/gpu": "1"}}}]});
    assert_eq!(
        fit(&snapshot, &pod("p", json!({"spec": gpu}))).to_string(),
        "unknown: resources of a device class"
    );
}

#[test]
fn anti_affinity_of_pods_on_nodes_leaves_a_fit_open_for_the_pods_that_it_selects() {
    let mut snapshot = three_nodes();
    let lonely = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]}}}});
    let labelled = |namespace: &str, app: &str| {
        pod("p", json!({"metadata": {"namespace": namespace, "labels": {"app": app}}}))
    };
    let lonely = pod("x", lonely);
    for present in [Pod::clone(&lonely), bound(&lonely, "a")] {
        snapshot.apply_pod(&present);
        let open = fit(&snapshot, &labelled("team", "web")).to_string();
        assert_eq!(open, "unknown: required anti-affinity of other pods");
        assert!(fit(&snapshot, &labelled("team", "db")).fits());
        assert!(fit(&snapshot, &labelled("other", "web")).fits());
    }
    snapshot.remove_pod("x");
    assert!(fit(&snapshot, &labelled("team", "web")).fits());
}
