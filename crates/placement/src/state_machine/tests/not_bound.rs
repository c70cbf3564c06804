//! Pods that kube-scheduler does not bind where placement has put them.

use serde_json::json;
use vk_kube::{Error, Kind};
use vk_provider::placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

use super::{
    SECOND, gates,
    lower_cluster::Behaviour,
    order,
    stepped_machine::{SteppedMachine, fits, input, local, node, pod},
    trials, world,
};
use crate::{
    choose::Preference,
    effect::{Answer, ApiCall, Effect, Input},
    names,
    state_machine::Settings,
};

fn with_order(names: &[&str]) -> Settings {
    let mut settings = order(names);
    settings.gates.as_mut().unwrap().trial = Some(30 * SECOND);
    settings
}

#[test]
fn after_an_eviction_the_next_pod_goes_to_a_node_that_kube_scheduler_has_not_refused() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 4, 4);
    world.add_virtual_node("vk-b", 4, 4);
    world.forbidden = Some("vk-a".to_owned());
    world.create_pod("a-0", 3, json!({}));
    world.run_for(65 * SECOND);
    assert_eq!(world.evicted, ["a-0"]);
    world.create_pod("a-1", 3, json!({}));
    world.run_for(130 * SECOND);
    assert_eq!(world.place("a-1"), "vk-b");
    assert_eq!((world.evicted.len(), world.trials), (1, 2));
}

#[test]
fn a_pod_that_cannot_be_evicted_is_not_pinned_where_only_kube_scheduler_knows_whether_it_may_go() {
    let owner =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}]);
    let spread = json!([{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]);
    for (owner, pin) in [(owner.clone(), false), (json!(null), false), (owner, true)] {
        let mut settings = with_order(&["vk-a", "vk-b"]);
        settings.gates.as_mut().unwrap().pin = pin;
        let mut world = world(settings);
        world.add_virtual_node("vk-a", 4, 4);
        world.add_virtual_node("vk-b", 4, 4);
        world.forbidden = Some("vk-a".to_owned());
        let metadata = json!({"ownerReferences": owner});
        world.create_pod(
            "a",
            3,
            json!({"metadata": metadata, "spec": {"topologySpreadConstraints": spread}}),
        );
        world.run_for(5 * SECOND);
        assert_eq!((world.place("a").as_str(), world.trials), ("vk-b", 0), "{metadata}, pin: {pin}");
    }
}

#[test]
fn after_an_eviction_the_next_pod_does_not_go_to_local_again() {
    let mut settings = with_order(&["local", "vk-a"]);
    settings.gates.as_mut().unwrap().pin = true;
    let mut world = world(settings);
    world.add_local_node("machine", 4);
    world.add_virtual_node("vk-a", 4, 4);
    world.forbidden = Some("machine".to_owned());
    world.create_pod("a-0", 3, json!({}));
    world.run_for(65 * SECOND);
    assert_eq!(world.evicted, ["a-0"]);
    world.create_pod("a-1", 3, json!({}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("a-1"), "vk-a");
}

/// With the affinity placement cannot tell, so that the pod is not pinned to the machine.
#[test]
fn pods_that_no_machine_takes_try_local_again_with_a_back_off() {
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "example.com/rack", "labelSelector": {"matchLabels": {"app": "absent"}}},
    ]}});
    for (spec, pin) in [(json!({}), false), (json!({}), true), (json!({"affinity": affinity}), true)] {
        let mut settings = order(&["local"]);
        settings.gates.as_mut().unwrap().pin = pin;
        let mut world = world(settings);
        world.recreates = true;
        world.add_local_node("machine", 4);
        world.forbidden = Some("machine".to_owned());
        world.create_pod("a", 3, json!({"spec": spec}));
        world.run_for(1800 * SECOND);
        let evicted = world.evicted.len();
        assert!((7..=10).contains(&evicted), "{evicted} evictions in half an hour, {spec}");
        world.forbidden = None;
        world.run_for(370 * SECOND);
        let places: Vec<_> = world.pods.keys().map(|uid| world.place(uid)).collect();
        assert_eq!(places, ["machine"]);
    }
}

