//! Containers that the lower cluster has and the upper pod does not.

use serde_json::{Value, json};

use super::{
    cluster_namespace::{ClusterNamespace, condition, text},
    cluster_pair::{ClusterPair, lower, upper},
};

const STILL_RUNNING: &str = "virtual-kubelet.io/StillRunning";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_upper_pod_does_not_leave_while_a_container_that_was_added_below_still_stops() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "sidecar", 1, json!({}), &[]).await;
    let namespaces = pair.namespace_pair("sidecar").await;
    namespaces.above.create("pods", &pair.pod("app")).await;
    namespaces.above.runs("app").await;
    // From here on the lower kubelet says what we say.
    pair.stop_lower_nodes();
    let ended = json!({"terminated": {"exitCode": 143, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}});
    let say = async |below: &ClusterNamespace<'_>, proxy: Value| {
        let status = |name: &str, state: &Value| json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let all = json!([status("main", &ended), status("proxy", &proxy)]);
        below.patch("pods/app/status", &json!({"status": {"containerStatuses": all}})).await;
    };
    say(&namespaces.below, json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})).await;
    let told = namespaces
        .above
        .see("pods/app", "says what still runs", |pod| condition(pod, STILL_RUNNING)["status"] == "True");
    let told = told.await;
    assert!(text(&condition(&told, STILL_RUNNING)["message"]).contains("[proxy]"), "{told}");
    assert_eq!(told["status"]["containerStatuses"].as_array().map(Vec::len), Some(1), "it is not shown");

    namespaces.above.delete("pods/app", None).await;
    namespaces.above.told("app", &["Overdue"]).await;
    let kept = namespaces.above.get("pods/app").await;
    assert!(kept["status"]["containerStatuses"][0]["state"]["terminated"].is_object(), "{kept}");
    assert!(namespaces.below.get("pods/app").await["metadata"]["deletionTimestamp"].is_string());

    say(&namespaces.below, ended.clone()).await;
    namespaces.above.goes("pods/app").await;
}
