//! What belongs to others.

use serde_json::json;

use crate::harness::{Bed, Setup, Who, annotation, capacity, label, state, taints, under_both_identities};

under_both_identities!(what_others_put_on_the_node_survives_all_our_writes);

async fn what_others_put_on_the_node_survives_all_our_writes(who: Who) {
    let bed = Bed::shared(who, "foreign").await;
    let agent = bed.start_ready(Setup::default()).await;
    bed.kubectl(&["label", "node", &bed.name, "example.com/theirs=label", "kubernetes.io/theirs=restricted"])
        .await;
    bed.kubectl(&["annotate", "node", &bed.name, "example.com/theirs=annotation"]).await;
    bed.kubectl(&["taint", "node", &bed.name, "example.com/theirs=taint:NoSchedule"]).await;
    bed.kubectl(&["cordon", &bed.name]).await;
    bed.patch_status(json!({"status": {
        "conditions": [{"type": "Theirs", "status": "True", "reason": "Because", "message": "so"}],
        "capacity": {"example.com/device": "3"},
    }}))
    .await;

    for pods in ["21", "22", "23", "24"] {
        agent.mock.set_capacity("pods", pods.parse().unwrap());
        let node = bed.see("the new capacity", |node| capacity(node, "pods") == pods).await;
        assert_eq!(label(&node, "example.com/theirs"), Some("label"));
        assert_eq!(label(&node, "kubernetes.io/theirs"), Some("restricted"));
        assert_eq!(annotation(&node, "example.com/theirs"), Some("annotation"));
        assert!(taints(&node).contains(&"example.com/theirs=taint:NoSchedule".to_owned()), "{node:?}");
        assert_eq!(state(&node, "Theirs"), ("True", "Because"));
        assert_eq!(capacity(&node, "example.com/device"), "3");
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    }
    assert_eq!(agent.requests("patch", "nodes", Some("Forbidden")), 0);
}
