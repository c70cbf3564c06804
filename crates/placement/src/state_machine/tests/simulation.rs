//! Seeded schedules of faults: calls that fail before or after they took effect, nodes that lie, fail, hang or cannot tell and come back, a watch
//! that is late or breaks, a scheduler that does not bind, crashes of the process, a process that does not know yet that another one leads.
//!
//! At all times: a pod has at most one lower pod while it is on trial, and loses its gate only when it is nominated, and after a trial only when the
//! lower pod has a lower node. With trials no pod waits in a lower cluster once it is bound; without them none of several equal ones does while all
//! nodes are honest. The pods of a group are never on different nodes, and the first loses its gate only when all are nominated, or have lower nodes.
//! The descheduler evicts no pod of a Job that counts it, and none that is exempt or that nobody would create again; it evicts few pods a minute,
//! of each controller one at a time, and after it has recorded the node to avoid (`world/eviction.rs`).
//! No pod waits for longer than the back-off while a node that is honest has room for it (`idle_capacity.rs`).
//! When the storm is over, no pod waits although a node has room for it, and no group although a node has room for all of it, no pod stays stuck
//! although another node has room, and then nothing is written any more.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use rand::{RngExt as _, seq::IndexedRandom as _};
use serde_json::{Value, json};
use vk_provider::placement::trial_node;

use super::{
    SECOND, gates,
    idle_capacity::{IdleCapacity, room},
    lower_cluster::{Behaviour, cpus},
    trials,
    world::{Faults, World},
};
use crate::{
    choose::Preference, descheduler::DeschedulerSettings, names, pod_state, state_machine::Settings,
};

/// How many schedules are tried unless `VK_SEEDS` says otherwise.
const SEEDS: u64 = 200;
const NODES: [&str; 3] = ["vk-a", "vk-b", "vk-c"];
pub(super) const MACHINES: [&str; 2] = ["machine-0", "machine-1"];

/// What differs between schedules.
#[derive(Clone, Copy, Debug)]
struct Setup {
    by_trial: bool,
    /// The descheduler runs, too.
    deschedules: bool,
    /// The cluster has machines of its own.
    has_machines: bool,
    /// Pods get a node selector, as before Kubernetes 1.35.
    pins: bool,
}

// === impl Setup ===

impl Setup {
    /// Every combination occurs.
    fn of(seed: u64) -> Self {
        let bit = |index: u32| seed >> index & 1 == 1;
        Self { by_trial: bit(0), deschedules: bit(1), has_machines: bit(2), pins: bit(3) }
    }

    /// How long a pod may wait at most although a node has room. By estimate the room of one that kube-scheduler does not bind is held for two
    /// minutes. With trials another node may be tried meanwhile, and then the node itself, after the longest back-off.
    fn longest_wait(self) -> Duration {
        if self.by_trial { 600 * SECOND } else { 180 * SECOND }
    }

    fn settings(self) -> Settings {
        let mut settings = if self.by_trial { trials } else { gates }(Preference::default());
        settings.gates.as_mut().unwrap().pin = self.pins;
        let few = DeschedulerSettings { most: 3, ..DeschedulerSettings::default() };
        settings.descheduler = self.deschedules.then_some(few);
        settings
    }
}

fn storm(world: &mut World, setup: Setup) -> Result<(), String> {
    let by_trial = setup.by_trial;
    let mut idle_capacity = IdleCapacity::new(setup.longest_wait());
    world.recreates = true;
    world.restart();
    for name in MACHINES.iter().filter(|_| setup.has_machines) {
        let cpus = world.rng.random_range(2..6);
        world.add_local_node(name, cpus);
    }
    for name in NODES {
        let (nodes, cpus) = (world.rng.random_range(1..4), world.rng.random_range(2..6));
        world.add_virtual_node(name, nodes, cpus);
    }
    let only_honest = world.rng.random_bool(0.3);
    world.faults = Faults {
        fails: 0.1,
        lost: 0.1,
        unbound: if only_honest { 0.0 } else { 0.1 },
        delay: Duration::from_millis(world.rng.random_range(1..3000)),
        late: Duration::from_millis(if world.rng.random_bool(0.5) { 2000 } else { 0 }),
    };
    // Of pods of different sizes, a small one may come first and take the node that the large one needed: only a trial rules that out.
    let equal = world.rng.random_range(1..5);
    for index in 0..world.rng.random_range(5..40) {
        let (any, priority) = (world.rng.random_range(1..5), world.rng.random_range(0..3));
        let cpus = if only_honest { equal } else { any };
        let name = format!("pod-{index:02}");
        let mut pod = any_owner(world);
        json_patch::merge(&mut pod, &json!({"spec": {"priority": priority}}));
        world.create_pod(&name, cpus, pod);
        if setup.deschedules && !only_honest && world.rng.random_bool(0.4) {
            create_bound(world, &format!("bound-{index:02}"));
        }
        if world.rng.random_bool(0.5) {
            let seconds = world.rng.random_range(5..100);
            world.remove_later(&name, Duration::from_secs(seconds));
        }
        if world.rng.random_bool(0.15) {
            create_group(
                world,
                &format!("group-{index:02}"),
                if only_honest { equal..equal + 1 } else { 1..4 },
            );
        }
        let pause = Duration::from_millis(world.rng.random_range(0..4000));
        idle_capacity.watch(world, pause)?;
        meddle(world, only_honest);
        if (only_honest || by_trial) && world.waited_below > 0 {
            return Err(format!("a pod waits below: {:?}", below(world)));
        }
    }
    calm(world, setup, &mut idle_capacity)
}

