//! Any sequence of events gives the same snapshot as its end result applied at once.

use proptest::prelude::*;

use super::*;

/// An event of a watch.
#[derive(Clone, Debug)]
enum Event {
    Node { name: u8, cpu: u8, zone: u8, cordoned: bool },
    NodeGone(u8),
    Pod { uid: u8, node: Option<u8>, cpu: u8, port: Option<u8>, ended: bool },
    PodGone(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..6u8, 1..9u8, 0..3u8, prop::bool::weighted(0.2))
            .prop_map(|(name, cpu, zone, cordoned)| Event::Node { name, cpu, zone, cordoned }),
        (0..6u8).prop_map(Event::NodeGone),
        (
            0..20u8,
            prop::option::weighted(0.8, 0..6u8),
            0..4u8,
            prop::option::weighted(0.3, 0..3u8),
            prop::bool::weighted(0.1)
        )
            .prop_map(|(uid, node, cpu, port, ended)| Event::Pod { uid, node, cpu, port, ended }),
        (0..20u8).prop_map(Event::PodGone),
    ]
}

fn node_of(name: u8, cpu: u8, zone: u8, cordoned: bool) -> Node {
    let change = json!({
        "metadata": {"labels": {"zone": zone.to_string()}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": {"cpu": cpu.to_string(), "pods": "5"}},
    });
    node(&format!("n{name}"), change)
}

fn pod_of(uid: u8, node: Option<u8>, cpu: u8, port: Option<u8>, ended: bool) -> Pod {
    let ports = port.map(|port| json!([{"containerPort": 1, "hostPort": 8000 + i32::from(port)}]));
    let container =
        json!({"name": "main", "ports": ports, "resources": {"requests": {"cpu": cpu.to_string()}}});
    let change = json!({
        "spec": {"containers": [container], "nodeName": node.map(|node| format!("n{node}"))},
        "status": {"phase": if ended { "Failed" } else { "Running" }},
    });
    Pod::clone(&pod(&format!("p{uid}"), change))
}

fn apply(snapshot: &mut Snapshot, event: &Event) {
    match *event {
        Event::Node { name, cpu, zone, cordoned } => {
            snapshot.apply_node(&node_of(name, cpu, zone, cordoned));
        }
        Event::NodeGone(name) => snapshot.remove_node(&format!("n{name}")),
        Event::Pod { uid, node, cpu, port, ended } => {
            snapshot.apply_pod(&pod_of(uid, node, cpu, port, ended));
        }
        Event::PodGone(uid) => drop(snapshot.remove_pod(&format!("p{uid}"))),
    }
}

/// The last event of each object that is still there.
fn result(events: &[Event]) -> Vec<Event> {
    let mut last: BTreeMap<(bool, u8), &Event> = BTreeMap::new();
    for event in events {
        match event {
            Event::Node { name, .. } => last.insert((false, *name), event),
            Event::NodeGone(name) => last.remove(&(false, *name)),
            Event::Pod { uid, .. } => last.insert((true, *uid), event),
            Event::PodGone(uid) => last.remove(&(true, *uid)),
        };
    }
    last.into_values().cloned().collect()
}

/// Everything that a snapshot answers, for comparison.
fn answers(snapshot: &Snapshot) -> Vec<String> {
    let mut pods: Vec<Arc<Pod>> = Vec::new();
    for cpu in 0..5 {
        pods.push(Arc::new(pod_of(100 + cpu, None, cpu, (cpu == 2).then_some(1), false)));
    }
    let mut answers: Vec<String> = pods.iter().map(|pod| fit(snapshot, pod).to_string()).collect();
    let by_zone = |labels: vk_provider::node_selector::LabelLookup<'_>| labels("zone") == Some("1");
    let query = Query {
        pods: &pods,
        nodes: Some(&by_zone),
        without: &["p3", "p4"].map(|uid| pod(uid, json!({}))),
        ..Query::default()
    };
    answers.extend(snapshot.fit(&query).iter().map(ToString::to_string));
    answers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn events_one_by_one_give_what_their_result_gives_at_once(events in prop::collection::vec(event(), 0..60)) {
        let mut incremental = Snapshot::default();
        for event in &events {
            apply(&mut incremental, event);
        }
        let mut recomputed = Snapshot::default();
        for event in result(&events) {
            apply(&mut recomputed, &event);
        }
        prop_assert_eq!(incremental.size(), recomputed.size());
        prop_assert_eq!(incremental.repair(), 0, "nothing is to be repaired");
        prop_assert_eq!(answers(&incremental), answers(&recomputed));
    }
}
