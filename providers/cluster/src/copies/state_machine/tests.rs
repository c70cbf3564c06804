//! Tests of the state machine: what is copied for which pods.

mod claims;
mod fake_clusters;
mod foreign;
mod kinds;
mod recovery;
mod retention;
mod simulation;
mod use_checks;

use serde_json::{Value, json};

use self::fake_clusters::{FakeClusters, key, needs, optional, owner, pod};
use super::*;

const MAP: Kind = Kind::ConfigMap;
const A_WHILE: Duration = Duration::from_secs(10);

fn map(value: &str) -> Value {
    json!({"data": {"key": value}})
}

/// Clusters with a pod that needs the ConfigMap `a`, which is copied.
fn with_copy() -> FakeClusters {
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.run();
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
    clusters
}

#[test]
fn a_copy_exists_before_the_pod_is_created() {
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    while clusters.deliver_lower() || clusters.deliver_upper() || clusters.answer_namespace() {}
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting, "the copy is being created");
    assert_eq!(clusters.state_machine.pending_copy(&pod("p")).map(|it| it.0), Some(&key(MAP, "a")));
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    let copy = &clusters.lower[&key(MAP, "a")];
    assert_eq!(copy["metadata"]["labels"][names::ORIGIN], "upper");
    assert_eq!(copy["metadata"]["annotations"][names::ORIGIN_NAMESPACE], "default");
    assert_eq!(copy["metadata"]["ownerReferences"][0]["name"], owner_config_map::name(&owner()));
    assert_eq!(
        copy["metadata"]["ownerReferences"][0]["controller"],
        Value::Null,
        "only pods have a controller"
    );
}

#[test]
fn a_pod_without_dependencies_only_waits_for_its_namespace() {
    let mut clusters = FakeClusters::new();
    clusters.add_pod("p", &[]);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    assert!(clusters.lower_namespaces.contains("default"));
}

#[test]
fn an_unknown_pod_is_not_ready() {
    let clusters = FakeClusters::new();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
}

#[test]
fn a_pod_waits_for_an_object_that_it_needs() {
    let mut clusters = FakeClusters::new();
    clusters.add_pod("p", &[(MAP, "late")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Missing);
    assert_eq!(clusters.lower.get(&key(MAP, "late")), None);
    clusters.put(MAP, "default", "late", map("1"));
    clusters.run();
    assert_eq!(clusters.data(&key(MAP, "late")), Some(&json!({"key": "1"})));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn an_empty_copy_holds_the_name_of_a_missing_optional_object() {
    let mut clusters = FakeClusters::new();
    clusters.handle(Event::PodAdded(pod("p"), optional(&[(MAP, "late"), (Kind::Secret, "late")])));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    for kind in [MAP, Kind::Secret] {
        let held = &clusters.lower[&key(kind, "late")];
        assert_eq!((held.get("data"), &held["metadata"]["labels"][names::ORIGIN]), (None, &json!("upper")));
    }
    clusters.put(MAP, "default", "late", map("1"));
    clusters.run();
    assert_eq!(clusters.data(&key(MAP, "late")), Some(&json!({"key": "1"})));
    clusters.delete(MAP, "default", "late");
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "late")), Some(&Value::Null), "it is empty again");
    clusters.remove_pod("p");
    clusters.advance(GRACE * 2);
    assert_eq!(clusters.lower.get(&key(MAP, "late")), None);
}

#[test]
fn a_pod_that_can_do_without_an_object_does_not_wait_for_one_that_cannot() {
    let mut clusters = FakeClusters::new();
    clusters.add_pod("needs", &[(MAP, "late")]);
    clusters.handle(Event::PodAdded(pod("p"), optional(&[(MAP, "late")])));
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    assert_eq!(clusters.state_machine.readiness(&pod("needs")), Readiness::Missing);
}

/// tensile-kube only changes its cache.
#[test]
fn an_update_of_the_upper_object_is_copied() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "a", json!({"data": {"other": "2"}, "metadata": {"labels": {"team": "x"}}}));
    clusters.run();
    let copy = &clusters.lower[&key(MAP, "a")];
    assert_eq!(copy["data"], json!({"other": "2"}), "keys deleted in the upper object are deleted");
    assert_eq!(copy["metadata"]["labels"]["team"], "x");
    clusters.put(MAP, "default", "a", json!({"data": {"other": "2"}}));
    clusters.run();
    assert_eq!(clusters.lower[&key(MAP, "a")]["metadata"]["labels"].get("team"), None);
    let key = key(MAP, "a").to_string();
    assert_eq!(clusters.log, [format!("create {key}"), format!("patch {key}"), format!("patch {key}")]);
}

