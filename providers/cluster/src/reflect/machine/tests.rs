mod claims;

use serde_json::{Value, json};

use super::{
    super::GRACE,
    world::{World, needs, owner, place, pod},
    *,
};

const MAP: Kind = Kind::ConfigMap;
const A_WHILE: Duration = Duration::from_secs(10);

fn map(value: &str) -> Value {
    json!({"data": {"key": value}})
}

/// A world where a pod needs the ConfigMap `a`, and has it.
fn with_copy() -> World {
    let mut world = World::new();
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    world.run();
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "1"})));
    world
}

#[test]
fn a_copy_is_there_before_the_pod_may_be_made() {
    let mut world = World::new();
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    assert_eq!(world.machine.standing(&pod("p")), Standing::Waiting);
    while world.hear_below() || world.hear_above() || world.answer_settle() {}
    assert_eq!(world.machine.standing(&pod("p")), Standing::Waiting, "it is being made");
    assert_eq!(world.machine.awaited(&pod("p")), Some(&place(MAP, "a")));
    world.run();
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
    let copy = &world.below[&place(MAP, "a")];
    assert_eq!(copy["metadata"]["labels"][names::ORIGIN], "upper");
    assert_eq!(copy["metadata"]["annotations"][names::ORIGIN_NAMESPACE], "default");
    assert_eq!(copy["metadata"]["ownerReferences"][0]["name"], anchor::name(&owner()));
    assert_eq!(
        copy["metadata"]["ownerReferences"][0]["controller"],
        Value::Null,
        "pods alone are controlled"
    );
}

#[test]
fn a_pod_without_needs_waits_for_its_namespace_alone() {
    let mut world = World::new();
    world.want("p", &[]);
    assert_eq!(world.machine.standing(&pod("p")), Standing::Waiting);
    world.run();
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
    assert!(world.grounds.contains("default"));
}

#[test]
fn an_object_that_comes_late_is_copied_when_it_comes() {
    let mut world = World::new();
    world.want("p", &[(MAP, "late")]);
    world.run();
    assert_eq!(
        world.machine.standing(&pod("p")),
        Standing::Ready,
        "the lower kubelet waits as one would above"
    );
    assert_eq!(world.data(&place(MAP, "late")), None);
    world.put(MAP, "default", "late", map("1"));
    world.run();
    assert_eq!(world.data(&place(MAP, "late")), Some(&json!({"key": "1"})));
}

/// tensile-kube changes its cache and never calls the API server.
#[test]
fn an_update_above_reaches_the_copy_below() {
    let mut world = with_copy();
    world.put(MAP, "default", "a", json!({"data": {"other": "2"}, "metadata": {"labels": {"team": "x"}}}));
    world.run();
    let copy = &world.below[&place(MAP, "a")];
    assert_eq!(copy["data"], json!({"other": "2"}), "what is gone above is gone below");
    assert_eq!(copy["metadata"]["labels"]["team"], "x");
    world.put(MAP, "default", "a", json!({"data": {"other": "2"}}));
    world.run();
    assert_eq!(world.below[&place(MAP, "a")]["metadata"]["labels"].get("team"), None);
    let place = place(MAP, "a").to_string();
    assert_eq!(world.log, [format!("create {place}"), format!("patch {place}"), format!("patch {place}")]);
}

#[test]
fn what_others_write_on_a_copy_stays_unless_it_is_content() {
    let mut world = with_copy();
    let mut copy = world.below[&place(MAP, "a")].clone();
    copy["metadata"]["labels"]["theirs"] = json!("kept");
    copy["data"]["key"] = json!("spoilt");
    world.put_below(&place(MAP, "a"), copy);
    world.pass(A_WHILE);
    let copy = &world.below[&place(MAP, "a")];
    assert_eq!((&copy["data"]["key"], &copy["metadata"]["labels"]["theirs"]), (&json!("1"), &json!("kept")));
}

