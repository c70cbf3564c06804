//! Containers that the lower cluster injects.

use serde_json::{Value, json};

use super::{
    cluster_pair::{ClusterPair, lower, upper},
    namespace_client::{NamespaceClient, condition, text},
};

const STILL_RUNNING: &str = "virtual-kubelet.io/StillRunning";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_upper_pod_stays_while_an_injected_container_is_stopping() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "sidecar", 1, json!({}), &[]).await;
    let namespace = pair.test_namespace("sidecar").await;
    namespace.upper.create("pods", &pair.pod("app")).await;
    namespace.upper.wait_running("app").await;
    // From here on, the test writes the status instead of the lower kubelet.
    pair.stop_lower_nodes();
    let ended = json!({"terminated": {"exitCode": 143, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}});
    let say = async |below: &NamespaceClient<'_>, proxy: Value| {
        let status = |name: &str, state: &Value| json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let all = json!([status("main", &ended), status("proxy", &proxy)]);
        below.patch("pods/app/status", &json!({"status": {"containerStatuses": all}})).await;
    };
    say(&namespace.lower, json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})).await;
    let told = namespace.upper.wait_for("pods/app", "says what still runs", |pod| {
        condition(pod, STILL_RUNNING)["status"] == "True"
    });
    let told = told.await;
    assert!(text(&condition(&told, STILL_RUNNING)["message"]).contains("[proxy]"), "{told}");
    assert_eq!(told["status"]["containerStatuses"].as_array().map(Vec::len), Some(1), "it is not shown");

    namespace.upper.delete("pods/app", None).await;
    namespace.upper.wait_event("app", &["Overdue"]).await;
    let kept = namespace.upper.get("pods/app").await;
    assert!(kept["status"]["containerStatuses"][0]["state"]["terminated"].is_object(), "{kept}");
    assert!(namespace.lower.get("pods/app").await["metadata"]["deletionTimestamp"].is_string());

    say(&namespace.lower, ended.clone()).await;
    namespace.upper.wait_deleted("pods/app").await;
}
