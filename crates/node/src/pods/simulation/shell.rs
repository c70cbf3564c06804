//! The part of the shell: hands events to workers, makes their calls, and compares from time to time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::RngExt as _;
use vk_kube::{Error as ApiError, Kind as ApiKind};
use vk_provider::{
    PodRef,
    error::Kind,
    resolve::{Reference, ReferenceKind},
};
use vk_supervisor::Backoff;

use super::{Scheduled, World, server, server::Fate};
use crate::{
    now::Now,
    pods::{
        admission::{Checks, Ledger},
        freshness::Freshness,
        leftovers::Leftovers,
        missed::Missed,
        worker::{Action, Call, Event, Policy, Refusal, Worker, Write},
    },
};

/// One process.
pub(super) struct Shell {
    pub(super) workers: BTreeMap<Arc<str>, Slot>,
    pub(super) policy: Arc<Policy>,
    pub(super) listed: bool,
    /// The API server's pods were listed once.
    pub(super) synced: bool,
    pub(super) leftovers: Leftovers,
    pub(super) missed: Missed,
    pub(super) compare_backoff: Backoff,
    pub(super) ledger: Ledger,
    waiting: BTreeSet<Arc<str>>,
}

pub(super) struct Slot {
    pub(super) worker: Worker,
    timer: Option<Duration>,
    /// The lifecycle call under way.
    pub(super) call: Option<u64>,
    pub(super) freshness: Freshness,
}

/// A lifecycle call on the backend.
pub(super) struct UnderWay {
    pub(super) pod: PodRef,
    pub(super) hangs: bool,
    generation: u64,
    work: Work,
    /// What it was answered, once it has taken effect.
    effect: Option<Result<(), Refusal>>,
    /// The error that the caller sees whatever became of it.
    error: Option<Refusal>,
    /// Whether it takes effect at all.
    effective: bool,
}

enum Work {
    Create(Arc<Pod>),
    Update(Arc<Pod>),
    Delete(Duration),
}

impl UnderWay {
    pub(super) fn is_delete(&self) -> bool {
        matches!(self.work, Work::Delete(_))
    }
}

impl Shell {
    pub(super) fn new(poll: Option<Duration>, checks: Checks) -> Self {
        let policy = Policy { poll, checks, host_ips: vec!["10.0.0.1".to_owned()], ..Policy::default() };
        Self {
            workers: BTreeMap::new(),
            policy: Arc::new(policy),
            listed: false,
            synced: false,
            leftovers: Leftovers::default(),
            missed: Missed::default(),
            compare_backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            ledger: Ledger::new(checks, None),
            waiting: BTreeSet::new(),
        }
    }

    pub(super) fn uids(&self) -> Vec<Arc<str>> {
        self.workers.keys().cloned().collect()
    }

    pub(super) fn precedence(&self, uid: &str) -> Option<(bool, Option<jiff::Timestamp>)> {
        self.workers.get(uid).map(|slot| slot.worker.precedence())
    }

    pub(super) fn worker(&mut self, pod: PodRef) -> Option<Box<PodStatus>> {
        if self.workers.contains_key(&pod.uid) {
            return None;
        }
        let claimed = self.leftovers.claim(&pod.uid);
        let uid = Arc::clone(&pod.uid);
        let worker = Worker::new(pod, Arc::clone(&self.policy), self.listed && claimed.is_none());
        self.workers.insert(uid, Slot { worker, timer: None, call: None, freshness: Freshness::default() });
        claimed
    }
}

