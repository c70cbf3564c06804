use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use vk_kube::{Error, Kind};

use super::{
    SECOND, gates,
    lower_cluster::Behaviour,
    stepped_machine::{SteppedMachine, input, local, node, pod},
    world::{Faults, World},
};
use crate::{
    choose::Preference,
    descheduler::DeschedulerSettings,
    effect::{Answer, ApiCall, Effect, Input, Outcome},
    names,
    state_machine::Settings,
};

fn world(settings: DeschedulerSettings) -> World {
    let mut world = World::new(1, Settings { descheduler: Some(settings), ..Settings::default() });
    world.restart();
    world
}

/// Two virtual nodes: `vk-a` advertises more than each of its lower nodes has.
fn two_nodes(settings: DeschedulerSettings) -> World {
    let mut world = world(settings);
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 2, 4);
    world
}

fn owner(kind: &str, name: &str) -> Value {
    let api = match kind {
        "Job" => "batch/v1",
        "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
        _ => "example.com/v1",
    };
    let owner = json!({"apiVersion": api, "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true});
    json!({"metadata": {"ownerReferences": [owner]}})
}

fn messages(world: &World) -> Vec<String> {
    let mut all: Vec<_> =
        world.events.iter().map(|(uid, reason, message)| format!("{uid} {reason}: {message}")).collect();
    all.sort();
    all
}

#[test]
fn a_stuck_pod_is_evicted_when_another_node_fits_and_its_node_is_avoided() {
    let mut world = two_nodes(DeschedulerSettings::default());
    world.create_bound("web", "vk-a", 3, json!({}));
    world.run_for(29 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    world.run_for(5 * SECOND);
    assert_eq!(world.evicted, ["web"]);
    assert_eq!(world.config_map["avoid.team.owner"], "vk-a=2027-01-01T00:05:31Z");
    assert_eq!(
        messages(&world),
        ["web Descheduled: evicting it: no lower node of vk-a takes it, and vk-b has room"]
    );
    world.run_for(400 * SECOND);
    assert!(world.config_map.is_empty(), "the entry ends: {:?}", world.config_map);
}

#[test]
fn a_stuck_pod_stays_until_another_node_has_room() {
    let mut world = two_nodes(DeschedulerSettings::default());
    for name in ["full-0", "full-1"] {
        world.create_bound(name, "vk-b", 4, json!({}));
    }
    world.create_bound("web", "vk-a", 3, json!({}));
    world.run_for(100 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    assert_eq!(
        messages(&world),
        ["web NotDescheduled: no other node fits: 0 of 1 nodes: vk-b: insufficient cpu"]
    );
    assert!(world.config_map.is_empty());
    world.delete_pod("full-1");
    world.run_for(10 * SECOND);
    assert_eq!(world.evicted, ["web"]);
}

#[test]
fn a_stuck_pod_is_evicted_when_a_machine_of_the_upper_cluster_has_room_unless_it_was_converted() {
    let mut world = world(DeschedulerSettings::default());
    world.add_virtual_node("vk-a", 4, 2);
    world.add_local_node("machine", 4);
    let full = json!({"spec": {"schedulingGates": null, "nodeName": "machine"}});
    world.create_pod("full", 2, full);
    world.create_bound("web", "vk-a", 3, json!({}));
    world.create_bound(
        "converted",
        "vk-a",
        3,
        json!({"metadata": {"annotations": {names::LOWER_NODES: "disk=ssd"}}}),
    );
    world.run_for(60 * SECOND);
    assert_eq!(
        (world.evicted.clone(), messages(&world)),
        (
            Vec::new(),
            vec![
                "converted NotDescheduled: no other node can be asked".to_owned(),
                "web NotDescheduled: no other node fits: 0 of 1 nodes: local: 0 of 1 nodes (1 insufficient cpu)".to_owned()
            ]
        )
    );
    world.delete_pod("full");
    world.run_for(10 * SECOND);
    assert_eq!(world.evicted, ["web"]);
    let said = messages(&world);
    let why = "web Descheduled: evicting it: no lower node of vk-a takes it, and local has room";
    assert!(said.iter().any(|one| one == why), "{said:?}");
    world.run_for(100 * SECOND);
    assert_eq!(world.evicted, ["web"], "the other one was converted for virtual nodes");
}

#[test]
fn with_local_off_no_pod_is_evicted_for_a_machine_of_the_upper_cluster() {
    let mut world = world(DeschedulerSettings { local: false, ..DeschedulerSettings::default() });
    world.add_virtual_node("vk-a", 4, 2);
    world.add_local_node("machine", 4);
    world.create_bound("web", "vk-a", 3, json!({}));
    world.run_for(100 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    assert_eq!(messages(&world), ["web NotDescheduled: no other node can be asked"]);
}

#[test]
fn pods_that_nobody_would_create_again_and_pods_of_jobs_are_left_alone() {
    let mut world = two_nodes(DeschedulerSettings::default());
    world.create_bound("bare", "vk-a", 3, json!({"metadata": {"ownerReferences": null}}));
    world.create_bound("daemon", "vk-a", 3, owner("DaemonSet", "d"));
    world.create_bound("job", "vk-a", 3, owner("Job", "counts"));
    world.create_bound("kept", "vk-a", 3, json!({"metadata": {"annotations": {names::DESCHEDULE: "false"}}}));
    world.create_bound("tolerant", "vk-a", 3, owner("Job", "ignores"));
    world.run_for(200 * SECOND);
    assert_eq!(world.evicted, ["tolerant"]);
    let said: Vec<String> =
        messages(&world).into_iter().filter(|text| text.contains("NotDescheduled")).collect();
    assert_eq!(
        said,
        [
            "bare NotDescheduled: it has no controller that would create another one",
            "daemon NotDescheduled: its DaemonSet would create another one for the same node",
            "job NotDescheduled: its Job would count an eviction as a failure; a podFailurePolicy that ignores DisruptionTarget permits it",
            "kept NotDescheduled: its annotation multicluster.virtual-kubelet.io/deschedule says so",
        ]
    );
}

#[test]
fn a_pod_that_has_run_or_that_is_scheduled_below_is_not_stuck() {
    let mut world = two_nodes(DeschedulerSettings::default());
    let status = json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": {"waiting": {}}});
    world.create_bound("ran", "vk-a", 3, json!({"status": {"containerStatuses": [status]}}));
    world.create_bound("runs", "vk-a", 2, json!({}));
    world.run_for(100 * SECOND);
    assert_eq!((world.evicted.len(), world.events.len()), (0, 0));
}

#[test]
fn at_most_so_many_pods_a_minute_and_one_of_a_controller_at_a_time_are_evicted() {
    let mut world = world(DeschedulerSettings { most: 3, ..DeschedulerSettings::default() });
    world.add_virtual_node("vk-a", 20, 2);
    world.add_virtual_node("vk-b", 20, 4);
    for index in 0..8 {
        world.create_bound(&format!("web-{index}"), "vk-a", 3, owner("ReplicaSet", &index.to_string()));
    }
    world.run_for(80 * SECOND);
    assert_eq!(world.evicted.len(), 3);
    world.run_for(60 * SECOND);
    assert_eq!(world.evicted.len(), 6);

    let mut world = world_of_one_controller();
    world.faults = Faults { delay: 4 * SECOND, ..Faults::default() };
    let end = world.now + 60 * SECOND;
    while world.evicted.is_empty() && world.now < end {
        world.run_for(SECOND / 100);
    }
    assert_eq!(world.evicted.len(), 1, "the next waits until the first is gone");
    world.run_for(60 * SECOND);
    assert_eq!(world.evicted.len(), 3);
}

fn world_of_one_controller() -> World {
    let mut world = world(DeschedulerSettings::default());
    world.add_virtual_node("vk-a", 20, 2);
    world.add_virtual_node("vk-b", 20, 4);
    for index in 0..3 {
        world.create_bound(&format!("web-{index}"), "vk-a", 3, json!({}));
    }
    world
}

#[test]
fn a_dry_run_only_says_what_would_be_evicted() {
    let mut world = two_nodes(DeschedulerSettings { dry_run: true, ..DeschedulerSettings::default() });
    world.create_bound("web", "vk-a", 3, json!({}));
    world.run_for(200 * SECOND);
    assert_eq!((world.evicted.len(), world.writes), (0, 0));
    let why = "web NotDescheduled: would be evicted: no lower node of vk-a takes it, and vk-b has room";
    assert_eq!(messages(&world), [why]);
}

#[test]
fn nothing_is_evicted_while_the_node_to_avoid_cannot_be_recorded() {
    let mut world = two_nodes(DeschedulerSettings::default());
    world.create_bound("web", "vk-a", 3, json!({}));
    world.faults.fails = 1.0;
    world.run_for(100 * SECOND);
    assert_eq!((world.evicted.len(), world.avoid_writes), (0, 0));
    let expected = "web NotDescheduled: not evicted: the node to avoid cannot be recorded: fault";
    assert_eq!(messages(&world)[0], expected);
    world.faults.fails = 0.0;
    world.run_for(30 * SECOND);
    assert_eq!(world.evicted, ["web"]);
}

#[test]
fn a_pod_of_a_controller_with_a_stuck_pod_goes_elsewhere_if_anything_else_fits() {
    let mut settings =
        gates(Preference { order: vec!["vk-a".to_owned(), "vk-b".to_owned()], ..Preference::default() });
    settings.descheduler = Some(DeschedulerSettings::default());
    let mut world = World::new(1, settings);
    world.restart();
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 2, 4);
    world.set_behaviour("vk-a", Behaviour::Lies);
    world.create_pod("web-0", 3, json!({}));
    world.run_for(20 * SECOND);
    assert_eq!(world.place("web-0"), "vk-a");
    world.run_for(20 * SECOND);
    assert_eq!(world.evicted, ["web-0"]);
    for name in ["web-1", "web-2", "web-3"] {
        world.create_pod(name, 3, json!({}));
        world.run_for(2 * SECOND);
    }
    let places = ["web-1", "web-2", "web-3"].map(|name| world.place(name));
    assert_eq!(places, ["vk-b", "vk-b", "vk-a"], "the avoided node is better than none");
    world.restart();
    world.delete_pod("web-1");
    world.create_pod("web-4", 3, json!({}));
    world.run_for(2 * SECOND);
    assert_eq!(world.place("web-4"), "vk-b", "the next process knows it from the ConfigMap");
}

#[test]
fn a_late_removal_keeps_a_newer_avoid_entry() {
    let settings = DeschedulerSettings { avoid: Duration::from_secs(100), ..DeschedulerSettings::default() };
    let mut world = World::new(1, Settings { descheduler: Some(settings), ..Settings::default() });
    world.restart();
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 4, 4);
    world.create_bound("one", "vk-a", 3, json!({}));
    world.run_for(60 * SECOND);
    assert_eq!(world.evicted, ["one"]);
    // The entry ends at 131 s. Its removal at the next full minute fails, and is repeated ten seconds later.
    world.run_for(Duration::from_secs(155).saturating_sub(world.now));
    world.create_bound("three", "vk-a", 3, json!({}));
    world.run_for(Duration::from_secs(178).saturating_sub(world.now));
    world.faults.fails = 1.0;
    world.run_for(5 * SECOND);
    world.faults.fails = 0.0;
    world.run_for(5 * SECOND);
    assert_eq!(world.evicted, ["one", "three"]);
    assert!(world.config_map["avoid.team.owner"].contains("vk-a"));
    world.run_for(70 * SECOND);
    assert!(
        !world.config_map.is_empty(),
        "the new entry was removed from the ConfigMap, and is in force in memory"
    );
}

#[test]
fn a_job_that_cannot_be_read_costs_few_calls() {
    let mut stepped = SteppedMachine::new(Settings {
        descheduler: Some(DeschedulerSettings::default()),
        ..Settings::default()
    });
    let mut inputs = vec![node("vk-a", 400, &json!({})), node("vk-b", 400, &json!({}))];
    inputs.extend((0..100).map(|index| {
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}]);
        let scheduled = json!([{"type": names::SCHEDULED, "status": "False", "lastTransitionTime": "2026-12-31T23:00:00Z"}]);
        input(pod(&format!("p-{index}"), 3, &json!({"metadata": {"ownerReferences": owner},
            "spec": {"schedulingGates": null, "nodeName": "vk-a"}, "status": {"conditions": scheduled}})))
    }));
    stepped.start(inputs, &["vk-a", "vk-b"]);
    let mut reads = 0;
    while stepped.now < 600 * SECOND {
        stepped.now = stepped.machine.next_deadline().unwrap().max(stepped.now);
        stepped.handle(Vec::new());
        for (id, _) in stepped.calls() {
            reads += 1;
            stepped.handle(vec![Input::Answered(id, Err(Error::new(Kind::Forbidden, "no")))]);
        }
    }
    assert!(reads < 100, "{reads} reads of one Job in 10 minutes");
}

