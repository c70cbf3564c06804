//! What would take hours, or an unlucky moment, with a clock of our own.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use vk_node::{
    now::Now,
    pods::{
        Policy,
        admission::{Checks, Verdict, requests},
        status::StatusPatch,
        worker::{Action, Call, Event, Refusal, Worker, Write},
    },
};
use vk_provider::{PodRef, error::Kind};

use super::puppet::{report, running};

struct Table {
    worker: Worker,
    rng: StdRng,
    now: Duration,
}

fn pod() -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "5", "generation": 1},
        "spec": {"containers": [{"name": "main", "image": "example.com/app:1"}], "restartPolicy": "Always"},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

impl Table {
    fn new() -> Self {
        Self::with(Policy::default())
    }

    fn with(policy: Policy) -> Self {
        let reference = PodRef::new("default", "web", "u1");
        let worker = Worker::new(reference, Arc::new(policy), true);
        Self { worker, rng: StdRng::seed_from_u64(7), now: Duration::ZERO }
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let wall = Timestamp::from_second(1_800_000_000).unwrap() + self.now;
        self.worker.handle(Now { elapsed: self.now, wall }, event, &mut self.rng)
    }

    /// Lets the time pass until the worker wants something.
    fn ring(&mut self) -> Vec<Action> {
        self.now = self.worker.deadline(self.now).expect("something is to come");
        self.tell(Event::Tick)
    }

    /// The pod as the API server would have it after this write.
    fn store(&mut self, patch: &StatusPatch) -> Arc<Pod> {
        let mut pod = Pod::clone(&pod());
        pod.status = Some(patch.status().clone());
        pod.metadata.resource_version = Some(format!("{}", 100 + self.now.as_secs()));
        Arc::new(pod)
    }
}

fn has(actions: &[Action], wanted: fn(&Action) -> bool) -> bool {
    actions.iter().any(wanted)
}

fn creates(action: &Action) -> bool {
    matches!(action, Action::Create(_))
}

fn looks(action: &Action) -> bool {
    matches!(action, Action::Look)
}

fn write_of(actions: &[Action]) -> Option<Box<StatusPatch>> {
    actions.iter().find_map(|action| match action {
        Action::Write(Write::Status(patch)) => Some(patch.clone()),
        _ => None,
    })
}

#[test]
fn retries_never_end_and_never_wait_longer_than_the_cap() {
    let mut table = Table::new();
    let mut actions = table.tell(Event::Desired(pod()));
    for _ in 0..200 {
        assert!(has(&actions, creates));
        let refusal = Refusal { kind: Kind::Unavailable, message: "down".to_owned() };
        let before = table.now;
        table.tell(Event::Called(Call::Create, Err(refusal)));
        actions = table.ring();
        assert!(table.now <= before + Duration::from_secs(30));
    }
    table.tell(Event::Called(Call::Create, Ok(())));
    let actions = table.tell(Event::Desired(pod()));
    assert!(!has(&actions, creates));
}

#[test]
fn a_hint_that_comes_during_a_look_is_followed_by_another() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    let actions = table.tell(Event::Called(Call::Create, Ok(())));
    assert!(has(&actions, looks));
    assert!(!has(&table.tell(Event::Hint), looks), "one at a time");
    let actions = table.tell(Event::Looked(Ok(Box::new(running()))));
    assert!(has(&actions, looks), "what was seen may be older than the hint");
}

#[test]
fn a_look_that_fails_is_repeated() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    let refusal = Refusal { kind: Kind::Unavailable, message: "down".to_owned() };
    let actions = table.tell(Event::Looked(Err(refusal)));
    assert!(!has(&actions, looks), "not at once");
    assert!(has(&table.ring(), looks));
    assert!(table.now <= Duration::from_secs(5), "{:?}", table.now);
}

#[test]
fn looks_that_keep_failing_come_less_often_and_never_end() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    for _ in 0..100 {
        let refusal = Refusal { kind: Kind::Unavailable, message: "down".to_owned() };
        table.tell(Event::Looked(Err(refusal)));
        assert!(has(&table.ring(), looks));
    }
    // A hundred looks, at most thirty seconds and, but for the first, not much less than fifteen apart.
    assert!((1200..=3000).contains(&table.now.as_secs()), "{:?}", table.now);
}

