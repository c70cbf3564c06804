use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use self::{lower_cluster::Behaviour, world::World};
use super::*;
use crate::{
    choose::{Prefer, Preference},
    names, pod_state,
};

mod descheduler;
mod disturbances;
mod ended_members;
mod groups;
mod idle_capacity;
mod lower_cluster;
mod not_bound;
mod simulation;
mod stepped_machine;
mod tenants;
mod trial;
mod world;

const SECOND: Duration = Duration::from_secs(1);

fn gates(preference: Preference) -> Settings {
    let gates = GateSettings { preference, local: true, pin: false, trial: None };
    Settings { gates: Some(gates), ..Settings::default() }
}

fn trials(preference: Preference) -> Settings {
    let mut settings = gates(preference);
    settings.gates.as_mut().unwrap().trial = Some(30 * SECOND);
    settings
}

fn order(names: &[&str]) -> Settings {
    let order = names.iter().map(|name| (*name).to_owned()).collect();
    gates(Preference { order, ..Preference::default() })
}

fn world(settings: Settings) -> World {
    let mut world = World::new(1, settings);
    world.restart();
    world
}

/// Liqo 2712: three pods that fit on no machine wait, and one that does runs.
#[test]
fn pods_that_fit_on_no_lower_node_keep_no_small_pod_away() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    for name in ["big-0", "big-1", "big-2"] {
        world.create_pod(name, 5, json!({}));
    }
    world.create_pod("small", 3, json!({}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("small"), "vk-a");
    for name in ["big-0", "big-1", "big-2"] {
        assert_eq!(world.place(name), "0 of 1 nodes: vk-a: 0 of 4 lower nodes (4 insufficient cpu)");
        assert_eq!(pod_state::gating(world.pod(name)), pod_state::Gating::Ours);
    }
    let mut events: Vec<_> = world.events.iter().map(|(uid, reason, _)| (uid.as_str(), *reason)).collect();
    events.sort_unstable();
    let reason = "NoFeasibleNode";
    assert_eq!(events, [("big-0", reason), ("big-1", reason), ("big-2", reason)]);
}

#[test]
fn the_message_of_a_pod_changes_at_most_once_a_minute() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 2, 4);
    world.create_pod("big", 5, json!({}));
    world.run_for(5 * SECOND);
    let mut said = vec![(world.now, world.place("big"))];
    // What its node says changes every seven seconds.
    for step in 0..60 {
        world.set_behaviour("vk-a", if step % 2 == 0 { Behaviour::Fails } else { Behaviour::Honest });
        world.touch_node("vk-a");
        world.run_for(7 * SECOND);
        if world.place("big") != said[said.len() - 1].1 {
            said.push((world.now, world.place("big")));
        }
    }
    assert!(said.len() >= 3, "the message changes: {said:?}");
    for pair in said.windows(2) {
        assert!(pair[1].0.saturating_sub(pair[0].0) >= 53 * SECOND, "{pair:?}");
    }
    assert!(world.writes <= 8 && world.events.len() <= 8, "{} writes, {:?}", world.writes, world.events);
}

/// karmada 6783: a hundred pods of a whole lower node each, fifty free in each of two clusters.
#[test]
fn no_pod_of_a_burst_waits_in_a_lower_cluster() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 50, 4);
    world.add_virtual_node("vk-b", 50, 4);
    world.faults.delay = SECOND;
    for index in 0..110 {
        world.create_pod(&format!("pod-{index:03}"), 4, json!({}));
    }
    world.run_for(60 * SECOND);
    assert_eq!(world.waited_below, 0);
    let mut nodes: BTreeMap<String, u32> = BTreeMap::new();
    for uid in world.pods.keys() {
        let place = world.place(uid);
        *nodes.entry(place.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(
        nodes,
        BTreeMap::from([("vk-a".to_owned(), 50), ("vk-b".to_owned(), 50), ("0".to_owned(), 10)])
    );
}

/// Liqo 1353, Admiralty 201: the upper cluster's own nodes first, the rest bursts.
#[test]
fn with_local_first_virtual_nodes_get_the_overflow() {
    let mut world = world(order(&["local", "vk-a"]));
    world.add_local_node("machine", 4);
    world.add_virtual_node("vk-a", 10, 4);
    for name in ["a", "b", "c"] {
        world.create_pod(name, 2, json!({}));
    }
    world.run_for(5 * SECOND);
    assert_eq!(["a", "b", "c"].map(|name| world.place(name)), ["machine", "machine", "vk-a"]);
}

#[test]
fn with_local_off_a_pod_waits_for_a_virtual_node_although_a_machine_has_room() {
    let mut settings = gates(Preference::default());
    settings.gates.as_mut().unwrap().local = false;
    let mut world = world(settings);
    world.add_local_node("machine", 4);
    world.add_virtual_node("vk-a", 1, 2);
    world.create_pod("fits", 2, json!({}));
    world.create_pod("waits", 2, json!({}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("fits"), "vk-a");
    let place = world.place("waits");
    assert!(place.starts_with("0 of 1 nodes: vk-a: "), "{place}");
}

#[test]
fn a_pod_that_was_converted_does_not_go_to_a_machine_of_the_upper_cluster() {
    let mut world = world(order(&["local"]));
    world.add_local_node("machine", 4);
    let anti_affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": names::MACHINE, "labelSelector": {"matchLabels": {"app": "x"}}},
    ]}});
    world.create_pod("a", 1, json!({"metadata": {"annotations": {names::LOWER_NODES: "disk=ssd"}}}));
    world.create_pod("b", 1, json!({"spec": {"affinity": anti_affinity}}));
    world.create_pod("c", 1, json!({}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("a"), "0 of 1 nodes: local: the pod was converted for virtual nodes");
    assert_eq!(world.place("b"), world.place("a"));
    assert_eq!(world.place("c"), "machine");
}