#[test]
fn a_pod_is_evicted_after_its_exemption_was_removed() {
    let mut world =
        World::new(1, Settings { descheduler: Some(DeschedulerSettings::default()), ..Settings::default() });
    world.restart();
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 2, 4);
    world.create_bound("web", "vk-a", 3, json!({"metadata": {"annotations": {names::DESCHEDULE: "false"}}}));
    world.run_for(60 * SECOND);
    let mut pod = world.pod("web").clone();
    pod.metadata.annotations = None;
    world.change_pod("web", pod);
    world.run_for(200 * SECOND);
    assert_eq!(world.evicted, ["web"]);
}

#[test]
fn a_pod_with_a_rule_that_only_kube_scheduler_knows_is_left_alone() {
    let mut world = two_nodes(DeschedulerSettings::default());
    let spread = json!([{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]);
    world.create_bound("web", "vk-a", 3, json!({"spec": {"topologySpreadConstraints": spread}}));
    world.run_for(60 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    let why = "vk-b: only kube-scheduler knows whether it may go there";
    assert_eq!(messages(&world), [format!("web NotDescheduled: no other node fits: 0 of 1 nodes: {why}")]);
}

/// Conversion has made it from one by host name, and kube-scheduler ignores it.
#[test]
fn anti_affinity_by_machine_is_no_such_rule() {
    let mut world = two_nodes(DeschedulerSettings::default());
    let term = json!([{"topologyKey": names::MACHINE, "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}});
    let labels = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"affinity": affinity}});
    world.create_bound("other", "vk-b", 1, labels.clone());
    world.create_bound("web", "vk-a", 3, labels);
    world.run_for(60 * SECOND);
    assert_eq!(world.evicted, ["web"]);
}

#[test]
fn pods_of_controllers_that_are_not_known_are_evicted_only_if_they_say_so() {
    let mut world = two_nodes(DeschedulerSettings::default());
    world.create_bound("workflow", "vk-a", 3, owner("Workflow", "w"));
    world.run_for(100 * SECOND);
    assert_eq!(world.evicted, [""; 0]);
    let annotation = "multicluster.virtual-kubelet.io/deschedule: \"true\"";
    let why = format!(
        "its controller Workflow may count an eviction as a failure; the annotation {annotation} permits it"
    );
    assert_eq!(messages(&world), [format!("workflow NotDescheduled: {why}")]);
    let mut pod = world.pod("workflow").clone();
    pod.metadata.annotations = Some([(names::DESCHEDULE.to_owned(), "true".to_owned())].into());
    world.change_pod("workflow", pod);
    world.run_for(100 * SECOND);
    assert_eq!(world.evicted, ["workflow"]);
}

#[test]
fn a_pod_with_a_host_name_of_its_own_has_no_other_node() {
    let mut settings = gates(Preference::default());
    settings.gates.as_mut().unwrap().pin = true;
    settings.descheduler = Some(DeschedulerSettings::default());
    let mut world = World::new(1, settings);
    world.restart();
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 2, 4);
    world.set_behaviour("vk-a", Behaviour::Lies);
    world.create_pod("web", 3, json!({"spec": {"nodeSelector": {names::HOSTNAME: "vk-a"}}}));
    world.run_for(60 * SECOND);
    assert_eq!((world.place("web").as_str(), world.evicted.len()), ("vk-a", 0));
}

#[test]
fn an_eviction_that_is_refused_does_not_make_its_node_avoided_for_longer() {
    let mut stepped = SteppedMachine::new(Settings {
        descheduler: Some(DeschedulerSettings::default()),
        ..Settings::default()
    });
    let scheduled =
        json!([{"type": names::SCHEDULED, "status": "False", "lastTransitionTime": "2026-12-31T23:00:00Z"}]);
    let stuck = pod(
        "a",
        3,
        &json!({"spec": {"schedulingGates": null, "nodeName": "vk-a"}, "status": {"conditions": scheduled}}),
    );
    stepped.start(
        vec![node("vk-a", 400, &json!({})), node("vk-b", 400, &json!({})), input(stuck)],
        &["vk-a", "vk-b"],
    );
    let (mut writes, mut evictions) = (Vec::new(), 0);
    while stepped.now < 200 * SECOND {
        let asks = stepped.asks();
        for (id, ..) in &asks {
            stepped.answer(*id, super::stepped_machine::fits(10));
        }
        let calls = stepped.calls();
        for (id, call) in &calls {
            let answer = match call {
                ApiCall::Evict { .. } => {
                    evictions += 1;
                    Err(Error::new(Kind::Conflict, "changed"))
                }
                ApiCall::WriteAvoidTable(changes) => {
                    let now = "2027-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap() + stepped.now;
                    writes.push(changes["avoid.team.owner"].as_ref().map(|entry| {
                        let until: jiff::Timestamp = entry.split_once('=').unwrap().1.parse().unwrap();
                        until.duration_since(now).as_mins()
                    }));
                    Ok(Answer::Done)
                }
                _ => Ok(Answer::Done),
            };
            stepped.handle(vec![Input::Answered(*id, answer)]);
        }
        if asks.is_empty() && calls.is_empty() {
            stepped.now = stepped.machine.next_deadline().unwrap().max(stepped.now);
            stepped.handle(Vec::new());
        }
    }
    assert!(evictions >= 3, "{evictions}");
    // Minutes are rounded down. What was not needed is removed once a minute.
    assert!(writes.iter().flatten().all(|minutes| (4..=5).contains(minutes)), "{writes:?}");
    assert!(writes.contains(&None), "{writes:?}");
}

/// A machine with pods that are stuck on `vk-a` for long enough, each of a controller of its own, while a machine of the upper cluster has room.
fn stuck_pods(settings: DeschedulerSettings, pods: usize) -> SteppedMachine {
    let settings = Settings { descheduler: Some(settings), ..Settings::default() };
    let mut stepped = SteppedMachine::new(settings);
    stepped.now = 60 * SECOND;
    let mut inputs = vec![node("vk-a", 400, &json!({})), local("machine")];
    inputs.extend((0..pods).map(|index| stuck_pod(&format!("p-{index}"), &format!("owner-{index}"))));
    stepped.start(inputs, &["vk-a", "machine"]);
    stepped
}

fn stuck_pod(name: &str, owner: &str) -> Input {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}]);
    let scheduled =
        json!([{"type": names::SCHEDULED, "status": "False", "lastTransitionTime": "2026-12-31T23:00:00Z"}]);
    input(pod(
        name,
        3,
        &json!({"metadata": {"ownerReferences": owner}, "spec": {"schedulingGates": null, "nodeName": "vk-a"},
            "status": {"conditions": scheduled}}),
    ))
}

