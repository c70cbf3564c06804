//! Changes of our fields by others.

use std::time::Duration;

use serde_json::json;

use crate::harness::{NodeTest, Setup, Who, capacity, is_ready, label, state, under_both_identities_at_once};

under_both_identities_at_once!(
    overwritten_fields_are_restored,
    repeated_changes_of_the_status_are_repaired_with_backoff
);

async fn overwritten_fields_are_restored(who: Who) {
    let test = NodeTest::shared(who, "drift").await;
    let _controller = test.start_ready(Setup::default()).await;
    let unknown = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status."});
    test.patch_status(json!({"status": {"conditions": [unknown]}})).await;
    test.wait_for("ready", |node| state(node, "Ready") == ("True", "KubeletReady")).await;
    test.patch_status(json!({"status": {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}}})).await;
    test.wait_for("the capacity", |node| capacity(node, "cpu") == "20" && is_ready(node)).await;
    test.patch(json!({"metadata": {"labels": {"type": "other", "kubernetes.io/os": null}}})).await;
    test.wait_for("the labels", |node| {
        label(node, "type") == Some("virtual-kubelet") && label(node, "kubernetes.io/os") == Some("linux")
    })
    .await;
    test.patch_status(json!({"status": {"addresses": [{"$patch": "replace"}]}})).await;
    test.wait_for("the addresses", |node| {
        node.status.clone().unwrap().addresses.is_some_and(|all| all.len() == 1)
    })
    .await;
}

async fn repeated_changes_of_the_status_are_repaired_with_backoff(who: Who) {
    let test = NodeTest::shared(who, "fight").await;
    let controller = test.start_ready(Setup::default()).await;
    let before = controller.requests("patch_status", "nodes", None);
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for round in 0..30 {
        pace.tick().await;
        test.patch_status(json!({"status": {"conditions": [
            {"type": "Ready", "status": "Unknown", "reason": "Fight", "message": format!("round {round}")},
        ]}}))
        .await;
    }
    let writes = controller.requests("patch_status", "nodes", None) - before;
    assert!((1..=6).contains(&writes), "{writes}");
    test.wait_for("ready in the end", is_ready).await;
}
