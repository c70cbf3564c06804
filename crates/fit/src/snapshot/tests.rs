use serde_json::json;

use super::*;
use crate::{
    Query,
    testing::{bound, cpu_pod, fit, node, pod, refusal, snapshot},
};

mod property;

#[test]
fn nodes_and_pods_come_in_any_order() {
    let mut snapshot = Snapshot::default();
    snapshot.apply_pod(&bound(&cpu_pod("x", "3"), "a"));
    assert_eq!(fit(&snapshot, &cpu_pod("p", "1")).to_string(), "no nodes");
    snapshot.apply_node(&node("a", json!({})));
    assert!(fit(&snapshot, &cpu_pod("p", "1")).fits());
    assert_eq!(refusal(&snapshot, &cpu_pod("p", "2")), "0 of 1 lower nodes (1 insufficient cpu)");
    snapshot.remove_node("a");
    snapshot.apply_node(&node("a", json!({})));
    assert!(!fit(&snapshot, &cpu_pod("p", "2")).fits(), "its pod is still there");
    snapshot.remove_pod("x");
    assert!(fit(&snapshot, &cpu_pod("p", "4")).fits());
}

#[test]
fn a_pod_that_has_ended_uses_nothing() {
    let mut snapshot = snapshot(&[node("a", json!({}))]);
    let running = bound(&cpu_pod("x", "4"), "a");
    snapshot.apply_pod(&running);
    assert!(!fit(&snapshot, &cpu_pod("p", "1")).fits());
    let mut ended = running;
    ended.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
    snapshot.apply_pod(&ended);
    assert!(fit(&snapshot, &cpu_pod("p", "4")).fits());
    assert_eq!(snapshot.size().pods, 0);
}

#[test]
fn a_pod_that_is_not_scheduled_yet_counts_and_a_gated_one_does_not() {
    let mut snapshot = snapshot(&[node("a", json!({})), node("b", json!({}))]);
    snapshot.apply_pod(&cpu_pod("x", "3"));
    let both = [cpu_pod("p", "4"), cpu_pod("q", "4")];
    let fits = |snapshot: &Snapshot| {
        let verdicts = snapshot.fit(&Query { pods: &both, ..Query::default() });
        verdicts.iter().filter(|verdict| verdict.fits()).count()
    };
    assert_eq!(fits(&snapshot), 1);
    snapshot.apply_pod(&bound(&cpu_pod("x", "3"), "b"));
    assert_eq!((fits(&snapshot), snapshot.size().waiting), (1, 0));
    snapshot.remove_pod("x");
    snapshot.apply_pod(&pod("g", json!({"spec": {"schedulingGates": [{"name": "later"}]}})));
    assert_eq!((fits(&snapshot), snapshot.size().waiting), (2, 0));
}

#[test]
fn pods_that_change_their_size_or_node_are_counted_anew() {
    let mut snapshot = snapshot(&[node("a", json!({})), node("b", json!({}))]);
    snapshot.apply_pod(&bound(&cpu_pod("x", "1"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("x", "3"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("x", "3"), "a"));
    assert_eq!(snapshot.size(), Size { nodes: 2, pods: 1, waiting: 0, shapes: 1, label_sets: 1 });
    let only_a = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "a"}, "containers": [
        {"name": "main", "resources": {"requests": {"cpu": "2"}}}]}});
    assert!(!fit(&snapshot, &pod("p", only_a.clone())).fits());
    snapshot.apply_pod(&bound(&cpu_pod("x", "3"), "b"));
    assert!(fit(&snapshot, &pod("p", only_a)).fits());
    assert_eq!(snapshot.repair(), 0);
}

#[test]
fn equal_pods_share_a_shape_and_equal_nodes_their_labels() {
    let mut snapshot = Snapshot::default();
    for index in 0..50 {
        snapshot.apply_node(&node(&format!("n{index}"), json!({"metadata": {"labels": {"zone": "a"}}})));
        snapshot.apply_pod(&bound(&cpu_pod(&format!("p{index}"), "1"), &format!("n{index}")));
    }
    let size = snapshot.size();
    assert_eq!((size.shapes, size.label_sets, size.pods), (1, 1, 50));
    for index in 0..50 {
        snapshot.remove_node(&format!("n{index}"));
        snapshot.remove_pod(&format!("p{index}"));
    }
    assert_eq!(snapshot.size(), Size::default());
    snapshot.apply_node(&node("again", json!({})));
    assert_eq!(snapshot.nodes.len(), 50, "slots are used again");
}

#[test]
fn a_wrong_sum_is_found_counted_and_repaired() {
    let mut snapshot = snapshot(&[node("a", json!({})), node("b", json!({}))]);
    snapshot.apply_pod(&bound(&cpu_pod("x", "1"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("y", "2"), "b"));
    assert_eq!(snapshot.repair(), 0);
    let shape = snapshot.pods[&Uid::from("x")].shape;
    let usage = &mut snapshot.nodes[0].usage;
    usage.add(snapshot.shapes.get(shape));
    snapshot.shapes.set_users(shape, 7);
    assert_eq!(snapshot.repair(), 2);
    assert_eq!(snapshot.repair(), 0);
    assert!(fit(&snapshot, &cpu_pod("p", "3")).fits());
}

#[test]
fn the_usage_of_some_pods_is_told_apart_from_that_of_all_others() {
    let mut snapshot = snapshot(&[node("a", json!({})), node("b", json!({}))]);
    snapshot.apply_pod(&bound(&cpu_pod("mine", "1"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("theirs", "2"), "a"));
    snapshot.apply_pod(&bound(&cpu_pod("huge", "9E"), "b"));
    snapshot.apply_pod(&bound(&cpu_pod("vast", "9E"), "b"));
    snapshot.apply_pod(&cpu_pod("waits", "1"));
    let usage = snapshot.usage(["mine", "huge", "waits", "nobody"]);
    let amounts = |list: &ResourceList| (list["cpu"].to_string(), list["pods"].to_string());
    assert_eq!(amounts(&usage["a"].own), ("1".to_owned(), "1".to_owned()));
    assert_eq!(amounts(&usage["a"].others), ("2".to_owned(), "1".to_owned()));
    assert_eq!(usage["b"].own, usage["b"].others, "however much it is");
}

#[test]
fn made_up_resources_are_forgotten_with_their_pods() {
    let mut snapshot = snapshot(&[node("a", json!({"status": {"allocatable": {"example.com/gpu": "1"}}}))]);
    let known = snapshot.names.len();
    for number in 0..50 {
        let requests = json!({"requests": {format!("example.com/made-up-{number}"): "1"}});
        let change = json!({"spec": {"containers": [{"name": "main", "resources": requests}]}});
        let pod = pod(&format!("p{number}"), change);
        let on_node = bound(&pod, "a");
        snapshot.apply_pod(if number % 2 == 0 { &pod } else { &on_node });
    }
    assert_eq!((snapshot.repair(), snapshot.names.len()), (0, known + 50));
    for number in 0..50 {
        snapshot.remove_pod(&format!("p{number}"));
    }
    assert_eq!((snapshot.repair(), snapshot.names.len()), (0, known));
    let gpu = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"example.com/gpu": "1"}}}]}});
    assert!(fit(&snapshot, &pod("p", gpu)).fits());
}