#[test]
fn somebody_who_changes_a_copy_back_is_fought_ever_more_slowly() {
    let mut world = with_copy();
    for _ in 0..200 {
        let mut copy = world.below[&place(MAP, "a")].clone();
        copy["data"]["key"] = json!("spoilt");
        world.put_below(&place(MAP, "a"), copy);
        world.pass(Duration::from_secs(1));
    }
    let patches = world.log.iter().filter(|call| call.starts_with("patch")).count();
    assert!((3..20).contains(&patches), "{patches} in 200 s");
}

#[test]
fn an_object_deleted_above_is_deleted_below_while_pods_name_it() {
    let mut world = with_copy();
    world.take(MAP, "default", "a");
    world.pass(A_WHILE);
    assert_eq!(world.data(&place(MAP, "a")), None);
    world.put(MAP, "default", "a", map("2"));
    world.pass(A_WHILE);
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "2"})));
}

#[test]
fn a_copy_that_somebody_deletes_is_made_again() {
    let mut world = with_copy();
    world.take_below(&place(MAP, "a"));
    world.pass(A_WHILE);
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "1"})));
}

#[test]
fn a_copy_goes_a_minute_after_the_last_pod() {
    let mut world = with_copy();
    world.want("q", &[(MAP, "a")]);
    world.release("p");
    world.pass(GRACE * 2);
    assert!(world.data(&place(MAP, "a")).is_some(), "another pod names it");
    world.release("q");
    world.pass(GRACE.mul_f64(0.9));
    assert!(world.data(&place(MAP, "a")).is_some(), "not before its time");
    world.pass(GRACE.mul_f64(0.2));
    assert_eq!(world.data(&place(MAP, "a")), None);
    assert!(world.watched.is_empty(), "nothing is watched for nobody");
    assert_eq!(world.machine.entries.len(), 0);
}

#[test]
fn a_pod_that_comes_within_the_minute_keeps_the_copy() {
    let mut world = with_copy();
    world.release("p");
    world.pass(GRACE / 2);
    world.want("q", &[(MAP, "a")]);
    world.pass(GRACE * 3);
    assert_eq!(world.log.len(), 1, "{:?}", world.log);
}

#[test]
fn a_copy_that_a_lower_pod_still_names_stays() {
    let mut world = with_copy();
    world.used.insert(place(MAP, "a"));
    world.release("p");
    world.pass(GRACE * 20);
    assert!(world.data(&place(MAP, "a")).is_some());
    world.used.clear();
    world.pass(GRACE * 6);
    assert_eq!(world.data(&place(MAP, "a")), None);
}

#[test]
fn an_immutable_object_replaced_above_is_replaced_below() {
    let mut world = World::new();
    let frozen = |value: &str| json!({"data": {"key": value}, "immutable": true});
    world.put(MAP, "default", "a", frozen("1"));
    world.want("p", &[(MAP, "a")]);
    world.run();
    let before = world.found(&place(MAP, "a")).unwrap().uid;
    world.take(MAP, "default", "a");
    world.put(MAP, "default", "a", frozen("2"));
    // The watch may tell of the end result alone.
    world.told_above.pop_front();
    world.pass(A_WHILE);
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "2"})));
    assert_ne!(world.found(&place(MAP, "a")).unwrap().uid, before);
    let name = place(MAP, "a").to_string();
    assert_eq!(world.log, [format!("create {name}"), format!("delete {name}"), format!("create {name}")]);
}

/// tensile-kube deletes a namesake below, whoever made it.
#[test]
fn a_foreign_object_is_used_as_it_is_and_told_of_once() {
    let mut world = World::new();
    let theirs = json!({"data": {"key": "theirs"}});
    world.put_below(&place(MAP, "a"), theirs.clone());
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    world.pass(GRACE * 10);
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
    world.put(MAP, "default", "a", map("2"));
    world.pass(GRACE);
    world.take(MAP, "default", "a");
    world.pass(GRACE);
    world.release("p");
    world.pass(GRACE * 10);
    assert_eq!(world.data(&place(MAP, "a")), Some(&theirs["data"]), "{:?}", world.log);
    let [(told, reason, message)] = &world.warnings[..] else { panic!("{:?}", world.warnings) };
    assert_eq!((told, *reason), (&pod("p"), "ForeignObject"));
    assert!(message.contains("ConfigMap default/a"), "{message}");
}

