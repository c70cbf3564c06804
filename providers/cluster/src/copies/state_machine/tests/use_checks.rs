//! Copies that pods refer to of which this virtual node knows nothing: those of other virtual nodes, and those that are not adopted yet.

use serde_json::{Value, json};
use vk_kube::{Error, Kind as ErrorKind};

use super::*;

/// A pod that can run without the object, which is copied and then deleted in the upper cluster.
fn without_upper_object(kind: Kind, object: Value, used: bool) -> FakeClusters {
    let mut clusters = FakeClusters::new();
    clusters.put(kind, "default", "a", object);
    clusters.handle(Event::PodAdded(pod("p"), optional(&[(kind, "a")])));
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    if used {
        clusters.used.insert(key(kind, "a"));
    }
    clusters.delete(kind, "default", "a");
    clusters
}

#[test]
fn a_copy_that_another_node_created_again_is_checked_before_it_is_deleted() {
    let mut clusters = with_copy();
    let name = key(MAP, "a");
    clusters.remove_pod("p");
    clusters.now += GRACE * 2;
    clusters.handle(Event::Tick);
    assert!(clusters.answer_call(), "the use check");
    let (asked, call) = clusters.calls.pop().expect("the deletion");
    assert!(matches!(call, LowerCall::Delete(_)), "{call:?}");
    let copy = clusters.lower[&name].clone();
    let answer = clusters.serve(&asked, &call);
    // Before the answer arrives, another virtual node needs the object.
    clusters.put_lower(&name, copy);
    clusters.used.insert(name.clone());
    while clusters.deliver_lower() {}
    clusters.handle(Event::CallFinished(asked, answer));
    clusters.advance(GRACE * 3);
    assert!(clusters.lower.contains_key(&name), "{:?}", clusters.log);
    clusters.used.clear();
    clusters.advance(GRACE * 6);
    assert!(!clusters.lower.contains_key(&name), "it goes when nobody uses it any more");
}

/// The copy exists before the pod that needs it.
#[test]
fn a_copy_that_another_node_created_again_has_a_grace_period_of_its_own() {
    let mut clusters = with_copy();
    let name = key(MAP, "a");
    clusters.remove_pod("p");
    clusters.advance(GRACE.mul_f64(0.9));
    let copy = clusters.lower[&name].clone();
    clusters.put_lower(&name, copy);
    clusters.advance(GRACE.mul_f64(0.9));
    assert!(clusters.lower.contains_key(&name), "{:?}", clusters.log);
    clusters.advance(GRACE);
    assert!(!clusters.lower.contains_key(&name));
}

#[test]
fn the_answer_to_a_use_check_does_not_count_for_another_object() {
    let mut clusters = with_copy();
    let name = key(MAP, "a");
    clusters.remove_pod("p");
    clusters.now += GRACE * 2;
    clusters.handle(Event::Tick);
    let (asked, call) = clusters.calls.pop().expect("the use check");
    let answer = clusters.serve(&asked, &call);
    let copy = clusters.lower[&name].clone();
    clusters.put_lower(&name, copy);
    clusters.used.insert(name.clone());
    while clusters.deliver_lower() {}
    clusters.handle(Event::CallFinished(asked, answer));
    clusters.advance(GRACE * 3);
    assert!(clusters.lower.contains_key(&name), "{:?}", clusters.log);
}

/// Another virtual node has changed it for a pod of its own.
#[test]
fn a_copy_that_was_changed_after_the_use_check_is_not_deleted() {
    let mut clusters = with_copy();
    let name = key(MAP, "a");
    clusters.remove_pod("p");
    clusters.now += GRACE * 2;
    clusters.handle(Event::Tick);
    assert!(clusters.answer_call(), "the use check");
    assert!(matches!(clusters.calls[..], [(_, LowerCall::Delete(_))]), "{:?}", clusters.calls);
    clusters.lower.get_mut(&name).unwrap()["metadata"]["resourceVersion"] = json!("1000");
    clusters.used.insert(name.clone());
    clusters.advance(GRACE * 3);
    assert!(clusters.lower.contains_key(&name), "{:?}", clusters.log);
}

#[test]
fn a_copy_without_which_a_pod_of_another_node_cannot_run_is_not_emptied() {
    let mut clusters = without_upper_object(MAP, map("1"), true);
    clusters.advance(GRACE * 20);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready, "it can run without it");
    clusters.used.clear();
    clusters.advance(GRACE * 6);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&Value::Null), "nobody needs it any more");
}

