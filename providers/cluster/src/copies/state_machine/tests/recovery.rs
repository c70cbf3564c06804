//! Restarts, errors, and objects that disappear.

use serde_json::json;
use vk_kube::{Error, Kind as ErrorKind};

use super::*;

#[test]
fn after_a_restart_unneeded_copies_are_deleted_after_the_grace_period() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "b", map("2"));
    clusters.add_pod("q", &[(MAP, "b")]);
    clusters.run();
    clusters.restart(2);
    clusters.advance(A_WHILE);
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.advance(GRACE.mul_f64(0.7));
    assert!(clusters.data(&key(MAP, "b")).is_some(), "its pod may still be added");
    clusters.advance(GRACE);
    assert_eq!(clusters.data(&key(MAP, "b")), None);
    assert!(clusters.data(&key(MAP, "a")).is_some());
    let writes = clusters.log.iter().filter(|call| call.contains("/a")).count();
    assert_eq!(writes, 1, "an up-to-date copy is not written again: {:?}", clusters.log);
}

#[test]
fn a_restart_without_the_upper_cluster_deletes_no_copy_in_use() {
    let mut clusters = with_copy();
    clusters.used.insert(key(MAP, "a"));
    clusters.restart(2);
    clusters.advance(Duration::from_hours(1));
    assert!(clusters.data(&key(MAP, "a")).is_some(), "a lower pod refers to it");
}

#[test]
fn nothing_is_created_before_the_first_list() {
    let mut clusters = FakeClusters::new();
    clusters.lower_events.clear();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.advance(GRACE);
    assert!(clusters.log.is_empty());
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    clusters.handle(Event::Listed(MAP, Some("default".to_owned())));
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn a_deleted_owner_config_map_is_created_again_and_owns_new_copies() {
    let mut clusters = with_copy();
    let owner_map = key(MAP, &owner_config_map::name(&owner()));
    let old = clusters.observed(&owner_map).unwrap().uid;
    clusters.delete_lower(&owner_map);
    // Like the garbage collector.
    clusters.delete_lower(&key(MAP, "a"));
    clusters.advance(A_WHILE);
    let new = clusters.observed(&owner_map).unwrap().uid;
    assert_ne!(new, old);
    assert_eq!(clusters.lower[&key(MAP, "a")]["metadata"]["ownerReferences"][0]["uid"], json!(new));
}

/// A new list shows the new ConfigMap and nothing of the old one.
#[test]
fn an_owner_config_map_that_was_replaced_unseen_owns_new_copies() {
    let mut clusters = with_copy();
    let owner_map = key(MAP, &owner_config_map::name(&owner()));
    let old = clusters.observed(&owner_map).unwrap().uid;
    let replacement = clusters.lower[&owner_map].clone();
    clusters.put_lower(&owner_map, replacement);
    let new = clusters.observed(&owner_map).unwrap().uid;
    assert_ne!(new, old);
    clusters.advance(A_WHILE);
    clusters.put(MAP, "default", "b", map("2"));
    clusters.add_pod("q", &[(MAP, "b")]);
    clusters.advance(A_WHILE);
    assert_eq!(clusters.lower[&key(MAP, "b")]["metadata"]["ownerReferences"][0]["uid"], json!(new));
}

#[test]
fn owner_config_maps_are_not_copies() {
    let mut clusters = with_copy();
    clusters.restart(2);
    clusters.advance(GRACE * 10);
    let left: Vec<&CopyKey> = clusters.lower.keys().collect();
    assert_eq!(left, [&key(MAP, &owner_config_map::name(&owner()))]);
}

#[test]
fn an_answer_older_than_the_watch_is_ignored() {
    // A write, and then a read.
    for look in [false, true] {
        let mut clusters = if look { with_copy() } else { FakeClusters::new() };
        if look {
            clusters.handle(Event::LowerMissing(key(MAP, "a")));
        } else {
            clusters.put(MAP, "default", "a", map("1"));
            clusters.add_pod("p", &[(MAP, "a")]);
            while clusters.deliver_lower() || clusters.deliver_upper() || clusters.answer_namespace() {}
        }
        let (asked, call) = clusters.calls.pop().expect("a call");
        assert_eq!(call == LowerCall::Read, look);
        let answer = clusters.serve(&asked, &call);
        clusters.delete_lower(&asked);
        while clusters.deliver_lower() {}
        clusters.handle(Event::CallFinished(asked, answer));
        clusters.advance(A_WHILE);
        assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})), "look: {look}");
    }
}

#[test]
fn an_object_deleted_during_a_write_is_read_again() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "a", map("2"));
    clusters.deliver_upper();
    let (written, call) = clusters.calls.pop().expect("a patch");
    let answer = clusters.serve(&written, &call);
    clusters.delete_lower(&written);
    clusters.lower_events.clear();
    clusters.handle(Event::LowerMissing(written.clone()));
    clusters.handle(Event::CallFinished(written, answer));
    clusters.advance(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "2"})));
}

#[test]
fn a_deleted_namespace_is_created_again() {
    let mut clusters = with_copy();
    clusters.lower_namespaces.clear();
    for key in clusters.lower.keys().cloned().collect::<Vec<_>>() {
        clusters.delete_lower(&key);
    }
    clusters.advance(A_WHILE);
    assert!(clusters.data(&key(MAP, "a")).is_some());
}

#[test]
fn a_rejected_copy_is_retried_with_one_warning() {
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("p", &[(MAP, "a")]);
    while clusters.deliver_lower() || clusters.deliver_upper() || clusters.answer_namespace() {}
    for _ in 0..5 {
        let (key, _) = clusters.calls.pop().expect("a retry");
        let refused = Error::new(ErrorKind::Forbidden, "exceeded quota");
        clusters.handle(Event::CallFinished(key, Err(refused.clone())));
        assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Failed(refused));
        let due = clusters.state_machine.deadline().expect("a retry");
        assert!(due > clusters.now, "with a delay");
        clusters.now = due;
        clusters.handle(Event::Tick);
    }
    assert_eq!(clusters.warnings.len(), 1);
    assert!(clusters.warnings[0].2.contains("exceeded quota"), "{:?}", clusters.warnings);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn an_unreadable_upper_object_deletes_nothing() {
    let mut clusters = with_copy();
    clusters.restart(2);
    clusters.run();
    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.upper_events.clear();
    let away = Error::new(ErrorKind::Unreachable, "connection refused");
    clusters.handle(Event::UpperUnreadable(key(MAP, "a"), away.clone()));
    clusters.advance(GRACE * 10);
    assert!(clusters.data(&key(MAP, "a")).is_some());
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Failed(away));
    clusters.add_pod("p", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting, "it is read again");
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn a_pod_in_an_unmapped_namespace_needs_nothing() {
    let mut clusters =
        FakeClusters::of(NamespaceMapping::Map([("web".to_owned(), "shop".to_owned())].into()), 1);
    clusters.handle(Event::PodAdded(pod("p"), needs(&[(MAP, "a")])));
    clusters.run();
    assert!(clusters.state_machine.entries.is_empty() && clusters.namespace_calls.is_empty());
}
