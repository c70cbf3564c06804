//! Objects of others with the name of a copy.

use serde_json::json;

use super::*;

/// tensile-kube deletes an object of the same name, whoever owns it.
#[test]
fn a_foreign_object_is_left_alone_with_one_warning() {
    let mut clusters = FakeClusters::new();
    let theirs = json!({"data": {"key": "theirs"}});
    clusters.put_lower(&key(MAP, "a"), theirs.clone());
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    clusters.put(MAP, "default", "a", map("2"));
    clusters.advance(GRACE);
    clusters.delete(MAP, "default", "a");
    clusters.advance(GRACE);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&theirs["data"]), "{:?}", clusters.log);
    let [(notified, reason, message)] = &clusters.warnings[..] else { panic!("{:?}", clusters.warnings) };
    assert_eq!((notified, *reason), (&pod("p"), "ForeignObject"));
    assert!(message.contains("ConfigMap default/a"), "{message}");
}

#[test]
fn a_copy_is_created_when_the_foreign_object_is_deleted() {
    let mut clusters = FakeClusters::new();
    clusters.put_lower(&key(MAP, "a"), json!({"data": {"key": "theirs"}}));
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.advance(A_WHILE);
    clusters.delete_lower(&key(MAP, "a"));
    clusters.advance(Duration::from_mins(6));
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
}

#[test]
fn an_object_of_another_upper_cluster_is_foreign() {
    let mut clusters = FakeClusters::new();
    let annotations = json!({names::ORIGIN_NAMESPACE: "default", names::ORIGIN_NAME: "a"});
    let theirs = json!({
        "metadata": {"labels": {names::ORIGIN: "other"}, "annotations": annotations},
        "data": {"key": "theirs"},
    });
    clusters.put_lower(&key(MAP, "a"), theirs);
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.advance(GRACE);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "theirs"})));
    assert_eq!(clusters.warnings.len(), 1);
}

#[test]
fn a_copy_that_loses_its_label_becomes_foreign() {
    let mut clusters = with_copy();
    let mut copy = clusters.lower[&key(MAP, "a")].clone();
    copy["metadata"]["labels"] = json!({});
    copy["data"]["key"] = json!("theirs");
    clusters.delete_lower(&key(MAP, "a"));
    clusters.put_lower(&key(MAP, "a"), copy);
    clusters.advance(GRACE * 10);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "theirs"})));
    assert_eq!(clusters.warnings.len(), 1);
}
