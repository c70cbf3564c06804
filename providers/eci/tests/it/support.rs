//! Configurations and contexts.

use std::path::PathBuf;

use serde_json::{Value, json};
use vk_provider::{
    Config, Context, Extensions, Factory as _, Finding, Result,
    inventory::{Group, Inventory, InventoryScope},
};
use vk_provider_eci::EciFactory;
use vk_supervisor::Supervisor;

/// A configuration for this endpoint, with a key of its own.
pub(crate) fn config(endpoint: &str) -> Config {
    Config::Inline(json!({
        "region": "cn-hangzhou", "vSwitches": ["vsw-a"], "securityGroup": "sg-1", "clusterName": "shop",
        "endpoint": endpoint, "credentials": "static", "accessKey": "test-key-id", "secretKey": "test-secret",
        "clusterDNS": ["10.96.0.10"], "budget": {"requestsPerSecond": 1000, "burst": 1000},
        "prices": {"cpuHour": 0.049, "memoryGiBHour": 0.0061, "currency": "USD"},
    }))
}

/// The context of a node.
pub(crate) fn context() -> Context {
    Context {
        node_name: "eci".to_owned(),
        internal_ip: "127.0.0.1".parse().unwrap(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: PathBuf::from("unused"),
        shared_dir: PathBuf::from("unused"),
        extensions: Extensions::new(),
        supervisor: Supervisor::new(),
    }
}

/// What `virtual-kubelet groups` shows.
pub(crate) async fn groups(endpoint: &str) -> Result<Vec<Group>> {
    inventory(endpoint).await.groups(&InventoryScope::default()).await
}

/// The inventory at an endpoint.
pub(crate) async fn inventory(endpoint: &str) -> std::sync::Arc<dyn Inventory> {
    EciFactory::default().inventory(config(endpoint), context()).await.unwrap().unwrap()
}

/// What `virtual-kubelet doctor` says.
pub(crate) async fn findings(endpoint: &str) -> Vec<Finding> {
    EciFactory::default().examine(config(endpoint), context()).await
}

/// A group of pod `shop/NAME` as the service lists it.
pub(crate) fn group(id: &str, name: &str) -> Value {
    let tag = |key: &str, value: &str| json!({"Key": key, "Value": value});
    json!({
        "ContainerGroupId": id, "ContainerGroupName": format!("vk-{name}"), "Status": "Running", "Cpu": 2.0, "Memory": 4.0,
        "CreationTime": "2026-01-01T00:00:00Z",
        "Tags": [
            tag("vk-cluster", "shop"), tag("vk-node", "eci"), tag("vk-namespace", "shop"), tag("vk-name", name),
            tag("vk-uid", &format!("uid-{name}")), tag("vk-attempt", "1"), tag("vk-spec", ""), tag("vk-layout", "1"),
        ],
    })
}
