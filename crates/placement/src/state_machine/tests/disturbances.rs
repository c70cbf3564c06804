//! Tenants, nodes and API servers that disturb others.

use std::time::Duration;

use serde_json::json;
use vk_kube::{Error, Kind};
use vk_provider::placement::FitAnswer;

use super::{
    SECOND, gates,
    lower_cluster::Behaviour,
    order,
    stepped_machine::{SteppedMachine, fits, input, local, node, pod, refused},
    world,
    world::World,
};
use crate::{
    choose::Preference,
    descheduler::DeschedulerSettings,
    effect::{Answer, ApiCall, Effect, Input},
    fit_answers::QueryId,
    names, pod_state,
    state_machine::Settings,
};

#[test]
fn a_node_that_changes_while_it_is_asked_keeps_no_pod_from_another_node() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    stepped.start(
        vec![node("vk-a", 4, &json!({})), node("vk-b", 4, &json!({})), input(pod("p", 1, &json!({})))],
        &["vk-a", "vk-b"],
    );
    let mut pending: Vec<(Duration, QueryId, String)> = Vec::new();
    for tick in 0..12_000 {
        // vk-a changes every 20 ms, an answer takes 30 ms.
        stepped.now += Duration::from_millis(5);
        for (id, name, _) in stepped.asks() {
            pending.push((stepped.now + Duration::from_millis(30), id, name));
        }
        let mut inputs = Vec::new();
        if tick % 4 == 0 {
            inputs.push(node("vk-a", 4, &json!({"metadata": {"annotations": {"multicluster.virtual-kubelet.io/largest-free": tick.to_string()}}})));
        }
        let now = stepped.now;
        for (_, id, name) in pending.extract_if(.., |(at, ..)| *at <= now) {
            let verdict = if name == "vk-a" { refused() } else { fits(4) };
            inputs.push(Input::FitAnswered(id, Ok(FitAnswer { verdicts: vec![verdict], best_nodes: None })));
        }
        stepped.handle(inputs);
        if !stepped.calls().is_empty() {
            return;
        }
    }
    panic!("after {:?} the pod still waits although vk-b has always had room", stepped.now);
}

#[test]
fn pods_that_are_never_bound_do_not_close_a_node_for_ever() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 1000, 4);
    world.faults.unbound = 1.0;
    for index in 0..500 {
        world.create_pod(&format!("bad-{index:03}"), 1, json!({"metadata": {"ownerReferences": null}}));
    }
    world.run_for(10 * SECOND);
    world.faults.unbound = 0.0;
    world.create_pod("good", 1, json!({"metadata": {"labels": {"app": "other tenant"}}}));
    world.run_for(3600 * SECOND);
    assert_eq!(world.place("good"), "vk-a", "3500 of 4000 CPUs are free");
}

#[test]
fn a_refused_pod_does_not_make_its_queue_spin() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    stepped.start(
        vec![node("vk-a", 4, &json!({})), input(pod("a", 3, &json!({}))), input(pod("b", 3, &json!({})))],
        &["vk-a"],
    );
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(1));
    let (nominate, _) = stepped.calls().remove(0);
    stepped.handle(vec![Input::Answered(nominate, Err(Error::new(Kind::Forbidden, "a webhook says no")))]);
    // `b` gets the same answer; then a third party takes the room.
    let mut wakes = 0;
    let end = stepped.now + 30 * SECOND;
    while stepped.now < end {
        for (id, ..) in stepped.asks() {
            stepped.answer(id, refused());
        }
        for (id, _) in stepped.calls() {
            stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
        }
        stepped.now = stepped.machine.next_deadline().unwrap().max(stepped.now);
        stepped.handle(Vec::new());
        wakes += 1;
    }
    assert!(wakes < 300, "{wakes} wake-ups in 30 s while nothing happens");
}

#[test]
fn a_pod_that_is_deleted_before_it_is_bound_leaves_its_room_at_once() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 1, 4);
    world.faults.unbound = 1.0;
    world.create_pod("a", 3, json!({}));
    world.run_for(2 * SECOND);
    world.faults.unbound = 0.0;
    world.create_pod("b", 3, json!({}));
    world.run_for(3 * SECOND);
    world.delete_pod("a");
    world.run_for(10 * SECOND);
    assert_eq!(world.place("b"), "vk-a");
}

