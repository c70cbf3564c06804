//! Somebody else changes what is ours.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Bed, Setup, Who, capacity, is_ready, label, state, under_both_identities_at_once};

under_both_identities_at_once!(
    what_somebody_overwrites_is_put_right,
    who_fights_over_the_status_is_answered_with_patience
);

async fn what_somebody_overwrites_is_put_right(who: Who) {
    let bed = Bed::shared(who, "drift").await;
    let _agent = bed.start_ready(Setup::default()).await;
    let unknown = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status."});
    bed.patch_status(json!({"status": {"conditions": [unknown]}})).await;
    bed.see("ready", |node| state(node, "Ready") == ("True", "KubeletReady")).await;
    bed.patch_status(json!({"status": {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}}})).await;
    bed.see("the capacity", |node| capacity(node, "cpu") == "20" && is_ready(node)).await;
    bed.patch(json!({"metadata": {"labels": {"type": "other", "kubernetes.io/os": null}}})).await;
    bed.see("the labels", |node| {
        label(node, "type") == Some("virtual-kubelet") && label(node, "kubernetes.io/os") == Some("linux")
    })
    .await;
    bed.patch_status(json!({"status": {"addresses": [{"$patch": "replace"}]}})).await;
    bed.see("the addresses", |node| node.status.clone().unwrap().addresses.is_some_and(|all| all.len() == 2))
        .await;
}

async fn who_fights_over_the_status_is_answered_with_patience(who: Who) {
    let bed = Bed::shared(who, "fight").await;
    let agent = bed.start_ready(Setup::default()).await;
    let before = agent.requests("patch_status", "nodes", None);
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for round in 0..30 {
        pace.tick().await;
        bed.patch_status(json!({"status": {"conditions": [
            {"type": "Ready", "status": "Unknown", "reason": "Fight", "message": format!("round {round}")},
        ]}}))
        .await;
    }
    let writes = agent.requests("patch_status", "nodes", None) - before;
    assert!((1..=6).contains(&writes), "{writes}");
    bed.see("ready in the end", is_ready).await;
}