/// What a pod says about who created it, and about the descheduler.
fn any_owner(world: &mut World) -> Value {
    let (kind, name) = match world.rng.random_range(0..10) {
        0 => return json!({"metadata": {"ownerReferences": null}}),
        1 => ("Job", "counts"),
        2 => ("Job", "ignores"),
        3..6 => ("ReplicaSet", "web"),
        6 | 7 => ("ReplicaSet", "api"),
        _ => ("StatefulSet", "db"),
    };
    let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    let owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true});
    let annotations = world.rng.random_bool(0.1).then(|| json!({names::DESCHEDULE: "false"}));
    json!({"metadata": {"ownerReferences": [owner], "annotations": annotations}})
}

/// A pod that kube-scheduler has bound to a virtual node without placement. It may be stuck there.
fn create_bound(world: &mut World, name: &str) {
    let (node, cpus) = (*NODES.choose(&mut world.rng).unwrap(), world.rng.random_range(1..5));
    let mut pod = any_owner(world);
    if world.rng.random_bool(0.1) {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "agent", "controller": true}]);
        pod["metadata"]["ownerReferences"] = owner;
    }
    let waited = world.waited_below;
    world.create_bound(name, node, cpus, pod);
    world.waited_below = waited;
}

/// A group whose pods come one after the other, perhaps with more than it needs, of which some may go before it is placed or later.
fn create_group(world: &mut World, name: &str, cpus: std::ops::Range<i64>) {
    let size = world.rng.random_range(1..5);
    let pods = size + usize::from(world.rng.random_bool(0.2));
    let owner = if world.rng.random_bool(0.3) { json!(null) } else { json!({}) };
    for index in 0..pods {
        let (cpus, uid) = (world.rng.random_range(cpus.clone()), format!("{name}-{index}"));
        let change = if owner.is_null() { json!({"metadata": {"ownerReferences": null}}) } else { json!({}) };
        world.create_member(&uid, cpus, name, size, change);
        if world.rng.random_bool(0.2) {
            let seconds = world.rng.random_range(1..60);
            world.remove_later(&uid, Duration::from_secs(seconds));
        }
        let pause = Duration::from_millis(world.rng.random_range(0..300));
        world.run_for(pause);
    }
}

fn meddle(world: &mut World, only_honest: bool) {
    let node = *NODES.choose(&mut world.rng).unwrap();
    match world.rng.random_range(0..20) {
        0 => world.restart(),
        1 => world.break_watch(),
        6 => world.replace_leader(),
        2 | 3 => world.touch_node(node),
        4 | 5 => {
            let any = [
                Behaviour::Honest,
                Behaviour::Fails,
                Behaviour::Hangs,
                Behaviour::Lies,
                Behaviour::Unsure,
                Behaviour::Refuses,
            ];
            let among = if only_honest { &any[..3] } else { &any[..] };
            let behaviour = *among.choose(&mut world.rng).unwrap();
            world.set_behaviour(node, behaviour);
        }
        _ => {}
    }
}

