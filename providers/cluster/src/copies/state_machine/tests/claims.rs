//! Claims, which outlive pods.

use serde_json::{Value, json};

use crate::names;

use super::{
    A_WHILE, GRACE, Kind,
    fake_clusters::{FakeClusters, key},
};

fn claim(size: &str) -> Value {
    json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

#[test]
fn a_claim_outlives_its_pods_and_goes_with_the_upper_claim() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.want("p", &[(Kind::Claim, "c")]);
    clusters.run();
    let copy = &clusters.below[&key(Kind::Claim, "c")];
    assert_eq!(
        copy["metadata"]["ownerReferences"],
        json!([]),
        "what is in a volume does not go with the anchor"
    );
    clusters.release("p");
    clusters.pass(GRACE * 10);
    assert!(clusters.below.contains_key(&key(Kind::Claim, "c")));
    clusters.restart(2);
    clusters.pass(GRACE * 10);
    assert!(clusters.below.contains_key(&key(Kind::Claim, "c")), "nor with this process");
    clusters.take(Kind::Claim, "default", "c");
    clusters.pass(A_WHILE);
    assert!(!clusters.below.contains_key(&key(Kind::Claim, "c")));
    assert!(clusters.watched.is_empty());
}

#[test]
fn a_claim_deleted_above_while_we_were_away_goes_when_we_are_back() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.want("p", &[(Kind::Claim, "c")]);
    clusters.run();
    clusters.take(Kind::Claim, "default", "c");
    clusters.restart(2);
    clusters.pass(A_WHILE);
    assert!(!clusters.below.contains_key(&key(Kind::Claim, "c")));
}

#[test]
fn a_claim_grows_as_the_upper_one_does() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.want("p", &[(Kind::Claim, "c")]);
    clusters.run();
    // What is decided below stays.
    let mut bound = clusters.below[&key(Kind::Claim, "c")].clone();
    bound["spec"]["volumeName"] = json!("pv-1");
    bound["spec"]["storageClassName"] = json!("standard");
    clusters.put_below(&key(Kind::Claim, "c"), bound);
    clusters.put(Kind::Claim, "default", "c", claim("2Gi"));
    clusters.pass(A_WHILE);
    let spec = &clusters.below[&key(Kind::Claim, "c")]["spec"];
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
    assert_eq!((&spec["volumeName"], &spec["storageClassName"]), (&json!("pv-1"), &json!("standard")));
}

#[test]
fn a_claim_made_anew_above_does_not_get_the_old_volume() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.want("p", &[(Kind::Claim, "c")]);
    clusters.run();
    let before = clusters.found(&key(Kind::Claim, "c")).unwrap().uid;
    clusters.take(Kind::Claim, "default", "c");
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.restart(2);
    clusters.want("p", &[(Kind::Claim, "c")]);
    clusters.pass(A_WHILE);
    assert_ne!(clusters.found(&key(Kind::Claim, "c")).unwrap().uid, before);
}

#[test]
fn a_claim_that_is_no_longer_to_be_copied_keeps_its_copy_and_what_is_in_it() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "c", claim("1Gi"));
    clusters.want("p", &[(Kind::Claim, "c")]);
    clusters.run();
    let mut skipped = claim("1Gi");
    skipped["metadata"] = json!({"annotations": {names::SKIP: "true"}});
    clusters.put(Kind::Claim, "default", "c", skipped);
    clusters.pass(A_WHILE);
    assert!(clusters.below.contains_key(&key(Kind::Claim, "c")));
    clusters.take(Kind::Claim, "default", "c");
    clusters.pass(A_WHILE);
    assert!(!clusters.below.contains_key(&key(Kind::Claim, "c")), "it goes with the upper one all the same");
}
