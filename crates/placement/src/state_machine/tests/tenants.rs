//! Tenants with many shapes, and those with few.

use std::time::Duration;

use serde_json::json;

use super::{SECOND, gates, lower_cluster::Behaviour, world};
use crate::{choose::Preference, pod_state};

#[test]
fn new_shapes_of_a_tenant_keep_no_waiting_pod_from_room_that_is_free_again() {
    for namespace in ["other", "team"] {
        let mut world = world(gates(Preference::default()));
        for name in ["vk-a", "vk-b"] {
            // Each lower node has one CPU left, and all together six.
            world.add_virtual_node(name, 6, 4);
            for index in 0..6 {
                world.create_bound(&format!("{name}-{index}"), name, 3, json!({}));
            }
        }
        world.create_pod("victim", 2, json!({"metadata": {"namespace": namespace}}));
        world.run_for(2 * SECOND);
        assert!(world.place("victim").contains("6 insufficient cpu"), "{}", world.place("victim"));
        let mut shapes = 0;
        let mut spam = |world: &mut super::World| {
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
