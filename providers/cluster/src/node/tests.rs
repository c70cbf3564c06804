mod properties;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_fit::Snapshot;

use super::*;
use crate::names::{self, OwnerId};

/// A pod of the lower cluster, and whether it is of this virtual node.
#[derive(Clone, Debug)]
pub(super) struct LowerPod {
    pub(super) pod: Pod,
    pub(super) own: bool,
}

impl LowerPod {
    fn of(pod: Pod) -> Self {
        Self { own: owner().owns(&pod.metadata), pod }
    }
}

fn owner() -> OwnerId {
    OwnerId { origin: "upper".to_owned(), node: "vk-node".to_owned() }
}

fn from(body: Value) -> Node {
    serde_json::from_value(body).unwrap()
}

/// A node that can take pods.
#[expect(clippy::needless_pass_by_value, reason = "reads better")]
pub(super) fn node(name: &str, allocatable: Value) -> Node {
    from(json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name,
        }},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

pub(super) fn usual(name: &str) -> Node {
    node(name, json!({"cpu": "4", "memory": "16Gi", "pods": "110"}))
}

/// The node with a change at a path of its JSON.
#[expect(clippy::needless_pass_by_value, reason = "reads better")]
pub(super) fn with(node: Node, path: &str, value: Value) -> Node {
    let mut body = json!(node);
    let mut place = &mut body;
    for part in path.split('.') {
        place = &mut place[part];
    }
    *place = value;
    from(body)
}

#[expect(clippy::needless_pass_by_value, reason = "reads better")]
fn pod(on: &str, requests: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    }))
    .unwrap()
}

pub(super) fn foreign(on: &str, requests: Value) -> LowerPod {
    LowerPod::of(pod(on, requests))
}

fn own(on: &str, requests: Value) -> LowerPod {
    let mut pod = pod(on, requests);
    let labels = [(names::ORIGIN, "upper"), (names::NODE, "vk-node")];
    pod.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    LowerPod::of(pod)
}

fn amounts(value: Value) -> ResourceList {
    serde_json::from_value(value).unwrap()
}

pub(super) fn all(nodes: &[Node], pods: &[LowerPod]) -> VirtualResources {
    offered(nodes, pods, &NodeShare::default())
}

/// What a virtual node offers of a lower cluster with these nodes and pods.
pub(super) fn offered(nodes: &[Node], pods: &[LowerPod], share: &NodeShare) -> VirtualResources {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        snapshot.apply_node(node);
    }
    let mut own = Vec::new();
    for (number, LowerPod { pod, own: is_own }) in pods.iter().enumerate() {
        let mut pod = pod.clone();
        pod.metadata.uid = Some(number.to_string());
        snapshot.apply_pod(&pod);
        own.extend(is_own.then(|| number.to_string()));
    }
    aggregate(nodes, &snapshot.usage(own.iter().map(String::as_str)), share)
}

#[test]
fn an_empty_cluster_is_a_node_without_resources() {
    let sum = all(&[], &[foreign("gone", json!({"cpu": "1"}))]);
    let nothing = amounts(json!({"cpu": "0", "memory": "0", "pods": "0"}));
    assert_eq!((&sum.capacity, &sum.allocatable), (&nothing, &nothing));
    assert_eq!((sum.nodes, sum.labels.len(), sum.largest_free.len()), (0, 0, 0));
    assert_eq!((&sum.operating_system, &sum.architecture), (&None, &None));
    assert!(sum.offers_nothing());
}

#[test]
fn the_resources_of_all_nodes_are_added_up() {
    let gpu = node("b", json!({"cpu": "3500m", "memory": "1Gi", "pods": "10", "example.com/gpu": "2"}));
    let sum = all(&[usual("a"), gpu], &[]);
    let whole = amounts(json!({"cpu": "7500m", "memory": "17Gi", "pods": "120", "example.com/gpu": "2"}));
    assert_eq!((&sum.capacity, &sum.allocatable, sum.nodes), (&whole, &whole, 2));
    assert_eq!(sum.capacity["memory"].to_string(), "17Gi", "in the usual notation");
    assert!(!sum.offers_nothing());
}

#[test]
fn reserved_resources_are_not_offered() {
    let node = with(usual("a"), "status.capacity", json!({"cpu": "8", "memory": "32Gi", "pods": "110"}));
    assert_eq!(all(&[node], &[]).capacity["cpu"], Quantity::units(4));
}

#[test]
fn a_node_that_is_not_ready_does_not_count() {
    for conditions in [
        json!([{"type": "Ready", "status": "False"}]),
        json!([{"type": "Ready", "status": "Unknown"}]),
        json!([{"type": "DiskPressure", "status": "True"}]),
        json!(null),
    ] {
        let away = with(usual("b"), "status.conditions", conditions.clone());
        let sum = all(&[usual("a"), away], &[foreign("b", json!({"cpu": "3"}))]);
        assert_eq!((sum.nodes, sum.allocatable["cpu"]), (1, Quantity::units(4)), "{conditions}");
    }
}

