//! Pods that are on trial on a node before they lose their gate.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use vk_kube::{Error, Kind};
use vk_provider::placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, trial_node};

use super::{
    SECOND,
    lower_cluster::Behaviour,
    order,
    stepped_machine::{SteppedMachine, fits, input, node, pod},
    trials, world,
};
use crate::{
    choose::Preference,
    effect::{ApiCall, Input},
    names, pod_state,
};

#[test]
fn a_pod_loses_its_gate_when_the_lower_scheduler_has_placed_it_and_is_pinned_to_the_node() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 2, 4);
    world.create_pod("a", 3, json!({}));
    world.run_for(2 * SECOND);
    assert_eq!(world.place("a"), "vk-a");
    let pod = world.pod("a");
    assert_eq!(pod.spec.as_ref().unwrap().node_selector.as_ref().unwrap()[names::HOSTNAME], "vk-a");
    assert_eq!(trial_node(pod), None, "the node has removed the label");
    assert_eq!((world.trials, world.waited_below), (1, 0));
    assert_eq!(world.writes, 3, "begin the trial, remove the gate, say so");
    assert_eq!(pod_state::condition(pod, names::PLACED).unwrap().status, "True");
}

#[test]
fn a_pod_that_a_node_promised_to_take_and_does_not_goes_to_the_next_one_after_the_patience() {
    for behaviour in [Behaviour::Lies, Behaviour::Unsure] {
        let mut world = world(with_order(&["vk-a", "vk-b", "vk-c"]));
        world.add_virtual_node("vk-a", 4, 2);
        world.set_behaviour("vk-a", behaviour);
        // vk-b has room by its answer, and vk-c cannot tell.
        world.add_virtual_node("vk-b", 1, 4);
        world.create_pod("a", 3, json!({}));
        world.run_for(if behaviour == Behaviour::Lies { 29 * SECOND } else { SECOND });
        let first = if behaviour == Behaviour::Lies { "vk-a" } else { "vk-b" };
        assert_eq!(pod_state::nominated_node(world.pod("a")).unwrap_or(&world.place("a")), first);
        world.run_for(5 * SECOND);
        assert_eq!(world.place("a"), "vk-b", "{behaviour:?}");
        assert_eq!(world.waited_below, 0);
    }
}

#[test]
fn a_pod_that_a_node_refuses_goes_to_the_next_one_at_once() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 4, 4);
    world.set_behaviour("vk-a", Behaviour::Refuses);
    world.add_virtual_node("vk-b", 1, 4);
    world.create_pod("a", 3, json!({}));
    world.run_for(3 * SECOND);
    assert_eq!(world.place("a"), "vk-b");
}

#[test]
fn a_pod_that_no_node_takes_says_why_and_tries_all_again_with_a_back_off() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    for name in ["vk-a", "vk-b"] {
        world.add_virtual_node(name, 4, 2);
        world.set_behaviour(name, Behaviour::Lies);
    }
    world.create_pod("a", 3, json!({}));
    world.run_for(300 * SECOND);
    let early = world.trials;
    assert!((7..=10).contains(&early), "{early} trials in five minutes");
    world.run_for(3600 * SECOND);
    let late = world.trials - early;
    assert!((14..=26).contains(&late), "{late} trials in the hour after that");
    let message = |event: &(String, &'static str, String)| event.2.clone();
    let said: Vec<_> = world.events.iter().map(message).collect();
    let expected = "0 of 2 nodes: vk-a: tried: insufficient cpu; vk-b: tried: insufficient cpu";
    assert!(said.iter().any(|message| message == expected), "{said:?}");
    world.set_behaviour("vk-a", Behaviour::Honest);
    world.add_virtual_node("vk-c", 1, 4);
    world.run_for(40 * SECOND);
    assert_eq!(world.place("a"), "vk-c", "a node that was not tried comes first");
}

#[test]
fn what_one_pod_has_learned_holds_for_pods_like_it() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 4, 2);
    world.set_behaviour("vk-a", Behaviour::Lies);
    world.add_virtual_node("vk-b", 4, 4);
    world.create_pod("first", 3, json!({}));
    world.run_for(32 * SECOND);
    for name in ["second", "third"] {
        world.create_pod(name, 3, json!({}));
    }
    world.run_for(2 * SECOND);
    assert_eq!(["first", "second", "third"].map(|uid| world.place(uid)), ["vk-b", "vk-b", "vk-b"]);
    assert_eq!(world.trials, 4);
}

