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
fn one_node_alone_answers_as_if_there_were_no_other() {
    let mut snapshot = three_nodes();
    snapshot.apply_pod(&bound(&cpu_pod("x", "2"), "b"));
    let pods = [cpu_pod("p", "1"), cpu_pod("q", "1"), cpu_pod("r", "1")];
    let full = "0 of 1 lower nodes (1 insufficient cpu)";
    let expected = ["fits (room for 2, 75% full)", "fits (room for 1, 100% full)", full];
    assert_eq!(shown(&snapshot.fit_on("b", &pods)), expected);
    assert_eq!(shown(&snapshot.fit_on("a", &pods[..1])), ["fits (room for 4, 25% full)"]);
    for name in ["a", "b", "c"] {
        let is_it = |labels: LabelLookup<'_>| labels("kubernetes.io/hostname") == Some(name);
        let query = Query { pods: &pods, nodes: Some(&is_it), ..Query::default() };
        assert_eq!(snapshot.fit_on(name, &pods), snapshot.fit(&query));
    }
    assert_eq!(shown(&snapshot.fit_on("none", &pods[..1])), ["no nodes"]);
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
        let gone: Vec<Arc<Pod>> = uids.iter().map(|uid| cpu_pod(uid, "4")).collect();
        let query = Query { pods: &[cpu_pod("p", cpu)], without: &gone, ..Query::default() };
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
    snapshot.settings.autoscales = true;
    assert_eq!(fit(&snapshot, &cpu_pod("p", "9")).to_string(), "unknown: an autoscaling cluster");
    assert!(fit(&snapshot, &cpu_pod("p", "1")).fits());
    let device_class_resources = ["example.com/gpu".to_owned()].into();
    snapshot.settings.autoscales = false;
    snapshot.set_device_class_resources(device_class_resources);
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

#[test]
fn quotas_of_the_namespace_count_as_the_api_server_counts_them() {
    let mut snapshot = three_nodes();
    let quota = json!({"metadata": {"namespace": "team", "name": "cpu"}, "spec": {"hard": {"cpu": "7"}},
        "status": {"hard": {"cpu": "7"}, "used": {"cpu": "1"}}});
    snapshot.apply_quota(&serde_json::from_value(quota).unwrap());
    let pods = [cpu_pod("p", "3"), cpu_pod("q", "4"), cpu_pod("r", "3"), cpu_pod("s", "1")];
    let verdicts = shown(&snapshot.fit(&Query { pods: &pods, ..Query::default() }));
    let expected = [
        "fits (room for 2, 75% full)",
        "quota \"cpu\" has 3 of 7 cpu left",
        "fits (room for 1, 75% full)",
        "quota \"cpu\" has 0 of 7 cpu left",
    ];
    assert_eq!(verdicts, expected, "a refused pod takes nothing of the quota");
    let elsewhere = pod("p", json!({"metadata": {"namespace": "other"}}));
    assert!(fit(&snapshot, &elsewhere).fits());
    snapshot.remove_quota("team", "cpu");
    assert!(fit(&snapshot, &cpu_pod("p", "4")).fits());
}

#[test]
fn the_best_nodes_are_the_emptiest_and_then_those_that_lack_the_least() {
    let mut snapshot = three_nodes();
    snapshot.apply_node(&node("small", json!({"status": {"allocatable": {"cpu": "1"}}})));
    snapshot.apply_node(&node("cordoned", json!({"spec": {"unschedulable": true}})));
    snapshot.apply_pod(&bound(&cpu_pod("x", "2"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("y", "3"), "b"));
    let best = |cpu: &str, count: usize| -> Vec<(String, String)> {
        let nodes = snapshot.best_nodes(&Query::default(), &cpu_pod("p", cpu), count);
        nodes.into_iter().map(|node| (node.name, node.free["cpu"].to_string())).collect()
    };
    let on = |name: &str, free: &str| (name.to_owned(), free.to_owned());
    assert_eq!(best("2", 2), [on("c", "4"), on("a", "2")]);
    assert_eq!(best("2", 3)[2].1, "1", "then one that lacks half of it");
    assert_eq!(best("5", 9).len(), 4, "no cordoned node has room");
    assert_eq!(best("5", 1), [on("c", "4")]);
}

#[test]
fn pods_that_kube_scheduler_will_not_place_take_no_room() {
    let mut snapshot = snapshot(&[node("a", json!({}))]);
    let requests = json!([{"name": "main", "resources": {"requests": {"cpu": "4"}}}]);
    snapshot.apply_pod(&pod("x", json!({"spec": {"schedulerName": "nobody", "containers": requests}})));
    let deleted =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": requests}});
    snapshot.apply_pod(&pod("y", deleted));
    assert!(fit(&snapshot, &cpu_pod("p", "4")).fits());
    snapshot.apply_pod(&pod("z", json!({"spec": {"containers": requests}})));
    assert!(!fit(&snapshot, &cpu_pod("p", "1")).fits(), "but this one it will");
}

#[test]
fn a_pod_that_may_wait_for_ever_makes_the_room_that_it_would_take_unknown() {
    let mut snapshot = snapshot(&[node("a", json!({}))]);
    let waits = |cpu: &str| {
        json!({"spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "unbound"}}],
        }})
    };
    snapshot.apply_pod(&pod("x", waits("3")));
    assert!(fit(&snapshot, &cpu_pod("p", "1")).fits());
    let unknown = "unknown: pods that wait for a node and may take the room";
    assert_eq!(fit(&snapshot, &cpu_pod("p", "2")).to_string(), unknown);
    let verdict = fit(&snapshot, &cpu_pod("p", "5"));
    assert_eq!(verdict.to_string(), "0 of 1 lower nodes (1 insufficient cpu)", "refused in any case");
}

#[test]
fn any_number_of_different_pods_that_wait_is_bounded() {
    let mut snapshot = snapshot(&[node("a", json!({"status": {"allocatable": {"pods": "100"}}}))]);
    for number in 1..=MAX_WAITING_KINDS {
        snapshot.apply_pod(&cpu_pod(&format!("x{number}"), &format!("{number}m")));
    }
    assert!(fit(&snapshot, &cpu_pod("p", "1")).fits());
    snapshot.apply_pod(&cpu_pod("more", "900m"));
    let unknown = "unknown: too many different pods that wait for a node";
    assert_eq!(fit(&snapshot, &cpu_pod("p", "1")).to_string(), unknown);
    assert!(matches!(fit(&snapshot, &cpu_pod("p", "5")), Verdict::Refused { .. }));
}

#[test]
fn pods_of_too_many_kinds_are_unknown() {
    let large = json!({"status": {"allocatable": {"cpu": "1000", "pods": "10000"}}});
    let snapshot = snapshot(&[node("a", large)]);
    let kinds = |count: usize| -> Vec<Arc<Pod>> {
        (1..=count).map(|number| cpu_pod(&format!("k{number}"), &format!("{number}m"))).collect()
    };
    let evaluate = |held: &[Arc<Pod>], pods: &[Arc<Pod>]| {
        snapshot.fit(&Query { held, pods, ..Query::default() }).pop().unwrap()
    };
    let unknown = Verdict::unknown("pods of too many kinds in one question");
    let (all, more) = (kinds(MAX_KINDS), kinds(MAX_KINDS + 1));
    assert!(evaluate(&all[1..], &[cpu_pod("p", "1")]).fits());
    assert!(evaluate(&[], &all).fits());
    assert_eq!(evaluate(&all, &[cpu_pod("p", "1")]), unknown, "there is no space for another one");
    assert_eq!(evaluate(&[], &more), unknown);
    let known = cpu_pod("p", "1m");
    assert_eq!(evaluate(&more, std::slice::from_ref(&known)), unknown, "a held pod may take the room");
    let large = cpu_pod("p", "1001");
    assert!(matches!(
        evaluate(&[&[Arc::clone(&large)], &more[..]].concat(), &[large]),
        Verdict::Refused { .. }
    ));
}

#[test]
fn names_of_resources_that_only_a_query_has_are_not_confused_with_others() {
    let gpu = json!({"status": {"allocatable": {"example.com/gpu": "2"}}});
    let mut snapshot = snapshot(&[node("a", gpu)]);
    let requesting = |name: &str, resource: &str| {
        let requests = json!({"requests": {resource: "1"}});
        pod(name, json!({"spec": {"containers": [{"name": "main", "resources": requests}]}}))
    };
    // Its name is given up again, and its id is free.
    snapshot.apply_pod(&bound(&requesting("gone", "example.com/gone"), "a"));
    snapshot.remove_pod("gone");
    snapshot.repair();
    let pods = ["example.com/x", "example.com/gpu", "example.com/y", "example.com/x", "example.com/gpu"]
        .map(|resource| requesting("p", resource));
    let verdicts = shown(&snapshot.fit(&Query {
        held: &[requesting("h", "example.com/z")],
        pods: &pods,
        ..Query::default()
    }));
    let expected = [
        "0 of 1 lower nodes (1 insufficient example.com/x)",
        "fits (room for 2, 50% full)",
        "0 of 1 lower nodes (1 insufficient example.com/y)",
        "0 of 1 lower nodes (1 insufficient example.com/x)",
        "fits (room for 1, 100% full)",
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn a_pod_for_which_room_is_being_made_will_take_it() {
    let mut snapshot = snapshot(&[node("a", json!({})), node("b", json!({}))]);
    snapshot.apply_pod(&bound(&cpu_pod("victim", "4"), "a"));
    let preempts = json!({
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]},
        "status": {"nominatedNodeName": "a"},
    });
    snapshot.apply_pod(&pod("x", preempts));
    assert!(fit(&snapshot, &cpu_pod("p", "4")).fits(), "b is left");
    snapshot.remove_pod("victim");
    let both = [cpu_pod("p", "4"), cpu_pod("q", "4")];
    let verdicts = snapshot.fit(&Query { pods: &both, ..Query::default() });
    assert_eq!(verdicts.iter().filter(|verdict| verdict.fits()).count(), 1);
}

#[test]
fn an_update_that_only_says_that_a_node_is_alive_costs_nothing() {
    let mut snapshot = three_nodes();
    snapshot.apply_pod(&cpu_pod("waits", "1"));
    fit(&snapshot, &cpu_pod("p", "1"));
    snapshot.apply_node(&node(
        "a",
        json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}}),
    ));
    assert!(snapshot.has_waiting_placements(), "they are not computed again");
    snapshot.apply_node(&node("a", json!({"spec": {"unschedulable": true}})));
    assert!(!snapshot.has_waiting_placements());
}