#[test]
fn a_cordoned_node_is_excluded_together_with_its_pods() {
    let pods = [foreign("a", json!({"cpu": "1"})), foreign("b", json!({"cpu": "3", "memory": "15Gi"}))];
    let before = all(&[usual("a"), usual("b")], &pods);
    assert_eq!(before.allocatable, amounts(json!({"cpu": "4", "memory": "17Gi", "pods": "218"})));
    let after = all(&[usual("a"), with(usual("b"), "spec.unschedulable", json!(true))], &pods);
    assert_eq!(after.allocatable, amounts(json!({"cpu": "3", "memory": "16Gi", "pods": "109"})));
    assert_eq!(all(&[usual("a"), usual("b")], &pods), before, "and it comes back as it was");
}

#[test]
fn tensile_kube_91_a_resource_that_no_node_offers_is_never_negative() {
    let pods = [
        foreign("a", json!({"ephemeral-storage": "20Gi", "example.com/gpu": "1"})),
        foreign("a", json!({"cpu": "5", "memory": "1Gi"})),
    ];
    let sum = all(&[usual("a")], &pods);
    assert_eq!(sum.allocatable, amounts(json!({"cpu": "0", "memory": "15Gi", "pods": "108"})));
    assert_eq!(sum.largest_free, amounts(json!({"cpu": "0", "memory": "15Gi", "pods": "108"})));
}

#[test]
fn tensile_kube_own_pods_are_not_subtracted_after_a_restart() {
    let nodes = [usual("a"), usual("b")];
    let others = foreign("a", json!({"cpu": "1"}));
    let before = all(&nodes, std::slice::from_ref(&others));
    let mut pods = vec![others];
    pods.extend((0..100).map(|_| own("b", json!({"cpu": "30m", "memory": "100Mi"}))));
    let after = all(&nodes, &pods);
    assert_eq!((&after.allocatable, &after.capacity), (&before.allocatable, &before.capacity));
    assert_eq!(after.largest_free["cpu"], Quantity::units(3), "b has less left, though, than a");
}

#[test]
fn tensile_kube_49_a_pod_deleted_with_force_frees_its_requests() {
    let node = [usual("a")];
    let full = all(&node, &[own("a", json!({"cpu": "4"})), foreign("a", json!({"cpu": "2"}))]);
    assert_eq!((full.allocatable["cpu"], full.largest_free["cpu"]), (Quantity::units(2), Quantity::units(0)));
    let own_is_gone = all(&node, &[foreign("a", json!({"cpu": "2"}))]);
    assert_eq!(own_is_gone.allocatable, full.allocatable, "the upper scheduler accounts for own pods");
    assert_eq!(own_is_gone.largest_free["cpu"], Quantity::units(2));
    assert_eq!(all(&node, &[]).allocatable["cpu"], Quantity::units(4), "and we have that of others");
}

#[test]
fn liqo_3137_ended_pods_use_nothing() {
    for (phase, left) in [("Succeeded", 4), ("Failed", 4), ("Running", 3), ("Pending", 3), ("Unknown", 3)] {
        let mut pod = pod("a", json!({"cpu": "1"}));
        pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
        let sum = all(&[usual("a")], &[LowerPod::of(pod)]);
        assert_eq!(sum.allocatable["cpu"], Quantity::units(left), "{phase}");
    }
}

#[test]
fn an_unbound_pod_uses_nothing() {
    let sum = all(&[usual("a")], &[foreign("", json!({"cpu": "1"}))]);
    assert_eq!(sum.allocatable, sum.capacity);
}

#[test]
fn pods_of_other_virtual_nodes_and_upper_clusters_are_subtracted() {
    for (origin, node) in [("upper", "other"), ("other", "vk-node")] {
        let mut pod = pod("a", json!({"cpu": "1"}));
        let labels = [(names::ORIGIN, origin), (names::NODE, node), (names::VIRTUAL_POD, "true")];
        pod.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        let sum = all(&[usual("a")], &[LowerPod::of(pod)]);
        assert_eq!(sum.allocatable["cpu"], Quantity::units(3), "{origin} {node}");
    }
}