#[test]
fn a_crash_at_any_moment_of_a_trial_loses_and_doubles_nothing() {
    for millis in (0..60).step_by(2) {
        let mut world = world(with_order(&["vk-a", "vk-b"]));
        world.add_virtual_node("vk-a", 4, 2);
        world.set_behaviour("vk-a", Behaviour::Refuses);
        world.add_virtual_node("vk-b", 1, 4);
        world.faults.delay = Duration::from_millis(10);
        world.create_pod("a", 3, json!({}));
        world.run_for(Duration::from_millis(millis));
        world.restart();
        world.run_for(40 * SECOND);
        assert_eq!(world.place("a"), "vk-b", "a crash after {millis} ms");
        assert_eq!(trial_node(world.pod("a")), None);
        assert!(world.trials <= 3, "{} trials", world.trials);
    }
}

#[test]
fn pods_with_claims_that_are_not_bound_are_placed_by_estimate() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    let volume = |claim: &str| json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}});
    world.create_pod("a", 1, volume("not-bound"));
    world.run_for(2 * SECOND);
    assert_eq!((world.place("a").as_str(), world.trials), ("vk-a", 0));
    world.create_pod("b", 1, volume("bound"));
    world.run_for(2 * SECOND);
    assert_eq!((world.place("b").as_str(), world.trials), ("vk-a", 1));
}

#[test]
fn machines_of_the_upper_cluster_take_pods_without_a_trial() {
    let mut world = world(with_order(&["local", "vk-a"]));
    world.add_local_node("machine", 4);
    world.add_virtual_node("vk-a", 4, 4);
    world.create_pod("a", 3, json!({}));
    world.create_pod("b", 3, json!({}));
    world.run_for(2 * SECOND);
    assert_eq!((world.place("a").as_str(), world.place("b").as_str()), ("machine", "vk-a"));
    assert_eq!(world.trials, 1);
}

#[test]
fn a_node_that_never_ends_a_trial_keeps_its_pod_from_other_nodes_and_no_other_pod() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 4, 4);
    world.add_virtual_node("vk-b", 4, 4);
    world.create_pod("a", 3, json!({}));
    while world.trials == 0 {
        world.run_for(Duration::from_millis(1));
    }
    world.set_behaviour("vk-a", Behaviour::Hangs);
    world.create_pod("b", 3, json!({"metadata": {"labels": {"another": "shape"}}}));
    world.run_for(300 * SECOND);
    assert_eq!(trial_node(world.pod("a")), Some("vk-a"), "it may run there");
    assert_eq!(world.place("b"), "vk-b");
    let said: Vec<_> = world.events.iter().filter(|event| event.0 == "a").collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].2.contains("vk-a has not confirmed that nothing of the pod is left there"), "{said:?}");
    world.set_behaviour("vk-a", Behaviour::Honest);
    world.run_for(20 * SECOND);
    assert_ne!(pod_state::node(world.pod("a")), None);
}

#[test]
fn a_trial_on_a_node_that_takes_none_any_more_is_removed_after_ten_minutes_and_the_pod_goes_elsewhere() {
    let mut world = world(with_order(&["vk-a", "vk-b"]));
    world.add_virtual_node("vk-a", 4, 4);
    world.add_virtual_node("vk-b", 4, 4);
    world.create_pod("a", 3, json!({}));
    while world.trials == 0 {
        world.run_for(Duration::from_millis(1));
    }
    world.set_takes_trials("vk-a", false);
    world.run_for(650 * SECOND);
    assert_eq!(trial_node(world.pod("a")), Some("vk-a"), "something of it may be left there");
    let said: Vec<_> =
        world.events.iter().map(|(_, reason, message)| format!("{reason}: {message}")).collect();
    let expected = "TrialNotConfirmed: the trial on vk-a is over, and vk-a, which takes no pods on trial any more, has not \
                    confirmed that nothing of the pod is left there; the pod waits for it for 10 min";
    assert_eq!(said, [expected]);
    world.run_for(30 * SECOND);
    assert_eq!(world.place("a"), "vk-b");
}