impl World {
    pub(super) fn tell(&mut self, uid: &Arc<str>, event: Event) {
        let wall = server::wall(self.now) + self.clock_error;
        let now = Now { elapsed: self.now, wall };
        let Some(slot) = self.shell.workers.get_mut(uid) else { return };
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} {uid} <- {}", self.now, event_words(&event)));
        }
        slot.freshness.note(self.now, &event);
        let actions = slot.worker.handle(now, event, &mut self.worker_rng);
        let pod = slot.worker.pod().clone();
        let deadline = slot.worker.deadline(self.now);
        if deadline != slot.timer {
            slot.timer = deadline;
            if let Some(deadline) = deadline {
                let generation = self.generation;
                self.schedule(deadline.max(self.now), Scheduled::Wake(generation, Arc::clone(uid)));
            }
        }
        for action in actions {
            self.note(|| format!("{uid} -> {}", action_words(&action)));
            self.act(&pod, action);
        }
    }

    pub(super) fn wake(&mut self, uid: &Arc<str>) {
        let now = self.now;
        let due = |slot: &mut Slot| slot.timer.take_if(|timer| *timer <= now).is_some();
        if self.shell.workers.get_mut(uid).is_some_and(due) {
            self.tell(uid, Event::Tick);
        }
    }

    fn act(&mut self, pod: &PodRef, action: Action) {
        let generation = self.generation;
        match action {
            Action::Create(desired) => self.call(pod, Work::Create(desired)),
            Action::Update(desired) => self.call(pod, Work::Update(desired)),
            Action::Delete { grace, .. } => {
                if let Some(wanted) = self.server.by_uid(&pod.uid) {
                    let expires = server::fate(wanted) == Fate::Expires;
                    assert!(expires || !self.server.wants(&pod.uid), "{pod} is wanted and is stopped");
                }
                self.call(pod, Work::Delete(grace));
            }
            Action::Cancel => {
                if let Some(slot) = self.shell.workers.get_mut(&pod.uid)
                    && let Some(id) = slot.call.take()
                {
                    slot.freshness.cancelled(self.now);
                    self.abandon(id);
                }
            }
            Action::Look => {
                self.backend.looks += 1;
                let fails = self.storm() && self.rng.random_bool(0.2);
                let answer = if fails { Err(unavailable()) } else { self.backend.status(pod, self.now) };
                let delay = self.delay();
                let tell = Scheduled::Tell(generation, Arc::clone(&pod.uid), Event::Looked(answer));
                self.later(delay, tell);
            }
            Action::Await(_) => {
                // It appears soon, or has been there all the time.
                let delay = self.delay();
                self.later(delay, Scheduled::Tell(generation, Arc::clone(&pod.uid), Event::Appeared));
            }
            Action::Write(write) => self.write(pod, write),
            Action::Announce(..) | Action::Tell(_) => {}
            Action::Admit { pod: desired, before } => {
                let verdict = self.shell.ledger.admit(&pod.uid, &desired, before, &self.node);
                self.tell(&pod.uid, Event::Judged(verdict));
            }
            Action::Resize(desired) => {
                let answer = self.shell.ledger.resize(&pod.uid, &desired, &self.node);
                if answer.is_err() {
                    self.shell.waiting.insert(Arc::clone(&pod.uid));
                }
                self.tell(&pod.uid, Event::Sized(answer));
            }
            Action::Claim(desired) => self.shell.ledger.claim(&pod.uid, &desired),
            Action::Release => self.release(&pod.uid),
            Action::Forget => {
                self.release(&pod.uid);
                self.shell.workers.remove(&pod.uid);
            }
        }
    }

    fn release(&mut self, uid: &Arc<str>) {
        self.shell.waiting.remove(uid);
        if self.shell.ledger.release(uid) {
            for uid in std::mem::take(&mut self.shell.waiting) {
                self.tell(&uid, Event::Room);
            }
        }
    }

    /// A lifecycle call begins. In the storm it may fail before or after it took effect, be slow, or hang.
    fn call(&mut self, pod: &PodRef, work: Work) {
        let clash = self.calls.values().any(|call| call.pod.uid == pod.uid);
        assert!(!clash, "two lifecycle calls on {pod} at a time");
        self.backend.lifecycle_calls += 1;
        let fails = self.storm() && self.rng.random_bool(0.3);
        let hangs = self.storm() && self.rng.random_bool(0.1);
        let missing = Reference::new(ReferenceKind::Secret, "default", "missing");
        let slow = Kind::Throttled { after: Some(Duration::from_secs(2)) };
        let kinds = [Kind::Unavailable, Kind::Internal, slow, Kind::Unresolved(missing)];
        let kind = kinds[self.rng.random_range(0..kinds.len())].clone();
        let error = (fails || hangs).then(|| Refusal { message: format!("{kind:?}, as scheduled"), kind });
        let effective = error.is_none() || self.rng.random_bool(0.5);
        let generation = self.generation;
        let call = UnderWay { pod: pod.clone(), hangs, generation, work, effect: None, error, effective };
        let id = self.sequence;
        self.calls.insert(id, call);
        if self.rng.random_bool(0.5) {
            self.take_effect(id);
        }
        if !hangs {
            let delay = self.delay();
            self.later(delay, Scheduled::CallEnd(id));
        }
        // The queue numbers what is scheduled, and calls are numbered with it.
        self.sequence += 1;
        if let Some(slot) = self.shell.workers.get_mut(&pod.uid) {
            slot.call = Some(id);
        }
    }

    fn take_effect(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if !call.effective || call.effect.is_some() {
            return;
        }
        let answer = match &call.work {
            Work::Create(pod) => self.backend.create(pod, self.now, &mut self.rng),
            Work::Update(pod) => self.backend.update(pod, self.now),
            Work::Delete(grace) => self.backend.delete(&call.pod, *grace, self.now),
        };
        call.effect = Some(answer);
        let uid = Arc::clone(&call.pod.uid);
        self.follow(&uid);
        self.nudge(&uid);
    }

    pub(super) fn call_ends(&mut self, id: u64) {
        self.take_effect(id);
        let Some(call) = self.calls.remove(&id) else { return };
        if call.generation != self.generation {
            return;
        }
        let kind = match call.work {
            Work::Create(_) => Call::Create,
            Work::Update(_) => Call::Update,
            Work::Delete(_) => Call::Delete,
        };
        let answer = call.error.map_or_else(|| call.effect.unwrap_or(Ok(())), Err);
        if let Some(slot) = self.shell.workers.get_mut(&call.pod.uid) {
            slot.call = None;
        }
        self.tell(&call.pod.uid, Event::Called(kind, answer));
    }

    /// Nobody waits for the call any more; it may have taken effect all the same.
    pub(super) fn abandon(&mut self, id: u64) {
        if self.rng.random_bool(0.5) {
            self.take_effect(id);
        }
        self.calls.remove(&id);
    }

    fn write(&mut self, pod: &PodRef, write: Write) {
        let fails = self.storm() && self.rng.random_bool(0.3);
        let effective = !fails || self.rng.random_bool(0.5);
        let mut answer = Ok(None);
        if effective {
            answer = match &write {
                Write::Status(patch) => {
                    let body = serde_json::to_value(patch).expect("a patch");
                    self.server.patch_status(&pod.name, &body).map(Some)
                }
                Write::Remove => {
                    let known = self.server.by_uid(&pod.uid).is_some();
                    let runs = self.backend.runs(&pod.uid, self.now);
                    assert!(!known || !runs, "{pod} leaves the API server and runs");
                    self.server.remove(&pod.name, &pod.uid, self.now).map(|()| None)
                }
            };
        }
        if fails {
            let kinds = [ApiKind::Timeout, ApiKind::Server, ApiKind::Unreachable, ApiKind::Throttled];
            answer = Err(ApiError::new(kinds[self.rng.random_range(0..kinds.len())], "as scheduled"));
        }
        let (generation, delay) = (self.generation, self.delay());
        let event = Event::Wrote(write, answer);
        self.later(delay, Scheduled::Tell(generation, Arc::clone(&pod.uid), event));
    }
}

