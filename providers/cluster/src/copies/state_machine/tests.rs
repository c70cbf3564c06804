mod claims;
mod fake_clusters;
mod simulation;

use serde_json::{Value, json};

use self::fake_clusters::{FakeClusters, key, needs, owner, pod};
use super::{super::GRACE, *};

const MAP: Kind = Kind::ConfigMap;
const A_WHILE: Duration = Duration::from_secs(10);

fn map(value: &str) -> Value {
    json!({"data": {"key": value}})
}

/// A clusters where a pod needs the ConfigMap `a`, and has it.
fn with_copy() -> FakeClusters {
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.run();
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
    clusters
}

#[test]
fn a_copy_is_there_before_the_pod_may_be_made() {
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    while clusters.hear_below() || clusters.hear_above() || clusters.answer_settle() {}
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting, "it is being made");
    assert_eq!(clusters.state_machine.pending_copy(&pod("p")), Some(&key(MAP, "a")));
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    let copy = &clusters.below[&key(MAP, "a")];
    assert_eq!(copy["metadata"]["labels"][names::ORIGIN], "upper");
    assert_eq!(copy["metadata"]["annotations"][names::ORIGIN_NAMESPACE], "default");
    assert_eq!(copy["metadata"]["ownerReferences"][0]["name"], owner_config_map::name(&owner()));
    assert_eq!(
        copy["metadata"]["ownerReferences"][0]["controller"],
        Value::Null,
        "pods alone are controlled"
    );
}

#[test]
fn a_pod_without_needs_waits_for_its_namespace_alone() {
    let mut clusters = FakeClusters::new();
    clusters.want("p", &[]);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    assert!(clusters.lower_namespaces.contains("default"));
}

#[test]
fn an_object_that_comes_late_is_copied_when_it_comes() {
    let mut clusters = FakeClusters::new();
    clusters.want("p", &[(MAP, "late")]);
    clusters.run();
    assert_eq!(
        clusters.state_machine.readiness(&pod("p")),
        Readiness::Ready,
        "the lower kubelet waits as one would above"
    );
    assert_eq!(clusters.data(&key(MAP, "late")), None);
    clusters.put(MAP, "default", "late", map("1"));
    clusters.run();
    assert_eq!(clusters.data(&key(MAP, "late")), Some(&json!({"key": "1"})));
}

/// tensile-kube changes its cache and never calls the API server.
#[test]
fn an_update_above_reaches_the_copy_below() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "a", json!({"data": {"other": "2"}, "metadata": {"labels": {"team": "x"}}}));
    clusters.run();
    let copy = &clusters.below[&key(MAP, "a")];
    assert_eq!(copy["data"], json!({"other": "2"}), "what is gone above is gone below");
    assert_eq!(copy["metadata"]["labels"]["team"], "x");
    clusters.put(MAP, "default", "a", json!({"data": {"other": "2"}}));
    clusters.run();
    assert_eq!(clusters.below[&key(MAP, "a")]["metadata"]["labels"].get("team"), None);
    let key = key(MAP, "a").to_string();
    assert_eq!(clusters.log, [format!("create {key}"), format!("patch {key}"), format!("patch {key}")]);
}

#[test]
fn what_others_write_on_a_copy_stays_unless_it_is_content() {
    let mut clusters = with_copy();
    let mut copy = clusters.below[&key(MAP, "a")].clone();
    copy["metadata"]["labels"]["theirs"] = json!("kept");
    copy["data"]["key"] = json!("spoilt");
    clusters.put_below(&key(MAP, "a"), copy);
    clusters.pass(A_WHILE);
    let copy = &clusters.below[&key(MAP, "a")];
    assert_eq!((&copy["data"]["key"], &copy["metadata"]["labels"]["theirs"]), (&json!("1"), &json!("kept")));
}