#[test]
fn unmodelled_pods_do_not_overcommit_the_sum_of_a_node() {
    let mut world = world(gates(Preference::default()));
    world.add_virtual_node("vk-a", 1, 4);
    world.add_virtual_node("vk-b", 10, 4);
    for name in ["vk-a", "vk-b"] {
        world.set_behaviour(name, Behaviour::Unsure);
    }
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": names::MACHINE, "labelSelector": {"matchLabels": {"app": "x"}}},
    ]}});
    for index in 0..20 {
        world.create_pod(
            &format!("p-{index:02}"),
            1,
            json!({"metadata": {"labels": {"app": "x"}}, "spec": {"affinity": anti}}),
        );
    }
    world.run_for(5 * SECOND);
    let on_a = world.pods.keys().filter(|uid| world.place(uid) == "vk-a").count();
    assert!(on_a <= 4, "{on_a} pods of 1 cpu on a node of 4 in total, while the other one has 40 free");
}

#[test]
fn pods_that_are_listed_before_nodes_are_held() {
    let ungated = |name: &str| {
        let status =
            json!({"nominatedNodeName": "vk-a", "conditions": [{"type": names::PLACED, "status": "True"}]});
        pod(name, 3, &json!({"spec": {"schedulingGates": null}, "status": status}))
    };
    let pods = || {
        vec![
            Input::PodsRestarted,
            input(ungated("a")),
            input(pod("b", 3, &json!({}))),
            Input::PodsListed,
            Input::SucceededPodsListed(Vec::new()),
        ]
    };
    let nodes = || vec![node("vk-a", 400, &json!({})), Input::NodesListed(vec!["vk-a".into()])];
    for pods_first in [false, true] {
        let mut stepped = SteppedMachine::new(gates(Preference::default()));
        let (one, other) = if pods_first { (pods(), nodes()) } else { (nodes(), pods()) };
        stepped.handle(one);
        stepped.handle(other);
        let asks = stepped.asks();
        assert_eq!(asks[0].2, 1, "held pods in the query; pods first: {pods_first}");
    }
}

#[test]
fn refused_evictions_do_not_use_up_the_limit() {
    let mut stepped = SteppedMachine::new(Settings {
        descheduler: Some(DeschedulerSettings::default()),
        ..Settings::default()
    });
    let stuck = |name: &str, owner: &str, created: &str| {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": owner, "controller": true}]);
        let scheduled = json!([{"type": names::SCHEDULED, "status": "False", "lastTransitionTime": "2026-12-31T23:00:00Z"}]);
        let change = json!({
            "metadata": {"ownerReferences": owner, "creationTimestamp": created},
            "spec": {"schedulingGates": null, "nodeName": "vk-a"}, "status": {"conditions": scheduled},
        });
        input(pod(name, 3, &change))
    };
    let mut inputs = vec![node("vk-a", 400, &json!({})), node("vk-b", 400, &json!({}))];
    inputs.extend(
        (0..10).map(|index| {
            stuck(&format!("bad-{index}"), &format!("not a/key {index}"), "2026-01-01T00:00:00Z")
        }),
    );
    stepped.start(inputs, &["vk-a", "vk-b"]);
    let (mut writes, mut evicted, mut added) = (0, false, false);
    let end = stepped.now + 600 * SECOND;
    while stepped.now < end {
        stepped.now = stepped.machine.next_deadline().unwrap().max(stepped.now);
        let mut inputs = Vec::new();
        if !added && stepped.now > 120 * SECOND {
            added = true;
            inputs.push(stuck("good", "good", "2026-12-01T00:00:00Z"));
        }
        stepped.handle(inputs);
        for (id, ..) in stepped.asks() {
            stepped.answer(id, fits(100));
        }
        for (id, call) in stepped.calls() {
            let answer = match &call {
                ApiCall::WriteAvoidTable(changes) if changes.keys().any(|key| key.contains('/')) => {
                    writes += 1;
                    Err(Error::new(
                        Kind::Invalid,
                        "a valid config key must consist of alphanumeric characters",
                    ))
                }
                ApiCall::Evict { pod, .. } => {
                    evicted |= &*pod.name == "good";
                    Ok(Answer::Done)
                }
                _ => Ok(Answer::Done),
            };
            stepped.handle(vec![Input::Answered(id, answer)]);
        }
    }
    assert!(evicted, "{writes} refused writes, and the pod of another tenant is never evicted");
    assert!(writes < 20, "{writes} refused writes of the ConfigMap in 10 minutes");
}

