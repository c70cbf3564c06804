//! Properties of the aggregation for every cluster.

use proptest::prelude::*;
use serde_json::json;

use super::{super::*, LowerPod, node, offered};

const RESOURCES: [&str; 5] = ["cpu", "memory", "example.com/gpu", "hugepages-2Mi", "attachable-volumes-x"];

fn amounts() -> impl Strategy<Value = ResourceList> {
    let amount = prop_oneof![
        (0i64..100_000).prop_map(Quantity::milli),
        (0i64..1 << 40).prop_map(Quantity::bytes),
        Just(Quantity::units(i64::MAX)),
        // No API server stores negative amounts, but this input is untrusted.
        (-1000i64..0).prop_map(Quantity::units),
    ];
    prop::collection::btree_map(
        prop::sample::select(RESOURCES.to_vec()).prop_map(str::to_owned),
        amount,
        0..5,
    )
}

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let one = (
        amounts(),
        prop::option::of(0i64..200),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.2),
        0..3usize,
    );
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let build = |(index, (mut has, pods, ready, cordoned, zone)): (
            usize,
            (ResourceList, Option<i64>, bool, bool, usize),
        )| {
            has.extend(pods.map(|pods| (PODS.to_owned(), Quantity::units(pods))));
            let mut node = node(&format!("n{index}"), json!(has));
            let labels = node.metadata.labels.get_or_insert_default();
            labels.insert("topology.kubernetes.io/zone".to_owned(), format!("z{zone}"));
            node.spec.get_or_insert_default().unschedulable = Some(cordoned);
            for condition in node.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten())
            {
                condition.status = if ready { "True" } else { "Unknown" }.to_owned();
            }
            node
        };
        all.into_iter().enumerate().map(build).collect()
    })
}

fn pods() -> impl Strategy<Value = Vec<LowerPod>> {
    let one = (prop::option::of(0..10usize), amounts(), any::<bool>(), prop::bool::weighted(0.2));
    let build = |(node, requests, own, ended): (Option<usize>, ResourceList, bool, bool)| {
        let pod = json!({
            "spec": {
                "nodeName": node.map(|index| format!("n{index}")),
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            },
            "status": {"phase": if ended { "Failed" } else { "Running" }},
        });
        LowerPod { pod: serde_json::from_value(pod).unwrap(), own }
    };
    prop::collection::vec(one.prop_map(build), 0..20)
}

fn share() -> impl Strategy<Value = NodeShare> {
    (1u8..=100, amounts()).prop_map(|(percent, mut cap)| {
        cap.retain(|_, amount| !amount.is_negative());
        NodeShare { percent, cap, ..NodeShare::default() }
    })
}

/// The serialized form: equal amounts in another notation would be written again and again.
fn written(sum: &VirtualResources) -> String {
    format!("{} {} {} {sum:?}", json!(sum.capacity), json!(sum.allocatable), json!(sum.largest_free))
}

proptest! {
    #[test]
    fn no_amount_is_ever_negative(nodes in nodes(), pods in pods(), share in share()) {
        let sum = offered(&nodes, &pods, &share);
        for (name, amount) in sum.capacity.iter().chain(&sum.allocatable).chain(&sum.largest_free) {
            prop_assert!(!amount.is_negative(), "{} {}", name, amount);
            prop_assert!(name == "cpu" || *amount == Quantity::units(amount.to_units()), "{} {}", name, amount);
        }
        for (name, amount) in &sum.allocatable {
            prop_assert!(*amount <= sum.capacity[name], "{}", name);
            prop_assert!(share.cap.get(name).is_none_or(|cap| amount <= cap), "{}", name);
        }
        prop_assert_eq!(sum.allocatable.len(), sum.capacity.len());
    }

    #[test]
    fn order_does_not_matter(
        (nodes, shuffled) in nodes().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        (pods, mixed) in pods().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        share in share(),
    ) {
        prop_assert_eq!(written(&offered(&nodes, &pods, &share)), written(&offered(&shuffled, &mixed, &share)));
    }

    #[test]
    fn own_pods_are_never_subtracted(nodes in nodes(), pods in pods(), share in share()) {
        let others: Vec<LowerPod> = pods.iter().filter(|pod| !pod.own).cloned().collect();
        let (with, without) = (offered(&nodes, &pods, &share), offered(&nodes, &others, &share));
        prop_assert_eq!(with.allocatable, without.allocatable);
        prop_assert_eq!(with.capacity, without.capacity);
    }

    #[test]
    fn allocatable_without_caps_is_capacity_minus_other_pods(nodes in nodes(), pods in pods()) {
        let whole = offered(&nodes, &pods, &NodeShare::default());
        let ours: Vec<LowerPod> = pods.iter().filter(|pod| pod.own).cloned().collect();
        prop_assert_eq!(&offered(&nodes, &ours, &NodeShare::default()).allocatable, &whole.capacity);
        for (name, amount) in &whole.allocatable {
            prop_assert!(*amount <= whole.capacity[name], "{}", name);
        }
    }

    #[test]
    fn a_deleted_pod_never_reduces_what_is_offered(nodes in nodes(), pods in pods(), share in share()) {
        let before = offered(&nodes, &pods, &share);
        let after = offered(&nodes, pods.get(1..).unwrap_or_default(), &share);
        for (name, amount) in &before.allocatable {
            prop_assert!(after.allocatable[name] >= *amount, "{}", name);
        }
    }
}
