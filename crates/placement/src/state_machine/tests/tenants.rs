//! Tenants with many shapes, and those with few.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use vk_kube::{Error, Kind};

use super::{
    SECOND, gates,
    lower_cluster::Behaviour,
    stepped_machine::{SteppedMachine, fits, input, node, pod},
    world,
    world::World,
};
use crate::{
    choose::Preference,
    effect::{Answer, ApiCall, Input},
    names, pod_state,
};

/// Two virtual nodes. Each lower node has one CPU left, and all of a node together six.
fn full_nodes(world: &mut World) {
    for name in ["vk-a", "vk-b"] {
        world.add_virtual_node(name, 6, 4);
        for index in 0..6 {
            world.create_bound(&format!("{name}-{index}"), name, 3, json!({}));
        }
    }
}

#[test]
fn new_shapes_of_a_tenant_keep_no_waiting_pod_from_room_that_is_free_again() {
    for namespace in ["other", "team"] {
        let mut world = world(gates(Preference::default()));
        full_nodes(&mut world);
        world.create_pod("victim", 2, json!({"metadata": {"namespace": namespace}}));
        world.run_for(2 * SECOND);
        assert!(world.place("victim").contains("6 insufficient cpu"), "{}", world.place("victim"));
        let mut shapes = 0;
        let mut spam = |world: &mut World| {
            for _ in 0..5 {
                shapes += 1;
                let annotations = json!({"n": shapes.to_string()});
                world.create_pod(
                    &format!("spam-{shapes}"),
                    5,
                    json!({"metadata": {"annotations": annotations}}),
                );
            }
            world.run_for(Duration::from_millis(10));
        };
        for _ in 0..100 {
            spam(&mut world);
        }
        world.delete_pod("vk-b-0");
        let freed = world.now;
        while pod_state::node(world.pod("victim")).is_none() && world.now < freed + 10 * SECOND {
            spam(&mut world);
        }
        let waited = world.now.saturating_sub(freed);
        assert!(waited < 5 * SECOND, "it waited {waited:?} in {namespace} with a free node");
    }
}

#[test]
fn important_shapes_that_fit_nowhere_keep_no_other_pod_from_an_idle_node() {
    for namespace in ["other", "team"] {
        let mut world = world(gates(Preference::default()));
        full_nodes(&mut world);
        world.create_pod("victim", 2, json!({"metadata": {"namespace": namespace}}));
        world.run_for(2 * SECOND);
        let mut shapes = 0;
        let mut important = |world: &mut World| {
            shapes += 1;
            let metadata = json!({"annotations": {"n": shapes.to_string()}});
            world.create_pod(
                &format!("important-{shapes}"),
                5,
                json!({"metadata": metadata, "spec": {"priority": 1000}}),
            );
        };
        (0..600).for_each(|_| important(&mut world));
        let mut freed = world.now;
        for second in 0..35 {
            if second == 20 {
                world.delete_pod("vk-b-0");
                freed = world.now;
            }
            important(&mut world);
            world.touch_node("vk-a");
            world.touch_node("vk-b");
            world.run_for(SECOND);
        }
        let waited = world.now.saturating_sub(freed);
        assert_eq!(
            world.place("victim"),
            "vk-b",
            "it has waited {waited:?} in {namespace} with an idle node"
        );
    }
}

#[test]
fn a_node_that_does_not_answer_costs_few_evaluations_and_gets_pods_again_when_it_does() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 100, 4);
    world.set_behaviour("vk-a", Behaviour::Fails);
    for index in 0..100 {
        let annotations = json!({"n": index.to_string()});
        world.create_pod(&format!("pod-{index}"), 3, json!({"metadata": {"annotations": annotations}}));
    }
    world.run_for(120 * SECOND);
    let evaluations = world.evaluations();
    assert!(evaluations <= 3000, "{evaluations} evaluations of 100 queues in two minutes");
    world.set_behaviour("vk-a", Behaviour::Honest);
    world.run_for(12 * SECOND);
    assert!(world.pods.keys().all(|uid| world.place(uid) == "vk-a"));
}