#[test]
fn a_group_that_no_machine_takes_goes_on_to_a_virtual_node() {
    let mut world = world(order(&["local", "vk-a"]));
    world.add_local_node("machine", 9);
    world.add_virtual_node("vk-a", 3, 4);
    world.forbidden = Some("machine".to_owned());
    for name in ["train-0", "train-1", "train-2"] {
        world.create_member(name, 3, "train", 3, json!({}));
    }
    world.run_for(70 * SECOND);
    assert_eq!(world.evicted.len(), 3);
    for name in ["again-0", "again-1", "again-2"] {
        world.create_member(name, 3, "train", 3, json!({}));
    }
    world.run_for(10 * SECOND);
    assert_eq!(["again-0", "again-1", "again-2"].map(|name| world.place(name)), ["vk-a", "vk-a", "vk-a"]);
}

#[test]
fn a_pod_that_the_api_server_does_not_let_go_to_a_machine_goes_elsewhere() {
    let mut stepped = SteppedMachine::new(order(&["local", "vk-a"]));
    stepped.start(
        vec![local("machine"), node("vk-a", 4, &json!({})), input(pod("a", 3, &json!({})))],
        &["machine", "vk-a"],
    );
    let mut nodes = Vec::new();
    while stepped.now < 70 * SECOND {
        for (id, ..) in stepped.asks() {
            stepped.answer(id, fits(1));
        }
        for (id, call) in stepped.calls() {
            if let ApiCall::Nominate { node, .. } = call {
                nodes.push(node.to_string());
            }
            stepped.handle(vec![Input::Answered(id, Err(Error::new(Kind::Forbidden, "no")))]);
        }
        stepped.now += SECOND;
        stepped.handle(Vec::new());
    }
    assert_eq!(nodes, ["machine", "vk-a"]);
}

#[test]
fn a_group_goes_on_to_another_node_if_kube_scheduler_refuses_one() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 3, 4);
    world.add_virtual_node("vk-b", 3, 4);
    world.forbidden = Some("vk-a".to_owned());
    for name in ["train-0", "train-1", "train-2"] {
        world.create_member(name, 3, "train", 3, json!({}));
    }
    world.run_for(70 * SECOND);
    assert_eq!(world.evicted.len(), 3);
    for name in ["again-0", "again-1", "again-2"] {
        world.create_member(name, 3, "train", 3, json!({}));
    }
    world.run_for(10 * SECOND);
    assert_eq!(["again-0", "again-1", "again-2"].map(|name| world.place(name)), ["vk-b", "vk-b", "vk-b"]);
}

#[test]
fn an_eviction_that_is_forbidden_is_not_repeated_and_the_trial_ends() {
    let ungated = json!({
        "metadata": {"resourceVersion": "5", "labels": {TRIAL_LABEL: "vk-a"}, "annotations": {TRIAL_UNTIL_ANNOTATION: "2027-01-01T00:02:00Z"}},
        "spec": {"schedulingGates": null},
        "status": {"nominatedNodeName": "vk-a", "conditions": [
            {"type": names::PLACED, "status": "True", "reason": "Tried", "lastTransitionTime": "2027-01-01T00:00:00Z"},
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"},
        ]},
    });
    for (error, most) in [(Kind::Forbidden, 2), (Kind::Throttled, 18)] {
        let mut stepped = SteppedMachine::new(gates(Preference::default()));
        stepped.start(vec![node("vk-a", 4, &json!({})), input(pod("a", 3, &ungated))], &["vk-a"]);
        let mut calls = Vec::new();
        while stepped.now < 3600 * SECOND {
            for (id, call) in stepped.calls() {
                let answer = match &call {
                    ApiCall::Evict { .. } => Err(Error::new(error, "no")),
                    _ => Ok(Answer::Done),
                };
                calls.push(call);
                stepped.handle(vec![Input::Answered(id, answer)]);
            }
            if !stepped.effects.iter().any(|effect| matches!(effect, Effect::Call(..))) {
                stepped.now = stepped.machine.next_deadline().unwrap().max(stepped.now + SECOND / 10);
                stepped.handle(Vec::new());
            }
        }
        assert!(calls.len() <= most, "{error:?}: {} calls in an hour", calls.len());
        let ends = calls.iter().any(|call| matches!(call, ApiCall::EndTrial { .. }));
        assert_eq!(ends, error == Kind::Forbidden, "{calls:?}");
    }
}

#[test]
fn a_trial_that_cannot_be_longer_is_not_extended() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    world.scheduler_is_away = true;
    world.create_pod("a", 3, json!({}));
    world.run_for(5 * SECOND);
    world.set_behaviour("vk-a", Behaviour::Hangs);
    let writes = world.writes;
    world.run_for(3600 * SECOND);
    let writes = world.writes - writes;
    assert!((10..=25).contains(&writes), "{writes} writes in an hour");
}
