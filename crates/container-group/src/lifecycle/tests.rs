//! One pod at a time: each test is named after what it prevents.

use super::*;

const UID: &str = "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c11";
const CONSISTENCY: Duration = Duration::from_secs(10);

struct Bench {
    pod: PodGroups,
    ids: CallIds,
    now: Duration,
    idempotency: Idempotency,
    synced: bool,
    certain: bool,
    leading: bool,
}

impl Bench {
    fn new(idempotency: Idempotency) -> Self {
        Self {
            pod: PodGroups::new(PodRef::new("shop", "web", UID), false),
            ids: CallIds::default(),
            now: Duration::from_secs(100),
            idempotency,
            synced: true,
            certain: true,
            leading: true,
        }
    }

    fn handle(&mut self, event: impl FnOnce(&mut PodGroups, &mut Surroundings<'_>)) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut around = Surroundings {
            now: self.now,
            consistency: CONSISTENCY,
            idempotency: self.idempotency,
            synced: self.synced,
            certain: self.certain,
            leading: self.leading,
            ids: &mut self.ids,
            actions: &mut actions,
        };
        event(&mut self.pod, &mut around);
        actions
    }

    /// Asks for the pod and begins the call.
    fn begin_create(&mut self) -> (CallId, u32) {
        match self.handle(PodGroups::create).as_slice() {
            [Action::Create { id, attempt }] => {
                assert!(self.pod.start(*id, true));
                (*id, *attempt)
            }
            other => panic!("{other:?}"),
        }
    }

    fn answer_create(&mut self, id: CallId, class: Class) -> Vec<Action> {
        let error = CallError::new(class, "a fault");
        self.handle(|pod, around| pod.created(around, id, Err(error), false))
    }

    fn run_group(&mut self) {
        let (id, _) = self.begin_create();
        let group = group("a");
        self.handle(|pod, around| pod.created(around, id, Ok(Some(group)), false));
        self.now += CONSISTENCY;
    }
}

fn group(id: &str) -> GroupRef {
    GroupRef::new(id, id)
}

fn observed(id: &str, created: i64) -> Observed {
    let created = jiff::Timestamp::from_second(created).ok();
    Observed { created, complete: true, state: Some(GroupState::Running), ..Observed::new(group(id)) }
}

fn grace() -> Duration {
    Duration::from_secs(30)
}