/// Lets time pass in steps of a second, in which nodes change. Answers calls, and returns how many pods were evicted.
fn evictions_within(stepped: &mut SteppedMachine, seconds: u32, evicted: &Result<Answer, Error>) -> usize {
    let mut evictions = 0;
    for second in 0..seconds {
        stepped.now += SECOND;
        stepped.handle(vec![node("vk-a", 400 + second % 2, &json!({}))]);
        for _ in 0..2 {
            for (id, call) in stepped.calls() {
                let is_eviction = matches!(call, ApiCall::Evict { .. });
                evictions += usize::from(is_eviction);
                let answer = if is_eviction { evicted.clone() } else { Ok(Answer::Done) };
                stepped.handle(vec![Input::Answered(id, answer)]);
            }
        }
    }
    evictions
}

#[test]
fn an_eviction_without_an_answer_may_have_taken_place() {
    let few = DeschedulerSettings { most: 2, ..DeschedulerSettings::default() };
    let mut stepped = stuck_pods(few, 6);
    let lost = Err(Error::new(Kind::Timeout, "no answer"));
    assert_eq!(evictions_within(&mut stepped, 59, &lost), 2);

    let mut stepped = stuck_pods(DeschedulerSettings::default(), 0);
    stepped.handle((0..3).map(|index| stuck_pod(&format!("web-{index}"), "web")).collect());
    assert_eq!(evictions_within(&mut stepped, 59, &lost), 1, "another pod of the controller");
    let refused = Err(Error::new(Kind::Throttled, "a disruption budget"));
    let mut stepped = stuck_pods(few, 6);
    assert!(
        evictions_within(&mut stepped, 59, &refused) > 4,
        "one that was refused leaves the others their turn"
    );
}