#[test]
fn when_a_foreign_object_goes_ours_takes_its_place() {
    let mut world = World::new();
    world.put_below(&place(MAP, "a"), json!({"data": {"key": "theirs"}}));
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    world.pass(A_WHILE);
    world.take_below(&place(MAP, "a"));
    world.pass(Duration::from_mins(6));
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "1"})));
}

#[test]
fn a_namesake_of_another_upper_cluster_is_foreign() {
    let mut world = World::new();
    let annotations = json!({names::ORIGIN_NAMESPACE: "default", names::ORIGIN_NAME: "a"});
    let theirs = json!({
        "metadata": {"labels": {names::ORIGIN: "other"}, "annotations": annotations},
        "data": {"key": "theirs"},
    });
    world.put_below(&place(MAP, "a"), theirs);
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    world.pass(GRACE);
    world.release("p");
    world.pass(GRACE * 10);
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "theirs"})));
    assert_eq!(world.warnings.len(), 1);
}

#[test]
fn a_copy_whose_mark_somebody_takes_off_is_theirs_from_then_on() {
    let mut world = with_copy();
    let mut copy = world.below[&place(MAP, "a")].clone();
    copy["metadata"]["labels"] = json!({});
    copy["data"]["key"] = json!("theirs");
    world.take_below(&place(MAP, "a"));
    world.put_below(&place(MAP, "a"), copy);
    world.pass(GRACE * 10);
    world.release("p");
    world.pass(GRACE * 10);
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "theirs"})));
    assert_eq!(world.warnings.len(), 1);
}

#[test]
fn two_pods_that_name_one_object_share_one_copy() {
    let mut world = with_copy();
    world.want("q", &[(MAP, "a")]);
    world.run();
    assert_eq!(world.machine.standing(&pod("q")), Standing::Ready);
    assert_eq!((world.log.len(), world.watched.len()), (1, 1));
}

#[test]
fn a_pod_that_names_something_else_lets_go_of_what_it_named() {
    let mut world = with_copy();
    world.put(MAP, "default", "b", map("2"));
    world.want("p", &[(MAP, "b")]);
    world.pass(GRACE * 2);
    assert_eq!(world.data(&place(MAP, "a")), None);
    assert!(world.data(&place(MAP, "b")).is_some());
}

#[test]
fn namespaces_are_called_what_they_are_called_below() {
    let mut world = World::of(Namespaces::Suffix("-x".to_owned()), 1);
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    world.run();
    let below = Place { kind: MAP, namespace: "default-x".to_owned(), name: "a".to_owned() };
    assert_eq!(world.data(&below), Some(&json!({"key": "1"})));
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
}

#[test]
fn after_a_restart_what_is_needed_stays_and_what_is_not_goes_after_the_grace() {
    let mut world = with_copy();
    world.put(MAP, "default", "b", map("2"));
    world.want("q", &[(MAP, "b")]);
    world.run();
    world.restart(2);
    world.pass(A_WHILE);
    world.want("p", &[(MAP, "a")]);
    world.pass(GRACE.mul_f64(0.7));
    assert!(world.data(&place(MAP, "b")).is_some(), "there is time for its pod to come");
    world.pass(GRACE);
    assert_eq!(world.data(&place(MAP, "b")), None);
    assert!(world.data(&place(MAP, "a")).is_some());
    let writes = world.log.iter().filter(|call| call.contains("/a")).count();
    assert_eq!(writes, 1, "what is as it should be is not written again: {:?}", world.log);
}

