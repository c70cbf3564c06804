//! Registration of a new node.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use tokio::time::Instant;

use crate::harness::{
    NodeTest, Setup, Who, capacity, label, owner, state, taints, uid, under_both_identities,
};

under_both_identities!(
    the_node_is_registered_as_provider_and_settings_describe_it,
    labels_and_status_are_owned_through_apply_and_taints_are_not,
    a_node_can_have_two_addresses_of_one_type,
);

async fn the_node_is_registered_as_provider_and_settings_describe_it(who: Who) {
    let test = NodeTest::shared(who, "register").await;
    let setup = Setup::default().label("example.com/team", "blue").annotation("example.com/note", "hello");
    let _controller = test.start_ready(setup).await;
    let node = test.node().await;

    for (key, value) in [
        ("type", "virtual-kubelet"),
        ("kubernetes.io/hostname", test.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/os", "linux"),
        ("node.kubernetes.io/exclude-from-external-load-balancers", "true"),
        ("example.com/team", "blue"),
    ] {
        assert_eq!(label(&node, key), Some(value), "{key}");
    }
    assert!(label(&node, "kubernetes.io/arch").is_some());
    // A node identity may not set these.
    let more = |value| (who == Who::Admin).then_some(value);
    assert_eq!(label(&node, "kubernetes.io/role"), more("agent"));
    assert_eq!(label(&node, "alpha.service-controller.kubernetes.io/exclude-balancer"), more("true"));

    assert_eq!(taints(&node), ["virtual-kubelet.io/provider=mock:NoSchedule"]);
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        assert_eq!(state(&node, kind).0, "False", "{kind}");
    }
    assert_eq!(state(&node, "Ready"), ("True", "KubeletReady"));
    assert_eq!(
        ["cpu", "memory", "pods"].map(|resource| capacity(&node, resource)),
        ["20", "100Gi", "20"].map(str::to_owned)
    );

    let status = node.status.clone().unwrap();
    assert_eq!(status.capacity, status.allocatable);
    let addresses: Vec<String> = status
        .addresses
        .unwrap()
        .iter()
        .map(|address| format!("{} {}", address.type_, address.address))
        .collect();
    assert_eq!(addresses, ["InternalIP 192.0.2.7"]);
    assert_eq!(status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap().port, 10_250);
    let info = status.node_info.unwrap();
    assert_eq!((info.kubelet_version.as_str(), info.operating_system.as_str()), ("v1.36.4-vk-test", "linux"));
    assert!(info.container_runtime_version.starts_with("mock://"), "{info:?}");

    let lease =
        test.wait_for_lease("the node owns its lease", |lease| owner(lease) == Some(uid(&node))).await;
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(test.name.as_str()));
    assert_eq!(spec.lease_duration_seconds, Some(40));
}

/// The managers by operation of a field, such as `f:metadata/f:labels/f:type`.
fn managers(node: &Node, path: &str) -> Vec<String> {
    node.metadata
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| {
            let fields = serde_json::to_value(&entry.fields_v1).unwrap();
            path.split('|').try_fold(&fields, |fields, part| fields.get(part)).is_some()
        })
        .map(|entry| format!("{} {}", entry.manager.clone().unwrap(), entry.operation.clone().unwrap()))
        .collect()
}

async fn labels_and_status_are_owned_through_apply_and_taints_are_not(who: Who) {
    let test = NodeTest::shared(who, "owner").await;
    let _controller = test.start_ready(Setup::default().annotation("example.com/note", "hello")).await;
    let node = test.node().await;
    for path in [
        "f:metadata|f:labels|f:type",
        "f:metadata|f:annotations|f:example.com/note",
        "f:status|f:capacity|f:cpu",
        "f:status|f:conditions|k:{\"type\":\"Ready\"}|f:status",
    ] {
        assert_eq!(
            managers(&node, path),
            ["virtual-kubelet Apply"],
            "{path}: {:?}",
            node.metadata.managed_fields
        );
    }
    assert_eq!(managers(&node, "f:spec|f:taints"), ["virtual-kubelet Update"]);
    assert_eq!(managers(&node, "f:spec|f:unschedulable"), [""; 0]);
}

async fn a_node_can_have_two_addresses_of_one_type(who: Who) {
    let test = NodeTest::shared(who, "dual").await;
    let controller = test.start_ready(Setup::default()).await;
    let addresses = |node: &Node| node.status.clone().unwrap().addresses.unwrap_or_default();
    let begin = Instant::now();
    for _ in 0..3 {
        controller.provider.describe(|node| {
            let type_ = node.addresses[0].type_.clone();
            node.addresses.insert(1, NodeAddress { type_, address: "2001:db8::7".to_owned() });
        });
        test.wait_for("two addresses", |node| addresses(node).len() == 2).await;
        controller.provider.describe(|_| {});
        test.wait_for("one address", |node| addresses(node).len() == 1).await;
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "six changes: {:?}", begin.elapsed());
}
