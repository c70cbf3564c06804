//! How the API server reaches a node. It has the default flags: it tries the host name first.

use serde_json::{Value, json};
use vk_testing::ControlPlane;

use super::{super::node, Served};

async fn addresses(served: &Served<'_>) -> Value {
    node(served.cluster, &served.node).await["status"]["addresses"].clone()
}

async fn logs_and_exec_work(served: &Served<'_>) {
    let stage = served.stage().await;
    let logs = stage.run_ok(&["logs", "web"]).await;
    assert!(logs.contains("main is up"), "{logs:?}");
    let echo = stage.run_ok(&["exec", "web", "--", "echo", "hello"]).await;
    assert_eq!(echo, "hello\n");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_node_whose_name_does_not_resolve_is_reached_by_an_api_server_with_default_flags() {
    let served = Served::start(ControlPlane::shared().await, "no-such-host", &[]).await;
    assert_eq!(addresses(&served).await, json!([{"type": "InternalIP", "address": "127.0.0.1"}]));
    logs_and_exec_work(&served).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_configured_host_name_is_published_and_used() {
    // Nothing answers on the address, which is for documentation.
    let flags = ["--internal-ip", "192.0.2.1", "--hostname", "localhost"];
    let served = Served::start(ControlPlane::shared().await, "with-hostname", &flags).await;
    let host = json!({"type": "Hostname", "address": "localhost"});
    assert!(addresses(&served).await.as_array().unwrap().contains(&host));
    logs_and_exec_work(&served).await;
}
