//! kubectl as an administrator.

use std::fs;

use vk_testing::ControlPlane;

/// Runs kubectl, which has to succeed, and returns what it prints.
pub(crate) async fn kubectl(cluster: &ControlPlane, arguments: &[&str]) -> String {
    let output = vk_testing::kubectl(cluster, arguments).await.unwrap();
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout
}

pub(crate) async fn apply(cluster: &ControlPlane, manifest: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), manifest).unwrap();
    kubectl(cluster, &["apply", "--filename", file.path().to_str().unwrap()]).await;
}
