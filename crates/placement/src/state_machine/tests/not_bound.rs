//! Pods that kube-scheduler does not bind where placement has put them.

use serde_json::json;
use vk_kube::{Error, Kind};
use vk_provider::placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

use super::{
    SECOND, gates,
    lower_cluster::Behaviour,
    order,
    stepped_machine::{SteppedMachine, input, node, pod},
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
