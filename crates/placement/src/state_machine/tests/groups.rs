//! Groups of pods, which go to one node together or not at all.

use std::time::Duration;

use serde_json::json;
use vk_provider::placement::trial_node;

use super::{Preference, SECOND, gates, lower_cluster::Behaviour, order, trials, world, world::World};
use crate::{names, pod_state, state_machine::Settings};

const MEMBERS: [&str; 3] = ["train-0", "train-1", "train-2"];

fn trial_order(names: &[&str]) -> Settings {
    let mut settings = order(names);
    settings.gates.as_mut().unwrap().trial = Some(30 * SECOND);
    settings
}

fn create(world: &mut World, cpus: i64) {
    for name in MEMBERS {
        world.create_member(name, cpus, "train", 3, json!({}));
    }
}

fn places(world: &World) -> [String; 3] {
    MEMBERS.map(|name| world.place(name))
}

fn gated(world: &World) -> usize {
    let pods = world.pods.values();
    pods.filter(|pod| pod_state::gating(pod) == pod_state::Gating::Ours).count()
}

#[test]
fn a_group_goes_to_the_node_that_has_room_for_all_of_it_by_estimate_and_by_trial() {
    for settings in [order(&["vk-a", "vk-b"]), trial_order(&["vk-a", "vk-b"])] {
        let is_trial = settings.gates.as_ref().unwrap().trial.is_some();
        let mut world = world(settings);
        world.add_virtual_node("vk-a", 2, 4);
        world.add_virtual_node("vk-b", 3, 4);
        create(&mut world, 3);
        world.run_for(2 * SECOND);
        assert_eq!(places(&world), ["vk-b", "vk-b", "vk-b"]);
        assert_eq!(world.trials, if is_trial { 3 } else { 0 });
        for name in MEMBERS {
            let selector = world.pod(name).spec.as_ref().unwrap().node_selector.clone().unwrap();
            assert_eq!(selector[names::HOSTNAME], "vk-b", "a nomination does not bind kube-scheduler");
        }
        assert_eq!(world.writes, if is_trial { 9 } else { 6 });
    }
}

#[test]
fn a_group_is_one_question_for_each_node() {
    let mut world = world(gates(Preference::default()));
    for name in ["vk-a", "vk-b"] {
        world.add_virtual_node(name, 2, 5);
    }
    create(&mut world, 3);
    world.run_for(60 * SECOND);
    assert_eq!((gated(&world), world.queries()), (3, 2));
}

#[test]
fn a_group_that_fits_nowhere_leaves_everything_gated_and_runs_as_soon_as_there_is_room() {
    for settings in [gates(Preference::default()), trials(Preference::default())] {
        let mut world = world(settings);
        world.add_virtual_node("vk-a", 2, 5);
        world.add_virtual_node("vk-b", 2, 4);
        create(&mut world, 3);
        world.run_for(2 * SECOND);
        let why = "room for 2 of 3 pods; 0 of 2 lower nodes (2 insufficient cpu)";
        let expected = format!(
            "the 3 pods of group train go to one node together: 0 of 2 nodes: vk-a: {why}; vk-b: room for 2 of 3 pods; insufficient cpu"
        );
        assert_eq!(places(&world), [&*expected, &*expected, &*expected]);
        assert_eq!((world.trials, world.lower["vk-a"].runs("train-0")), (0, false));
        let events: Vec<_> = world.events.iter().map(|(_, reason, _)| *reason).collect();
        assert_eq!(events, ["NoFeasibleNode"; 3]);
        world.create_pod("small", 3, json!({}));
        world.run_for(2 * SECOND);
        assert!(world.place("small").starts_with("vk-"), "a group that waits keeps no pod away");
        world.add_virtual_node("vk-c", 3, 4);
        world.run_for(2 * SECOND);
        assert_eq!(places(&world), ["vk-c", "vk-c", "vk-c"]);
    }
}