#[test]
fn labels_of_others_on_a_copy_stay_and_content_is_restored() {
    let mut clusters = with_copy();
    let mut copy = clusters.lower[&key(MAP, "a")].clone();
    copy["metadata"]["labels"]["theirs"] = json!("kept");
    copy["data"]["key"] = json!("spoilt");
    clusters.put_lower(&key(MAP, "a"), copy);
    clusters.advance(A_WHILE);
    let copy = &clusters.lower[&key(MAP, "a")];
    assert_eq!((&copy["data"]["key"], &copy["metadata"]["labels"]["theirs"]), (&json!("1"), &json!("kept")));
}

#[test]
fn repeated_reverts_of_a_copy_are_repaired_with_growing_delay() {
    let mut clusters = with_copy();
    for _ in 0..200 {
        let mut copy = clusters.lower[&key(MAP, "a")].clone();
        copy["data"]["key"] = json!("spoilt");
        clusters.put_lower(&key(MAP, "a"), copy);
        clusters.advance(Duration::from_secs(1));
    }
    let patches = clusters.log.iter().filter(|call| call.starts_with("patch")).count();
    assert!((3..20).contains(&patches), "{patches} in 200 s");
}

#[test]
fn a_copy_of_a_deleted_object_holds_its_name_while_a_pod_needs_it() {
    let mut clusters = with_copy();
    clusters.delete(MAP, "default", "a");
    clusters.advance(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Missing, "a new pod has to wait");
    clusters.put(MAP, "default", "a", map("2"));
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "2"})));
    clusters.delete(MAP, "default", "a");
    clusters.remove_pod("p");
    clusters.advance(GRACE * 2);
    assert_eq!(clusters.data(&key(MAP, "a")), None, "it goes with the last pod");
}

#[test]
fn a_deleted_copy_is_created_again() {
    let mut clusters = with_copy();
    clusters.delete_lower(&key(MAP, "a"));
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
}

#[test]
fn a_copy_is_deleted_a_minute_after_the_last_pod() {
    let mut clusters = with_copy();
    clusters.add_pod("q", &[(MAP, "a")]);
    clusters.remove_pod("p");
    clusters.advance(GRACE * 2);
    assert!(clusters.data(&key(MAP, "a")).is_some(), "another pod refers to it");
    clusters.remove_pod("q");
    clusters.advance(GRACE.mul_f64(0.9));
    assert!(clusters.data(&key(MAP, "a")).is_some(), "within the grace period");
    clusters.advance(GRACE.mul_f64(0.2));
    assert_eq!(clusters.data(&key(MAP, "a")), None);
    assert!(clusters.watched.is_empty(), "no watch is left");
    assert_eq!(clusters.state_machine.entries.len(), 0);
}

#[test]
fn a_new_pod_within_the_grace_period_keeps_the_copy() {
    let mut clusters = with_copy();
    clusters.remove_pod("p");
    clusters.advance(GRACE / 2);
    clusters.add_pod("q", &[(MAP, "a")]);
    clusters.advance(GRACE * 3);
    assert_eq!(clusters.log.len(), 1, "{:?}", clusters.log);
}

#[test]
fn a_copy_that_a_lower_pod_refers_to_stays() {
    let mut clusters = with_copy();
    clusters.used.insert(key(MAP, "a"));
    clusters.remove_pod("p");
    clusters.advance(GRACE * 20);
    assert!(clusters.data(&key(MAP, "a")).is_some());
    clusters.used.clear();
    clusters.advance(GRACE * 6);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
}

#[test]
fn a_replaced_immutable_object_is_replaced() {
    let mut clusters = FakeClusters::new();
    let immutable = |value: &str| json!({"data": {"key": value}, "immutable": true});
    clusters.put(MAP, "default", "a", immutable("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.run();
    let before = clusters.observed(&key(MAP, "a")).unwrap().uid;
    clusters.delete(MAP, "default", "a");
    clusters.put(MAP, "default", "a", immutable("2"));
    // The watch may only report the final state.
    clusters.upper_events.pop_front();
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "2"})));
    assert_ne!(clusters.observed(&key(MAP, "a")).unwrap().uid, before);
    let name = key(MAP, "a").to_string();
    assert_eq!(clusters.log, [format!("create {name}"), format!("delete {name}"), format!("create {name}")]);
}

#[test]
fn two_pods_share_one_copy() {
    let mut clusters = with_copy();
    clusters.add_pod("q", &[(MAP, "a")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Ready);
    assert_eq!((clusters.log.len(), clusters.watched.len()), (1, 1));
}

#[test]
fn dependencies_that_a_pod_drops_are_released() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "b", map("2"));
    clusters.add_pod("p", &[(MAP, "b")]);
    clusters.advance(GRACE * 2);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
    assert!(clusters.data(&key(MAP, "b")).is_some());
}

#[test]
fn copies_are_in_the_mapped_namespace() {
    let mut clusters = FakeClusters::of(NamespaceMapping::Suffix("-x".to_owned()), 1);
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.run();
    let below = CopyKey { kind: MAP, namespace: "default-x".to_owned(), name: "a".to_owned() };
    assert_eq!(clusters.data(&below), Some(&json!({"key": "1"})));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}
