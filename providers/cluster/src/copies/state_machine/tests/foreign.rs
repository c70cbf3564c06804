//! Objects of others with the name of a copy.

use serde_json::json;

use super::*;

/// tensile-kube deletes an object of the same name, whoever owns it.
#[test]
fn a_foreign_object_is_left_alone_and_no_pod_gets_it() {
    let mut clusters = FakeClusters::new();
    let theirs = json!({"data": {"key": "theirs"}});
    clusters.put_lower(&key(MAP, "a"), theirs.clone());
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    let conflict = |clusters: &mut FakeClusters| {
        clusters.advance(GRACE * 10);
        assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Conflict);
        let (named, _) = clusters.state_machine.pending_copy(&pod("p")).expect("a copy");
        assert_eq!(*named, key(MAP, "a"));
    };
    conflict(&mut clusters);
    clusters.put(MAP, "default", "a", map("2"));
    conflict(&mut clusters);
    clusters.delete(MAP, "default", "a");
    conflict(&mut clusters);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&theirs["data"]), "{:?}", clusters.log);
}

/// The hole that this closes: a pod that names an object which only the lower cluster has.
#[test]
fn a_pod_never_gets_an_object_that_only_the_lower_cluster_has() {
    for kind in [MAP, Kind::Secret, Kind::Claim] {
        for dependencies in [needs(&[(kind, "a")]), optional(&[(kind, "a")])] {
            let mut clusters = FakeClusters::new();
            clusters.put_lower(&key(kind, "a"), json!({"metadata": {"labels": {"owner": "somebody"}}}));
            clusters.handle(Event::PodAdded(pod("p"), dependencies.clone()));
            clusters.run();
            assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Conflict, "{dependencies:?}");
            // When the pod asks again, the object is read again.
            clusters.delete_lower(&key(kind, "a"));
            clusters.handle(Event::PodAdded(pod("p"), dependencies.clone()));
            assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
            clusters.advance(Duration::from_mins(6));
            assert_ne!(clusters.state_machine.readiness(&pod("p")), Readiness::Conflict);
        }
    }
}

#[test]
fn a_foreign_object_that_appears_while_a_pod_waits_is_found() {
    let mut clusters = FakeClusters::new();
    clusters.add_pod("p", &[(Kind::Secret, "a")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Missing);
    clusters.put_lower(&key(Kind::Secret, "a"), json!({}));
    clusters.add_pod("p", &[(Kind::Secret, "a")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Conflict);
}

/// The operator named it, whoever created it.
#[test]
fn a_service_account_of_somebody_else_is_used() {
    let mut clusters = FakeClusters::new();
    clusters.put_lower(&key(Kind::ServiceAccount, "tenant"), json!({}));
    clusters.add_pod("p", &[(Kind::ServiceAccount, "tenant")]);
    clusters.advance(A_WHILE);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
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
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Conflict);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "theirs"})));
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
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Conflict);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "theirs"})));
}