#[test]
fn a_create_whose_answer_was_lost_is_looked_up_before_it_is_repeated() {
    let mut bench = Bench::new(Idempotency::Token);
    let (id, attempt) = bench.begin_create();
    let actions = bench.answer_create(id, Class::Ambiguous);
    let [Action::LookUp { id: lookup, attempt: looked_up }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(looked_up, attempt);
    let actions = bench.handle(|pod, around| pod.looked_up(around, lookup, true));
    assert!(matches!(actions[..], [Action::Create { attempt: 1, .. }]), "the same token: {actions:?}");
}

#[test]
fn a_create_that_cannot_be_repeated_safely_waits_until_the_lists_are_up_to_date() {
    let mut bench = Bench::new(Idempotency::None);
    let (id, _) = bench.begin_create();
    let mut actions = bench.answer_create(id, Class::Ambiguous);
    let ended = bench.now;
    while let [Action::LookUp { id, .. }] = actions[..] {
        actions = bench.handle(|pod, around| pod.looked_up(around, id, true));
        bench.now += Duration::from_secs(3);
        if actions.is_empty() {
            actions = bench.handle(PodGroups::tick);
        }
    }
    assert!(matches!(&actions[..], [Action::Settle(Request::Create, Err(_)), ..]), "{actions:?}");
    assert!(bench.now >= ended + CONSISTENCY);
}

#[test]
fn a_create_whose_answer_is_lost_after_its_group_was_seen_is_done() {
    for class in [Class::Ambiguous, Class::Conflict] {
        let mut bench = Bench::new(Idempotency::Token);
        let (id, attempt) = bench.begin_create();
        bench.handle(|pod, around| {
            pod.sighted(around, attempt, observed("a", 1), false);
        });
        let actions = bench.answer_create(id, class);
        assert_eq!(actions, [Action::Settle(Request::Create, Ok(()))]);
    }
}

#[test]
fn an_incomplete_lookup_proves_nothing() {
    let mut bench = Bench::new(Idempotency::Token);
    let (id, _) = bench.begin_create();
    let actions = bench.answer_create(id, Class::Ambiguous);
    let [Action::LookUp { id: lookup, .. }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(bench.handle(|pod, around| pod.looked_up(around, lookup, false)), []);
    assert!(matches!(bench.pod.creation(), Creation::InDoubt(_)));
}

#[test]
fn a_pod_in_doubt_is_not_deleted_before_its_group_is_known() {
    let mut bench = Bench::new(Idempotency::Token);
    let (id, _) = bench.begin_create();
    let actions = bench.answer_create(id, Class::Ambiguous);
    let [Action::LookUp { id: lookup, .. }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(bench.handle(|pod, around| pod.delete(around, grace())), []);
    let actions = bench.handle(|pod, around| {
        pod.sighted(around, 1, observed("a", 1), false);
        pod.looked_up(around, lookup, true);
    });
    let deletes = |action: &&Action| matches!(action, Action::Delete { .. });
    assert_eq!(actions.iter().filter(deletes).count(), 1, "{actions:?}");
}

#[test]
fn a_create_that_was_repeated_can_still_make_a_group_after_the_pod_was_deleted() {
    let mut bench = Bench::new(Idempotency::Token);
    let (id, _) = bench.begin_create();
    let actions = bench.answer_create(id, Class::Ambiguous);
    let [Action::LookUp { id: lookup, .. }] = actions[..] else { panic!("{actions:?}") };
    bench.handle(|pod, around| pod.looked_up(around, lookup, true));
    let actions = bench.handle(|pod, around| pod.delete(around, grace()));
    let settled = actions.iter().any(|action| matches!(action, Action::Settle(Request::Delete, _)));
    assert!(!settled && !bench.pod.is_absent(true, true), "{actions:?}");
}

#[test]
fn a_queued_create_of_a_deleted_pod_is_not_made() {
    let mut bench = Bench::new(Idempotency::Token);
    let actions = bench.handle(PodGroups::create);
    let [Action::Create { id, .. }] = actions[..] else { panic!("{actions:?}") };
    bench.handle(|pod, around| pod.delete(around, grace()));
    assert!(!bench.pod.start(id, true));
}

#[test]
fn no_write_begins_in_a_process_that_lost_the_node() {
    let mut bench = Bench::new(Idempotency::Token);
    let actions = bench.handle(PodGroups::create);
    let [Action::Create { id, .. }] = actions[..] else { panic!("{actions:?}") };
    assert!(!bench.pod.start(id, false));
    bench.leading = false;
    let actions = bench.handle(|pod, around| pod.abandoned(around, id));
    assert!(matches!(&actions[..], [Action::Settle(Request::Create, Err(_))]), "{actions:?}");
}

#[test]
fn nothing_is_created_before_all_groups_of_the_cloud_are_known() {
    let mut bench = Bench::new(Idempotency::Token);
    bench.synced = false;
    assert_eq!(bench.handle(PodGroups::create), []);
    let actions = bench.handle(|pod, around| {
        pod.sighted(around, 1, observed("a", 1), false);
        around.synced = true;
        pod.tick(around);
    });
    assert_eq!(actions, [Action::Settle(Request::Create, Ok(()))], "it is adopted");
}

#[test]
fn a_young_group_is_never_missing() {
    let mut bench = Bench::new(Idempotency::Token);
    bench.run_group();
    bench.now -= Duration::from_secs(1);
    for _ in 0..10 {
        assert_eq!(bench.handle(|pod, around| pod.absent(around, "a", true)), []);
    }
}

#[test]
fn absence_is_believed_when_seen_twice_and_then_confirmed_by_id() {
    let mut bench = Bench::new(Idempotency::Token);
    bench.run_group();
    for by_id in [false, false, false] {
        assert_eq!(bench.handle(|pod, around| pod.absent(around, "a", by_id)), []);
    }
    // A sighting starts all over.
    bench.handle(|pod, around| {
        pod.sighted(around, 1, observed("a", 1), false);
    });
    bench.handle(|pod, around| pod.absent(around, "a", false));
    assert_eq!(bench.handle(|pod, around| pod.absent(around, "a", true)), []);
    let actions = bench.handle(|pod, around| pod.absent(around, "a", true));
    assert_eq!(actions, [Action::Gone(group("a"))]);
}

#[test]
fn of_two_groups_the_older_stays_once_both_were_seen_by_their_ids() {
    let mut bench = Bench::new(Idempotency::None);
    bench.run_group();
    bench.handle(|pod, around| {
        pod.sighted(around, 1, observed("a", 1), false);
    });
    let second = |bench: &mut Bench, by_id| {
        bench.handle(|pod, around| {
            pod.sighted(around, 1, observed("b", 2), by_id);
        })
    };
    assert_eq!(second(&mut bench, true), [], "a list may show a group that is gone");
    let actions = bench.handle(|pod, around| {
        pod.sighted(around, 1, observed("a", 1), true);
    });
    let duplicate = Action::Duplicate { kept: group("a"), removed: group("b") };
    assert!(actions.contains(&duplicate), "{actions:?}");
    assert!(matches!(&actions[1], Action::Delete { group: removed, .. } if *removed == group("b")));
}

#[test]
fn a_delete_of_a_duplicate_that_failed_is_repeated_only_after_both_were_seen_again() {
    let mut bench = Bench::new(Idempotency::None);
    bench.run_group();
    let see = |bench: &mut Bench, id: &'static str, created: i64| {
        bench.handle(|pod, around| {
            pod.sighted(around, 1, observed(id, created), true);
        })
    };
    see(&mut bench, "b", 2);
    let actions = see(&mut bench, "a", 1);
    let Action::Delete { id, .. } = actions[1] else { panic!("{actions:?}") };
    assert!(bench.pod.start(id, true));
    let error = CallError::new(Class::Conflict, "a fault");
    bench.handle(|pod, around| pod.deleted(around, id, Err(error)));
    bench.now += DELETE_RETRY;
    assert_eq!(bench.handle(PodGroups::tick), [], "the older one may have vanished meanwhile");
    assert_eq!(see(&mut bench, "b", 2), [], "the older one was not seen again");
    let actions = see(&mut bench, "a", 1);
    assert!(
        matches!(&actions[..], [Action::Delete { group: removed, .. }] if *removed == group("b")),
        "{actions:?}"
    );
}

#[test]
fn a_duplicate_that_stays_although_its_delete_was_accepted_is_deleted_again() {
    let mut bench = Bench::new(Idempotency::None);
    bench.run_group();
    let see = |bench: &mut Bench, id: &'static str, created: i64| {
        bench.handle(|pod, around| {
            pod.sighted(around, 1, observed(id, created), true);
        })
    };
    see(&mut bench, "b", 2);
    let actions = see(&mut bench, "a", 1);
    let Action::Delete { id, .. } = actions[1] else { panic!("{actions:?}") };
    assert!(bench.pod.start(id, true));
    bench.handle(|pod, around| pod.deleted(around, id, Ok(Deletion::Accepted)));
    bench.now += DELETE_AGAIN;
    assert_eq!(bench.pod.deadline(true), Some(bench.now));
    bench.handle(PodGroups::tick);
    see(&mut bench, "b", 2);
    let actions = see(&mut bench, "a", 1);
    assert!(
        matches!(&actions[..], [Action::Delete { group: removed, .. }] if *removed == group("b")),
        "{actions:?}"
    );
}

#[test]
fn answers_that_asked_for_a_group_never_prove_alone_that_it_is_gone() {
    let mut bench = Bench::new(Idempotency::Token);
    bench.run_group();
    for _ in 0..10 {
        assert_eq!(bench.handle(|pod, around| pod.absent(around, "a", true)), []);
        assert!(bench.pod.groups()[0].wants_list());
    }
    assert_eq!(bench.handle(|pod, around| pod.absent(around, "a", false)), []);
    assert!(!bench.pod.groups()[0].wants_list());
}

#[test]
fn no_stock_in_one_place_is_tried_in_the_next_with_another_token() {
    let mut bench = Bench::new(Idempotency::Token);
    let (id, _) = bench.begin_create();
    let error = CallError::new(Class::OutOfStock, "no stock in zone a");
    let actions = bench.handle(|pod, around| pod.created(around, id, Err(error), true));
    let [Action::Create { id, attempt: 2 }] = actions[..] else { panic!("{actions:?}") };
    assert!(bench.pod.start(id, true));
    let actions = bench.answer_create(id, Class::OutOfStock);
    assert!(
        matches!(&actions[..], [Action::Settle(Request::Create, Err(error))] if error.class == Class::OutOfStock)
    );
}

#[test]
fn a_delete_of_a_young_group_that_the_cloud_does_not_find_is_repeated() {
    let mut bench = Bench::new(Idempotency::Token);
    bench.run_group();
    bench.now -= CONSISTENCY;
    let actions = bench.handle(|pod, around| pod.delete(around, grace()));
    let [Action::Delete { id, .. }] = actions[..] else { panic!("{actions:?}") };
    assert!(bench.pod.start(id, true));
    let actions = bench.handle(|pod, around| pod.deleted(around, id, Ok(Deletion::Gone)));
    assert!(matches!(&actions[..], [Action::Settle(Request::Delete, Err(_))]), "{actions:?}");
    let actions = bench.handle(|pod, around| pod.delete(around, grace()));
    assert!(matches!(&actions[..], [Action::Delete { .. }]), "{actions:?}");
}