#[test]
fn tainted_nodes_count_only_where_pods_tolerate_them() {
    let tainted = |effect: &str| {
        with(usual("a"), "spec.taints", json!([{"key": "team", "value": "blue", "effect": effect}]))
    };
    let share = |tolerations: Value| NodeShare {
        tolerations: serde_json::from_value(tolerations).unwrap(),
        ..NodeShare::default()
    };
    for (effect, tolerations, counts) in [
        ("NoSchedule", json!([]), false),
        ("NoExecute", json!([]), false),
        ("PreferNoSchedule", json!([]), true),
        ("NoSchedule", json!([{"operator": "Exists"}]), true),
        ("NoSchedule", json!([{"key": "team", "operator": "Exists"}]), true),
        ("NoSchedule", json!([{"key": "team", "value": "blue"}]), true),
        ("NoSchedule", json!([{"key": "team", "operator": "Equal", "value": "red"}]), false),
        ("NoSchedule", json!([{"key": "other", "operator": "Exists"}]), false),
        ("NoSchedule", json!([{"key": "team", "operator": "Exists", "effect": "NoExecute"}]), false),
        ("NoExecute", json!([{"key": "team", "operator": "Exists", "effect": "NoExecute"}]), true),
        ("NoSchedule", json!([{"key": "team", "operator": "Nonsense", "value": "blue"}]), false),
    ] {
        assert_eq!(
            exclusion(&tainted(effect), &share(tolerations.clone())),
            (!counts).then_some(Exclusion::Taint),
            "{effect} {tolerations}"
        );
    }
    let limit = |operator: &str| share(json!([{"key": "sla", "operator": operator, "value": "900"}]));
    let rated =
        with(usual("a"), "spec.taints", json!([{"key": "sla", "value": "950", "effect": "NoSchedule"}]));
    assert_eq!(exclusion(&rated, &limit("Gt")), None);
    assert_eq!(exclusion(&rated, &limit("Lt")), Some(Exclusion::Taint));
}

#[test]
fn only_selected_nodes_count_and_virtual_ones_only_if_configured() {
    let share = NodeShare { selector: [("pool".to_owned(), "a".to_owned())].into(), ..NodeShare::default() };
    assert_eq!(exclusion(&usual("a"), &share), Some(Exclusion::Selector));
    let pool = |pool: &str| with(usual("a"), "metadata.labels", json!({"pool": pool}));
    assert_eq!(exclusion(&pool("a"), &share), None);
    assert_eq!(exclusion(&pool("b"), &share), Some(Exclusion::Selector));
    let virtual_one = with(usual("a"), "metadata.labels", json!({"type": "virtual-kubelet"}));
    assert_eq!(exclusion(&virtual_one, &NodeShare::default()), Some(Exclusion::Virtual));
    assert_eq!(exclusion(&virtual_one, &NodeShare { virtual_nodes: true, ..NodeShare::default() }), None);
}

#[test]
fn nodes_of_local_and_cri_are_machines() {
    let node_of = |provider: &str| {
        let labels = json!({"type": "virtual-kubelet", "virtual-kubelet.io/provider": provider});
        with(usual("a"), "metadata.labels", labels)
    };
    for (provider, counts) in
        [("local", true), ("cri", true), ("mock", false), ("cluster", false), ("", false)]
    {
        let expected = (!counts).then_some(Exclusion::Virtual);
        assert_eq!(exclusion(&node_of(provider), &NodeShare::default()), expected, "{provider}");
    }
}

#[test]
fn nodes_that_are_left_out_are_counted_by_reason() {
    let away = json!([{"type": "Ready", "status": "Unknown"}]);
    let taint = json!([{"key": "team", "effect": "NoSchedule"}]);
    let left_out = [
        with(usual("a"), "metadata.labels", json!({"type": "virtual-kubelet"})),
        with(usual("b"), "spec.unschedulable", json!(true)),
        with(usual("c"), "status.conditions", away.clone()),
        with(usual("d"), "status.conditions", away),
        with(usual("e"), "spec.taints", taint),
    ];
    let none = all(&left_out, &[]);
    let why = none.why_no_nodes().expect("no node counts");
    for words in ["1 virtual (`virtualNodes: true`", "1 cordoned", "2 not Ready", "1 with a taint"] {
        assert!(why.contains(words), "{words} in {why}");
    }
    let mut some = left_out.to_vec();
    some.push(usual("f"));
    let some = all(&some, &[]);
    assert_eq!((some.nodes, some.why_no_nodes()), (1, None));
    assert!(some.exclusions().is_some_and(|text| text.contains("2 not Ready")));
    assert_eq!(all(&[], &[]).why_no_nodes().as_deref(), Some("the lower cluster has no nodes"));
}

#[test]
fn a_percentage_is_offered_up_to_the_cap() {
    let nodes = [usual("a"), node("b", json!({"cpu": "3", "memory": "1Gi", "pods": "11"}))];
    let pods = [foreign("a", json!({"cpu": "1"}))];
    let half = NodeShare { percent: 50, ..NodeShare::default() };
    let sum_of = |share: &NodeShare| offered(&nodes, &pods, share);
    let part = sum_of(&half);
    assert_eq!(part.capacity, amounts(json!({"cpu": "3500m", "memory": "8704Mi", "pods": "60"})));
    assert_eq!(part.allocatable, amounts(json!({"cpu": "2500m", "memory": "8704Mi", "pods": "59"})));
    let cap = amounts(json!({"cpu": "2", "pods": "59500m", "example.com/gpu": "1"}));
    let capped = sum_of(&NodeShare { cap, ..half });
    assert_eq!(capped.capacity, amounts(json!({"cpu": "2", "memory": "8704Mi", "pods": "59"})));
    assert_eq!(capped.allocatable, capped.capacity, "a cap does not add resources");
    assert_eq!(capped.capacity["pods"].to_string(), "59", "rounded down");
}