#[test]
fn a_restart_while_the_upper_cluster_is_away_takes_nothing_from_running_pods() {
    let mut world = with_copy();
    world.used.insert(place(MAP, "a"));
    world.restart(2);
    world.pass(Duration::from_hours(1));
    assert!(world.data(&place(MAP, "a")).is_some(), "a lower pod has it, though no pod was told of");
}

#[test]
fn nothing_is_made_before_it_is_known_what_there_is() {
    let mut world = World::new();
    world.told_below.clear();
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    world.pass(GRACE);
    assert!(world.log.is_empty());
    assert_eq!(world.machine.standing(&pod("p")), Standing::Waiting);
    world.tell(Event::Listed(MAP, Some("default".to_owned())));
    world.run();
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
}

/// tensile-kube makes a token Secret of another cluster and rewrites the service account for it.
#[test]
fn the_token_of_a_service_account_becomes_an_ordinary_secret() {
    let mut world = World::new();
    let token = json!({
        "type": "kubernetes.io/service-account-token",
        "metadata": {"annotations": {"kubernetes.io/service-account.name": "builder", "mine": "kept"}},
        "data": {"token": "eA=="},
    });
    world.put(Kind::Secret, "default", "t", token);
    world.want("p", &[(Kind::Secret, "t")]);
    world.run();
    let copy = &world.below[&place(Kind::Secret, "t")];
    assert_eq!((&copy["type"], &copy["data"]["token"]), (&json!("Opaque"), &json!("eA==")));
    let annotations = &copy["metadata"]["annotations"];
    assert_eq!(annotations.get("kubernetes.io/service-account.name"), None);
    assert_eq!(annotations["mine"], "kept");
}

#[test]
fn a_secret_of_another_type_takes_the_place_of_the_old_one() {
    let mut world = World::new();
    world.put(Kind::Secret, "default", "s", json!({"type": "Opaque", "data": {"a": "eA=="}}));
    world.want("p", &[(Kind::Secret, "s")]);
    world.run();
    world.put(Kind::Secret, "default", "s", json!({"type": "example.com/x", "data": {"a": "eA=="}}));
    world.pass(A_WHILE);
    assert_eq!(world.below[&place(Kind::Secret, "s")]["type"], "example.com/x");
}

#[test]
fn a_service_account_is_made_bare_without_being_read() {
    let mut world = World::new();
    world.want("p", &[(Kind::ServiceAccount, "builder")]);
    world.run();
    assert!(world.watched.is_empty(), "a node may not watch it");
    assert!(world.below.contains_key(&place(Kind::ServiceAccount, "builder")));
    world.release("p");
    world.pass(GRACE * 2);
    assert!(!world.below.contains_key(&place(Kind::ServiceAccount, "builder")));
}

#[test]
fn an_object_that_is_not_to_be_copied_is_not() {
    let mut world = with_copy();
    let skipped = json!({"data": {"key": "1"}, "metadata": {"annotations": {names::SKIP: "true"}}});
    world.put(MAP, "default", "a", skipped);
    world.pass(A_WHILE);
    assert_eq!(world.data(&place(MAP, "a")), None);
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
}

#[test]
fn an_anchor_that_is_deleted_is_made_again_and_new_copies_hang_on_the_new_one() {
    let mut world = with_copy();
    let anchor = place(MAP, &anchor::name(&owner()));
    let old = world.found(&anchor).unwrap().uid;
    world.take_below(&anchor);
    // As the garbage collector does.
    world.take_below(&place(MAP, "a"));
    world.pass(A_WHILE);
    let new = world.found(&anchor).unwrap().uid;
    assert_ne!(new, old);
    assert_eq!(world.below[&place(MAP, "a")]["metadata"]["ownerReferences"][0]["uid"], json!(new));
}

#[test]
fn anchors_are_no_copies() {
    let mut world = with_copy();
    world.restart(2);
    world.pass(GRACE * 10);
    let left: Vec<&Place> = world.below.keys().collect();
    assert_eq!(left, [&place(MAP, &anchor::name(&owner()))]);
}

