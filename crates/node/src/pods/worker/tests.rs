//! A worker with a clock of our own: what would take hours, or an unlucky moment.

mod refused_status;
mod trial;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rand::SeedableRng as _;
use serde_json::{Value, json};
use vk_provider::error::Kind;

use super::*;
use crate::pods::{
    admission::{Checks, requests},
    reconciler::effect::{PodWrite, ProviderCall},
    status::StatusPatch,
};

/// A worker, what it shares with others, and the ids of what it waits for.
struct Fixture {
    worker: Worker,
    policy: Policy,
    rng: StdRng,
    ids: EffectIds,
    admission: NodeAdmission,
    writes: WriteQueue,
    now: Duration,
    /// How far the node's wall clock is ahead.
    ahead: jiff::SignedDuration,
    call: Option<EffectId>,
    read: Option<EffectId>,
    write: Option<EffectId>,
}

fn pod() -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "5", "generation": 1},
        "spec": {"nodeName": "vk", "containers": [{"name": "main", "image": "example.com/app:1"}], "restartPolicy": "Always"},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn report(phase: &str, state: &Value) -> PodStatus {
    let ready = state.get("running").is_some();
    let container = json!({
        "name": "main", "image": "example.com/app:1", "imageID": "", "ready": ready, "started": ready,
        "restartCount": 0, "state": state,
    });
    serde_json::from_value(json!({"phase": phase, "podIP": "10.9.8.7", "containerStatuses": [container]}))
        .unwrap()
}

fn running() -> PodStatus {
    report("Running", &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))
}

fn unavailable() -> ProviderFailure {
    ProviderFailure { kind: Kind::Unavailable, message: "down".to_owned() }
}

impl Fixture {
    fn new() -> Self {
        Self::with(Policy::default())
    }

    /// A pod of which nobody has asked the provider yet.
    fn unlisted() -> Self {
        let worker = Worker::new(PodRef::new("default", "web", "u1"), false);
        Self { worker, ..Self::new() }
    }

    fn with(policy: Policy) -> Self {
        let mut writes = WriteQueue::default();
        writes.set_available(usize::MAX);
        Self {
            worker: Worker::new(PodRef::new("default", "web", "u1"), true),
            admission: NodeAdmission::new(policy.checks, policy.daemon_sets),
            policy,
            rng: StdRng::seed_from_u64(7),
            ids: EffectIds::default(),
            writes,
            now: Duration::ZERO,
            ahead: jiff::SignedDuration::ZERO,
            call: None,
            read: None,
            write: None,
        }
    }

    fn handle(&mut self, event: Event) -> Vec<PodEffect> {
        let wall = Timestamp::from_second(1_800_000_000).unwrap() + self.now + self.ahead;
        let mut effects = Vec::new();
        let mut cx = WorkerContext {
            now: Now { elapsed: self.now, wall },
            node: "vk",
            policy: &self.policy,
            rng: &mut self.rng,
            ids: &mut self.ids,
            admission: &mut self.admission,
            writes: &mut self.writes,
            provider_events: &ProviderEventReasons::default(),
            effects: &mut effects,
        };
        self.worker.handle(&mut cx, event);
        for effect in &effects {
            match effect {
                PodEffect::CallProvider { id, .. } => self.call = Some(*id),
                PodEffect::ReadStatus { id, .. } => self.read = Some(*id),
                PodEffect::Write { id, .. } => self.write = Some(*id),
                _ => {}
            }
        }
        effects
    }

    /// A pod that the provider has accepted.
    fn created(policy: Policy) -> Self {
        let mut fixture = Self::with(policy);
        fixture.handle(Event::Applied(pod()));
        let effects = fixture.called(Ok(()));
        assert!(has(&effects, reads));
        fixture
    }

    /// The answer to the lifecycle call in flight.
    fn called(&mut self, result: Result<(), ProviderFailure>) -> Vec<PodEffect> {
        let id = self.call.take().expect("a call in flight");
        self.handle(Event::CallCompleted(id, result))
    }

    /// The answer to the read in flight.
    fn was_read(&mut self, result: Result<PodStatus, ProviderFailure>) -> Vec<PodEffect> {
        let id = self.read.take().expect("a read in flight");
        self.handle(Event::StatusRead(id, result.map(Box::new)))
    }

    /// The answer to the write in flight.
    fn wrote(&mut self, result: Result<Option<Arc<Pod>>, ApiError>) -> Vec<PodEffect> {
        let id = self.write.take().expect("a write in flight");
        self.handle(Event::WriteCompleted(id, result))
    }