#[test]
fn a_pod_waits_until_all_other_gates_are_gone() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 1, 4);
    let gate = json!([{"name": names::GATE}, {"name": "kueue.x-k8s.io/admission"}]);
    world.create_pod("a", 1, json!({"spec": {"schedulingGates": gate}}));
    world.run_for(120 * SECOND);
    assert_eq!((world.writes, world.queries(), world.place("a")), (0, 0, String::new()));
    let mut pod = world.pod("a").clone();
    pod.spec.as_mut().unwrap().scheduling_gates.as_mut().unwrap().pop();
    world.pods.remove("a");
    world.create_pod("a", 1, json!({}));
    world.run_for(SECOND);
    assert_eq!(world.place("a"), "vk-a");
}

#[test]
fn pods_with_a_higher_priority_and_older_pods_get_the_room_first() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 1, 2);
    world.create_pod("first", 2, json!({}));
    world.run_for(2 * SECOND);
    for (name, priority) in [("old", 0), ("new", 0), ("important", 10)] {
        world.create_pod(name, 2, json!({"spec": {"priority": priority}}));
        world.run_for(2 * SECOND);
    }
    for expected in ["important", "old", "new"] {
        let running: Vec<String> =
            world.pods.keys().filter(|uid| world.place(uid) == "vk-a").cloned().collect();
        world.delete_pod(&running[0]);
        world.run_for(5 * SECOND);
        assert_eq!(world.place(expected), "vk-a");
    }
}

#[test]
fn a_node_that_hangs_delays_others_by_half_a_second_and_gets_pods_again_when_it_answers() {
    let mut world = world(order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 10, 4);
    world.add_virtual_node("vk-b", 1, 4);
    world.set_behaviour("vk-a", Behaviour::Hangs);
    world.create_pod("a", 3, json!({}));
    world.run_for(Duration::from_millis(600));
    assert_eq!(world.place("a"), "vk-b");
    world.create_pod("b", 3, json!({"metadata": {"labels": {"another": "shape"}}}));
    world.run_for(Duration::from_millis(50));
    let why = "0 of 2 nodes: vk-a: not asked: no answer yet; vk-b: insufficient cpu";
    assert_eq!(world.place("b"), why);
    world.set_behaviour("vk-a", Behaviour::Honest);
    world.run_for(12 * SECOND);
    assert_eq!(world.place("b"), "vk-a");
}

#[test]
fn a_node_that_fails_is_not_asked_for_every_pod() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 10, 4);
    world.set_behaviour("vk-a", Behaviour::Fails);
    for index in 0..100 {
        world.create_pod(
            &format!("pod-{index}"),
            1,
            json!({"metadata": {"labels": {"index": index.to_string()}}}),
        );
        world.run_for(SECOND / 10);
    }
    assert!(world.queries() <= 10, "{}", world.queries());
    world.set_behaviour("vk-a", Behaviour::Honest);
    world.run_for(12 * SECOND);
    let waiting = world.pods.keys().filter(|uid| world.place(uid) != "vk-a").count();
    assert_eq!(waiting, 100 - 40);
}

#[test]
fn nodes_that_cannot_tell_come_after_those_with_room() {
    let mut world = world(order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 10, 4);
    world.add_virtual_node("vk-b", 1, 4);
    world.set_behaviour("vk-a", Behaviour::Unsure);
    for name in ["a", "b", "c"] {
        world.create_pod(name, 3, json!({}));
    }
    world.run_for(5 * SECOND);
    assert_eq!(["a", "b", "c"].map(|name| world.place(name)), ["vk-b", "vk-a", "vk-a"]);
}

#[test]
fn packing_and_spreading_use_the_fullest_and_the_emptiest_node() {
    for (prefer, expected) in
        [(Prefer::Spread, ["vk-a", "vk-b", "vk-a"]), (Prefer::Pack, ["vk-a", "vk-a", "vk-a"])]
    {
        let mut world = world(gates(Preference { prefer, ..Preference::default() }));
        world.add_virtual_node("vk-a", 4, 8);
        world.add_virtual_node("vk-b", 4, 8);
        for name in ["a", "b", "c"] {
            world.create_pod(name, 2, json!({}));
        }
        world.run_for(5 * SECOND);
        assert_eq!(["a", "b", "c"].map(|name| world.place(name)), expected, "{prefer:?}");
    }
}

