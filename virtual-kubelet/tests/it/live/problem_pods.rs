//! Pods with problems: the reason is visible to users, and none causes repeated writes to the API server.

use serde_json::{Value, json};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
};

use super::workload_test::WorkloadTest;

/// Number of status writes and events of this pod in the audit log.
pub(super) fn writes(cluster: &ControlPlane, pod: &str) -> (usize, usize) {
    let log = std::fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let (mut statuses, mut events) = (0, 0);
    // The last line may be incomplete.
    for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let object = &line["objectRef"];
        let named = object["name"].as_str().unwrap_or_default();
        match (line["verb"].as_str().unwrap_or_default(), object["resource"].as_str().unwrap_or_default()) {
            ("patch" | "update", "pods") if object["subresource"] == "status" && named == pod => {
                statuses += 1;
            }
            ("create" | "patch", "events") if named.starts_with(&format!("{pod}.")) => events += 1,
            _ => {}
        }
    }
    (statuses, events)
}

fn phase(found: &Value) -> &str {
    found["status"]["phase"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_that_are_a_trouble_are_told_about_and_cost_few_writes() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let test = WorkloadTest::open(&cluster, "trouble", 1, "{keepEnded: 1s}").await;
    test.create(&test.pod("rejected", &[("fail-create", "Invalid: no such flavour")])).await;
    test.create(&test.pod("unable", &[("fail-create", "Unsupported: no sidecars here")])).await;
    test.create(&test.pod("mistyped", &[("run-four", "1s")])).await;
    test.create(&test.pod("retried", &[("fail-create", "Unavailable: the backend sleeps")])).await;
    test.create(&test.pod("full", &[("fail-create", "Exhausted: all seats are taken")])).await;
    let mut many = test.pod("many", &[]);
    many["spec"]["containers"] =
        (0..50).map(|number| json!({"name": format!("c{number}"), "image": "example.com/app:1"})).collect();
    test.create(&many).await;
    let mut fat = test.pod("fat", &[]);
    fat["spec"]["containers"][0]["env"] = json!([{"name": "TEXT", "value": "x".repeat(1_000_000)}]);
    test.create(&fat).await;

    for (name, text) in [
        ("rejected", "no such flavour"),
        ("unable", "no sidecars here"),
        ("mistyped", "did you mean mock.virtual-kubelet.io/run-for?"),
    ] {
        let failed = test.see(&format!("pod/{name}"), "failed", |found| phase(found) == "Failed").await;
        let told = failed["status"]["message"].as_str().unwrap_or_default();
        assert!(told.contains(text), "{name}: {told}");
        let described = test.kubectl(&["describe", "pod", name]).await;
        assert!(described.contains(text), "{described}");
    }
    for (name, text) in [("retried", "the backend sleeps"), ("full", "all seats are taken")] {
        let told =
            |found: &Value| found["status"]["message"].as_str().is_some_and(|told| told.contains(text));
        let pending = test.see(&format!("pod/{name}"), "why it waits", told).await;
        assert_eq!(phase(&pending), "Pending", "{name}");
    }
    test.kubectl(&["wait", "--for=condition=Ready", "pod/many", "pod/fat", "--timeout=30s"]).await;
    assert_eq!(test.created_once(), 2);

    // Time for what would write again and again: five whole lives, one after the other.
    for _ in 0..5 {
        test.create(&test.pod("other", &[("stop-delay", "300ms")])).await;
        test.kubectl(&["wait", "--for=condition=Ready", "pod/other", "--timeout=30s"]).await;
        test.kubectl(&["delete", "pod/other"]).await;
    }
    for name in ["rejected", "unable", "mistyped", "retried", "full", "many", "fat"] {
        let (statuses, events) = writes(&cluster, name);
        // One, and where the containers of a pod do not all start in one moment of the backend another.
        assert!((1..=2).contains(&statuses), "{name}: {statuses} writes of its status");
        // Each of fifty containers starts, and a pod may have so many events at once and no more.
        let most = if name == "many" { 25 } else { 3 };
        assert!((1..=most).contains(&events), "{name}: {events} writes of events");
    }
    test.kubectl(&["delete", "pods", "--all", "--wait=false"]).await;
    assert_eq!(test.close().await, 7);
}
