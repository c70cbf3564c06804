use rand::SeedableRng as _;
use serde_json::{Value, json};

use super::*;

fn tracker() -> ClaimTracker {
    ClaimTracker::new(StdRng::seed_from_u64(7))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key() -> ClaimKey {
    ClaimKey { namespace: "shop".to_owned(), name: "data".to_owned() }
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

fn answer(outcome: Result<ProvisionOutcome, Error>) -> Event {
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
        is_error: reason.contains("Error"),
    };
    ClaimCopy {
        source: key(),
        uid: uid.to_owned(),
        facts: facts.iter().map(fact).collect(),
        capacity: capacity.map(|text| text.parse().unwrap()),
    }
}

#[test]
fn a_pending_claim_is_provisioned_once_with_an_event() {
    let mut tracker = tracker();
    assert_eq!(tracker.handle(at(0), seen(waiting("u1"))), [Action::Provision(waiting("u1"))]);
    assert!(tracker.handle(at(0), seen(waiting("u1"))).is_empty(), "it is under way");
    let reported = tracker.handle(at(1), answer(Ok(ProvisionOutcome::Made("pvc-u1".to_owned()))));
    assert_eq!(reasons(&reported), ["ProvisioningSucceeded"]);
    assert!(tracker.handle(at(2), seen(bound("u1"))).is_empty());
    assert_eq!(tracker.deadline(), None, "it has what it needs");
}

#[test]
fn a_claim_that_stays_pending_is_checked_again_without_an_event() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(waiting("u1")));
    tracker.handle(at(1), answer(Ok(ProvisionOutcome::Made("pvc-u1".to_owned()))));
    assert!(tracker.handle(at(30), Event::Tick).is_empty());
    let due = tracker.deadline().unwrap();
    assert_eq!(reasons(&tracker.handle(due, Event::Tick)), ["provision"]);
    assert!(tracker.handle(due, answer(Ok(ProvisionOutcome::There))).is_empty());
}

#[test]
fn a_claim_that_is_not_ours_is_checked_once() {
    for outcome in [ProvisionOutcome::Nothing, ProvisionOutcome::Mistake("why".to_owned())] {
        let mut tracker = tracker();
        tracker.handle(at(0), seen(waiting("u1")));
        let reported = tracker.handle(at(1), answer(Ok(outcome.clone())));
        assert_eq!(reasons(&reported).len(), usize::from(outcome != ProvisionOutcome::Nothing));
        assert!(tracker.handle(at(2), seen(waiting("u1"))).is_empty());
        assert_eq!(tracker.deadline(), None);
        // Another claim of the same name, or one whose class changes, is provisioned again.
        let other = claim("u1", &json!({"storageClassName": "other"}));
        assert_eq!(reasons(&tracker.handle(at(3), seen(other))), ["provision"]);
        assert_eq!(reasons(&tracker.handle(at(4), seen(waiting("u2")))), ["provision"]);
    }
}

#[test]
fn a_rejection_is_reported_and_retried_with_growing_delay() {
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
fn temporary_errors_are_reported_from_the_third_on() {
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
fn an_answer_for_a_deleted_claim_is_not_applied_to_its_successor() {
    let mut tracker = tracker();
    tracker.handle(at(0), seen(waiting("u1")));
    tracker.handle(at(1), Event::UpperGone(key()));
    assert_eq!(reasons(&tracker.handle(at(2), seen(waiting("u2")))), ["provision"]);
    assert!(tracker.handle(at(3), answer(Ok(ProvisionOutcome::Nothing))).is_empty());
    let late =
        Event::ProvisionFinished(key(), "u2".to_owned(), Ok(ProvisionOutcome::Taken("pvc-u2".to_owned())));
    assert_eq!(reasons(&tracker.handle(at(4), late)), ["ProvisioningFailed"]);
}

#[test]
fn each_change_of_a_copy_is_reported_once() {
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
fn conditions_of_the_first_list_are_not_reported() {
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
fn copies_of_claims_of_other_nodes_are_not_reported() {
    let mut tracker = tracker();
    assert!(tracker.handle(at(0), Event::Lower(copy("u1", &["Resizing"], None), false)).is_empty());
    tracker.handle(at(0), Event::LowerGone("u1".to_owned()));
    assert!(tracker.copies.is_empty());
}