fn unavailable() -> Refusal {
    Refusal { kind: Kind::Unavailable, message: "as scheduled".to_owned() }
}

fn pod_words(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let (version, grace) = (meta.resource_version.as_deref(), meta.deletion_grace_period_seconds);
    format!("version {version:?}, {}, grace {grace:?}", server::phase(pod))
}

fn status_words(status: &PodStatus) -> String {
    let states = status.container_statuses.iter().flatten().map(|one| {
        let state = one.state.clone().unwrap_or_default();
        let words = [("waiting", state.waiting.is_some()), ("running", state.running.is_some())];
        words.into_iter().find(|(_, is)| *is).map_or("terminated", |(word, _)| word)
    });
    format!("{:?} {:?}", status.phase, states.collect::<Vec<_>>())
}

fn event_words(event: &Event) -> String {
    match event {
        Event::Desired(pod) => format!("Desired {}", pod_words(pod)),
        Event::Listed(Some(status)) => format!("Listed {}", status_words(status)),
        Event::Reported(status) => format!("Reported {}", status_words(status)),
        Event::Looked(Ok(status)) => format!("Looked {}", status_words(status)),
        Event::Wrote(write, Ok(Some(pod))) => format!("Wrote {}: {}", write_words(write), pod_words(pod)),
        Event::Wrote(write, answer) => format!("Wrote {}: {answer:?}", write_words(write)),
        other => format!("{other:?}"),
    }
}

fn write_words(write: &Write) -> String {
    match write {
        Write::Status(patch) => format!("status {:?}", patch.status().phase),
        Write::Remove => "removal".to_owned(),
    }
}

fn action_words(action: &Action) -> String {
    match action {
        Action::Create(pod) => format!("Create {}", pod_words(pod)),
        Action::Update(pod) => format!("Update {}", pod_words(pod)),
        Action::Delete { grace, .. } => format!("Delete within {grace:?}"),
        Action::Write(write) => format!("write {}", write_words(write)),
        other => format!("{other:?}"),
    }
}