/// What becomes of the updates of a namespace whose webhook does not work.
#[derive(Clone, Copy, Debug)]
enum Webhook {
    /// They fail at once.
    Fails,
    /// They are not answered.
    Hangs,
}

/// Lets time pass while the webhook of the namespace `evil` does not work. Returns how many calls were made for its pods, and when a pod of the
/// namespace `good` was nominated that has come after a second.
fn place_beside_evil_pods(webhook: Webhook, seconds: u32) -> (usize, Option<Duration>) {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    let evil = |index| {
        let name = format!("evil-{index}");
        input(pod(&name, 1, &json!({"metadata": {"namespace": "evil"}})))
    };
    let mut inputs = vec![node("vk-a", 40_000, &json!({}))];
    inputs.extend((0..1000).map(evil));
    stepped.start(inputs, &["vk-a"]);
    let (mut evil_calls, mut nominated) = (0, None);
    let start = stepped.now;
    for tick in 0..seconds * 100 {
        stepped.now += Duration::from_millis(10);
        let good = input(pod("good", 1, &json!({"metadata": {"namespace": "good"}})));
        stepped.handle(if tick == 100 { vec![good] } else { Vec::new() });
        for (id, ..) in stepped.asks() {
            stepped.answer(id, fits(2000));
        }
        for (id, call) in stepped.calls() {
            let answer = match &call {
                ApiCall::Nominate { pod, .. } if &*pod.namespace == "good" => {
                    nominated = nominated.or_else(|| Some(stepped.now.saturating_sub(start)));
                    Ok(Answer::Done)
                }
                ApiCall::Ungate { pod, .. } if &*pod.namespace == "evil" => match webhook {
                    Webhook::Fails => Err(Error::new(Kind::Server, "failed calling webhook")),
                    Webhook::Hangs => continue,
                },
                _ => Ok(Answer::Done),
            };
            evil_calls +=
                usize::from(matches!(&call, ApiCall::Ungate { pod, .. } if &*pod.namespace == "evil"));
            let mut inputs = vec![Input::Answered(id, answer)];
            if let ApiCall::Nominate { pod: nominated, node, .. } = call {
                let (name, namespace) = (&*nominated.name, &*nominated.namespace);
                let change =
                    json!({"metadata": {"namespace": namespace}, "status": {"nominatedNodeName": &*node}});
                inputs.push(input(pod(name, 1, &change)));
            }
            stepped.handle(inputs);
        }
    }
    (evil_calls, nominated)
}

#[test]
fn pods_whose_updates_fail_do_not_delay_those_of_another_namespace() {
    for webhook in [Webhook::Fails, Webhook::Hangs] {
        let (_, nominated) = place_beside_evil_pods(webhook, 4);
        let nominated = nominated.unwrap_or_else(|| panic!("it is not nominated within 3 s: {webhook:?}"));
        assert!(nominated < 2 * SECOND, "{nominated:?}, {webhook:?}");
    }
}

#[test]
fn pods_whose_updates_fail_cost_few_calls() {
    let (calls, _) = place_beside_evil_pods(Webhook::Fails, 60);
    assert!(calls < 60 * 40, "{calls} calls in a minute for a thousand pods");
}

#[test]
fn pods_that_join_a_group_while_they_are_placed_do_not_use_up_the_limit() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    stepped.start(vec![node("vk-a", 40_000, &json!({}))], &["vk-a"]);
    let metadata = json!({"labels": {names::GROUP: "g"}, "annotations": {names::GROUP_SIZE: "2"}});
    for index in 0..200 {
        let name = format!("p-{index}");
        stepped.now += SECOND;
        stepped.handle(vec![input(pod(&name, 1, &json!({})))]);
        for (id, ..) in stepped.asks() {
            stepped.answer(id, fits(2000));
        }
        let (call, nominate) = stepped.calls().pop().unwrap_or_else(|| panic!("{name} is not placed"));
        assert!(matches!(nominate, ApiCall::Nominate { .. }), "{nominate:?}");
        let member = pod(&name, 1, &json!({"metadata": metadata}));
        stepped.handle(vec![input(member.clone())]);
        stepped.handle(vec![Input::Answered(call, Ok(Answer::Done)), Input::PodGone(Arc::new(member))]);
        stepped.effects.clear();
    }
}