#[test]
fn a_forged_owner_does_not_make_pods_of_a_foreign_job_evictable() {
    let mut world =
        World::new(1, Settings { descheduler: Some(DeschedulerSettings::default()), ..Settings::default() });
    world.restart();
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 2, 4);
    let owner = |api: &str, name: &str| json!([{"apiVersion": api, "kind": "Job", "name": name, "uid": "victim-job", "controller": true}]);
    world.create_bound("attacker", "vk-a", 3, json!({"metadata": {"namespace": "evil", "ownerReferences": owner("nope/v1", "ignores")}, "spec": {"priority": 0}}));
    world.run_for(5 * SECOND);
    world.create_bound(
        "victim",
        "vk-a",
        3,
        json!({"metadata": {"namespace": "team", "ownerReferences": owner("batch/v1", "counts")}}),
    );
    world.run_for(200 * SECOND);
    assert!(
        !world.evicted.contains(&"victim".to_owned()),
        "the Job of the victim counts that as a failure: {:?}",
        world.evicted
    );
}

#[test]
fn a_forged_owner_does_not_fill_the_avoid_entry_of_a_foreign_controller() {
    let mut settings = order(&["vk-a", "vk-b"]);
    settings.descheduler = Some(DeschedulerSettings::default());
    let mut world = world(settings);
    world.add_virtual_node("vk-a", 4, 2);
    world.add_virtual_node("vk-b", 4, 4);
    world.create_bound("attacker", "vk-a", 3, json!({"metadata": {"namespace": "evil"}}));
    world.run_for(40 * SECOND);
    world.create_pod("victim", 1, json!({"metadata": {"namespace": "team"}}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("victim"), "vk-a");
}

#[test]
fn pods_of_an_indexed_job_have_one_shape() {
    let shape = |index: &str| {
        let key = "batch.kubernetes.io/job-completion-index";
        pod_state::shape(&pod(
            index,
            1,
            &json!({"metadata": {"labels": {key: index}, "annotations": {key: index}}}),
        ))
    };
    assert_eq!(shape("0"), shape("1"));
}

#[test]
fn an_important_pod_does_not_wait_for_all_shapes_of_another_tenant() {
    let mut world = world(gates(Preference::default()));
    for name in ["vk-a", "vk-b"] {
        world.add_virtual_node(name, 4, 4);
    }
    for index in 0..3000 {
        world.create_pod(
            &format!("spam-{index}"),
            5,
            json!({"metadata": {"annotations": {"n": index.to_string()}}}),
        );
    }
    world.run_for(2 * SECOND);
    world.create_pod("important", 1, json!({"metadata": {"namespace": "other"}, "spec": {"priority": 1000}}));
    let created = world.now;
    while pod_state::node(world.pod("important")).is_none() && world.now < created + 120 * SECOND {
        world.run_for(SECOND);
    }
    let waited = world.now.saturating_sub(created);
    assert!(waited < 5 * SECOND, "it waited {waited:?} with free nodes");
}

#[test]
fn a_slow_node_does_not_delay_the_others() {
    let mut stepped = SteppedMachine::new(order(&["vk-b", "vk-a"]));
    let mut inputs = vec![node("vk-a", 400, &json!({})), node("vk-b", 400, &json!({}))];
    inputs.extend((0..100).map(|index| {
        input(pod(&format!("job-{index}"), 1, &json!({"metadata": {"labels": {"job": index.to_string()}}})))
    }));
    stepped.start(inputs, &["vk-a", "vk-b"]);
    let mut pending: Vec<(Duration, QueryId)> = Vec::new();
    let mut placed = 0;
    for _ in 0..2000 {
        stepped.now += Duration::from_millis(5);
        for (id, name, _) in stepped.asks() {
            pending.push((stepped.now + Duration::from_millis(if name == "vk-a" { 480 } else { 5 }), id));
        }
        let now = stepped.now;
        let inputs = pending
            .extract_if(.., |(at, _)| *at <= now)
            .map(|(_, id)| {
                Input::FitAnswered(id, Ok(FitAnswer { verdicts: vec![fits(100)], best_nodes: None }))
            })
            .collect();
        stepped.handle(inputs);
        for (id, call) in stepped.calls() {
            placed += usize::from(matches!(call, ApiCall::Nominate { .. }));
            stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
        }
    }
    assert!(placed > 90, "{placed} of 100 pods were placed in 10 s, although vk-b answers in 5 ms");
}

#[test]
fn what_a_node_has_said_does_not_hold_when_a_pod_goes_there_that_was_not_expected() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    stepped.start(vec![node("vk-a", 9, &json!({})), input(pod("a", 3, &json!({})))], &["vk-a"]);
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(2));
    assert_eq!(stepped.calls().len(), 1);
    let bound = json!({"spec": {"schedulingGates": null, "nodeName": "vk-a"}});
    stepped.now += 2 * SECOND;
    stepped.handle(vec![input(pod("unexpected", 3, &bound)), input(pod("b", 3, &json!({})))]);
    assert_eq!(stepped.calls(), [], "it was placed by the old answer");
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, refused());
    assert!(matches!(&*stepped.calls(), [(_, ApiCall::ReportWaiting { .. })]));
}

