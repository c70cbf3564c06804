//! Claims, which outlive pods.

use serde_json::{Value, json};

use crate::names;

use super::{
    super::world::{World, place},
    A_WHILE, GRACE, Kind,
};

fn claim(size: &str) -> Value {
    json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

#[test]
fn a_claim_outlives_its_pods_and_goes_with_the_upper_claim() {
    let mut world = World::new();
    world.put(Kind::Claim, "default", "c", claim("1Gi"));
    world.want("p", &[(Kind::Claim, "c")]);
    world.run();
    let copy = &world.below[&place(Kind::Claim, "c")];
    assert_eq!(
        copy["metadata"]["ownerReferences"],
        json!([]),
        "what is in a volume does not go with the anchor"
    );
    world.release("p");
    world.pass(GRACE * 10);
    assert!(world.below.contains_key(&place(Kind::Claim, "c")));
    world.restart(2);
    world.pass(GRACE * 10);
    assert!(world.below.contains_key(&place(Kind::Claim, "c")), "nor with this process");
    world.take(Kind::Claim, "default", "c");
    world.pass(A_WHILE);
    assert!(!world.below.contains_key(&place(Kind::Claim, "c")));
    assert!(world.watched.is_empty());
}

#[test]
fn a_claim_deleted_above_while_we_were_away_goes_when_we_are_back() {
    let mut world = World::new();
    world.put(Kind::Claim, "default", "c", claim("1Gi"));
    world.want("p", &[(Kind::Claim, "c")]);
    world.run();
    world.take(Kind::Claim, "default", "c");
    world.restart(2);
    world.pass(A_WHILE);
    assert!(!world.below.contains_key(&place(Kind::Claim, "c")));
}

#[test]
fn a_claim_grows_as_the_upper_one_does() {
    let mut world = World::new();
    world.put(Kind::Claim, "default", "c", claim("1Gi"));
    world.want("p", &[(Kind::Claim, "c")]);
    world.run();
    // What is decided below stays.
    let mut bound = world.below[&place(Kind::Claim, "c")].clone();
    bound["spec"]["volumeName"] = json!("pv-1");
    bound["spec"]["storageClassName"] = json!("standard");
    world.put_below(&place(Kind::Claim, "c"), bound);
    world.put(Kind::Claim, "default", "c", claim("2Gi"));
    world.pass(A_WHILE);
    let spec = &world.below[&place(Kind::Claim, "c")]["spec"];
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
    assert_eq!((&spec["volumeName"], &spec["storageClassName"]), (&json!("pv-1"), &json!("standard")));
}

#[test]
fn a_claim_made_anew_above_does_not_get_the_old_volume() {
    let mut world = World::new();
    world.put(Kind::Claim, "default", "c", claim("1Gi"));
    world.want("p", &[(Kind::Claim, "c")]);
    world.run();
    let before = world.found(&place(Kind::Claim, "c")).unwrap().uid;
    world.take(Kind::Claim, "default", "c");
    world.put(Kind::Claim, "default", "c", claim("1Gi"));
    world.restart(2);
    world.want("p", &[(Kind::Claim, "c")]);
    world.pass(A_WHILE);
    assert_ne!(world.found(&place(Kind::Claim, "c")).unwrap().uid, before);
}

#[test]
fn a_claim_that_is_no_longer_to_be_copied_keeps_its_copy_and_what_is_in_it() {
    let mut world = World::new();
    world.put(Kind::Claim, "default", "c", claim("1Gi"));
    world.want("p", &[(Kind::Claim, "c")]);
    world.run();
    let mut skipped = claim("1Gi");
    skipped["metadata"] = json!({"annotations": {names::SKIP: "true"}});
    world.put(Kind::Claim, "default", "c", skipped);
    world.pass(A_WHILE);
    assert!(world.below.contains_key(&place(Kind::Claim, "c")));
    world.take(Kind::Claim, "default", "c");
    world.pass(A_WHILE);
    assert!(!world.below.contains_key(&place(Kind::Claim, "c")), "it goes with the upper one all the same");
}