#[test]
fn what_a_write_answers_and_the_watch_shows_is_held_once_and_as_the_watch_showed_it() {
    for watch_first in [true, false] {
        let mut table = Table::new();
        table.tell(Event::Desired(pod()));
        table.tell(Event::Called(Call::Create, Ok(())));
        let patch = write_of(&table.tell(Event::Reported(Box::new(running())))).unwrap();
        let shown = table.store(&patch);
        let answered = Arc::new(Pod::clone(&shown));
        let sight = Event::Desired(Arc::clone(&shown));
        let answer = Event::Wrote(Write::Status(patch), Ok(Some(Arc::clone(&answered))));
        for event in if watch_first { [sight, answer] } else { [answer, sight] } {
            assert_eq!(write_of(&table.tell(event)), None, "it is there as it was written");
        }
        assert_eq!(Arc::strong_count(&answered), 1, "with the watch first: {watch_first}");
        assert!(Arc::strong_count(&shown) > 1);
    }
}

#[test]
fn a_look_does_not_undo_what_was_pushed_meanwhile() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    let actions = table.tell(Event::Reported(Box::new(running())));
    let patch = write_of(&actions).unwrap();
    let stored = table.store(&patch);
    table.tell(Event::Wrote(Write::Status(patch), Ok(Some(stored))));
    let old = report("Pending", &json!({"waiting": {"reason": "ContainerCreating"}}), 0);
    let actions = table.tell(Event::Looked(Ok(Box::new(old))));
    assert_eq!(write_of(&actions), None, "the look began before the push came");
}

#[test]
fn a_look_that_began_before_the_pod_was_gone_does_not_bring_it_back() {
    let mut table = Table::with(Policy { poll: Some(Duration::from_millis(100)), ..Policy::default() });
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    let patch =
        write_of(&table.tell(Event::Looked(Ok(Box::new(running()))))).expect("a write, which takes its time");
    assert!(has(&table.ring(), looks));
    let mut ending = Pod::clone(&table.store(&patch));
    ending.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1_800_000_030).unwrap()));
    ending.metadata.deletion_grace_period_seconds = Some(30);
    let ending = Arc::new(ending);
    let actions = table.tell(Event::Desired(Arc::clone(&ending)));
    assert!(has(&actions, |action| matches!(action, Action::Delete { .. })), "{actions:?}");
    let gone = Refusal { kind: Kind::NotFound, message: "no such pod".to_owned() };
    table.tell(Event::Called(Call::Delete, Err(gone)));
    table.tell(Event::Looked(Ok(Box::new(running()))));
    let actions = table.tell(Event::Wrote(Write::Status(patch), Ok(Some(ending))));
    let removes = |action: &Action| matches!(action, Action::Write(Write::Remove));
    assert!(has(&actions, removes), "the backend has said that there is nothing: {actions:?}");
}

#[test]
fn a_pod_that_is_to_be_larger_before_it_was_made_comes_in_the_size_that_it_was_admitted_with() {
    let sized = |cpu: &str, generation: u64, status: Value| -> Arc<Pod> {
        let mut pod = json!(*pod());
        pod["metadata"]["resourceVersion"] = json!((4 + generation).to_string());
        pod["metadata"]["generation"] = json!(generation);
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        pod["status"] = status;
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let cpu = |pod: &Pod| requests(pod).get("cpu").map(|cpu| cpu.to_units());
    let mut table = Table::with(Policy { checks: Checks::Full, ..Policy::default() });
    let actions = table.tell(Event::Desired(sized("1", 1, json!({}))));
    assert!(matches!(&actions[..], [Action::Admit { before: false, .. }]), "{actions:?}");
    assert!(has(&table.tell(Event::Judged(Verdict::Admitted)), creates));
    let refusal = Refusal { kind: Kind::Unavailable, message: "down".to_owned() };
    table.tell(Event::Called(Call::Create, Err(refusal)));
    table.tell(Event::Listed(None));
    // It has a place since it was written down that it waits.
    let waits = json!({"phase": "Pending", "startTime": "2027-01-15T08:00:00Z"});
    let mut actions = table.tell(Event::Desired(sized("5", 2, waits)));
    if let Some(Action::Admit { pod, .. }) = actions.first() {
        assert_eq!(cpu(pod), Some(1), "it was never asked whether there is room for more");
        actions = table.tell(Event::Judged(Verdict::Admitted));
    }
    let made = actions.iter().find_map(|action| match action {
        Action::Create(pod) => cpu(pod),
        _ => None,
    });
    assert_eq!(made, Some(1));
}

#[test]
fn annotations_that_come_during_a_write_are_written_next() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    let set = |key: &str| Event::Annotations([(key.to_owned(), Some("x".to_owned()))].into());
    table.tell(set("a"));
    let patch = write_of(&table.tell(Event::Looked(Ok(Box::new(running()))))).unwrap();
    assert_eq!(patch.annotations(), &[("a".to_owned(), Some("x".to_owned()))].into());
    assert_eq!(write_of(&table.tell(set("b"))), None, "one at a time");
    let stored = table.store(&patch);
    let actions = table.tell(Event::Wrote(Write::Status(patch), Ok(Some(stored))));
    let patch = write_of(&actions).expect("another write");
    assert_eq!(patch.annotations(), &[("b".to_owned(), Some("x".to_owned()))].into());
}