#[test]
fn a_node_that_takes_trials_again_or_is_not_ready_keeps_the_trials_that_it_has() {
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    for change in [None, Some(not_ready)] {
        let mut stepped = SteppedMachine::new(trials(Preference::default()));
        let declares =
            |list: &str| json!({"metadata": {"annotations": {"virtual-kubelet.io/placement": list}}});
        let takes_trials = node("vk-a", 400, &declares("fit,trial"));
        stepped.start(vec![takes_trials.clone(), on_trial_until("a", "2027-01-01T00:00:01Z")], &["vk-a"]);
        for minute in 0..60 {
            stepped.now += 60 * SECOND;
            let mut other = declares("fit");
            if let Some(change) = &change {
                json_patch::merge(&mut other, change);
            }
            let is_back = change.is_none() && minute % 9 == 0;
            let vk_a = if is_back { takes_trials.clone() } else { node("vk-a", 400, &other) };
            stepped.handle(vec![vk_a]);
        }
        assert!(!stepped.calls().iter().any(|(_, call)| is_removal(call)), "{change:?}");
        stepped.handle(vec![node("vk-a", 400, &declares("fit"))]);
        for _ in 0..11 {
            stepped.now += 60 * SECOND;
            stepped.handle(Vec::new());
        }
        assert!(stepped.calls().iter().any(|(_, call)| is_removal(call)), "{change:?}");
    }
}

#[test]
fn a_trial_on_a_node_that_does_not_exist_is_removed_and_the_pod_is_placed() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    let labels = json!({TRIAL_LABEL: "gone"});
    world.create_pod("user", 1, json!({"metadata": {"labels": labels}}));
    let mut status = on_trial(&world);
    status["nominatedNodeName"] = json!("gone");
    world.create_pod("a", 3, json!({"metadata": {"labels": labels}, "status": status}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("user"), "vk-a", "a label that a user has set is nothing to wait for");
    world.run_for(50 * SECOND);
    assert_eq!(trial_node(world.pod("a")), Some("gone"));
    world.run_for(10 * SECOND);
    assert_eq!(world.place("a"), "vk-a");
}

#[test]
fn a_pod_that_is_not_bound_in_time_leaves_the_node_and_bare_pods_wait() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    world.faults.unbound = 1.0;
    world.create_pod("bare", 3, json!({"metadata": {"ownerReferences": null}}));
    world.create_pod("replica", 3, json!({}));
    world.run_for(59 * SECOND);
    assert!(world.lower["vk-a"].runs("bare") && world.lower["vk-a"].runs("replica"));
    world.run_for(5 * SECOND);
    assert!(!world.lower["vk-a"].runs("bare") && !world.lower["vk-a"].runs("replica"));
    assert_eq!((trial_node(world.pod("bare")), world.evicted.clone()), (None, vec!["replica".to_owned()]));
}

#[test]
fn without_the_setting_trials_of_an_earlier_process_are_brought_to_their_end() {
    let mut world = world(order(&["vk-b"]));
    world.add_virtual_node("vk-a", 4, 4);
    world.add_virtual_node("vk-b", 4, 4);
    let until = (world.wall() + 60 * SECOND).to_string();
    let mut status = on_trial(&world);
    status["nominatedNodeName"] = json!("vk-a");
    world.create_pod(
        "a",
        3,
        json!({
            "metadata": {"labels": {TRIAL_LABEL: "vk-a"}, "annotations": {TRIAL_UNTIL_ANNOTATION: until}},
            "status": status,
        }),
    );
    world.run_for(5 * SECOND);
    assert_eq!(world.place("a"), "vk-a");
}

#[test]
fn a_node_has_no_more_pods_on_trial_than_it_says_that_fit() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 2, 4);
    world.set_behaviour("vk-a", Behaviour::Honest);
    world.faults.delay = SECOND;
    for index in 0..20 {
        world.create_pod(&format!("pod-{index:02}"), 3, json!({}));
    }
    world.run_for(60 * SECOND);
    assert_eq!(world.trials, 2);
}

