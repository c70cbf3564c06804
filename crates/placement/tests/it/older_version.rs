//! Conversion by an API server that has no admission policies which change objects.

use std::process::{Command, Stdio};

use vk_placement::convert::Settings;
use vk_testing::control_plane::Options;

use crate::differential::{Cluster, every_setting};

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
