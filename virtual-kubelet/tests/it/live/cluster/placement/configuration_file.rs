//! Placement beside the virtual nodes of one process: the section `placement` in the configuration file of `run`.

use std::fs;

use serde_json::json;

use super::{PLACED, PlacementTest, pod};
use crate::live::cluster::{
    cluster_pair::{ClusterPair, lower},
    namespace_client::{NamespaceClient, condition, text},
};

/// The node is asked within the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_process_of_a_virtual_node_places_pods_if_its_configuration_file_says_so() {
    let test = PlacementTest::new(&["--gates", "estimate"]).await;
    let file = test.folder.path().join("vk.yaml");
    fs::write(&file, "placement: {gates: estimate}\n").unwrap();
    let flags = ["--config", file.to_str().unwrap()];
    let pair = ClusterPair::open(&test.upper, lower().await, "with-placement", 2, json!({}), &flags).await;
    let team = test.namespace("with-placement").await;
    team.create("pods", &pod("small", 6)).await;
    let small = team.wait_running("small").await;
    assert_eq!(small["spec"]["nodeName"], json!(pair.node), "{small}");
    assert_eq!(condition(&small, PLACED)["reason"], "Estimated", "{small}");
    team.create("pods", &pod("big", 9)).await;
    let why = format!("0 of 1 nodes: {}: 0 of 2 lower nodes (2 insufficient cpu)", pair.node);
    team.wait_for("pods/big", "says why it waits", |pod| text(&condition(pod, PLACED)["message"]) == why)
        .await;
    let leases = NamespaceClient::new(&test.upper, "kube-system");
    let settings = leases.kubectl(&["get", "lease", super::NAME, "-o", "yaml"]).await;
    assert!(settings.contains("estimate"), "the settings of the leader: {settings}");
}
