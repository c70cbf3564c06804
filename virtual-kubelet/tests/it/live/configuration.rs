//! The configuration is visible on the Node.

use serde_json::json;
use vk_testing::ControlPlane;

use super::{becomes_ready, kubelet_port, ports, run};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn variables_of_the_go_original_are_on_the_node() {
    let cluster = ControlPlane::shared().await;
    let port = ports(1);
    let _process = run(cluster, &["--no-port"])
        .env("DEFAULT_NODE_NAME", "by-variables")
        .env("VKUBELET_TAINT_KEY", "example.com/key")
        .env("VKUBELET_TAINT_VALUE", "value")
        .env("VKUBELET_TAINT_EFFECT", "NoExecute")
        .env("KUBELET_PORT", &port.to_string())
        .env("VKUBELET_POD_IP", "10.1.2.3")
        .start();
    let node = becomes_ready(cluster, "by-variables").await;
    let taint = json!({"key": "example.com/key", "value": "value", "effect": "NoExecute"});
    assert!(node["spec"]["taints"].as_array().unwrap().contains(&taint), "{}", node["spec"]);
    assert_eq!(kubelet_port(&node), u64::from(port));
    let addresses = node["status"]["addresses"].as_array().unwrap();
    assert!(addresses.contains(&json!({"type": "InternalIP", "address": "10.1.2.3"})), "{addresses:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn flags_win_over_variables_and_those_over_the_file() {
    let cluster = ControlPlane::shared().await;
    let port = ports(1);
    let file = "nodeName: from-file\nport: 1001\ninternalIP: 10.0.0.1\ntaint: {key: example.com/file, value: file}\n\
                labels: {from: file, kept: file}\nannotations: {example.com/from: file}\n";
    let _process = run(
        cluster,
        &["--no-port", "--nodename", "by-flag", "--labels", "from=flag", "--taint-value", "flag"],
    )
    .file(file)
    .env("DEFAULT_NODE_NAME", "by-variable")
    .env("KUBELET_PORT", &port.to_string())
    .env("VKUBELET_POD_IP", "10.0.0.2")
    .env("VKUBELET_TAINT_VALUE", "variable")
    .start();
    let node = becomes_ready(cluster, "by-flag").await;
    assert_eq!(kubelet_port(&node), u64::from(port));
    let addresses = node["status"]["addresses"].as_array().unwrap();
    assert!(addresses.contains(&json!({"type": "InternalIP", "address": "10.0.0.2"})), "{addresses:?}");
    let taint = json!({"key": "example.com/file", "value": "flag", "effect": "NoSchedule"});
    assert!(node["spec"]["taints"].as_array().unwrap().contains(&taint), "{}", node["spec"]);
    let labels = &node["metadata"]["labels"];
    assert_eq!((&labels["from"], &labels["kept"]), (&"flag".into(), &"file".into()));
    assert_eq!(labels["type"], "virtual-kubelet");
    assert_eq!(node["metadata"]["annotations"]["example.com/from"], "file");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_taint_is_there_by_default_and_can_be_left_out() {
    let cluster = ControlPlane::shared().await;
    let tainted = run(cluster, &["--nodename", "tainted"]).start();
    let plain = run(cluster, &["--nodename", "plain", "--disable-taint"]).start();
    let ours = |node: &serde_json::Value| -> Vec<serde_json::Value> {
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.into_iter().filter(|taint| taint["key"] == "virtual-kubelet.io/provider").collect()
    };
    let node = becomes_ready(cluster, "tainted").await;
    let taint = json!({"key": "virtual-kubelet.io/provider", "value": "mock", "effect": "NoSchedule"});
    assert_eq!(ours(&node), [taint]);
    assert!(ours(&becomes_ready(cluster, "plain").await).is_empty());
    drop(tainted);
    drop(plain);

    // The next process takes the taint of the one before away.
    let _process = run(cluster, &["--nodename", "tainted", "--disable-taint"]).start();
    vk_testing::eventually("the taint is gone", super::SOON, || async {
        let taints = ours(&super::node(cluster, "tainted").await);
        if taints.is_empty() { Ok(()) } else { Err(format!("{taints:?}")) }
    })
    .await;
}