/// The gate may be removed later by a call of the earlier leader that is still in flight.
#[test]
fn a_new_leader_goes_on_with_pods_that_the_earlier_one_has_nominated() {
    let placed =
        json!([{"type": "multicluster.virtual-kubelet.io/Placed", "status": "True", "reason": "Estimated"}]);
    let nominated = |node: &str| json!({"status": {"nominatedNodeName": node, "conditions": placed}, "spec": {"priority": 0}});
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    let inputs = vec![
        node("vk-a", 8, &json!({})),
        input(pod("begun", 3, &nominated("vk-a"))),
        input(pod("lost", 3, &nominated("vk-gone"))),
        input(pod("urgent", 3, &json!({"spec": {"priority": 9}}))),
    ];
    stepped.start(inputs, &["vk-a"]);
    let calls: Vec<_> = stepped.calls().into_iter().map(|(_, call)| call).collect();
    assert!(matches!(&*calls, [ApiCall::Ungate { pod, .. }] if &*pod.name == "begun"), "{calls:?}");
    let asked: Vec<_> = stepped.asks().into_iter().map(|(_, node, held)| (node, held)).collect();
    assert_eq!(
        asked,
        [("vk-a".to_owned(), 1)],
        "the pod that comes first is asked about, with the other one held"
    );
}

/// The write of an earlier leader may arrive when this one has begun to remove the gate.
#[test]
fn a_pod_that_has_lost_its_nomination_is_nominated_again_before_its_gate_is_removed() {
    let placed =
        json!([{"type": "multicluster.virtual-kubelet.io/Placed", "status": "True", "reason": "Estimated"}]);
    let nominated = json!({"status": {"nominatedNodeName": "vk-a", "conditions": placed}});
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    stepped.start(vec![node("vk-a", 8, &json!({})), input(pod("a", 3, &nominated))], &["vk-a"]);
    let (ungate, _) = stepped.calls().remove(0);
    let waits = json!({"metadata": {"resourceVersion": "7"}});
    stepped.handle(vec![input(pod("a", 3, &waits))]);
    stepped.handle(vec![Input::Answered(ungate, Err(Error::new(Kind::Timeout, "lost")))]);
    stepped.now += 10 * SECOND;
    stepped.handle(Vec::new());
    let calls: Vec<_> = stepped.calls().into_iter().map(|(_, call)| call).collect();
    assert!(matches!(&*calls, [ApiCall::Nominate { .. }]), "{calls:?}");
}

#[test]
fn a_report_in_flight_is_not_overtaken_by_the_nomination() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    stepped.start(vec![node("vk-a", 4, &json!({})), input(pod("a", 3, &json!({})))], &["vk-a"]);
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, refused());
    let report = stepped.calls();
    assert!(matches!(report[0].1, ApiCall::ReportWaiting { .. }));
    stepped.now += 2 * SECOND;
    stepped.handle(vec![node("vk-a", 8, &json!({}))]);
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(1));
    let calls = stepped.calls();
    assert!(calls.is_empty(), "two writes of the same condition are in flight: {calls:?}");
}

#[test]
fn held_pods_fit_into_a_query() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    let big = "x".repeat(250_000);
    let mut inputs = vec![node("vk-a", 4000, &json!({}))];
    inputs.extend((0..40).map(|index| {
        let change = json!({"metadata": {"annotations": {"a": big}}, "spec": {"schedulingGates": null, "nodeName": "vk-a"}});
        input(pod(&format!("bound-{index}"), 1, &change))
    }));
    inputs.push(input(pod("good", 1, &json!({"metadata": {"namespace": "other"}}))));
    stepped.start(inputs, &["vk-a"]);
    let bytes = stepped
        .effects
        .iter()
        .find_map(|effect| match effect {
            Effect::Ask(_, _, query) => Some(serde_json::to_vec(query).unwrap().len()),
            _ => None,
        })
        .unwrap();
    assert!(bytes <= vk_provider::placement::MAX_QUERY_BYTES, "{bytes} bytes");
}