#[test]
fn evictions_are_counted_when_they_are_sent() {
    let few = DeschedulerSettings { most: 2, ..DeschedulerSettings::default() };
    let mut stepped = stuck_pods(few, 6);
    let slow = stepped.calls();
    assert_eq!(slow.len(), 2, "nodes to avoid: {slow:?}");
    stepped.now += 50 * SECOND;
    for (id, _) in slow {
        stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
    }
    let sent = stepped.calls();
    assert_eq!(sent.len(), 2, "{sent:?}");
    for (id, _) in sent {
        stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
    }
    assert_eq!(evictions_within(&mut stepped, 58, &Ok(Answer::Done)), 0);
    assert_eq!(evictions_within(&mut stepped, 10, &Ok(Answer::Done)), 2);
}

#[test]
fn other_pods_of_a_controller_wait_from_when_the_eviction_is_sent() {
    let mut stepped = stuck_pods(DeschedulerSettings::default(), 0);
    stepped.handle((0..2).map(|index| stuck_pod(&format!("web-{index}"), "web")).collect());
    let avoid = stepped.calls();
    assert_eq!(avoid.len(), 1, "{avoid:?}");
    stepped.now += 50 * SECOND;
    stepped.handle(vec![Input::Answered(avoid[0].0, Ok(Answer::Done))]);
    let sent = stepped.calls();
    assert!(matches!(&*sent, [(_, ApiCall::Evict { .. })]), "{sent:?}");
    let lost = Err(Error::new(Kind::Timeout, "no answer"));
    stepped.handle(vec![Input::Answered(sent[0].0, lost.clone())]);
    assert_eq!(evictions_within(&mut stepped, 58, &lost), 0);
}

