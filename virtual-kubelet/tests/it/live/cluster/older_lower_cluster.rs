//! A lower cluster with an older Kubernetes version than the upper one.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vk_testing::control_plane::Options;

use super::{
    cluster_namespace::{ClusterNamespace, text},
    cluster_pair::{ClusterPair, started, upper},
    rollout::{agree, workload},
    streams,
};

const MINOR: &str = "1.33";

/// Directory of the programs, built if needed.
fn programs() -> std::path::PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../dev/control-plane/build");
    let output = Command::new(build).arg(MINOR).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "dev/control-plane/build failed: it says why above");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make e2e-cluster"]
async fn a_lower_cluster_of_1_33_serves_a_deployment_and_kubectl_of_a_newer_one() {
    let lower = &started(Options { programs: Some(programs()), ..Options::with_controllers() }).await;
    let pair = ClusterPair::open(upper().await, lower, "older", 2, json!({}), &[]).await;
    let above = ClusterNamespace::new(pair.upper, "default");
    let node = above.get(&format!("nodes/{}", pair.node)).await;
    let claimed = text(&node["status"]["nodeInfo"]["kubeletVersion"]).to_owned();
    assert!(claimed.starts_with(&format!("v{MINOR}.")), "the lower server's version: {claimed}");

    let namespaces = pair.namespace_pair("older").await;
    namespaces
        .above
        .create("configmaps", &json!({"metadata": {"name": "settings"}, "data": {"colour": "green"}}))
        .await;
    let mut deployment = workload(&namespaces, "web", 6);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    namespaces.above.create("deployments", &deployment).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespaces.above, &namespaces.below, 6).await;
    namespaces.above.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespaces.above, &namespaces.below, 6).await;
    namespaces.above.patch("configmaps/settings", &json!({"data": {"colour": "blue"}})).await;
    let blue = |map: &Value| map["data"]["colour"] == "blue";
    namespaces.below.see("configmaps/settings", "is edited", blue).await;
    namespaces.above.delete("deployments/web", None).await;
    agree(&namespaces.above, &namespaces.below, 0).await;

    pair.gets_a_certificate().await;
    streams::every_verb(&pair).await;
}
