use rand::SeedableRng as _;
use serde_json::{Value, json};

use super::*;

fn keeper() -> Keeper {
    Keeper::new(StdRng::seed_from_u64(7))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key() -> Key {
    Key { namespace: "shop".to_owned(), name: "data".to_owned() }
}

fn claim(uid: &str, spec: &Value) -> Arc<PersistentVolumeClaim> {
    let metadata = json!({"namespace": "shop", "name": "data", "uid": uid});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

fn waiting(uid: &str) -> Arc<PersistentVolumeClaim> {
    claim(uid, &json!({"storageClassName": "below"}))
}

fn bound(uid: &str) -> Arc<PersistentVolumeClaim> {
    claim(uid, &json!({"storageClassName": "below", "volumeName": "pvc-u1"}))
}

fn seen(claim: Arc<PersistentVolumeClaim>) -> Event {
    Event::Upper(key(), claim)
}

fn answer(outcome: Result<Outcome, Error>) -> Event {
    Event::Answer(key(), "u1".to_owned(), outcome)
}

fn reasons(actions: &[Action]) -> Vec<&str> {
    let mut reasons = Vec::new();
    for action in actions {
        reasons.push(match action {
            Action::Tell { reason, .. } => reason.as_str(),
            Action::Provide(_) => "provide",
        });
    }
    reasons
}

fn copy(uid: &str, facts: &[&str], capacity: Option<&str>) -> Copy {
    let fact = |reason: &&str| Fact {
        reason: (*reason).to_owned(),
        message: "words (lower)".to_owned(),
        troubling: reason.contains("Error"),
    };
    Copy {
        source: key(),
        uid: uid.to_owned(),
        facts: facts.iter().map(fact).collect(),
        capacity: capacity.map(|text| text.parse().unwrap()),
    }
}

#[test]
fn a_claim_that_waits_is_served_once_and_told_so() {
    let mut keeper = keeper();
    assert_eq!(keeper.handle(at(0), seen(waiting("u1"))), [Action::Provide(waiting("u1"))]);
    assert!(keeper.handle(at(0), seen(waiting("u1"))).is_empty(), "it is under way");
    let told = keeper.handle(at(1), answer(Ok(Outcome::Made("pvc-u1".to_owned()))));
    assert_eq!(reasons(&told), ["ProvisioningSucceeded"]);
    assert!(keeper.handle(at(2), seen(bound("u1"))).is_empty());
    assert_eq!(keeper.deadline(), None, "it has what it needs");
}

#[test]
fn a_claim_that_goes_on_waiting_is_looked_at_again_and_not_told_again() {
    let mut keeper = keeper();
    keeper.handle(at(0), seen(waiting("u1")));
    keeper.handle(at(1), answer(Ok(Outcome::Made("pvc-u1".to_owned()))));
    assert!(keeper.handle(at(30), Event::Tick).is_empty());
    let due = keeper.deadline().unwrap();
    assert_eq!(reasons(&keeper.handle(due, Event::Tick)), ["provide"]);
    assert!(keeper.handle(due, answer(Ok(Outcome::There))).is_empty());
}

#[test]
fn what_is_not_ours_is_asked_about_once() {
    for outcome in [Outcome::Nothing, Outcome::Mistake("why".to_owned())] {
        let mut keeper = keeper();
        keeper.handle(at(0), seen(waiting("u1")));
        let told = keeper.handle(at(1), answer(Ok(outcome.clone())));
        assert_eq!(reasons(&told).len(), usize::from(outcome != Outcome::Nothing));
        assert!(keeper.handle(at(2), seen(waiting("u1"))).is_empty());
        assert_eq!(keeper.deadline(), None);
        // Another claim of the same name, or one that is given another class, is another matter.
        let other = claim("u1", &json!({"storageClassName": "other"}));
        assert_eq!(reasons(&keeper.handle(at(3), seen(other))), ["provide"]);
        assert_eq!(reasons(&keeper.handle(at(4), seen(waiting("u2")))), ["provide"]);
    }
}

#[test]
fn a_refusal_is_told_in_the_servers_words_and_tried_again_ever_more_seldom() {
    let mut keeper = keeper();
    let mut now = at(0);
    let mut actions = keeper.handle(now, seen(waiting("u1")));
    for round in 0..10 {
        assert_eq!(reasons(&actions), ["provide"], "{round}");
        let refused = Error::new(ErrorKind::Forbidden, "volumes are for admins");
        let told = keeper.handle(now, answer(Err(refused)));
        let [Action::Tell { severity: Severity::Warning, reason, message, .. }] = told.as_slice() else {
            panic!("{told:?}")
        };
        assert_eq!(reason, "ProvisioningFailed");
        assert!(message.contains("volumes are for admins"), "{message}");
        let due = keeper.deadline().unwrap();
        assert!(due > now && due <= now + at(300), "{due:?}");
        now = due;
        actions = keeper.handle(now, Event::Tick);
    }
    assert!(now > at(300));
}

#[test]
fn a_connection_that_breaks_is_not_worth_a_word_before_the_third_time() {
    let mut keeper = keeper();
    keeper.handle(at(0), seen(waiting("u1")));
    let mut told = Vec::new();
    for _ in 0..3 {
        let broken = Error::new(ErrorKind::Timeout, "no answer");
        let now = keeper.deadline().unwrap_or_default();
        keeper.handle(now, Event::Tick);
        told.push(keeper.handle(now, answer(Err(broken))).len());
    }
    assert_eq!(told, [0, 0, 1]);
}

#[test]
fn the_answer_about_a_claim_that_is_gone_is_not_taken_for_its_successors() {
    let mut keeper = keeper();
    keeper.handle(at(0), seen(waiting("u1")));
    keeper.handle(at(1), Event::UpperGone(key()));
    assert_eq!(reasons(&keeper.handle(at(2), seen(waiting("u2")))), ["provide"]);
    assert!(keeper.handle(at(3), answer(Ok(Outcome::Nothing))).is_empty());
    let late = Event::Answer(key(), "u2".to_owned(), Ok(Outcome::Taken("pvc-u2".to_owned())));
    assert_eq!(reasons(&keeper.handle(at(4), late)), ["ProvisioningFailed"]);
}

#[test]
fn what_happens_to_the_copy_is_told_on_the_claim_once() {
    let mut keeper = keeper();
    keeper.handle(at(0), seen(bound("u1")));
    let see = |keeper: &mut Keeper, copy| {
        let actions = keeper.handle(at(1), Event::Lower(copy, false));
        reasons(&actions).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(see(&mut keeper, copy("u1", &[], Some("1Gi"))).is_empty());
    assert_eq!(see(&mut keeper, copy("u1", &["Resizing"], Some("1Gi"))), ["Resizing"]);
    assert!(see(&mut keeper, copy("u1", &["Resizing"], Some("1Gi"))).is_empty());
    assert_eq!(see(&mut keeper, copy("u1", &[], Some("2Gi"))), ["Resized"]);
    assert!(see(&mut keeper, copy("u1", &[], Some("2Gi"))).is_empty());
    assert_eq!(see(&mut keeper, copy("u1", &["Resizing"], Some("2Gi"))), ["Resizing"], "again");
    let of_another = copy("u2", &["Resizing"], Some("2Gi"));
    assert!(see(&mut keeper, of_another).is_empty(), "the copy of a predecessor");
}

#[test]
fn what_held_below_before_we_began_is_not_told() {
    let mut keeper = keeper();
    keeper.handle(at(0), seen(bound("u1")));
    let before = Event::Lower(copy("u1", &["ControllerResizeError"], Some("1Gi")), true);
    assert!(keeper.handle(at(1), before).is_empty());
    let after = |facts: &[&str]| Event::Lower(copy("u1", facts, Some("1Gi")), false);
    assert!(keeper.handle(at(2), after(&["ControllerResizeError"])).is_empty());
    let told = keeper.handle(at(3), after(&["ControllerResizeError", "NodeResizeError"]));
    let [Action::Tell { severity, reason, .. }] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((*severity, reason.as_str()), (Severity::Warning, "NodeResizeError"));
}

#[test]
fn a_claim_of_another_node_is_not_told_about() {
    let mut keeper = keeper();
    assert!(keeper.handle(at(0), Event::Lower(copy("u1", &["Resizing"], None), false)).is_empty());
    keeper.handle(at(0), Event::LowerGone("u1".to_owned()));
    assert!(keeper.copies.is_empty());
}