#[test]
fn an_eviction_counts_although_its_pod_is_gone_before_it_is_answered() {
    let mut stepped = stuck_pods(DeschedulerSettings::default(), 1);
    let (avoid, _) = stepped.calls().remove(0);
    stepped.handle(vec![Input::Answered(avoid, Ok(Answer::Done))]);
    let (evict, call) = stepped.calls().remove(0);
    let ApiCall::Evict { pod: evicted, .. } = call else { panic!("{call:?}") };
    let gone =
        pod(&evicted.name, 1, &json!({"metadata": {"uid": &*evicted.uid, "namespace": &*evicted.namespace}}));
    stepped.handle(vec![Input::PodGone(Arc::new(gone))]);
    stepped.effects.clear();
    stepped.handle(vec![Input::Answered(evict, Ok(Answer::Done))]);
    let is_count = |effect: &&Effect| matches!(effect, Effect::Count(Outcome::Evicted { dry_run: false }));
    assert_eq!(stepped.effects.iter().filter(is_count).count(), 1, "{:?}", stepped.effects);
}

/// The calls until the next housekeeping is over.
fn calls_within_a_minute(stepped: &mut SteppedMachine) -> Vec<ApiCall> {
    let mut calls = Vec::new();
    for _ in 0..61 {
        stepped.now += SECOND;
        stepped.handle(Vec::new());
        for (id, call) in stepped.calls() {
            calls.push(call);
            stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
        }
    }
    calls
}

