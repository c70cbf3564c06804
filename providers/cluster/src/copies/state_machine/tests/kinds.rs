//! Secrets, service accounts and objects that are not copied.

use serde_json::json;

use super::*;

/// tensile-kube creates a token Secret of another cluster and rewrites its service account.
#[test]
fn a_service_account_token_becomes_an_opaque_secret() {
    let mut clusters = FakeClusters::new();
    let token = json!({
        "type": "kubernetes.io/service-account-token",
        "metadata": {"annotations": {"kubernetes.io/service-account.name": "builder"}},
        "data": {"token": "eA=="},
    });
    clusters.put(Kind::Secret, "default", "t", token);
    clusters.add_pod("p", &[(Kind::Secret, "t")]);
    clusters.run();
    let copy = &clusters.lower[&key(Kind::Secret, "t")];
    assert_eq!((&copy["type"], &copy["data"]["token"]), (&json!("Opaque"), &json!("eA==")));
    let annotations = &copy["metadata"]["annotations"];
    assert_eq!(annotations.get("kubernetes.io/service-account.name"), None);
}

#[test]
fn a_secret_whose_type_changes_is_replaced() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Secret, "default", "s", json!({"type": "Opaque", "data": {"a": "eA=="}}));
    clusters.add_pod("p", &[(Kind::Secret, "s")]);
    clusters.run();
    clusters.put(Kind::Secret, "default", "s", json!({"type": "example.com/x", "data": {"a": "eA=="}}));
    clusters.advance(A_WHILE);
    assert_eq!(clusters.lower[&key(Kind::Secret, "s")]["type"], "example.com/x");
}

#[test]
fn a_service_account_is_created_bare_without_a_watch() {
    let mut clusters = FakeClusters::new();
    clusters.add_pod("p", &[(Kind::ServiceAccount, "builder")]);
    clusters.run();
    assert!(clusters.watched.is_empty(), "a node may not watch it");
    assert!(clusters.lower.contains_key(&key(Kind::ServiceAccount, "builder")));
    clusters.remove_pod("p");
    clusters.advance(GRACE * 2);
    assert!(!clusters.lower.contains_key(&key(Kind::ServiceAccount, "builder")));
}

#[test]
fn an_object_with_the_skip_annotation_is_not_copied() {
    let skipped = json!({"data": {"key": "1"}, "metadata": {"annotations": {names::SKIP: "true"}}});
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", skipped.clone());
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.advance(A_WHILE);
    assert_eq!(clusters.lower.get(&key(MAP, "a")), None);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Missing, "and no foreign one is used");
    // A copy that exists goes with the pods that need it.
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "a", skipped);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 2);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
}
