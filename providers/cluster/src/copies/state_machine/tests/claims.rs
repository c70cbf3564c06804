//! Claims, which outlive pods.

use serde_json::{Value, json};

use crate::names;

use super::{
    A_WHILE, GRACE, Kind, Readiness,
    fake_clusters::{FakeClusters, key, pod},
};

fn claim(size: &str) -> Value {
    json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

#[test]
fn a_claim_outlives_its_pods_and_is_deleted_with_the_upper_claim() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    let copy = &clusters.lower[&key(Kind::Claim, "c")];
    assert_eq!(
        copy["metadata"]["ownerReferences"],
        json!([]),
        "the owner ConfigMap does not own data in volumes"
    );
    clusters.remove_pod("p");
    clusters.advance(GRACE * 10);
    assert!(clusters.lower.contains_key(&key(Kind::Claim, "c")));
    clusters.restart(2);
    clusters.advance(GRACE * 10);
    assert!(clusters.lower.contains_key(&key(Kind::Claim, "c")), "nor with this process");
    clusters.delete(Kind::Claim, "default", "c");
    clusters.advance(A_WHILE);
    assert!(!clusters.lower.contains_key(&key(Kind::Claim, "c")));
    assert!(clusters.watched.is_empty());
}

#[test]
fn a_claim_deleted_while_no_process_ran_is_deleted_after_the_start() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    clusters.delete(Kind::Claim, "default", "c");
    clusters.restart(2);
    clusters.advance(A_WHILE);
    assert!(!clusters.lower.contains_key(&key(Kind::Claim, "c")));
}

#[test]
fn a_claim_is_expanded_with_the_upper_claim() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    // Fields set by the lower cluster stay.
    let mut bound = clusters.lower[&key(Kind::Claim, "c")].clone();
    bound["spec"]["volumeName"] = json!("pv-1");
    bound["spec"]["storageClassName"] = json!("standard");
    clusters.put_lower(&key(Kind::Claim, "c"), bound);
    clusters.put(Kind::Claim, "default", "c", claim("2Gi"));
    clusters.advance(A_WHILE);
    let spec = &clusters.lower[&key(Kind::Claim, "c")]["spec"];
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
    assert_eq!((&spec["volumeName"], &spec["storageClassName"]), (&json!("pv-1"), &json!("standard")));
}

#[test]
fn a_recreated_claim_does_not_get_the_old_volume() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    let before = clusters.observed(&key(Kind::Claim, "c")).unwrap().uid;
    clusters.delete(Kind::Claim, "default", "c");
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.restart(2);
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.advance(A_WHILE);
    assert_ne!(clusters.observed(&key(Kind::Claim, "c")).unwrap().uid, before);
}

#[test]
fn a_pod_waits_while_the_copy_of_an_earlier_claim_has_the_name() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    clusters.delete(Kind::Claim, "default", "c");
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    // The watch may only report the final state.
    clusters.upper_events.pop_front();
    clusters.deliver_upper();
    clusters.add_pod("q", &[(Kind::Claim, "c")]);
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Waiting, "it has the old data");
    clusters.advance(A_WHILE);
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Ready);
}

#[test]
fn a_claim_with_the_skip_annotation_keeps_its_copy() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    let mut skipped = claim("1Gi");
    skipped["metadata"] = json!({"annotations": {names::SKIP: "true"}});
    clusters.put(Kind::Claim, "default", "c", skipped);
    clusters.advance(A_WHILE);
    assert!(clusters.lower.contains_key(&key(Kind::Claim, "c")));
    clusters.delete(Kind::Claim, "default", "c");
    clusters.advance(A_WHILE);
    assert!(!clusters.lower.contains_key(&key(Kind::Claim, "c")), "it goes with the upper one all the same");
}

#[test]
fn a_recreated_claim_with_the_skip_annotation_does_not_get_the_old_volume() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    clusters.delete(Kind::Claim, "default", "c");
    let mut skipped = claim("1Gi");
    skipped["metadata"] = json!({"annotations": {names::SKIP: "true"}});
    clusters.put(Kind::Claim, "default", "c", skipped);
    // The watch may only report the final state.
    clusters.upper_events.pop_front();
    clusters.deliver_upper();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting, "the copy has the old data");
    clusters.advance(A_WHILE);
    assert!(!clusters.lower.contains_key(&key(Kind::Claim, "c")));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Missing);
}

#[test]
fn a_claim_that_another_node_copied_is_read_again_before_its_copy_is_deleted() {
    let mut clusters = FakeClusters::new();
    clusters.add_pod("p", &[(Kind::Claim, "c")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Missing);
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    // The watch of the other node is faster than that of this one.
    clusters.upper_events.clear();
    let upper = clusters.upper.values().next().unwrap();
    let desired = clusters.desired(&key(Kind::Claim, "c"), upper).unwrap();
    clusters.put_lower(&key(Kind::Claim, "c"), serde_json::from_str(&desired.body).unwrap());
    clusters.advance(A_WHILE);
    assert_eq!(clusters.log, Vec::<String>::new(), "the copy stays");
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}