#[test]
fn a_node_that_takes_a_pod_before_it_is_evicted_is_not_avoided() {
    let taken = || {
        let Input::Pod(mut pod) = stuck_pod("p-0", "owner-0") else { unreachable!() };
        let conditions = Arc::make_mut(&mut pod).status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].status = "True".to_owned();
        Input::Pod(pod)
    };
    let again = || stuck_pod("p-0", "owner-0");
    for (is_sent, is_stuck_again, answer, is_avoided) in [
        (false, false, Ok(Answer::Done), false),
        (false, true, Ok(Answer::Done), false),
        (false, false, Err(Error::new(Kind::Timeout, "no answer")), false),
        (true, false, Err(Error::new(Kind::Conflict, "changed")), false),
        (true, true, Err(Error::new(Kind::Conflict, "changed")), false),
        (true, false, Err(Error::new(Kind::Timeout, "no answer")), true),
        (true, false, Ok(Answer::Done), true),
    ] {
        let case = format!("evicted: {is_sent}, stuck again: {is_stuck_again}, {answer:?}");
        let few = DeschedulerSettings { most: 1, ..DeschedulerSettings::default() };
        let mut stepped = stuck_pods(few, 1);
        let (mut id, write) = stepped.calls().remove(0);
        assert!(matches!(write, ApiCall::WriteAvoidTable(_)), "{write:?}");
        if is_sent {
            stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
            id = stepped.calls().remove(0).0;
        }
        stepped.handle(vec![taken()]);
        if is_stuck_again {
            stepped.handle(vec![again(), taken(), again()]);
            assert!(stepped.calls().is_empty(), "{case}");
        }
        stepped.now += SECOND;
        stepped.handle(vec![Input::Answered(id, answer)]);
        if is_stuck_again {
            stepped.handle(vec![taken()]);
        }
        assert!(stepped.calls().is_empty(), "{case}");
        if !is_avoided {
            stepped.handle(vec![stuck_pod("p-1", "owner-1")]);
            let calls = stepped.calls();
            let is_next = matches!(&*calls, [(_, ApiCall::WriteAvoidTable(_))]);
            assert!(is_next, "another pod has its turn, {case}: {calls:?}");
        }
        let removed = json!({"avoid.team.owner-0": null});
        let calls = calls_within_a_minute(&mut stepped);
        let is_removed = calls
            .iter()
            .any(|call| matches!(call, ApiCall::WriteAvoidTable(changes) if json!(changes) == removed));
        assert_eq!(is_removed, !is_avoided, "{case}: {calls:?}");
    }
}