#[test]
fn somebody_who_changes_a_copy_back_is_fought_ever_more_slowly() {
    let mut clusters = with_copy();
    for _ in 0..200 {
        let mut copy = clusters.below[&key(MAP, "a")].clone();
        copy["data"]["key"] = json!("spoilt");
        clusters.put_below(&key(MAP, "a"), copy);
        clusters.pass(Duration::from_secs(1));
    }
    let patches = clusters.log.iter().filter(|call| call.starts_with("patch")).count();
    assert!((3..20).contains(&patches), "{patches} in 200 s");
}

#[test]
fn an_object_deleted_above_is_deleted_below_while_pods_name_it() {
    let mut clusters = with_copy();
    clusters.take(MAP, "default", "a");
    clusters.pass(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
    clusters.put(MAP, "default", "a", map("2"));
    clusters.pass(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "2"})));
}

#[test]
fn a_copy_that_somebody_deletes_is_made_again() {
    let mut clusters = with_copy();
    clusters.take_below(&key(MAP, "a"));
    clusters.pass(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
}

#[test]
fn a_copy_goes_a_minute_after_the_last_pod() {
    let mut clusters = with_copy();
    clusters.want("q", &[(MAP, "a")]);
    clusters.release("p");
    clusters.pass(GRACE * 2);
    assert!(clusters.data(&key(MAP, "a")).is_some(), "another pod names it");
    clusters.release("q");
    clusters.pass(GRACE.mul_f64(0.9));
    assert!(clusters.data(&key(MAP, "a")).is_some(), "not before its time");
    clusters.pass(GRACE.mul_f64(0.2));
    assert_eq!(clusters.data(&key(MAP, "a")), None);
    assert!(clusters.watched.is_empty(), "nothing is watched for nobody");
    assert_eq!(clusters.state_machine.entries.len(), 0);
}

#[test]
fn a_pod_that_comes_within_the_minute_keeps_the_copy() {
    let mut clusters = with_copy();
    clusters.release("p");
    clusters.pass(GRACE / 2);
    clusters.want("q", &[(MAP, "a")]);
    clusters.pass(GRACE * 3);
    assert_eq!(clusters.log.len(), 1, "{:?}", clusters.log);
}

#[test]
fn a_copy_that_a_lower_pod_still_names_stays() {
    let mut clusters = with_copy();
    clusters.used.insert(key(MAP, "a"));
    clusters.release("p");
    clusters.pass(GRACE * 20);
    assert!(clusters.data(&key(MAP, "a")).is_some());
    clusters.used.clear();
    clusters.pass(GRACE * 6);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
}

#[test]
fn an_immutable_object_replaced_above_is_replaced_below() {
    let mut clusters = FakeClusters::new();
    let immutable = |value: &str| json!({"data": {"key": value}, "immutable": true});
    clusters.put(MAP, "default", "a", immutable("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.run();
    let before = clusters.found(&key(MAP, "a")).unwrap().uid;
    clusters.take(MAP, "default", "a");
    clusters.put(MAP, "default", "a", immutable("2"));
    // The watch may tell of the end result alone.
    clusters.told_above.pop_front();
    clusters.pass(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "2"})));
    assert_ne!(clusters.found(&key(MAP, "a")).unwrap().uid, before);
    let name = key(MAP, "a").to_string();
    assert_eq!(clusters.log, [format!("create {name}"), format!("delete {name}"), format!("create {name}")]);
}

/// tensile-kube deletes a namesake below, whoever made it.
#[test]
fn a_foreign_object_is_used_as_it_is_and_told_of_once() {
    let mut clusters = FakeClusters::new();
    let theirs = json!({"data": {"key": "theirs"}});
    clusters.put_below(&key(MAP, "a"), theirs.clone());
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.pass(GRACE * 10);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
    clusters.put(MAP, "default", "a", map("2"));
    clusters.pass(GRACE);
    clusters.take(MAP, "default", "a");
    clusters.pass(GRACE);
    clusters.release("p");
    clusters.pass(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&theirs["data"]), "{:?}", clusters.log);
    let [(notified, reason, message)] = &clusters.warnings[..] else { panic!("{:?}", clusters.warnings) };
    assert_eq!((notified, *reason), (&pod("p"), "ForeignObject"));
    assert!(message.contains("ConfigMap default/a"), "{message}");
}