#[test]
fn waiting_pods_of_a_tenant_do_not_change_the_order_for_others() {
    let mut world = world(order(&["local", "vk-a"]));
    world.add_local_node("machine", 400);
    world.add_virtual_node("vk-a", 10, 4);
    for index in 0..70 {
        let spec = json!({"schedulingGates": null, "nodeSelector": {"nothing": index.to_string()}});
        world.create_pod(
            &format!("spam-{index}"),
            1,
            json!({"metadata": {"namespace": "evil"}, "spec": spec}),
        );
    }
    world.run_for(5 * SECOND);
    world.create_pod("good", 2, json!({}));
    world.run_for(5 * SECOND);
    assert_eq!(world.place("good"), "machine");
}

#[test]
fn a_pod_that_is_not_modelled_is_not_pinned_to_a_machine() {
    let mut settings = order(&["local"]);
    settings.gates.as_mut().unwrap().pin = true;
    let mut stepped = SteppedMachine::new(settings);
    let claim = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]);
    stepped.start(
        vec![
            local("machine-a"),
            local("machine-b"),
            input(pod("db-0", 1, &json!({"spec": {"volumes": claim}}))),
        ],
        &["machine-a", "machine-b"],
    );
    let (id, _) = stepped.calls().remove(0);
    stepped.handle(vec![Input::Answered(id, Ok(Answer::Done))]);
    let calls = stepped.calls();
    assert!(
        matches!(&calls[0].1, ApiCall::Ungate { pin: None, .. }),
        "{calls:?}: its volume may be on the other machine"
    );
}

#[test]
fn reports_that_are_forbidden_are_not_repeated_for_ever() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    let mut inputs = vec![node("vk-a", 4, &json!({}))];
    inputs.extend((0..100).map(|index| input(pod(&format!("p-{index}"), 5, &json!({})))));
    stepped.start(inputs, &["vk-a"]);
    let mut writes = 0;
    while stepped.now < 1200 * SECOND {
        for (id, _) in stepped.calls() {
            writes += 1;
            stepped.handle(vec![Input::Answered(id, Err(Error::new(Kind::Forbidden, "no")))]);
        }
        if stepped.effects.iter().any(|it| matches!(it, Effect::Ask(..))) {
            for (id, ..) in stepped.asks() {
                stepped.answer(id, refused());
            }
            continue;
        }
        stepped.now = stepped.machine.next_deadline().unwrap().max(stepped.now + SECOND / 10);
        stepped.handle(Vec::new());
    }
    let events = stepped.effects.iter().filter(|it| matches!(it, Effect::RecordEvent(..))).count();
    assert!(writes <= 500, "{writes} refused writes and {events} events in 20 minutes");
}

#[test]
fn an_eviction_after_a_late_scheduler_has_an_event() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    let ungated = |reason: &str| {
        let conditions = json!([{"type": names::PLACED, "status": "True", "lastTransitionTime": "2027-01-01T00:00:00Z"},
            {"type": "PodScheduled", "status": "False", "reason": reason, "message": "m"}]);
        input(pod(
            "a",
            3,
            &json!({"spec": {"schedulingGates": null}, "status": {"nominatedNodeName": "vk-a", "conditions": conditions}}),
        ))
    };
    stepped.start(vec![node("vk-a", 4, &json!({})), ungated("SchedulingGated")], &["vk-a"]);
    stepped.now = 70 * SECOND;
    stepped.handle(Vec::new());
    stepped.handle(vec![ungated("Unschedulable")]);
    stepped.now = 90 * SECOND;
    stepped.handle(Vec::new());
    assert!(stepped.effects.iter().any(|it| matches!(it, Effect::Call(_, ApiCall::Evict { .. }))));
    assert!(stepped.effects.iter().any(|it| matches!(it, Effect::RecordEvent(..))), "no event");
}

#[test]
fn calls_are_limited() {
    let mut stepped = SteppedMachine::new(gates(Preference::default()));
    let mut inputs = vec![node("vk-a", 40_000, &json!({}))];
    inputs.extend((0..3000).map(|index| input(pod(&format!("p-{index}"), 1, &json!({})))));
    stepped.start(inputs, &["vk-a"]);
    let (id, ..) = stepped.asks().remove(0);
    stepped.answer(id, fits(10_000));
    let first = stepped.calls().len();
    assert!(first <= 100, "{first} calls in flight");
}