#[test]
fn many_equal_pods_are_one_question() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 100, 8);
    for index in 0..400 {
        world.create_pod(&format!("pod-{index:03}"), 1, json!({}));
        if index % 10 == 0 {
            world.run_for(Duration::from_millis(2));
        }
    }
    world.run_for(SECOND / 2);
    assert_eq!(world.queries(), 1);
    assert!(world.pods.keys().all(|uid| world.place(uid) == "vk-a"));
    assert_eq!(world.writes, 2 * 400);
}

#[test]
fn thousands_of_waiting_pods_cost_few_questions_and_no_writes_while_nothing_changes() {
    let mut world = world(gates(Preference::default()));
    for node in 0..10 {
        world.add_virtual_node(&format!("vk-{node}"), 4, 4);
    }
    for index in 0..1000 {
        let shape = (index % 20).to_string();
        world.create_pod(&format!("pod-{index}"), 5, json!({"metadata": {"labels": {"shape": shape}}}));
    }
    world.run_for(120 * SECOND);
    assert_eq!(world.writes, 1000, "each pod says why it waits");
    let queries = world.queries();
    for _ in 0..60 {
        world.touch_node("vk-3");
        world.run_for(SECOND);
    }
    let rate = (world.queries() - queries) / 60;
    assert!(rate <= 25, "{rate} questions a second");
    assert_eq!(world.writes, 1000);
}

/// A controller whose pods do not fit together with what kube-scheduler knows.
#[test]
fn a_pod_that_is_not_bound_in_time_is_evicted_unless_a_job_would_count_it() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    world.faults.unbound = 1.0;
    let owner = |api: &str, kind: &str| json!([{"apiVersion": api, "kind": kind, "name": "o", "uid": kind, "controller": true}]);
    world.create_pod("replica", 1, json!({}));
    world.create_pod("job", 1, json!({"metadata": {"ownerReferences": owner("batch/v1", "Job")}}));
    let workflow = owner("argoproj.io/v1alpha1", "Workflow");
    world.create_pod("other", 1, json!({"metadata": {"ownerReferences": workflow}}));
    world.create_pod("bare", 1, json!({"metadata": {"ownerReferences": null}}));
    world.run_for(59 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    world.run_for(5 * SECOND);
    assert_eq!(world.evicted, ["replica"]);
    world.run_for(200 * SECOND);
    assert_eq!(world.evicted, ["replica"]);
    let mut messages: Vec<_> =
        world.events.iter().map(|(uid, reason, message)| format!("{uid} {reason}: {message}")).collect();
    messages.sort();
    let said = "not bound within 60 s after it was placed on vk-a: 0/1 nodes are available";
    assert_eq!(
        messages,
        [
            format!(
                "bare NotBound: {said}; it stays, because it has no controller that would create another one"
            ),
            format!("job NotBound: {said}; it stays, because its Job would count an eviction as a failure"),
            format!(
                "other NotBound: {said}; it stays, because its controller Workflow may count an eviction as a failure; the \
                 annotation multicluster.virtual-kubelet.io/deschedule: \"true\" permits it"
            ),
            format!("replica NotBound: {said}; evicting it"),
        ]
    );
}

#[test]
fn a_pod_that_lost_its_gate_before_a_crash_is_looked_after_by_the_next_process() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    world.faults.unbound = 1.0;
    world.create_pod("replica", 1, json!({}));
    world.run_for(40 * SECOND);
    world.restart();
    world.run_for(18 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    world.run_for(5 * SECOND);
    assert_eq!(world.evicted, ["replica"], "a minute after it lost its gate");
}

#[test]
fn before_nominations_bind_the_scheduler_a_pod_gets_a_node_selector_with_the_patch_that_removes_its_gate() {
    let mut settings = gates(Preference::default());
    settings.gates.as_mut().unwrap().pin = true;
    let mut world = world(settings);
    world.add_virtual_node("vk-a", 4, 4);
    world.create_pod("a", 1, json!({}));
    world.run_for(SECOND);
    let selector = world.pod("a").spec.as_ref().unwrap().node_selector.clone().unwrap();
    assert_eq!(selector, BTreeMap::from([(names::HOSTNAME.to_owned(), "vk-a".to_owned())]));
    assert_eq!(world.place("a"), "vk-a");
}

#[test]
fn pods_without_our_gate_are_left_alone() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    world.create_pod("theirs", 1, json!({"spec": {"schedulingGates": [{"name": "example.com/gate"}]}}));
    world.create_pod("open", 1, json!({"spec": {"schedulingGates": null}}));
    world.run_for(200 * SECOND);
    assert_eq!((world.writes, world.queries()), (0, 0));
}