    /// Lets time pass until the worker wants something.
    fn tick(&mut self) -> Vec<PodEffect> {
        self.now = self.worker.deadline(self.now, &self.policy).expect("a deadline");
        self.handle(Event::Tick)
    }

    /// The pod as the API server would have it after this write.
    fn store(&self, patch: &StatusPatch) -> Arc<Pod> {
        let mut pod = Pod::clone(&pod());
        pod.status = Some(patch.status().clone());
        pod.metadata.resource_version = Some(format!("{}", 100 + self.now.as_secs()));
        Arc::new(pod)
    }
}

fn has(effects: &[PodEffect], wanted: fn(&PodEffect) -> bool) -> bool {
    effects.iter().any(wanted)
}

fn creates(effect: &PodEffect) -> bool {
    matches!(effect, PodEffect::CallProvider { call: ProviderCall::Create(_), .. })
}

fn reads(effect: &PodEffect) -> bool {
    matches!(effect, PodEffect::ReadStatus { .. })
}

fn grace_of(effects: &[PodEffect]) -> Option<Duration> {
    effects.iter().find_map(|effect| match effect {
        PodEffect::CallProvider { call: ProviderCall::Delete { grace, .. }, .. } => Some(*grace),
        _ => None,
    })
}

fn write_of(effects: &[PodEffect]) -> Option<Arc<StatusPatch>> {
    effects.iter().find_map(|effect| match effect {
        PodEffect::Write { write: PodWrite::Status(patch), .. } => Some(Arc::clone(patch)),
        _ => None,
    })
}

#[test]
fn the_answer_of_a_cancelled_call_is_not_taken_for_the_answer_of_the_next() {
    let mut fixture = Fixture::new();
    fixture.handle(Event::Applied(pod()));
    let create = fixture.call.take().expect("a create call");
    assert_eq!(grace_of(&fixture.handle(Event::Gone)), Some(Duration::ZERO));
    fixture.handle(Event::CallCompleted(create, Ok(())));
    assert!(!fixture.worker.is_done() && fixture.worker.may_run(), "the delete call is still in flight");
    let gone = ProviderFailure { kind: Kind::NotFound, message: "no such pod".to_owned() };
    fixture.called(Err(gone));
    assert!(fixture.worker.is_done());
}

#[test]
fn a_queued_write_is_decided_when_the_permit_comes_and_keeps_its_place_meanwhile() {
    let mut fixture = Fixture::created(Policy::default());
    fixture.writes.set_available(0);
    assert_eq!(write_of(&fixture.was_read(Ok(running()))), None);
    let failed = report("Failed", &json!({"terminated": {"exitCode": 1}}));
    assert_eq!(write_of(&fixture.handle(Event::StatusReported(Box::new(failed)))), None);
    fixture.writes.grant();
    assert_eq!(fixture.writes.next_granted().as_deref(), Some("u1"));
    let patch = write_of(&fixture.handle(Event::WritePermit)).expect("a write");
    assert_eq!(patch.status().phase.as_deref(), Some("Failed"), "the newest status is written");
    assert_eq!(fixture.writes.next_granted(), None, "the pod was queued once");
}

#[test]
fn retries_never_end_and_never_wait_longer_than_the_largest_delay() {
    let mut fixture = Fixture::new();
    let mut effects = fixture.handle(Event::Applied(pod()));
    for _ in 0..200 {
        assert!(has(&effects, creates));
        let before = fixture.now;
        fixture.called(Err(unavailable()));
        effects = fixture.tick();
        assert!(fixture.now <= before + Duration::from_secs(30));
    }
    fixture.called(Ok(()));
    assert!(!has(&fixture.handle(Event::Applied(pod())), creates));
}

#[test]
fn a_change_during_a_read_is_followed_by_another_read() {
    let mut fixture = Fixture::created(Policy::default());
    assert!(!has(&fixture.handle(Event::StatusChanged), reads), "one at a time");
    assert!(has(&fixture.was_read(Ok(running())), reads), "what was read may be older than the change");
}

#[test]
fn a_read_that_fails_is_repeated() {
    let mut fixture = Fixture::created(Policy::default());
    assert!(!has(&fixture.was_read(Err(unavailable())), reads), "not at once");
    assert!(has(&fixture.tick(), reads));
    assert!(fixture.now <= Duration::from_secs(5), "{:?}", fixture.now);
}