#[test]
fn when_a_foreign_object_goes_ours_takes_its_place() {
    let mut clusters = FakeClusters::new();
    clusters.put_below(&key(MAP, "a"), json!({"data": {"key": "theirs"}}));
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.pass(A_WHILE);
    clusters.take_below(&key(MAP, "a"));
    clusters.pass(Duration::from_mins(6));
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})));
}

#[test]
fn a_namesake_of_another_upper_cluster_is_foreign() {
    let mut clusters = FakeClusters::new();
    let annotations = json!({names::ORIGIN_NAMESPACE: "default", names::ORIGIN_NAME: "a"});
    let theirs = json!({
        "metadata": {"labels": {names::ORIGIN: "other"}, "annotations": annotations},
        "data": {"key": "theirs"},
    });
    clusters.put_below(&key(MAP, "a"), theirs);
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.pass(GRACE);
    clusters.release("p");
    clusters.pass(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "theirs"})));
    assert_eq!(clusters.warnings.len(), 1);
}

#[test]
fn a_copy_whose_mark_somebody_takes_off_is_theirs_from_then_on() {
    let mut clusters = with_copy();
    let mut copy = clusters.below[&key(MAP, "a")].clone();
    copy["metadata"]["labels"] = json!({});
    copy["data"]["key"] = json!("theirs");
    clusters.take_below(&key(MAP, "a"));
    clusters.put_below(&key(MAP, "a"), copy);
    clusters.pass(GRACE * 10);
    clusters.release("p");
    clusters.pass(GRACE * 10);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "theirs"})));
    assert_eq!(clusters.warnings.len(), 1);
}

#[test]
fn two_pods_that_name_one_object_share_one_copy() {
    let mut clusters = with_copy();
    clusters.want("q", &[(MAP, "a")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("q")), Readiness::Ready);
    assert_eq!((clusters.log.len(), clusters.watched.len()), (1, 1));
}

#[test]
fn a_pod_that_names_something_else_lets_go_of_what_it_named() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "b", map("2"));
    clusters.want("p", &[(MAP, "b")]);
    clusters.pass(GRACE * 2);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
    assert!(clusters.data(&key(MAP, "b")).is_some());
}

#[test]
fn namespaces_are_called_what_they_are_called_below() {
    let mut clusters = FakeClusters::of(NamespaceMapping::Suffix("-x".to_owned()), 1);
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.run();
    let below = CopyKey { kind: MAP, namespace: "default-x".to_owned(), name: "a".to_owned() };
    assert_eq!(clusters.data(&below), Some(&json!({"key": "1"})));
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn after_a_restart_what_is_needed_stays_and_what_is_not_goes_after_the_grace() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "b", map("2"));
    clusters.want("q", &[(MAP, "b")]);
    clusters.run();
    clusters.restart(2);
    clusters.pass(A_WHILE);
    clusters.want("p", &[(MAP, "a")]);
    clusters.pass(GRACE.mul_f64(0.7));
    assert!(clusters.data(&key(MAP, "b")).is_some(), "there is time for its pod to come");
    clusters.pass(GRACE);
    assert_eq!(clusters.data(&key(MAP, "b")), None);
    assert!(clusters.data(&key(MAP, "a")).is_some());
    let writes = clusters.log.iter().filter(|call| call.contains("/a")).count();
    assert_eq!(writes, 1, "what is as it should be is not written again: {:?}", clusters.log);
}

#[test]
fn a_restart_while_the_upper_cluster_is_away_takes_nothing_from_running_pods() {
    let mut clusters = with_copy();
    clusters.used.insert(key(MAP, "a"));
    clusters.restart(2);
    clusters.pass(Duration::from_hours(1));
    assert!(clusters.data(&key(MAP, "a")).is_some(), "a lower pod has it, though no pod was notified of");
}