fn calm(world: &mut World, setup: Setup, idle_capacity: &mut IdleCapacity) -> Result<(), String> {
    world.faults = Faults::default();
    for name in NODES {
        world.set_behaviour(name, Behaviour::Honest);
    }
    idle_capacity.watch(world, 100 * SECOND)?;
    if setup.deschedules {
        // An eviction that failed several times is repeated after ten minutes at the latest.
        idle_capacity.watch(world, 1200 * SECOND)?;
        no_pod_is_stuck_in_vain(world)?;
    }
    // Pods that wait below because a node has lied never leave by themselves.
    for (_, uid) in below(world) {
        world.delete_pod(&uid);
    }
    // kube-scheduler tries pods again that it has not bound. The trial of one that stays unbound was ended.
    for uid in unbound(world) {
        if setup.by_trial { world.delete_pod(&uid) } else { world.bind_again(&uid) }
    }
    // A node that has refused is tried again after five minutes at the latest.
    idle_capacity.watch(world, if setup.by_trial { 700 * SECOND } else { 200 * SECOND })?;
    if setup.by_trial && world.waited_below > 0 {
        return Err(format!("{} pods have waited below", world.waited_below));
    }
    for (uid, pod) in &world.pods {
        if trial_node(pod).is_some() {
            return Err(format!("{uid} is still on trial"));
        }
    }
    for (uid, pod) in &world.pods {
        if let Some(node) = room(world, uid, pod) {
            return Err(format!(
                "{uid} with {} waits although {node} has room:\n{}",
                cpus(pod),
                places(world)
            ));
        }
    }
    for key in world.groups() {
        if let Some((node, wanted)) = world.room_for_group(&key) {
            return Err(format!("{key} with {wanted:?} waits although {node} has room:\n{}", places(world)));
        }
    }
    // Entries of the avoid table end later.
    let writes = |world: &World| world.writes - world.avoid_calls;
    let before = writes(world);
    world.run_for(180 * SECOND);
    if writes(world) != before {
        return Err(format!("{} writes although nothing happens", writes(world) - before));
    }
    Ok(())
}

/// A pod that may be evicted is not left where no lower node takes it while another node has room, that its controller does not avoid.
fn no_pod_is_stuck_in_vain(world: &World) -> Result<(), String> {
    for (node, uid) in below(world) {
        let pod = world.pod(&uid);
        let exempt = pod.metadata.annotations.iter().flatten().any(|(key, _)| key == names::DESCHEDULE);
        let Some(owner) = pod_state::controller(pod).filter(|_| !exempt && pod_state::group(pod).is_none())
        else {
            continue;
        };
        if owner.name == "counts" || owner.kind == "DaemonSet" {
            continue;
        }
        let avoided = world.config_map.get(&format!("avoid.team.{}", owner.uid)).cloned().unwrap_or_default();
        let wanted = cpus(pod);
        let has_room = |name: &&String| {
            **name != node
                && !avoided.contains(&format!("{name}="))
                && world.lower[*name].fits(wanted)
                && world.free_above(name, &uid) >= wanted
        };
        if let Some(other) = world.lower.keys().find(has_room) {
            return Err(format!(
                "{uid} with {wanted} is stuck on {node} although {other} has room:\n{}",
                places(world)
            ));
        }
    }
    Ok(())
}

/// Pods that lost their gate and are not bound.
fn unbound(world: &World) -> Vec<String> {
    let is_unbound =
        |pod: &Pod| pod_state::node(pod).is_none() && pod_state::gating(pod) == pod_state::Gating::Open;
    world.pods.iter().filter(|(_, pod)| is_unbound(pod)).map(|(uid, _)| uid.clone()).collect()
}

pub(super) fn places(world: &World) -> String {
    let place = |(uid, pod): (&String, &Pod)| {
        let nominated = pod_state::nominated_node(pod);
        format!("{uid} ({}): {}, nominated {nominated:?}", cpus(pod), world.place(uid))
    };
    world.pods.iter().map(place).collect::<Vec<_>>().join("\n")
}

fn below(world: &World) -> Vec<(String, String)> {
    let waiting = world
        .lower
        .iter()
        .flat_map(|(node, lower)| lower.waiting().into_iter().map(move |uid| (node.clone(), uid.to_owned())));
    waiting.collect()
}

/// A schedule, with what happened and how many pods were descheduled.
fn run(seed: u64, setup: Setup) -> (Result<(), String>, Vec<String>, u32) {
    let mut world = World::new(seed, setup.settings());
    world.trace = Some(Vec::new());
    let result = catch_unwind(AssertUnwindSafe(|| storm(&mut world, setup)));
    let result = result.unwrap_or_else(|_| Err("an assertion has failed, see above".to_owned()));
    (result, world.trace.unwrap_or_default(), world.descheduled)
}

#[test]
fn placement_recovers_from_any_schedule_of_faults() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let all = || 0..variable("VK_SEEDS").unwrap_or(SEEDS);
    let mut all_descheduled = 0;
    for seed in variable("VK_SEED").map_or_else(all, |seed| seed..seed + 1) {
        let setup = Setup::of(seed);
        let (result, trace, descheduled) = run(seed, setup);
        all_descheduled += descheduled;
        if let Err(why) = result {
            panic!("{}\nseed {seed}, {setup:?}: {why} (VK_SEED={seed} repeats it)", trace.join("\n"));
        }
    }
    assert!(variable("VK_SEED").is_some() || all_descheduled > 0, "no pod was ever stuck");
}

#[test]
fn a_seed_repeats_its_schedule() {
    for seed in 0..20 {
        let (first, second) = (run(seed, Setup::of(seed)).1, run(seed, Setup::of(seed)).1);
        let differs = first.iter().zip(&second).find(|(first, second)| first != second);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}
