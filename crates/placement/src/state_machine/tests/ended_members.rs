//! Groups of which some pods have succeeded.

use std::time::Duration;

use serde_json::json;

use super::{Preference, SECOND, gates, trials, world, world::World};
use crate::pod_state;

const MEMBERS: [&str; 3] = ["train-0", "train-1", "train-2"];

fn create(world: &mut World, cpus: i64) {
    for name in MEMBERS {
        world.create_member(name, cpus, "train", 3, json!({}));
    }
}

fn succeed(world: &mut World, name: &str) {
    let mut pod = world.pod(name).clone();
    pod.spec.as_mut().unwrap().node_name = Some("vk-a".to_owned());
    pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    world.change_pod(name, pod);
}

fn gated(world: &World) -> usize {
    world.pods.values().filter(|pod| pod_state::gating(pod) == pod_state::Gating::Ours).count()
}

#[test]
fn a_pod_that_is_created_again_does_not_wait_for_those_that_have_succeeded() {
    for settings in [gates(Preference::default()), trials(Preference::default())] {
        let mut world = world(settings);
        world.add_virtual_node("vk-a", 4, 4);
        create(&mut world, 1);
        world.run_for(2 * SECOND);
        for name in ["train-0", "train-2"] {
            succeed(&mut world, name);
        }
        world.delete_pod("train-1");
        world.create_member("again", 1, "train", 3, json!({}));
        world.run_for(300 * SECOND);
        assert_eq!(world.place("again"), "vk-a");
    }
}

#[test]
fn pods_of_an_earlier_run_that_have_succeeded_do_not_complete_a_group() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 4, 4);
    create(&mut world, 1);
    world.run_for(2 * SECOND);
    for name in MEMBERS {
        succeed(&mut world, name);
    }
    let owner =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "next", "uid": "next", "controller": true}]);
    let next = json!({"metadata": {"ownerReferences": owner}});
    world.create_member("next-0", 1, "train", 3, next.clone());
    world.run_for(60 * SECOND);
    let said = "1 of 3 pods of group train exist without other scheduling gates";
    assert_eq!(world.place("next-0"), said);
    for name in ["next-1", "next-2"] {
        world.create_member(name, 1, "train", 3, next.clone());
    }
    world.run_for(2 * SECOND);
    assert_eq!(["next-0", "next-1", "next-2"].map(|name| world.place(name)), ["vk-a", "vk-a", "vk-a"]);
}

#[test]
fn the_first_pod_of_a_group_may_end_before_the_others_have_lost_their_gates() {
    let mut world = world(trials(Preference::default()));
    world.add_virtual_node("vk-a", 3, 4);
    world.faults.delay = Duration::from_millis(100);
    create(&mut world, 3);
    while gated(&world) == 3 {
        world.run_for(Duration::from_millis(1));
    }
    let first = MEMBERS.into_iter().find(|uid| pod_state::gating(world.pod(uid)) == pod_state::Gating::Open);
    succeed(&mut world, first.unwrap());
    world.restart();
    world.run_for(120 * SECOND);
    assert_eq!((gated(&world), world.trials), (0, 3), "no trial was ended");
}