#[test]
fn a_watch_that_is_behind_the_answer_does_not_end_a_trial() {
    let mut stepped = SteppedMachine::new(trials(Preference::default()));
    let with_version = |version: &str| pod("a", 3, &json!({"metadata": {"resourceVersion": version}}));
    stepped.start(
        vec![
            node(
                "vk-a",
                400,
                &json!({"metadata": {"annotations": {"virtual-kubelet.io/placement": "fit,trial"}}}),
            ),
            input(with_version("5")),
        ],
        &["vk-a"],
    );
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(4));
    let (call, start) = stepped.calls().remove(0);
    assert!(matches!(&start, ApiCall::StartTrial { version, .. } if version == "5"), "{start:?}");
    stepped.handle(vec![Input::Answered(call, Ok(crate::effect::Answer::Patched("9".to_owned())))]);
    stepped.handle(vec![input(with_version("7"))]);
    stepped.now += 5 * SECOND;
    stepped.handle(Vec::new());
    assert!(stepped.calls().is_empty() && stepped.asks().is_empty(), "it is on trial");
}

#[test]
fn after_a_conflict_the_pod_is_placed_as_it_is_then() {
    let mut stepped = SteppedMachine::new(trials(Preference::default()));
    let trial_node = json!({"metadata": {"annotations": {"virtual-kubelet.io/placement": "fit,trial"}}});
    let with = |version: &str, cpus| pod("a", cpus, &json!({"metadata": {"resourceVersion": version}}));
    stepped.start(vec![node("vk-a", 400, &trial_node), input(with("5", 3))], &["vk-a"]);
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(4));
    let (call, _) = stepped.calls().remove(0);
    stepped.handle(vec![Input::Answered(call, Err(Error::new(Kind::Conflict, "changed")))]);
    stepped.now += 2 * SECOND;
    stepped.handle(vec![input(with("6", 2))]);
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(4));
    let (_, start) = stepped.calls().remove(0);
    assert!(matches!(&start, ApiCall::StartTrial { version, .. } if version == "6"), "{start:?}");
}

/// The status that placement gives to a pod on trial.
fn on_trial(world: &super::World) -> serde_json::Value {
    let since = world.wall();
    json!({"conditions": [
        {"type": names::PLACED, "status": "Unknown", "reason": names::ON_TRIAL, "lastTransitionTime": since.to_string()},
    ]})
}

#[test]
fn pods_of_a_stateful_set_go_without_a_trial() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "s", "controller": true}]);
    world.create_pod("web-0", 3, json!({"metadata": {"ownerReferences": owner}}));
    world.run_for(2 * SECOND);
    assert_eq!((world.place("web-0").as_str(), world.trials), ("vk-a", 0));
}

#[test]
fn labels_of_users_take_no_room_from_others() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 1, 4);
    world.add_local_node("machine", 1);
    for (index, node) in ["vk-a", "machine"].into_iter().cycle().take(1000).enumerate() {
        let gate = json!({"schedulingGates": [{"name": "example.com/gate"}]});
        world.create_pod(
            &format!("spam-{index}"),
            1,
            json!({"metadata": {"labels": {TRIAL_LABEL: node}}, "spec": gate}),
        );
    }
    world.create_pod("good", 4, json!({}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("good"), "vk-a");
}

#[test]
fn what_a_node_runs_goes_on_while_kube_scheduler_is_away() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    world.scheduler_is_away = true;
    world.create_pod("a", 3, json!({}));
    world.run_for(600 * SECOND);
    assert!(world.lower["vk-a"].runs("a"), "it runs below");
    assert_eq!((world.evicted.len(), world.trials), (0, 1));
}

fn with_order(names: &[&str]) -> super::Settings {
    let mut settings = order(names);
    settings.gates.as_mut().unwrap().trial = Some(30 * SECOND);
    settings
}

/// A pod that is on trial on `vk-a`.
fn on_trial_until(name: &str, until: &str) -> Input {
    let placed = json!([{"type": names::PLACED, "status": "Unknown", "reason": names::ON_TRIAL, "lastTransitionTime": "2027-01-01T00:00:00Z"}]);
    input(pod(
        name,
        3,
        &json!({
            "metadata": {"labels": {TRIAL_LABEL: "vk-a"}, "annotations": {TRIAL_UNTIL_ANNOTATION: until}},
            "status": {"conditions": placed, "nominatedNodeName": "vk-a"},
        }),
    ))
}