#[test]
fn the_lower_nodes_decide_and_not_their_sum() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 3);
    world.create_pod("other", 2, json!({}));
    world.create_pod("another", 2, json!({}));
    world.run_for(2 * SECOND);
    create(&mut world, 2);
    world.run_for(2 * SECOND);
    assert_eq!(gated(&world), 3, "8 CPUs are free in sum, and two lower nodes have room for one pod each");
    world.delete_pod("other");
    world.run_for(2 * SECOND);
    assert_eq!(places(&world), ["vk-a", "vk-a", "vk-a"]);
}

#[test]
fn pods_of_a_group_may_differ_and_are_counted_one_after_the_other() {
    let mut world = world(order(&["vk-a", "vk-b"]));
    // The leader and two workers: each fits by itself, and so do any two.
    world.add_virtual_node("vk-a", 2, 4);
    world.add_virtual_node("vk-b", 2, 5);
    world.create_member("train-0", 1, "train", 3, json!({"metadata": {"labels": {"role": "leader"}}}));
    for name in ["train-1", "train-2"] {
        world.create_member(name, 4, "train", 3, json!({}));
    }
    world.run_for(2 * SECOND);
    assert_eq!(places(&world), ["vk-b", "vk-b", "vk-b"]);
}

#[test]
fn a_group_waits_until_all_its_pods_exist() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    for name in &MEMBERS[..2] {
        world.create_member(name, 1, "train", 3, json!({}));
    }
    world.run_for(4 * SECOND);
    assert_eq!((world.writes, world.queries()), (0, 0), "others may come soon");
    world.run_for(4 * SECOND);
    let said = "2 of 3 pods of group train exist without other scheduling gates";
    assert_eq!(world.place("train-0"), said);
    assert_eq!(
        pod_state::condition(world.pod("train-0"), names::PLACED).unwrap().reason.as_deref(),
        Some("GroupIncomplete")
    );
    world.run_for(300 * SECOND);
    assert_eq!((world.writes, world.queries(), gated(&world)), (2, 0, 2));
    world.create_member("train-2", 1, "train", 3, json!({}));
    world.run_for(SECOND);
    assert_eq!(places(&world), ["vk-a", "vk-a", "vk-a"]);
}

#[test]
fn groups_with_the_same_name_in_other_namespaces_are_other_groups() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    for name in &MEMBERS[..2] {
        world.create_member(name, 1, "train", 3, json!({}));
    }
    world.create_member("theirs", 1, "train", 3, json!({"metadata": {"namespace": "other"}}));
    world.run_for(10 * SECOND);
    assert_eq!(gated(&world), 3);
}

#[test]
fn more_pods_than_a_group_has_wait_until_one_of_them_is_gone() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    create(&mut world, 1);
    world.run_for(SECOND);
    for name in ["late-0", "late-1"] {
        world.create_member(name, 1, "train", 3, json!({}));
    }
    world.run_for(2 * SECOND);
    assert_eq!(places(&world), ["vk-a", "vk-a", "vk-a"]);
    let said = "group train has its 3 pods on vk-a: this one waits until one of them has ended or is deleted";
    assert_eq!(world.place("late-0"), said);
    world.delete_pod("train-1");
    world.run_for(2 * SECOND);
    assert_eq!((world.place("late-0").as_str(), gated(&world)), ("vk-a", 1));
}

#[test]
fn a_pod_that_is_created_again_joins_its_group_or_waits_for_room_there() {
    for settings in [gates(Preference::default()), trials(Preference::default())] {
        let mut world = world(settings);
        world.add_virtual_node("vk-a", 3, 4);
        create(&mut world, 3);
        world.run_for(2 * SECOND);
        world.add_virtual_node("vk-b", 10, 4);
        world.delete_pod("train-1");
        world.create_bound("foreign", "vk-a", 3, json!({}));
        world.create_member("again", 3, "train", 3, json!({}));
        world.run_for(10 * SECOND);
        assert!(
            world
                .place("again")
                .starts_with("the rest of group train goes to vk-a, where 2 of its 3 pods are: "),
            "{}",
            world.place("again")
        );
        world.restart();
        world.run_for(10 * SECOND);
        assert_eq!(gated(&world), 1);
        world.delete_pod("foreign");
        world.run_for(10 * SECOND);
        assert_eq!(world.place("again"), "vk-a");
    }
}