#[test]
fn nothing_is_made_before_it_is_known_what_there_is() {
    let mut clusters = FakeClusters::new();
    clusters.told_below.clear();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    clusters.pass(GRACE);
    assert!(clusters.log.is_empty());
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting);
    clusters.tell(Event::Listed(MAP, Some("default".to_owned())));
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

/// tensile-kube makes a token Secret of another cluster and rewrites the service account for it.
#[test]
fn the_token_of_a_service_account_becomes_an_ordinary_secret() {
    let mut clusters = FakeClusters::new();
    let token = json!({
        "type": "kubernetes.io/service-account-token",
        "metadata": {"annotations": {"kubernetes.io/service-account.name": "builder", "mine": "kept"}},
        "data": {"token": "eA=="},
    });
    clusters.put(Kind::Secret, "default", "t", token);
    clusters.want("p", &[(Kind::Secret, "t")]);
    clusters.run();
    let copy = &clusters.below[&key(Kind::Secret, "t")];
    assert_eq!((&copy["type"], &copy["data"]["token"]), (&json!("Opaque"), &json!("eA==")));
    let annotations = &copy["metadata"]["annotations"];
    assert_eq!(annotations.get("kubernetes.io/service-account.name"), None);
    assert_eq!(annotations["mine"], "kept");
}

#[test]
fn a_secret_of_another_type_takes_the_place_of_the_old_one() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Secret, "default", "s", json!({"type": "Opaque", "data": {"a": "eA=="}}));
    clusters.want("p", &[(Kind::Secret, "s")]);
    clusters.run();
    clusters.put(Kind::Secret, "default", "s", json!({"type": "example.com/x", "data": {"a": "eA=="}}));
    clusters.pass(A_WHILE);
    assert_eq!(clusters.below[&key(Kind::Secret, "s")]["type"], "example.com/x");
}

#[test]
fn a_service_account_is_made_bare_without_being_read() {
    let mut clusters = FakeClusters::new();
    clusters.want("p", &[(Kind::ServiceAccount, "builder")]);
    clusters.run();
    assert!(clusters.watched.is_empty(), "a node may not watch it");
    assert!(clusters.below.contains_key(&key(Kind::ServiceAccount, "builder")));
    clusters.release("p");
    clusters.pass(GRACE * 2);
    assert!(!clusters.below.contains_key(&key(Kind::ServiceAccount, "builder")));
}

#[test]
fn an_object_that_is_not_to_be_copied_is_not() {
    let mut clusters = with_copy();
    let skipped = json!({"data": {"key": "1"}, "metadata": {"annotations": {names::SKIP: "true"}}});
    clusters.put(MAP, "default", "a", skipped);
    clusters.pass(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), None);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn an_anchor_that_is_deleted_is_made_again_and_new_copies_hang_on_the_new_one() {
    let mut clusters = with_copy();
    let anchor = key(MAP, &owner_config_map::name(&owner()));
    let old = clusters.found(&anchor).unwrap().uid;
    clusters.take_below(&anchor);
    // As the garbage collector does.
    clusters.take_below(&key(MAP, "a"));
    clusters.pass(A_WHILE);
    let new = clusters.found(&anchor).unwrap().uid;
    assert_ne!(new, old);
    assert_eq!(clusters.below[&key(MAP, "a")]["metadata"]["ownerReferences"][0]["uid"], json!(new));
}

#[test]
fn anchors_are_no_copies() {
    let mut clusters = with_copy();
    clusters.restart(2);
    clusters.pass(GRACE * 10);
    let left: Vec<&CopyKey> = clusters.below.keys().collect();
    assert_eq!(left, [&key(MAP, &owner_config_map::name(&owner()))]);
}

