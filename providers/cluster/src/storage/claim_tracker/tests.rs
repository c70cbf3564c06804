use rand::SeedableRng as _;
use serde_json::{Value, json};

use super::*;

fn tracker() -> ClaimTracker {
    ClaimTracker::new(StdRng::seed_from_u64(7))
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
    Event::ProvisionFinished(key(), "u1".to_owned(), outcome)
}

fn reasons(actions: &[Action]) -> Vec<&str> {
    let mut reasons = Vec::new();
    for action in actions {
        reasons.push(match action {
            Action::RecordEvent { reason, .. } => reason.as_str(),
            Action::Provision(_) => "provision",
        });
    }
    reasons
}

fn copy(uid: &str, facts: &[&str], capacity: Option<&str>) -> ClaimCopy {
    let fact = |reason: &&str| ClaimFact {
        reason: (*reason).to_owned(),
        message: "words (lower)".to_owned(),
        troubling: reason.contains("Error"),
    };
    ClaimCopy {
        source: key(),
        uid: uid.to_owned(),
        facts: facts.iter().map(fact).collect(),
        capacity: capacity.map(|text| text.parse().unwrap()),
    }
}

#[test]
fn a_claim_that_waits_is_served_once_and_told_so() {
    let mut tracker = tracker();
    assert_eq!(tracker.handle(at(0), seen(waiting("u1"))), [Action::Provision(waiting("u1"))]);
    assert!(tracker.handle(at(0), seen(waiting("u1"))).is_empty(), "it is under way");
    let reported = tracker.handle(at(1), answer(Ok(Outcome::Made("pvc-u1".to_owned()))));
    assert_eq!(reasons(&reported), ["ProvisioningSucceeded"]);
    assert!(tracker.handle(at(2), seen(bound("u1"))).is_empty());
    assert_eq!(tracker.deadline(), None, "it has what it needs");
}

#[test]
fn a_claim_that_goes_on_waiting_is_looked_at_again_and_not_told_again() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(waiting("u1")));
    tracker.handle(at(1), answer(Ok(Outcome::Made("pvc-u1".to_owned()))));
    assert!(tracker.handle(at(30), Event::Tick).is_empty());
    let due = tracker.deadline().unwrap();
    assert_eq!(reasons(&tracker.handle(due, Event::Tick)), ["provision"]);
    assert!(tracker.handle(due, answer(Ok(Outcome::There))).is_empty());
}

#[test]
fn what_is_not_ours_is_asked_about_once() {
    for outcome in [Outcome::Nothing, Outcome::Mistake("why".to_owned())] {
        let mut tracker = tracker();
        tracker.handle(at(0), seen(waiting("u1")));
        let reported = tracker.handle(at(1), answer(Ok(outcome.clone())));
        assert_eq!(reasons(&reported).len(), usize::from(outcome != Outcome::Nothing));
        assert!(tracker.handle(at(2), seen(waiting("u1"))).is_empty());
        assert_eq!(tracker.deadline(), None);
        // Another claim of the same name, or one that is given another class, is another matter.
        let other = claim("u1", &json!({"storageClassName": "other"}));
        assert_eq!(reasons(&tracker.handle(at(3), seen(other))), ["provision"]);
        assert_eq!(reasons(&tracker.handle(at(4), seen(waiting("u2")))), ["provision"]);
    }
}

#[test]
fn a_refusal_is_told_in_the_servers_words_and_tried_again_ever_more_seldom() {
    let mut tracker = tracker();
    let mut now = at(0);
    let mut actions = tracker.handle(now, seen(waiting("u1")));
    for round in 0..10 {
        assert_eq!(reasons(&actions), ["provision"], "{round}");
        let refused = Error::new(ErrorKind::Forbidden, "volumes are for admins");
        let reported = tracker.handle(now, answer(Err(refused)));
        let [Action::RecordEvent { severity: Severity::Warning, reason, message, .. }] = reported.as_slice()
        else {
            panic!("{reported:?}")
        };
        assert_eq!(reason, "ProvisioningFailed");
        assert!(message.contains("volumes are for admins"), "{message}");
        let due = tracker.deadline().unwrap();
        assert!(due > now && due <= now + at(300), "{due:?}");
        now = due;
        actions = tracker.handle(now, Event::Tick);
    }
    assert!(now > at(300));
}

#[test]
fn a_connection_that_breaks_is_not_worth_a_word_before_the_third_time() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(waiting("u1")));
    let mut reported = Vec::new();
    for _ in 0..3 {
        let broken = Error::new(ErrorKind::Timeout, "no answer");
        let now = tracker.deadline().unwrap_or_default();
        tracker.handle(now, Event::Tick);
        reported.push(tracker.handle(now, answer(Err(broken))).len());
    }
    assert_eq!(reported, [0, 0, 1]);
}

#[test]
fn the_answer_about_a_claim_that_is_gone_is_not_taken_for_its_successors() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(waiting("u1")));
    tracker.handle(at(1), Event::UpperGone(key()));
    assert_eq!(reasons(&tracker.handle(at(2), seen(waiting("u2")))), ["provision"]);
    assert!(tracker.handle(at(3), answer(Ok(Outcome::Nothing))).is_empty());
    let late = Event::ProvisionFinished(key(), "u2".to_owned(), Ok(Outcome::Taken("pvc-u2".to_owned())));
    assert_eq!(reasons(&tracker.handle(at(4), late)), ["ProvisioningFailed"]);
}

#[test]
fn what_happens_to_the_copy_is_told_on_the_claim_once() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(bound("u1")));
    let see = |tracker: &mut ClaimTracker, copy| {
        let actions = tracker.handle(at(1), Event::Lower(copy, false));
        reasons(&actions).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(see(&mut tracker, copy("u1", &[], Some("1Gi"))).is_empty());
    assert_eq!(see(&mut tracker, copy("u1", &["Resizing"], Some("1Gi"))), ["Resizing"]);
    assert!(see(&mut tracker, copy("u1", &["Resizing"], Some("1Gi"))).is_empty());
    assert_eq!(see(&mut tracker, copy("u1", &[], Some("2Gi"))), ["Resized"]);
    assert!(see(&mut tracker, copy("u1", &[], Some("2Gi"))).is_empty());
    assert_eq!(see(&mut tracker, copy("u1", &["Resizing"], Some("2Gi"))), ["Resizing"], "again");
    let of_another = copy("u2", &["Resizing"], Some("2Gi"));
    assert!(see(&mut tracker, of_another).is_empty(), "the copy of a predecessor");
}

#[test]
fn what_held_below_before_we_began_is_not_told() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(bound("u1")));
    let before = Event::Lower(copy("u1", &["ControllerResizeError"], Some("1Gi")), true);
    assert!(tracker.handle(at(1), before).is_empty());
    let after = |facts: &[&str]| Event::Lower(copy("u1", facts, Some("1Gi")), false);
    assert!(tracker.handle(at(2), after(&["ControllerResizeError"])).is_empty());
    let reported = tracker.handle(at(3), after(&["ControllerResizeError", "NodeResizeError"]));
    let [Action::RecordEvent { severity, reason, .. }] = reported.as_slice() else { panic!("{reported:?}") };
    assert_eq!((*severity, reason.as_str()), (Severity::Warning, "NodeResizeError"));
}

#[test]
fn a_claim_of_another_node_is_not_told_about() {
    let mut tracker = tracker();
    assert!(tracker.handle(at(0), Event::Lower(copy("u1", &["Resizing"], None), false)).is_empty());
    tracker.handle(at(0), Event::LowerGone("u1".to_owned()));
    assert!(tracker.copies.is_empty());
}