#[test]
fn a_group_whose_pods_say_nothing_that_makes_sense_waits_with_a_message_and_nothing_else_does() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 8, 4);
    let annotation = "multicluster.virtual-kubelet.io/group-size";
    for (group, sizes, expected) in [
        ("none", ["0", "0"], "set it to the number of pods in the group, from 1 to 500"),
        ("negative", ["-2", "-2"], "set it to the number of pods in the group, from 1 to 500"),
        ("text", ["two", "two"], "has the annotation multicluster.virtual-kubelet.io/group-size: \"two\""),
        ("many", ["501", "501"], "set it to the number of pods in the group, from 1 to 500"),
        (
            "differ",
            ["2", "3"],
            "do not agree on the annotation multicluster.virtual-kubelet.io/group-size (2, 3)",
        ),
    ] {
        for (index, size) in sizes.into_iter().enumerate() {
            let change = json!({"metadata": {"annotations": {annotation: size}}});
            world.create_member(&format!("{group}-{index}"), 1, group, 2, change);
        }
        world.run_for(2 * SECOND);
        for index in 0..2 {
            let uid = format!("{group}-{index}");
            assert!(world.place(&uid).contains(expected), "{}", world.place(&uid));
            let placed = pod_state::condition(world.pod(&uid), names::PLACED).unwrap();
            assert_eq!((placed.status.as_str(), placed.reason.as_deref()), ("False", Some("InvalidGroup")));
        }
    }
    world.create_pod("nameless", 1, json!({"metadata": {"annotations": {annotation: "1"}}}));
    world.create_pod("without", 1, json!({"metadata": {"labels": {names::GROUP: "without"}}}));
    world.create_pod("other", 1, json!({}));
    create(&mut world, 1);
    world.run_for(2 * SECOND);
    assert!(
        world.place("nameless").contains("set it to the name of the group"),
        "{}",
        world.place("nameless")
    );
    assert!(
        world.place("without").contains("pod without of group without has no annotation"),
        "{}",
        world.place("without")
    );
    assert_eq!((world.place("other"), places(&world)), ("vk-a".to_owned(), ["vk-a"; 3].map(str::to_owned)));
    let writes = world.writes;
    world.run_for(600 * SECOND);
    assert_eq!((world.writes, world.events.len()), (writes, 12), "one event for each pod");
    let mut pod = world.pod("nameless").clone();
    pod.metadata.annotations.as_mut().unwrap().clear();
    world.change_pod("nameless", pod);
    world.run_for(2 * SECOND);
    assert_eq!(world.place("nameless"), "vk-a", "it is a pod without a group now");
}

#[test]
fn a_group_has_the_highest_priority_of_its_pods() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 3, 4);
    world.create_pod("first", 4, json!({}));
    world.run_for(2 * SECOND);
    for index in 0..3 {
        world.create_pod(&format!("single-{index}"), 4, json!({"spec": {"priority": 5}}));
    }
    create(&mut world, 4);
    world.run_for(5 * SECOND);
    assert_eq!(gated(&world), 4);
    let mut world = World::new(1, gates(Preference::default()));
    world.restart();
    world.create_member("train-0", 4, "train", 3, json!({"spec": {"priority": 10}}));
    for name in &MEMBERS[1..] {
        world.create_member(name, 4, "train", 3, json!({}));
    }
    for index in 0..3 {
        world.create_pod(&format!("single-{index}"), 4, json!({"spec": {"priority": 5}}));
    }
    world.run_for(2 * SECOND);
    world.add_virtual_node("vk-a", 3, 4);
    world.run_for(5 * SECOND);
    assert_eq!(places(&world), ["vk-a", "vk-a", "vk-a"]);
}