#[test]
fn reads_that_keep_failing_come_less_often_and_never_end() {
    let mut fixture = Fixture::created(Policy::default());
    for _ in 0..100 {
        fixture.was_read(Err(unavailable()));
        assert!(has(&fixture.tick(), reads));
    }
    // A hundred reads, at most thirty seconds and, but for the first, not much less than fifteen apart.
    assert!((1200..=3000).contains(&fixture.now.as_secs()), "{:?}", fixture.now);
}

#[test]
fn what_a_write_answers_and_the_watch_shows_is_held_once_and_as_the_watch_showed_it() {
    for watch_first in [true, false] {
        let mut fixture = Fixture::created(Policy::default());
        let patch = write_of(&fixture.handle(Event::StatusReported(Box::new(running())))).unwrap();
        let shown = fixture.store(&patch);
        let answered = Arc::new(Pod::clone(&shown));
        let applied = Event::Applied(Arc::clone(&shown));
        let id = fixture.write.take().expect("a write in flight");
        let answer = Event::WriteCompleted(id, Ok(Some(Arc::clone(&answered))));
        for event in if watch_first { [applied, answer] } else { [answer, applied] } {
            assert_eq!(write_of(&fixture.handle(event)), None, "it is there as it was written");
        }
        assert_eq!(Arc::strong_count(&answered), 1, "with the watch first: {watch_first}");
        assert!(Arc::strong_count(&shown) > 1);
    }
}

#[test]
fn a_read_does_not_undo_what_was_pushed_meanwhile() {
    let mut fixture = Fixture::created(Policy::default());
    let patch = write_of(&fixture.handle(Event::StatusReported(Box::new(running())))).unwrap();
    let stored = fixture.store(&patch);
    fixture.wrote(Ok(Some(stored)));
    let old = report("Pending", &json!({"waiting": {"reason": "ContainerCreating"}}));
    assert_eq!(write_of(&fixture.was_read(Ok(old))), None, "the read began before the push came");
}

#[test]
fn a_read_that_began_before_the_pod_was_gone_does_not_bring_it_back() {
    let mut fixture =
        Fixture::created(Policy { poll: Some(Duration::from_millis(100)), ..Policy::default() });
    let patch = write_of(&fixture.was_read(Ok(running()))).expect("a write, which takes its time");
    assert!(has(&fixture.tick(), reads));
    let mut terminating = Pod::clone(&fixture.store(&patch));
    terminating.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1_800_000_030).unwrap()));
    terminating.metadata.deletion_grace_period_seconds = Some(30);
    let terminating = Arc::new(terminating);
    let effects = fixture.handle(Event::Applied(Arc::clone(&terminating)));
    assert!(grace_of(&effects).is_some(), "{effects:?}");
    fixture.called(Err(ProviderFailure { kind: Kind::NotFound, message: "no such pod".to_owned() }));
    fixture.was_read(Ok(running()));
    let effects = fixture.wrote(Ok(Some(terminating)));
    let removes = |effect: &PodEffect| matches!(effect, PodEffect::Write { write: PodWrite::Remove, .. });
    assert!(has(&effects, removes), "the provider has said that it has nothing: {effects:?}");
}

#[test]
fn a_report_from_before_the_pod_was_lost_does_not_bring_it_back() {
    let gone = || ProviderFailure { kind: Kind::NotFound, message: "no such pod".to_owned() };
    let mut once = Pod::clone(&pod());
    once.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    let mut fixture = Fixture::new();
    fixture.handle(Event::Applied(Arc::new(once)));
    fixture.called(Ok(()));
    assert!(write_of(&fixture.was_read(Ok(running()))).is_some(), "a write, which takes its time");
    assert!(has(&fixture.handle(Event::StatusChanged), reads));
    fixture.was_read(Err(gone()));
    let effects = fixture.handle(Event::StatusReported(Box::new(running())));
    assert!(grace_of(&effects).is_none() && has(&effects, reads), "only a read can tell: {effects:?}");
    assert!(grace_of(&fixture.was_read(Err(gone()))).is_none());
    fixture.wrote(Err(ApiError::new(ApiKind::Timeout, "no")));
    let patch = write_of(&fixture.tick()).expect("another write");
    assert_eq!(patch.status().phase.as_deref(), Some("Failed"));
}

