//! A lower cluster of an older minor than the upper one.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vk_testing::control_plane::Options;

use super::{
    rig::{Rig, started, upper},
    rollout::{agree, workload},
    side::{Side, text},
    streams,
};

const MINOR: &str = "1.33";

/// The folder of the programs, which are built if need be.
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
    let rig = Rig::open(upper().await, lower, "older", 2, json!({}), &[]).await;
    let above = Side::new(rig.upper, "default");
    let node = above.get(&format!("nodes/{}", rig.node)).await;
    let claimed = text(&node["status"]["nodeInfo"]["kubeletVersion"]).to_owned();
    assert!(claimed.starts_with(&format!("v{MINOR}.")), "the lower server's version: {claimed}");

    let room = rig.room("older").await;
    room.above
        .create("configmaps", &json!({"metadata": {"name": "settings"}, "data": {"colour": "green"}}))
        .await;
    let mut deployment = workload(&room, "web", 6);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    room.above.create("deployments", &deployment).await;
    room.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&room.above, &room.below, 6).await;
    room.above.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    room.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&room.above, &room.below, 6).await;
    room.above.patch("configmaps/settings", &json!({"data": {"colour": "blue"}})).await;
    let blue = |map: &Value| map["data"]["colour"] == "blue";
    room.below.see("configmaps/settings", "is edited", blue).await;
    room.above.delete("deployments/web", None).await;
    agree(&room.above, &room.below, 0).await;

    rig.gets_a_certificate().await;
    streams::every_verb(&rig).await;
}