fn is_removal(call: &ApiCall) -> bool {
    matches!(call, ApiCall::RemoveTrial { .. })
}

#[test]
fn a_node_that_registers_again_keeps_its_trials() {
    let mut stepped = SteppedMachine::new(trials(Preference::default()));
    let takes_trials = json!({"metadata": {"annotations": {"virtual-kubelet.io/placement": "fit,trial"}}});
    let on_trial = |name: &str, version: &str, until: &str| {
        let Input::Pod(mut pod) = on_trial_until(name, until) else { unreachable!() };
        Arc::make_mut(&mut pod).metadata.resource_version = Some(version.to_owned());
        Input::Pod(pod)
    };
    let late = on_trial("late", "5", "2027-01-01T00:00:01Z");
    stepped.start(
        vec![node("vk-a", 400, &takes_trials), late, on_trial("other", "6", "2027-01-01T00:10:00Z")],
        &["vk-a"],
    );
    stepped.now += 61 * SECOND;
    stepped.handle(Vec::new());
    stepped.now += 10 * SECOND;
    stepped.handle(vec![Input::NodeGone("vk-a".to_owned()), on_trial("other", "7", "2027-01-01T00:10:00Z")]);
    assert!(!stepped.calls().iter().any(|(_, call)| is_removal(call)), "it is away for a moment");
    stepped.now += SECOND;
    stepped.handle(vec![node("vk-a", 400, &takes_trials)]);
    stepped.now += 50 * SECOND;
    stepped.handle(vec![Input::NodeGone("vk-a".to_owned())]);
    stepped.now += 50 * SECOND;
    stepped.handle(vec![on_trial("other", "8", "2027-01-01T00:10:00Z")]);
    assert!(!stepped.calls().iter().any(|(_, call)| is_removal(call)), "it is away for 50 s");
    stepped.now += 10 * SECOND;
    stepped.handle(Vec::new());
    let calls = stepped.calls();
    assert!(calls.iter().any(|(_, call)| is_removal(call)), "{calls:?}");
}

/// The nomination of a trial is no choice of a node yet: the node did not say that its lower scheduler takes the pod.
#[test]
fn a_new_leader_does_not_bind_a_pod_whose_node_has_ended_its_trial() {
    let mut stepped = SteppedMachine::new(trials(Preference::default()));
    let takes_trials = json!({"metadata": {"annotations": {"virtual-kubelet.io/placement": "fit,trial"}}});
    let placed = json!([{"type": names::PLACED, "status": "Unknown", "reason": names::ON_TRIAL}]);
    let left = json!({"status": {"conditions": placed, "nominatedNodeName": "vk-a"}});
    stepped.start(vec![node("vk-a", 8, &takes_trials), input(pod("a", 3, &left))], &["vk-a"]);
    assert_eq!(stepped.calls().len(), 0, "its node is asked first");
    let (query, ..) = stepped.asks().remove(0);
    stepped.answer(query, fits(2));
    stepped.now += SECOND;
    stepped.handle(Vec::new());
    let calls: Vec<_> = stepped.calls().into_iter().map(|(_, call)| call).collect();
    assert!(matches!(&*calls, [ApiCall::StartTrial { .. }]), "{calls:?}");
}

#[test]
fn only_pods_whose_controllers_give_every_pod_a_new_name_are_tried() {
    for (api, kind, trials) in [
        ("core.strimzi.io/v1beta2", "StrimziPodSet", 0),
        ("batch.volcano.sh/v1alpha1", "Job", 0),
        ("apps/v1", "ReplicaSet", 1),
        ("v1", "ReplicationController", 1),
        ("batch/v1", "Job", 1),
    ] {
        let mut world = world(super::trials(Preference::default()));
        world.add_virtual_node("vk-a", 4, 4);
        let owner = json!([{"apiVersion": api, "kind": kind, "name": "web", "uid": "s", "controller": true}]);
        world.create_pod("web-0", 3, json!({"metadata": {"ownerReferences": owner}}));
        world.run_for(2 * SECOND);
        assert_eq!((world.place("web-0").as_str(), world.trials), ("vk-a", trials), "{api} {kind}");
    }
}