#[test]
fn a_group_goes_to_the_clusters_own_machines_if_all_of_it_fits_there() {
    for (machines, expected) in [(3, "machine-"), (2, "vk-a")] {
        let mut world = world(trial_order(&["local", "vk-a"]));
        for index in 0..machines {
            world.add_local_node(&format!("machine-{index}"), 4);
        }
        world.add_virtual_node("vk-a", 3, 4);
        create(&mut world, 3);
        world.run_for(2 * SECOND);
        assert!(places(&world).iter().all(|place| place.starts_with(expected)), "{:?}", places(&world));
        if machines == 2 {
            continue;
        }
        // Where the others are, whatever the order says.
        world.delete_pod("train-0");
        world.create_member("again", 3, "train", 3, json!({}));
        world.run_for(2 * SECOND);
        assert!(world.place("again").starts_with("machine-"));
    }
    let mut world = world(order(&["local", "vk-a"]));
    world.add_local_node("machine", 100);
    world.add_virtual_node("vk-a", 3, 4);
    let converted =
        json!({"metadata": {"annotations": {"multicluster.virtual-kubelet.io/lower-nodes": "disk=ssd"}}});
    world.create_member("train-0", 1, "train", 3, converted);
    for name in &MEMBERS[1..] {
        world.create_member(name, 1, "train", 3, json!({}));
    }
    world.run_for(2 * SECOND);
    assert_eq!(places(&world), ["vk-a", "vk-a", "vk-a"], "one of them may not go to a machine");
}

#[test]
fn a_node_that_cannot_tell_comes_after_those_with_room_for_the_group() {
    let mut world = world(order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 10, 4);
    world.set_behaviour("vk-a", Behaviour::Unsure);
    world.add_virtual_node("vk-b", 3, 4);
    create(&mut world, 3);
    world.run_for(2 * SECOND);
    assert_eq!(places(&world), ["vk-b", "vk-b", "vk-b"]);
}

#[test]
fn no_pod_of_a_group_loses_its_gate_before_the_lower_scheduler_has_placed_all() {
    let mut world = world(trial_order(&["vk-a", "vk-b"]));
    // It says that all fit, and takes two of three.
    world.add_virtual_node("vk-a", 2, 4);
    world.set_behaviour("vk-a", Behaviour::Lies);
    world.apply_node(serde_json::from_value(json!({
        "metadata": {"name": "vk-a", "labels": {"kubernetes.io/hostname": "vk-a"}, "annotations": {"virtual-kubelet.io/placement": "fit,trial"}},
        "spec": {"taints": [{"key": "virtual-kubelet.io/provider", "value": "cluster", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "100", "pods": "1000"}, "conditions": [{"type": "Ready", "status": "True"}]},
    })).unwrap());
    world.add_virtual_node("vk-b", 3, 4);
    create(&mut world, 3);
    world.run_for(25 * SECOND);
    assert_eq!((gated(&world), world.trials), (3, 3));
    assert!(MEMBERS.iter().all(|uid| trial_node(world.pod(uid)) == Some("vk-a")));
    world.run_for(15 * SECOND);
    assert_eq!(places(&world), ["vk-b", "vk-b", "vk-b"]);
    assert_eq!(world.trials, 6);
    assert!(MEMBERS.iter().all(|uid| !world.lower["vk-a"].runs(uid)));
}

#[test]
fn a_group_of_which_a_node_refuses_a_pod_tries_the_next_one_at_once_and_then_all_again_with_a_back_off() {
    let mut world = world(trial_order(&["vk-a", "vk-b"]));
    for name in ["vk-a", "vk-b"] {
        world.add_virtual_node(name, 3, 4);
        world.set_behaviour(name, Behaviour::Refuses);
    }
    create(&mut world, 3);
    world.run_for(3 * SECOND);
    assert_eq!(world.trials, 6);
    world.run_for(300 * SECOND);
    assert!((12..=40).contains(&world.trials), "{} trials", world.trials);
    let said = world.events.iter().any(|(_, _, message)| message.contains("vk-a: tried: insufficient cpu"));
    assert!(said, "{:?}", world.events);
    world.set_behaviour("vk-b", Behaviour::Honest);
    world.run_for(310 * SECOND);
    assert_eq!(places(&world), ["vk-b", "vk-b", "vk-b"]);
}

#[test]
fn a_pod_that_is_deleted_during_the_trial_of_its_group_ends_the_trials_of_the_others() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 3, 4);
    world.faults.delay = 2 * SECOND;
    create(&mut world, 3);
    while world.trials < 3 {
        world.run_for(Duration::from_millis(5));
    }
    world.delete_pod("train-1");
    world.run_for(20 * SECOND);
    assert_eq!(gated(&world), 2);
    for uid in ["train-0", "train-2"] {
        assert_eq!(trial_node(world.pod(uid)), None);
        assert!(!world.lower["vk-a"].runs(uid), "the room is for others");
    }
    world.create_member("again", 3, "train", 3, json!({}));
    world.run_for(60 * SECOND);
    assert_eq!(gated(&world), 0);
}