/// The type of a Secret cannot be changed, and an empty one is not valid: it would have to be deleted and created again.
#[test]
fn the_name_of_a_pull_secret_does_not_become_free_when_it_is_deleted() {
    let secret = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}});
    let mut clusters = without_upper_object(Kind::Secret, secret, false);
    clusters.advance(GRACE * 20);
    assert!(clusters.log.iter().all(|call| !call.starts_with("delete")), "{:?}", clusters.log);
    assert!(clusters.lower.contains_key(&key(Kind::Secret, "a")));
    clusters.remove_pod("p");
    clusters.advance(GRACE * 2);
    assert!(!clusters.lower.contains_key(&key(Kind::Secret, "a")));
}

#[test]
fn a_pod_waits_until_it_is_known_whether_the_copy_is_emptied() {
    let mut clusters = without_upper_object(MAP, map("1"), false);
    clusters.deliver_upper();
    clusters.handle(Event::PodAdded(pod("q"), optional(&[(MAP, "a")])));
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Waiting);
    clusters.run();
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&Value::Null));
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Ready);
}

/// Such as after `kubectl replace --force`.
#[test]
fn the_answer_to_a_use_check_does_not_count_after_the_object_came_back() {
    let mut clusters = without_upper_object(MAP, map("1"), false);
    clusters.deliver_upper();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.run();
    assert_eq!(clusters.log.len(), 1, "nothing was to be written: {:?}", clusters.log);
    clusters.used.insert(key(MAP, "a"));
    clusters.delete(MAP, "default", "a");
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})), "another node needs it now");
}

#[test]
fn the_answer_to_a_use_check_counts_for_one_attempt() {
    let mut clusters = without_upper_object(MAP, map("1"), false);
    clusters.deliver_upper();
    assert!(clusters.answer_call(), "the use check");
    let (asked, call) = clusters.calls.pop().expect("the patch");
    assert!(matches!(call, LowerCall::Patch(..)), "{call:?}");
    clusters.handle(Event::CallFinished(asked, Err(Error::new(ErrorKind::Server, "overloaded"))));
    clusters.used.insert(key(MAP, "a"));
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})), "another node needs it now");
}

#[test]
fn a_pod_waits_while_the_deletion_of_its_copy_is_in_flight() {
    let mut clusters = with_copy();
    clusters.remove_pod("p");
    clusters.now += GRACE * 2;
    clusters.handle(Event::Tick);
    assert!(clusters.answer_call(), "the use check");
    assert!(matches!(clusters.calls[..], [(_, LowerCall::Delete(_))]), "{:?}", clusters.calls);
    clusters.add_pod("q", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Waiting);
    clusters.advance(A_WHILE);
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Ready);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})), "it was created again");
}

#[test]
fn a_pod_waits_while_its_copy_is_being_emptied() {
    let mut clusters = without_upper_object(MAP, map("1"), false);
    clusters.deliver_upper();
    assert!(clusters.answer_call(), "the use check");
    assert!(matches!(clusters.calls[..], [(_, LowerCall::Patch(..))]), "{:?}", clusters.calls);
    clusters.put(MAP, "default", "a", map("1"));
    clusters.deliver_upper();
    clusters.add_pod("q", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Waiting);
    clusters.advance(A_WHILE);
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Ready);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
}

/// A copy exists before its pod, which may have to wait for other reasons.
#[test]
fn a_copy_that_another_node_owns_is_left_to_it() {
    for kind in [MAP, Kind::Secret] {
        let mut clusters = FakeClusters::new();
        let owner_map = key(MAP, "vk-anchor-of-another");
        let labels = json!({names::ORIGIN: "upper", names::NODE: "another"});
        clusters.put_lower(&owner_map, json!({"metadata": {"labels": labels}}));
        let uid = clusters.observed(&owner_map).unwrap().uid;
        let copy = json!({"metadata": {
            "labels": {names::ORIGIN: "upper"},
            "annotations": {names::ORIGIN_NAMESPACE: "default", names::ORIGIN_NAME: "a"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner_map.name, "uid": uid}],
        }});
        clusters.put_lower(&key(kind, "a"), copy);
        clusters.advance(GRACE * 20);
        assert!(clusters.lower.contains_key(&key(kind, "a")), "{:?}", clusters.log);
        clusters.delete_lower(&owner_map);
        clusters.advance(GRACE * 2);
        assert!(!clusters.lower.contains_key(&key(kind, "a")), "nobody else deletes it");
        assert_eq!(clusters.state_machine.entries.len(), 0);
    }
}