#[test]
fn a_404_that_is_not_of_the_api_server_stops_no_pod() {
    let mut fixture = Fixture::created(Policy::default());
    assert!(write_of(&fixture.was_read(Ok(running()))).is_some());
    let effects = fixture.wrote(Err(ApiError::new(ApiKind::NotServed, "default backend - 404")));
    assert!(grace_of(&effects).is_none(), "{effects:?}");
    let patch = write_of(&fixture.tick()).expect("it is tried again");
    assert_eq!(patch.status().phase.as_deref(), Some("Running"));
    let effects = fixture.wrote(Err(ApiError::new(ApiKind::NotFound, "pods \"web\" not found")));
    assert!(grace_of(&effects).is_some(), "but this is the word of the API server: {effects:?}");
}

#[test]
fn a_pod_that_is_resized_before_it_was_created_is_created_with_the_resources_of_its_admission() {
    let sized = |cpu: &str, generation: u64, status: Value| -> Arc<Pod> {
        let mut pod = json!(*pod());
        pod["metadata"]["resourceVersion"] = json!((4 + generation).to_string());
        pod["metadata"]["generation"] = json!(generation);
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        pod["status"] = status;
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let created = |effects: &[PodEffect]| {
        effects.iter().find_map(|effect| match effect {
            PodEffect::CallProvider { call: ProviderCall::Create(pod), .. } => {
                requests(pod).get("cpu").map(|cpu| cpu.to_units())
            }
            _ => None,
        })
    };
    let mut fixture = Fixture::with(Policy { checks: Checks::Full, ..Policy::default() });
    let node = json!({"status": {"allocatable": {"cpu": "4", "pods": "10"}}});
    fixture.admission.set_node(Some(Arc::new(serde_json::from_value(node).unwrap())));
    assert_eq!(created(&fixture.handle(Event::Applied(sized("1", 1, json!({}))))), Some(1));
    fixture.called(Err(unavailable()));
    fixture.now += Duration::from_secs(1);
    fixture.handle(Event::Listed { requested_at: fixture.now, status: None });
    // It is admitted since its status says that it waits.
    let waits = json!({"phase": "Pending", "startTime": "2027-01-15T08:00:00Z"});
    let mut effects = fixture.handle(Event::Applied(sized("5", 2, waits)));
    if fixture.call.is_some() && created(&effects).is_none() {
        fixture.called(Err(unavailable()));
        effects = fixture.tick();
    }
    assert_eq!(created(&effects), Some(1), "{effects:?}");
}

#[test]
fn annotations_that_come_during_a_write_are_written_next() {
    let mut fixture = Fixture::created(Policy::default());
    let set = |key: &str| Event::Annotations([(key.to_owned(), Some("x".to_owned()))].into());
    fixture.handle(set("a"));
    let patch = write_of(&fixture.was_read(Ok(running()))).unwrap();
    assert_eq!(patch.annotations(), &[("a".to_owned(), Some("x".to_owned()))].into());
    assert_eq!(write_of(&fixture.handle(set("b"))), None, "one at a time");
    let stored = fixture.store(&patch);
    let patch = write_of(&fixture.wrote(Ok(Some(stored)))).expect("another write");
    assert_eq!(patch.annotations(), &[("b".to_owned(), Some("x".to_owned()))].into());
}

#[test]
fn a_status_that_the_api_server_refuses_is_reported_once_and_retried_at_intervals() {
    let mut fixture = Fixture::created(Policy::default());
    assert!(write_of(&fixture.was_read(Ok(running()))).is_some());
    let refused = |effect: &PodEffect| matches!(effect, PodEffect::RecordEvent(record) if record.reason == "StatusRefused");
    let mut reported = 0;
    for _ in 0..100 {
        let effects = fixture.wrote(Err(ApiError::new(ApiKind::Invalid, "status.something: no")));
        assert_eq!(write_of(&effects), None, "not at once");
        reported += effects.iter().filter(|effect| refused(effect)).count();
        assert!(write_of(&fixture.tick()).is_some(), "another attempt");
    }
    assert_eq!(reported, 1);
    assert!(fixture.now > Duration::from_mins(8), "{:?}", fixture.now);
}

#[test]
fn a_delay_that_the_provider_asks_for_is_honoured() {
    let mut fixture = Fixture::new();
    fixture.handle(Event::Applied(pod()));
    let after = Duration::from_secs(77);
    let kind = Kind::Throttled { after: Some(after) };
    fixture.called(Err(ProviderFailure { kind, message: "slower".to_owned() }));
    let mut effects = Vec::new();
    while !has(&effects, creates) {
        effects = fixture.tick();
    }
    assert!(fixture.now >= after && fixture.now <= after + Duration::from_secs(1), "{:?}", fixture.now);
}

#[test]
fn a_pod_that_the_provider_blocks_has_one_event_with_the_reason() {
    let blocked =
        ProviderFailure { kind: Kind::Blocked("NameConflict"), message: "the name is taken".to_owned() };
    assert_eq!(blocked.container_reason(), "NameConflict");
    let mut fixture = Fixture::new();
    fixture.handle(Event::Applied(pod()));
    // An event about another failure does not replace that about the reason.
    fixture.called(Err(unavailable()));
    let mut reasons = Vec::new();
    for _ in 0..5 {
        while fixture.call.is_none() {
            fixture.tick();
        }
        let effects = fixture.called(Err(blocked.clone()));
        reasons.extend(effects.iter().filter_map(|effect| match effect {
            PodEffect::RecordEvent(event) => Some(event.reason.to_string()),
            _ => None,
        }));
    }
    assert_eq!(reasons, ["NameConflict"]);
}

fn deleted(grace: i64) -> Event {
    let mut terminating = Pod::clone(&pod());
    terminating.metadata.resource_version = Some("9".to_owned());
    terminating.metadata.deletion_grace_period_seconds = Some(grace);
    let time = Timestamp::from_second(1_800_000_000 + grace).unwrap();
    terminating.metadata.deletion_timestamp = Some(Time(time));
    Event::Applied(Arc::new(terminating))
}

/// A pod may leave in any state; whatever is in flight for it is cancelled, and the provider stops it.
#[test]
fn a_pod_that_is_gone_is_stopped_at_once_whatever_is_in_flight() {
    let mut fixture = Fixture::new();
    fixture.handle(Event::Applied(pod()));
    let effects = fixture.handle(Event::Gone);
    assert!(has(&effects, |effect| matches!(effect, PodEffect::Cancel(_))), "{effects:?}");
    assert_eq!(grace_of(&effects), Some(Duration::ZERO));

    let mut fixture = Fixture::created(Policy::default());
    fixture.was_read(Ok(running()));
    assert_eq!(grace_of(&fixture.handle(deleted(600))), Some(Duration::from_mins(10)));
    fixture.called(Ok(()));
    assert_eq!(grace_of(&fixture.handle(Event::Gone)), Some(Duration::ZERO));
}

/// An earlier process may have created it a moment ago, and the list of a backend may be older than that.
#[test]
fn a_pod_that_is_found_terminating_leaves_only_after_the_provider_was_told_to_delete_it() {
    let removes = |effect: &PodEffect| matches!(effect, PodEffect::Write { write: PodWrite::Remove, .. });
    let mut lists_first = Fixture::new();
    let first = lists_first.handle(deleted(30));
    let mut lists_last = Fixture::unlisted();
    assert!(!has(&lists_last.handle(deleted(30)), removes));
    let last = lists_last.handle(Event::Listed { requested_at: lists_last.now, status: None });
    for (mut fixture, effects) in [(lists_first, first), (lists_last, last)] {
        assert!(grace_of(&effects).is_some() && !has(&effects, removes), "{effects:?}");
        let gone = ProviderFailure { kind: Kind::NotFound, message: "none".to_owned() };
        let effects = fixture.called(Err(gone));
        assert!(write_of(&effects).is_some() || has(&effects, removes), "{effects:?}");
    }
}

/// The API server writes a deletionTimestamp in whole seconds, which for a short grace period can be most of it.
#[test]
fn a_grace_period_is_not_shortened_by_the_fraction_of_a_second_that_its_timestamp_lacks() {
    let mut fixture = Fixture::created(Policy::default());
    fixture.was_read(Ok(running()));
    // A second of grace, asked for 900 milliseconds after the full second.
    fixture.now = Duration::from_millis(900);
    assert_eq!(grace_of(&fixture.handle(deleted(1))), Some(Duration::from_secs(1)));
}

#[test]
fn a_node_whose_clock_is_ahead_kills_nobody_early() {
    let mut fixture = Fixture::created(Policy::default());
    fixture.was_read(Ok(running()));
    fixture.ahead = jiff::SignedDuration::from_secs(31);
    assert_eq!(grace_of(&fixture.handle(deleted(30))), Some(Duration::from_secs(30)));
}

#[test]
fn a_restart_does_not_renew_the_grace_of_a_pod_that_it_finds_terminating() {
    let mut fixture = Fixture::unlisted();
    fixture.now = Duration::from_secs(20);
    fixture.handle(deleted(30));
    let effects =
        fixture.handle(Event::Listed { requested_at: fixture.now, status: Some(Box::new(running())) });
    assert_eq!(grace_of(&effects), Some(Duration::from_secs(11)), "{effects:?}");
}