#[test]
fn a_single_huge_page_size_is_offered_and_no_attachable_volumes() {
    let pages = |small: &str, large: &str| {
        let sum = all(
            &[node(
                "a",
                json!({
                    "cpu": "1", "hugepages-2Mi": small, "hugepages-1Gi": large, "attachable-volumes-csi-x": "25",
                }),
            )],
            &[foreign("a", json!({"hugepages-2Mi": "2Mi"}))],
        );
        let names = |all: &ResourceList| {
            all.keys().filter(|name| !ALWAYS_REPORTED.contains(&name.as_str())).cloned().collect()
        };
        let (capacity, largest): (Vec<String>, Vec<String>) =
            (names(&sum.capacity), names(&sum.largest_free));
        assert_eq!(capacity, largest);
        (capacity, sum.allocatable.get("hugepages-2Mi").map(ToString::to_string))
    };
    assert_eq!(pages("0", "0"), (vec![], None));
    assert_eq!(pages("64Mi", "0"), (vec!["hugepages-2Mi".to_owned()], Some("62Mi".to_owned())));
    assert_eq!(pages("2Mi", "0"), (vec!["hugepages-2Mi".to_owned()], Some("0".to_owned())), "all taken");
    assert_eq!(pages("64Mi", "4Gi"), (vec![], None), "two sizes are none");
    let two = [node("a", json!({"hugepages-2Mi": "2Mi"})), node("b", json!({"hugepages-1Gi": "1Gi"}))];
    assert_eq!(all(&two, &[]).capacity.len(), ALWAYS_REPORTED.len(), "also when no node has both");
}

#[test]
fn the_largest_free_amount_considers_all_pods() {
    let pods = [
        foreign("a", json!({"cpu": "3"})),
        own("b", json!({"memory": "15Gi"})),
        own("b", json!({"cpu": "500m"})),
    ];
    let sum = all(&[usual("a"), usual("b")], &pods);
    let most = amounts(json!({"cpu": "3500m", "memory": "16Gi", "pods": "109"}));
    assert_eq!(sum.largest_free, most, "each from the node that has the most of it");
}

#[test]
fn labels_that_all_nodes_share_are_kept() {
    let labelled = |name: &str, labels: Value| with(usual(name), "metadata.labels", labels);
    let zone = "topology.kubernetes.io/zone";
    let a = labelled("a", json!({OS: "linux", ARCH: "amd64", zone: "z", "example.com/team": "x"}));
    let b = labelled("b", json!({OS: "linux", ARCH: "arm64", zone: "z", "example.com/team": "x"}));
    let shared = all(&[a.clone(), b], &[]).labels;
    assert_eq!(
        json!(shared),
        json!({OS: "linux", zone: "z"}),
        "and none that attracts what is meant for real nodes"
    );
    let without = labelled("c", json!({OS: "linux", ARCH: "amd64"}));
    assert_eq!(json!(all(&[a.clone(), without], &[]).labels), json!({OS: "linux", ARCH: "amd64"}));
    let cordoned = with(labelled("d", json!({OS: "windows"})), "spec.unschedulable", json!(true));
    assert_eq!(all(&[a, cordoned], &[]).labels[OS], "linux", "those that do not count are not asked");
    let bad = labelled("e", json!({OS: "not a label!", zone: "z".repeat(64)}));
    assert_eq!(json!(all(&[bad], &[]).labels), json!({}), "the upper API server would refuse the node");
}

#[test]
fn the_system_is_the_most_common_one() {
    let of = |name: &str, arch: &str| {
        let info = json!({
            "architecture": arch, "operatingSystem": "linux", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "osImage": "", "systemUUID": "",
        });
        with(usual(name), "status.nodeInfo", info)
    };
    let most = |nodes: &[Node]| all(nodes, &[]).architecture.unwrap();
    assert_eq!(most(&[of("a", "arm64"), of("b", "amd64"), of("c", "arm64")]), "arm64");
    assert_eq!(most(&[of("a", "arm64"), of("b", "amd64")]), "amd64", "by name when there are as many");
    assert_eq!(most(&[usual("a")]), "amd64", "by the label when it does not say");
    assert_eq!(all(&[of("a", "arm64")], &[]).operating_system.as_deref(), Some("linux"));
}