#[test]
fn one_pod_with_unbound_claims_has_the_whole_group_placed_by_estimate() {
    for (claim, trials_expected) in [("not-bound", 0), ("bound", 3)] {
        let mut world = world(trials(Preference::default()));
        world.add_virtual_node("vk-a", 3, 4);
        for name in &MEMBERS[..2] {
            world.create_member(name, 1, "train", 3, json!({}));
        }
        let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        world.create_member("train-2", 1, "train", 3, json!({"spec": {"volumes": volume}}));
        world.run_for(2 * SECOND);
        assert_eq!((places(&world), world.trials), (["vk-a"; 3].map(str::to_owned), trials_expected));
    }
}

#[test]
fn a_crash_at_any_moment_leaves_no_group_on_two_nodes_or_half_started() {
    for settings in [gates(Preference::default()), trials(Preference::default())] {
        for millis in (0..120).step_by(3) {
            let mut world = world(settings.clone());
            for name in ["vk-a", "vk-b"] {
                world.add_virtual_node(name, 3, 4);
            }
            world.faults.delay = Duration::from_millis(20);
            world.faults.late = Duration::from_millis(10);
            create(&mut world, 3);
            world.run_for(Duration::from_millis(millis));
            world.restart();
            world.run_for(40 * SECOND);
            let places = places(&world);
            assert!(
                places[0].starts_with("vk-") && places.iter().all(|place| *place == places[0]),
                "{places:?} after {millis} ms"
            );
        }
    }
}

#[test]
fn a_group_of_more_pods_than_calls_at_the_same_time_is_placed() {
    for settings in [gates(Preference::default()), trials(Preference::default())] {
        let mut world = world(settings);
        world.add_virtual_node("vk-a", 37, 4);
        world.add_virtual_node("vk-b", 50, 4);
        for index in 0..150 {
            world.create_member(&format!("pod-{index:03}"), 1, "large", 150, json!({}));
        }
        world.run_for(20 * SECOND);
        assert!(world.pods.keys().all(|uid| world.place(uid) == "vk-b"));
    }
}

#[test]
fn a_stuck_pod_of_a_group_is_not_moved_to_another_node() {
    let settings = Settings {
        descheduler: Some(crate::descheduler::DeschedulerSettings::default()),
        ..Settings::default()
    };
    let mut world = world(settings);
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 4, 4);
    let group =
        json!({"metadata": {"labels": {names::GROUP: "train"}, "annotations": {names::GROUP_SIZE: "1"}}});
    world.create_bound("a", "vk-a", 3, group);
    world.run_for(200 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    let said: Vec<_> =
        world.events.iter().map(|(_, reason, message)| format!("{reason}: {message}")).collect();
    assert_eq!(said, ["NotDescheduled: the pods of its group stay together on one node"]);
}