#[test]
fn an_answer_that_trails_the_watch_tells_of_the_past() {
    // A write, and then a look.
    for look in [false, true] {
        let mut world = if look { with_copy() } else { World::new() };
        if look {
            world.tell(Event::Vanished(place(MAP, "a")));
        } else {
            world.put(MAP, "default", "a", map("1"));
            world.want("p", &[(MAP, "a")]);
            while world.hear_below() || world.hear_above() || world.answer_settle() {}
        }
        let (asked, call) = world.calls.pop().expect("a call");
        assert_eq!(call == Call::Read, look);
        let answer = world.serve(&asked, &call);
        world.take_below(&asked);
        while world.hear_below() {}
        world.tell(Event::Answer(asked, answer));
        world.pass(A_WHILE);
        assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "1"})), "look: {look}");
    }
}

/// The answer to a write comes after the news that the object is gone: it tells of the past.
#[test]
fn an_object_that_vanishes_while_it_is_written_is_looked_for() {
    let mut world = with_copy();
    world.put(MAP, "default", "a", map("2"));
    world.hear_above();
    let (written, call) = world.calls.pop().expect("a patch");
    let answer = world.serve(&written, &call);
    world.take_below(&written);
    world.told_below.clear();
    world.tell(Event::Vanished(written.clone()));
    world.tell(Event::Answer(written, answer));
    world.pass(A_WHILE);
    assert_eq!(world.data(&place(MAP, "a")), Some(&json!({"key": "2"})));
}

#[test]
fn a_namespace_that_goes_is_made_again() {
    let mut world = with_copy();
    world.grounds.clear();
    for place in world.below.keys().cloned().collect::<Vec<_>>() {
        world.take_below(&place);
    }
    world.pass(A_WHILE);
    assert!(world.data(&place(MAP, "a")).is_some());
}

#[test]
fn what_the_lower_cluster_refuses_is_told_of_once_and_tried_again() {
    let mut world = World::new();
    world.put(MAP, "default", "a", map("1"));
    world.want("p", &[(MAP, "a")]);
    while world.hear_below() || world.hear_above() || world.answer_settle() {}
    for _ in 0..5 {
        let (place, _) = world.calls.pop().expect("it is tried again");
        let refused = Error::new(ErrorKind::Forbidden, "exceeded quota");
        world.tell(Event::Answer(place, Err(refused.clone())));
        assert_eq!(world.machine.standing(&pod("p")), Standing::Failed(refused));
        let due = world.machine.deadline().expect("it is tried again");
        assert!(due > world.now, "not at once");
        world.now = due;
        world.tell(Event::Tick);
    }
    assert_eq!(world.warnings.len(), 1);
    assert!(world.warnings[0].2.contains("exceeded quota"), "{:?}", world.warnings);
    world.run();
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
}

#[test]
fn what_cannot_be_read_above_is_no_reason_to_delete_anything() {
    let mut world = with_copy();
    world.restart(2);
    world.run();
    world.want("p", &[(MAP, "a")]);
    world.told_above.clear();
    let away = Error::new(ErrorKind::Unreachable, "connection refused");
    world.tell(Event::Unreadable(place(MAP, "a"), away.clone()));
    world.pass(GRACE * 10);
    assert!(world.data(&place(MAP, "a")).is_some());
    assert_eq!(world.machine.standing(&pod("p")), Standing::Failed(away));
    world.want("p", &[(MAP, "a")]);
    assert_eq!(world.machine.standing(&pod("p")), Standing::Waiting, "it is read anew");
    world.run();
    assert_eq!(world.machine.standing(&pod("p")), Standing::Ready);
}

#[test]
fn a_namespace_without_a_place_below_wants_nothing() {
    let mut world = World::of(Namespaces::Map([("web".to_owned(), "shop".to_owned())].into()), 1);
    world.tell(Event::Wanted(pod("p"), needs(&[(MAP, "a")])));
    world.run();
    assert!(world.machine.entries.is_empty() && world.settles.is_empty());
}
