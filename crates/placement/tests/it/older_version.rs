//! Conversion by an API server that has no admission policies which change objects, and the guard of placement there.

use std::process::{Command, Stdio};

use vk_placement::convert::Settings;
use vk_testing::{ControlPlane, control_plane::Options};

use crate::{
    differential::{Cluster, every_setting},
    guard::check_guard,
};

/// The folder of the programs, which are built if necessary.
fn programs() -> std::path::PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/control-plane/build");
    let output = Command::new(build).arg("1.33").stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "dev/control-plane/build failed: it says why above");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make e2e-placement"]
async fn the_webhook_of_kubernetes_1_33_converts_every_pod_as_convert_does() {
    let cluster = Cluster::start(Options { programs: Some(programs()), ..Options::default() }).await;
    cluster.compare_webhook(&Settings::default()).await;
    cluster.compare_webhook(&every_setting()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make e2e-placement"]
async fn the_guard_refuses_the_same_changes_on_kubernetes_1_33() {
    let options = Options { programs: Some(programs()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    assert_eq!(check_guard(&cluster).await, ["resourceClaimStatuses", "observedGeneration"]);
}
