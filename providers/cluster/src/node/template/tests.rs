use serde_json::json;

use super::*;
use crate::node::tests::{all, foreign, node, usual, with};

/// The template as the core passes it.
fn template() -> NodeTemplate {
    let labels =
        [("type", "virtual-kubelet"), (OS, "linux"), (OS_OLD, "linux"), (ARCH, "riscv64"), ("zone", "mine")];
    let mut template = NodeTemplate {
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..NodeTemplate::default()
    };
    template.system.architecture = "riscv64".to_owned();
    template
}

fn condition<'a>(template: &'a NodeTemplate, kind: &str) -> &'a Condition {
    let found: Vec<_> = template.conditions.iter().filter(|condition| condition.kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind} in {:?}", template.conditions);
    found[0]
}

#[test]
fn the_virtual_node_describes_its_lower_nodes() {
    let sum = all(&[usual("a"), usual("b")], &[foreign("a", json!({"cpu": "1"}))]);
    let mut template = template();
    describe(&sum, "lower", "v1.18.15", &mut template);
    let label = |key: &str| template.labels.get(key).map(String::as_str);
    assert_eq!(label(names::CLUSTER_ID), Some("lower"));
    assert_eq!(label(names::CLUSTER), Some("lower"));
    assert_eq!(label("virtual-kubelet.io/provider"), Some("cluster"));
    assert_eq!(label("type"), Some("virtual-kubelet"));
    assert_eq!((label(ARCH), label(OS), label(OS_OLD)), (Some("amd64"), Some("linux"), None));
    assert_eq!(template.annotations[names::NODES], "2");
    assert_eq!(template.annotations[names::LARGEST_FREE], r#"{"cpu":"4","memory":"16Gi"}"#);
    assert_eq!((&template.capacity, &template.allocatable), (&sum.capacity, &sum.allocatable));
    assert_eq!(template.kubelet_version.as_deref(), Some("v1.18.15"), "the lower server's, as in the seed");
    assert_eq!(template.system.architecture, "amd64");
    assert_eq!(condition(&template, NODES_AVAILABLE).status, ConditionStatus::True);
    let network = condition(&template, "NetworkUnavailable");
    assert_eq!(
        network.status,
        ConditionStatus::False,
        "Admiralty 74: set explicitly, so that no controller taints the node"
    );
}

#[test]
fn a_virtual_node_of_several_architectures_has_no_architecture_label() {
    let arm = with(usual("b"), "metadata.labels", json!({OS: "linux", ARCH: "arm64"}));
    let mut template = template();
    describe(&all(&[usual("a"), arm], &[]), "lower", "", &mut template);
    assert!(!template.labels.contains_key(ARCH), "least of all this machine's");
    assert_eq!(template.system.architecture, "amd64", "but the node has to say something");
    assert_eq!(template.kubelet_version, None, "a version that is not known is not claimed");
}

#[test]
fn a_configured_label_stays() {
    let zone = "topology.kubernetes.io/zone";
    let mut template = template();
    template.labels.insert(zone.to_owned(), "given".to_owned());
    let node = with(usual("a"), "metadata.labels", json!({zone: "below"}));
    describe(&all(&[node], &[]), "lower", "v1", &mut template);
    assert_eq!(template.labels[zone], "given");
}

#[test]
fn a_virtual_node_without_resources_reports_the_reason() {
    let reason = |sum: &VirtualResources| {
        let mut template = template();
        describe(sum, "lower", "v1", &mut template);
        let condition = condition(&template, NODES_AVAILABLE);
        assert_eq!(condition.status, ConditionStatus::False);
        assert!(condition.message.contains("lower"), "{}", condition.message);
        assert_eq!(template.labels[OS], "linux", "which is configured");
        condition.reason.clone()
    };
    let empty = all(&[], &[]);
    assert_eq!(reason(&empty), "NoEligibleNodes");
    let cordoned = all(&[with(usual("a"), "spec.unschedulable", json!(true))], &[]);
    assert_eq!(reason(&cordoned), "NoEligibleNodes");
    assert!(available(&cordoned, "lower").message.contains("left out: 1 cordoned"));
    let one_slot = [node("a", json!({"cpu": "1", "memory": "1Gi", "pods": "1"}))];
    let full = all(&one_slot, &[foreign("a", json!({}))]);
    assert!(full.offers_nothing());
    assert_eq!(reason(&full), "NothingFree");
    let taken = [foreign("a", json!({"cpu": "4", "memory": "16Gi"}))];
    assert!(all(&[usual("a")], &taken).offers_nothing());
    let memory_only = [foreign("a", json!({"cpu": "4"}))];
    assert!(!all(&[usual("a")], &memory_only).offers_nothing(), "a pod that requests no cpu has room");
}
