//! A lower cluster with an older minor version than the upper one.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vk_testing::control_plane::Options;

use super::{
    cluster_pair::{ClusterPair, start_lower_with, upper},
    namespace_client::{NamespaceClient, text},
    rollout::{agree, workload},
    streams,
};

const MINOR: &str = "1.33";

/// The directory of the binaries, which are built if necessary.
pub(super) fn programs() -> std::path::PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../dev/control-plane/build");
    let output = Command::new(build).arg(MINOR).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "dev/control-plane/build failed: it says why above");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make e2e-cluster"]
async fn a_lower_cluster_of_1_33_runs_a_deployment() {
    let lower =
        &start_lower_with(Options { programs: Some(programs()), ..Options::with_controllers() }).await;
    let pair = ClusterPair::open(upper().await, lower, "older", 2, json!({"hostAccess": true}), &[]).await;
    let above = NamespaceClient::new(pair.upper, "default");
    let node = above.get(&format!("nodes/{}", pair.node)).await;
    let claimed = text(&node["status"]["nodeInfo"]["kubeletVersion"]).to_owned();
    assert!(claimed.starts_with(&format!("v{MINOR}.")), "the lower server's version: {claimed}");

    let namespace = pair.test_namespace("older").await;
    namespace
        .upper
        .create("configmaps", &json!({"metadata": {"name": "settings"}, "data": {"colour": "green"}}))
        .await;
    let mut deployment = workload(&namespace, "web", 6);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    namespace.upper.create("deployments", &deployment).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespace.upper, &namespace.lower, 6).await;
    namespace.upper.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespace.upper, &namespace.lower, 6).await;
    namespace.upper.patch("configmaps/settings", &json!({"data": {"colour": "blue"}})).await;
    let blue = |map: &Value| map["data"]["colour"] == "blue";
    namespace.lower.wait_for("configmaps/settings", "is edited", blue).await;
    namespace.upper.delete("deployments/web", None).await;
    agree(&namespace.upper, &namespace.lower, 0).await;

    pair.approve_certificate().await;
    streams::every_verb(&pair).await;
}
