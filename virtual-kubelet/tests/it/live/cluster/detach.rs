//! `virtual-kubelet detach`, after a run of the command.

use std::fs;

use serde_json::json;
use vk_provider::finding::FindingLevel;

use super::{
    cluster_pair::{ClusterPair, ORIGIN, lower, upper},
    namespace_client::NamespaceClient,
};
use crate::vk;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn detach_removes_everything_without_the_upper_cluster() {
    let (upper, lower) = (upper().await, lower().await);
    let mut pair = ClusterPair::open(upper, lower, "detach", 1, json!({}), &[]).await;
    let name = upper.namespace("detach").await.unwrap().name().to_owned();
    let (above, below) = (NamespaceClient::new(upper, &name), NamespaceClient::new(lower, &name));
    above.create("configmaps", &json!({"metadata": {"name": "settings"}, "data": {"a": "1"}})).await;
    let mut pod = pair.pod("app");
    pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "settings"}}]);
    above.create("pods", &pod).await;
    above.wait_running("app").await;
    below.create("configmaps", &json!({"metadata": {"name": "theirs"}})).await;
    let (theirs, lower_pod) = (below.get("configmaps/theirs").await, below.get("pods/app").await);

    let (node, server) = (pair.node.clone(), lower.admin_kubeconfig().to_str().unwrap());
    let detach = |more: &[&str], upper: &str| {
        let mut all =
            vec!["detach", "--nodename", &node, "--kubeconfig", upper, "--client-kubeconfig", server];
        all.extend(more);
        vk(&all).run()
    };
    let admin = upper.admin_kubeconfig().to_str().unwrap();
    detach(&[], admin).refused(1, &[&["is running", "lease", "stop it first"]]);
    assert_eq!(
        below.get("pods/app").await["metadata"]["uid"],
        lower_pod["metadata"]["uid"],
        "nothing was touched"
    );
    pair.kill();

    // The upper cluster does not exist any more, but its id is known.
    let folder = tempfile::TempDir::new().unwrap();
    let nowhere = folder.path().join("kubeconfig");
    let text = fs::read_to_string(admin).unwrap().replace(upper.url(), "https://127.0.0.1:9");
    fs::write(&nowhere, text).unwrap();
    let nowhere = nowhere.to_str().unwrap();
    detach(&[], nowhere).refused(1, &[&["upper cluster", "--origin"]]);
    let origin = lower_pod["metadata"]["labels"][ORIGIN].as_str().unwrap();
    let told = detach(&["--origin", origin, "--dry-run"], nowhere).stdout;
    for line in
        [format!("would remove Pod {name}/app\n"), format!("would remove ConfigMap {name}/settings\n")]
    {
        assert!(told.contains(&line), "{line} in {told}");
    }
    below.get("pods/app").await;

    let told = detach(&["--origin", origin], nowhere).stdout;
    for line in [format!("removed Pod {name}/app\n"), format!("removed ConfigMap {name}/settings\n")] {
        assert!(told.contains(&line), "{line} in {told}");
    }
    assert!(told.contains(&format!("left Namespace {name}: it contains ConfigMap theirs")), "{told}");
    below.wait_deleted("pods/app").await;
    below.wait_deleted("configmaps/settings").await;
    assert_eq!(below.get("configmaps/theirs").await, theirs);
    let told = detach(&["--origin", origin], nowhere).stdout;
    assert!(told.contains(&format!("virtual node {node} has no objects in")), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn doctor_checks_the_lower_cluster_of_the_command_line() {
    let lower = lower().await;
    let path = lower.admin_kubeconfig().to_str().unwrap();
    let told = vk(&["doctor", "--provider", "cluster", "--client-kubeconfig", path]).run().ok();
    let ok = FindingLevel::Ok.to_string();
    // The nodes of this cluster are virtual, and those of other tests.
    let mut others = told.lines().filter(|line| !line.contains("lower nodes"));
    assert!(others.all(|line| line.starts_with(&ok)), "{told}");
    for words in [path, "lower API server", "lower permissions: all", "lower nodes"] {
        assert!(told.contains(words), "{words} in {told}");
    }
    let none = vk(&["doctor", "--provider", "cluster", "--client-kubeconfig", "/no/such/file"]).run();
    assert!(none.stdout.contains("/no/such/file") && none.stdout.contains("--client-kubeconfig"), "{none:?}");
}