#[test]
fn an_answer_that_trails_the_watch_tells_of_the_past() {
    // A write, and then a look.
    for look in [false, true] {
        let mut clusters = if look { with_copy() } else { FakeClusters::new() };
        if look {
            clusters.tell(Event::LowerMissing(key(MAP, "a")));
        } else {
            clusters.put(MAP, "default", "a", map("1"));
            clusters.want("p", &[(MAP, "a")]);
            while clusters.hear_below() || clusters.hear_above() || clusters.answer_settle() {}
        }
        let (asked, call) = clusters.calls.pop().expect("a call");
        assert_eq!(call == Call::Read, look);
        let answer = clusters.serve(&asked, &call);
        clusters.take_below(&asked);
        while clusters.hear_below() {}
        clusters.tell(Event::CallFinished(asked, answer));
        clusters.pass(A_WHILE);
        assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "1"})), "look: {look}");
    }
}

/// The answer to a write comes after the news that the object is gone: it tells of the past.
#[test]
fn an_object_that_vanishes_while_it_is_written_is_looked_for() {
    let mut clusters = with_copy();
    clusters.put(MAP, "default", "a", map("2"));
    clusters.hear_above();
    let (written, call) = clusters.calls.pop().expect("a patch");
    let answer = clusters.serve(&written, &call);
    clusters.take_below(&written);
    clusters.told_below.clear();
    clusters.tell(Event::LowerMissing(written.clone()));
    clusters.tell(Event::CallFinished(written, answer));
    clusters.pass(A_WHILE);
    assert_eq!(clusters.data(&key(MAP, "a")), Some(&json!({"key": "2"})));
}

#[test]
fn a_namespace_that_goes_is_made_again() {
    let mut clusters = with_copy();
    clusters.lower_namespaces.clear();
    for key in clusters.below.keys().cloned().collect::<Vec<_>>() {
        clusters.take_below(&key);
    }
    clusters.pass(A_WHILE);
    assert!(clusters.data(&key(MAP, "a")).is_some());
}

#[test]
fn what_the_lower_cluster_refuses_is_told_of_once_and_tried_again() {
    let mut clusters = FakeClusters::new();
    clusters.put(MAP, "default", "a", map("1"));
    clusters.want("p", &[(MAP, "a")]);
    while clusters.hear_below() || clusters.hear_above() || clusters.answer_settle() {}
    for _ in 0..5 {
        let (key, _) = clusters.calls.pop().expect("it is tried again");
        let refused = Error::new(ErrorKind::Forbidden, "exceeded quota");
        clusters.tell(Event::CallFinished(key, Err(refused.clone())));
        assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Failed(refused));
        let due = clusters.state_machine.deadline().expect("it is tried again");
        assert!(due > clusters.now, "not at once");
        clusters.now = due;
        clusters.tell(Event::Tick);
    }
    assert_eq!(clusters.warnings.len(), 1);
    assert!(clusters.warnings[0].2.contains("exceeded quota"), "{:?}", clusters.warnings);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn what_cannot_be_read_above_is_no_reason_to_delete_anything() {
    let mut clusters = with_copy();
    clusters.restart(2);
    clusters.run();
    clusters.want("p", &[(MAP, "a")]);
    clusters.told_above.clear();
    let away = Error::new(ErrorKind::Unreachable, "connection refused");
    clusters.tell(Event::UpperUnreadable(key(MAP, "a"), away.clone()));
    clusters.pass(GRACE * 10);
    assert!(clusters.data(&key(MAP, "a")).is_some());
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Failed(away));
    clusters.want("p", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Waiting, "it is read anew");
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready);
}

#[test]
fn a_namespace_without_a_place_below_wants_nothing() {
    let mut clusters =
        FakeClusters::of(NamespaceMapping::Map([("web".to_owned(), "shop".to_owned())].into()), 1);
    clusters.tell(Event::PodAdded(pod("p"), needs(&[(MAP, "a")])));
    clusters.run();
    assert!(clusters.state_machine.entries.is_empty() && clusters.settles.is_empty());
}
