//! Fields of others on the Node.

use serde_json::json;

use crate::harness::{
    NodeTest, Setup, Who, annotation, capacity, label, state, taints, under_both_identities,
};

under_both_identities!(fields_of_others_survive_all_our_writes);

async fn fields_of_others_survive_all_our_writes(who: Who) {
    let test = NodeTest::shared(who, "foreign").await;
    let controller = test.start_ready(Setup::default()).await;
    test.kubectl(&[
        "label",
        "node",
        &test.name,
        "example.com/theirs=label",
        "kubernetes.io/theirs=restricted",
    ])
    .await;
    test.kubectl(&["annotate", "node", &test.name, "example.com/theirs=annotation"]).await;
    test.kubectl(&["taint", "node", &test.name, "example.com/theirs=taint:NoSchedule"]).await;
    test.kubectl(&["cordon", &test.name]).await;
    test.patch_status(json!({"status": {
        "conditions": [{"type": "Theirs", "status": "True", "reason": "Because", "message": "so"}],
        "capacity": {"example.com/device": "3"},
    }}))
    .await;

    for pods in ["21", "22", "23", "24"] {
        controller.mock.set_capacity("pods", pods.parse().unwrap());
        let node = test.wait_for("the new capacity", |node| capacity(node, "pods") == pods).await;
        assert_eq!(label(&node, "example.com/theirs"), Some("label"));
        assert_eq!(label(&node, "kubernetes.io/theirs"), Some("restricted"));
        assert_eq!(annotation(&node, "example.com/theirs"), Some("annotation"));
        assert!(taints(&node).contains(&"example.com/theirs=taint:NoSchedule".to_owned()), "{node:?}");
        assert_eq!(state(&node, "Theirs"), ("True", "Because"));
        assert_eq!(capacity(&node, "example.com/device"), "3");
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    }
    assert_eq!(controller.requests("patch", "nodes", Some("Forbidden")), 0);
}