#[test]
fn a_status_that_the_api_server_refuses_is_told_once_and_tried_seldom() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    let mut patch = write_of(&table.tell(Event::Looked(Ok(Box::new(running()))))).unwrap();
    let mut told = 0;
    for _ in 0..100 {
        let error = vk_kube::Error::new(vk_kube::Kind::Invalid, "status.something: no");
        let actions = table.tell(Event::Wrote(Write::Status(patch), Err(error)));
        assert_eq!(write_of(&actions), None, "not at once");
        told += actions
            .iter()
            .filter(|action| matches!(action, Action::Announce(_, reason, _) if reason == "StatusRefused"))
            .count();
        patch = write_of(&table.ring()).expect("another attempt");
    }
    assert_eq!(told, 1);
    assert!(table.now > Duration::from_mins(8), "{:?}", table.now);
}

#[test]
fn a_time_that_the_backend_asks_for_is_honoured() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    let after = Duration::from_secs(77);
    let refusal = Refusal { kind: Kind::Throttled { after: Some(after) }, message: "slower".to_owned() };
    table.tell(Event::Called(Call::Create, Err(refusal)));
    let mut actions = Vec::new();
    while !has(&actions, creates) {
        actions = table.ring();
    }
    assert!(table.now >= after && table.now <= after + Duration::from_secs(1), "{:?}", table.now);
}

/// A pod may leave in any state; whatever was under way for it ends, and the backend is told.
#[test]
fn a_pod_that_is_gone_is_stopped_at_once_whatever_was_under_way() {
    let stops = |action: &Action| matches!(action, Action::Delete { grace: Duration::ZERO, .. });
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    let actions = table.tell(Event::Gone);
    assert!(has(&actions, |action| *action == Action::Cancel) && actions.iter().any(stops), "{actions:?}");

    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    table.tell(Event::Looked(Ok(Box::new(running()))));
    let mut ending = Pod::clone(&pod());
    ending.metadata.resource_version = Some("9".to_owned());
    ending.metadata.deletion_grace_period_seconds = Some(600);
    let time = Timestamp::from_second(1_800_000_600).unwrap();
    ending.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    let actions = table.tell(Event::Desired(Arc::new(ending)));
    let graceful = |action: &Action| matches!(action, Action::Delete { grace, .. } if grace.as_secs() == 600);
    assert!(actions.iter().any(graceful), "{actions:?}");
    table.tell(Event::Called(Call::Delete, Ok(())));
    let actions = table.tell(Event::Gone);
    assert!(actions.iter().any(stops), "{actions:?}");
}

/// The API server writes a deletionTimestamp without the parts of a second, which for a short grace can be most of it.
#[test]
fn a_grace_is_not_shortened_by_the_parts_of_a_second_that_its_time_lacks() {
    let mut table = Table::new();
    table.tell(Event::Desired(pod()));
    table.tell(Event::Called(Call::Create, Ok(())));
    table.tell(Event::Looked(Ok(Box::new(running()))));
    // A second of grace, asked for 900 milliseconds after the full second.
    table.now = Duration::from_millis(900);
    let mut ending = Pod::clone(&pod());
    ending.metadata.resource_version = Some("9".to_owned());
    ending.metadata.deletion_grace_period_seconds = Some(1);
    let time = Timestamp::from_second(1_800_000_001).unwrap();
    ending.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    let actions = table.tell(Event::Desired(Arc::new(ending)));
    let whole = |action: &Action| matches!(action, Action::Delete { grace, .. } if grace.as_secs() == 1);
    assert!(actions.iter().any(whole), "{actions:?}");
}
