//! The pod controller: brings the backend to what the API server wants, and the API server to what the backend has.
//!
//! Each pod has a [`worker`] that decides, keyed by its UID. This file acts: it makes their calls, each in a task of its own,
//! waits for what may happen next, and tells the worker concerned. From time to time the provider's pods are compared with
//! the workers', so that whatever was missed is noticed.

mod acting;
pub mod admission;
mod admitting;
mod comparing;
pub mod digest;
mod events;
pub mod fingerprint;
pub mod freshness;
pub mod leftovers;
pub mod missed;
pub mod pod_store;
mod referring;
pub mod shared;
pub mod status;
pub mod surveying;
pub mod telling;
pub mod watch;
pub mod watches;
pub mod worker;
mod writing;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, PodStatus};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::watch as latest,
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tracing::{debug, warn};
use vk_kube::{Client, Recorder, event::Severity};
use vk_provider::{Changes, Error, EventKind, ObservedPod, PodChange, PodEvent, PodRef, Provider};
use vk_supervisor::{Backoff, Clock, Supervisor, task};

use self::{
    admission::Ledger,
    events::{Allowance, Events},
    freshness::Freshness,
    leftovers::Leftovers,
    missed::Missed,
    pod_store::PodStore,
    watch::{Sight, Sights},
    worker::{Event, Worker},
    writing::Turns,
};
use crate::{
    now::Now,
    resolve::{PodResolver, ResolverFactory},
};

pub use self::worker::Policy;

/// How often a provider is asked that should have pushed.
const POLL: Duration = Duration::from_secs(5);

/// How long a lifecycle call may take: a backend that pulls images in it is slow, but one that never answers is broken.
const CALL_LIMIT: Duration = Duration::from_mins(15);

/// How long a look at a pod's status, or at all pods, may take.
const LOOK_LIMIT: Duration = Duration::from_mins(1);

/// How many changes that stand in line are taken at once.
const CHUNK: usize = 256;

/// All that a pod controller needs.
pub struct Controller {
    /// The node whose pods these are.
    pub node: String,
    /// What runs them.
    pub provider: Arc<dyn Provider>,
    /// The API server.
    pub client: Client,
    /// Policies.
    pub policy: Policy,
    /// How pods arrive.
    pub sights: Sights,
    /// Where they stand for others, kept by these sights; and by what the API server answers to writes, so that a pod is held once.
    pub roll: PodStore,
    /// The Node as it was seen last, for the node's decisions about pods.
    pub facts: latest::Receiver<Option<Arc<Node>>>,
    /// What pods refer to.
    pub library: ResolverFactory,
    /// The wall clock.
    pub clock: Clock,
}

/// What comes back from a task.
enum Answer {
    /// For one worker.
    Pod(Arc<str>, Event),
    /// The provider's pods, and when the question was asked.
    Pods(Duration, Result<Vec<ObservedPod>, Error>),
    /// Whether the API server has a pod of this UID.
    Checked(PodRef, Result<bool, vk_kube::Error>),
    /// The Node as it is now, for a decision about this pod.
    Node(Arc<str>, Arc<Pod>, bool, Result<Box<Node>, vk_kube::Error>),
    /// What the API server has under the pod's name.
    Read(PodRef, Result<Box<Option<Pod>>, vk_kube::Error>),
}

struct Shell {
    node: String,
    provider: Arc<dyn Provider>,
    client: Client,
    events: Events,
    /// Reasons of events that the provider tells itself.
    own_words: telling::OwnWords,
    library: ResolverFactory,
    roll: PodStore,
    /// Waits for objects that pods need.
    waits: JoinSet<Arc<str>>,
    ledger: Ledger,
    facts: latest::Receiver<Option<Arc<Node>>>,
    /// Pods that wait for room.
    waiting: BTreeSet<Arc<str>>,
    turns: Turns,
    policy: Arc<Policy>,
    clock: Clock,
    start: Instant,
    rng: StdRng,
    /// Boxed: half of a large table is empty.
    workers: HashMap<Arc<str>, Box<Slot>>,
    timers: BTreeSet<(Duration, Arc<str>)>,
    tasks: JoinSet<Answer>,
    /// The API server's pods were listed once: before that, every pod of the provider would look like a leftover.
    synced: bool,
    /// The provider's pods were listed once: from then on a pod that is new to us is new to the provider.
    listed: bool,
    leftovers: Leftovers,
    missed: Missed,
    compare_at: Duration,
    comparing: bool,
    compare_backoff: Backoff,
    /// Seen since the API server's listing began.
    in_listing: Option<HashSet<Arc<str>>>,
}

struct Slot {
    worker: Worker,
    timer: Option<Duration>,
    /// The lifecycle call under way.
    call: Option<AbortHandle>,
    /// Answers what the pod refers to, once it was asked.
    answers: Option<PodResolver>,
    /// The wait for an object that it needs.
    wait: Option<AbortHandle>,
    freshness: Freshness,
    allowance: Allowance,
}

// === impl Controller ===

impl Controller {
    /// Runs until the supervisor stops, and then until the calls under way have ended. Pods go on without it.
    pub async fn run(mut self, supervisor: Supervisor) {
        let mut policy = self.policy.clone();
        let mut changes = match self.provider.changes() {
            Changes::Push(changes) => {
                let end = stream::iter([None]).chain(stream::pending());
                changes.ready_chunks(CHUNK).map(Some).chain(end).boxed()
            }
            Changes::Poll(period) => {
                policy.poll = Some(period);
                stream::pending().boxed()
            }
        };
        let mut sights = std::mem::replace(&mut self.sights, stream::pending().boxed()).ready_chunks(CHUNK);
        let recorder = Recorder::new(self.client.clone(), "virtual-kubelet", &self.node);
        let (events, line) = events::line();
        let (writing, guard) = (line.write(recorder, policy.events_per_second), supervisor.clone());
        supervisor.spawn(format!("pod events of {}", self.node), task::Kind::Work, async move {
            tokio::select! {
                () = writing => {}
                () = guard.stopping() => {}
            }
        });
        let mut facts = self.facts.clone();
        let mut notes = self.library.take_events();
        let mut shell = Shell {
            events,
            own_words: telling::OwnWords::default(),
            ledger: Ledger::new(policy.checks, policy.daemon_sets),
            facts: self.facts,
            waiting: BTreeSet::new(),
            turns: Turns::new(self.client.write_limiter()),
            node: self.node,
            provider: self.provider,
            client: self.client,
            library: self.library,
            roll: self.roll,
            waits: JoinSet::new(),
            policy: Arc::new(policy),
            clock: self.clock,
            start: Instant::now(),
            rng: StdRng::from_rng(&mut rand::rng()),
            workers: HashMap::new(),
            timers: BTreeSet::new(),
            tasks: JoinSet::new(),
            synced: false,
            listed: false,
            leftovers: Leftovers::default(),
            missed: Missed::default(),
            compare_at: Duration::ZERO,
            comparing: false,
            compare_backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            in_listing: None,
        };
        loop {
            shell.compare();
            let wake = shell.wake();
            tokio::select! {
                Some(batch) = sights.next() => batch.into_iter().for_each(|sight| shell.sight(sight)),
                Some(batch) = changes.next() => match batch {
                    Some(batch) => batch.into_iter().for_each(|change| shell.change(change)),
                    None => shell.poll(),
                },
                Some(answer) = shell.tasks.join_next(), if !shell.tasks.is_empty() => match answer {
                    Ok(answer) => shell.answer(answer),
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => warn!(%error, "a call on a pod panicked"),
                },
                Some(waited) = shell.waits.join_next(), if !shell.waits.is_empty() => {
                    if let Ok(uid) = waited {
                        shell.tell(&uid, Event::Appeared);
                    }
                }
                Some(note) = referring::next(&mut notes) => shell.note(note),
                () = tokio::time::sleep_until(wake) => shell.ring(),
                Ok(()) = facts.changed() => shell.room(),
                turn = shell.turns.next() => shell.take_turn(turn),
                () = supervisor.stopping() => break,
            }
        }
        while shell.tasks.join_next().await.is_some() {}
        // A provider may keep what it was given: nothing is read for it any more.
        shell.workers.values_mut().for_each(|slot| slot.forget_references());
    }
}

// === impl Shell ===

impl Shell {
    fn now(&self) -> Now {
        Now { elapsed: self.start.elapsed(), wall: self.clock.now() }
    }

    fn wake(&self) -> Instant {
        let timer = self.timers.first().map_or(Duration::MAX, |(when, _)| *when);
        let compare = if self.comparing || !self.synced { Duration::MAX } else { self.compare_at };
        self.start + timer.min(compare).min(Duration::from_hours(1) + self.start.elapsed())
    }

    fn ring(&mut self) {
        let now = self.start.elapsed();
        while let Some((_, uid)) = self.timers.first().filter(|(when, _)| *when <= now).cloned() {
            self.timers.pop_first();
            if let Some(slot) = self.workers.get_mut(&uid) {
                slot.timer = None;
            }
            self.tell(&uid, Event::Tick);
        }
    }

    fn sight(&mut self, sight: Sight) {
        match sight {
            Sight::Restarted => {
                self.in_listing = Some(HashSet::new());
                self.missed.restarted();
            }
            Sight::Seen(pod) => {
                if !pod.metadata.uid.as_deref().is_some_and(|uid| self.missed.seen(uid)) {
                    self.seen(pod);
                }
            }
            Sight::Deleted(pod) => {
                if let Some(uid) = pod.metadata.uid.as_deref() {
                    self.missed.deleted(uid);
                    self.tell(uid, Event::Gone);
                }
            }
            Sight::Surveyed(survey) => self.surveyed(&survey),
            Sight::Listed => {
                self.synced = true;
                self.missed.listed();
                let Some(seen) = self.in_listing.take() else { return };
                let gone: Vec<Arc<str>> =
                    self.workers.keys().filter(|uid| !seen.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.tell(&uid, Event::Gone);
                }
            }
        }
    }

    fn seen(&mut self, pod: Arc<Pod>) {
        let Some(reference) = PodRef::of(&pod) else { return };
        if let Some(seen) = &mut self.in_listing {
            seen.insert(Arc::clone(&reference.uid));
        }
        let uid = Arc::clone(&reference.uid);
        let claimed = self.worker(reference);
        self.tell(&uid, Event::Desired(pod));
        if claimed.is_some() {
            self.tell(&uid, Event::Listed(claimed));
        }
    }

    /// Sees to it that the pod has a worker. For a new one, answers what the last listing of the provider's pods says of it.
    fn worker(&mut self, pod: PodRef) -> Option<Box<PodStatus>> {
        if self.workers.contains_key(&pod.uid) {
            return None;
        }
        let claimed = self.leftovers.claim(&pod.uid);
        let uid = Arc::clone(&pod.uid);
        let worker = Worker::new(pod, Arc::clone(&self.policy), self.listed && claimed.is_none());
        self.workers.insert(uid, Box::new(Slot::new(worker)));
        claimed
    }

    fn change(&mut self, change: PodChange) {
        match change {
            PodChange::Refresh(pod) => self.tell(&pod.uid, Event::Hint),
            PodChange::Status(pod, status) => self.tell(&pod.uid, Event::Reported(status)),
            PodChange::Annotations(pod, annotations) => self.tell(&pod.uid, Event::Annotations(annotations)),
            PodChange::Labels(pod, labels) => self.tell(&pod.uid, Event::Labels(labels)),
            PodChange::Event(event) => {
                self.own_words.heard(&event.reason);
                self.note(event);
            }
        }
    }

    fn note(&mut self, PodEvent { pod, container, kind, reason, message }: PodEvent) {
        let path = container.map(|container| format!("spec.containers{{{container}}}"));
        self.announce(&pod, path, kind, reason, message);
    }

    /// The provider does not tell any more: it is asked.
    fn poll(&mut self) {
        warn!(period = ?POLL, "the provider's stream of changes has ended: its pods are polled");
        self.policy = Arc::new(Policy { poll: Some(POLL), ..Policy::clone(&self.policy) });
        let all: Vec<Arc<str>> = self.workers.keys().cloned().collect();
        for uid in all {
            if let Some(slot) = self.workers.get_mut(&uid) {
                slot.worker.follow(Arc::clone(&self.policy));
            }
            self.tell(&uid, Event::Hint);
        }
    }

    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Pod(uid, event) => {
                if let (Event::Called(..), Some(slot)) = (&event, self.workers.get_mut(&uid)) {
                    slot.call = None;
                }
                self.tell(&uid, event);
            }
            Answer::Pods(asked, answer) => self.listed(asked, answer),
            Answer::Checked(pod, answer) => self.checked(pod, answer),
            Answer::Node(uid, pod, before, answer) => self.fetched(&uid, &pod, before, answer),
            Answer::Read(pod, answer) => self.was_read(&pod, answer),
        }
    }

    fn tell(&mut self, uid: &str, event: Event) {
        let now = self.now();
        let Some(slot) = self.workers.get_mut(uid) else { return };
        slot.freshness.note(now.elapsed, &event);
        let shown = matches!(event, Event::Desired(_) | Event::Wrote(..));
        let actions = slot.worker.handle(now, event, &mut self.rng);
        if let Some(pod) = slot.worker.desired().filter(|_| shown) {
            self.roll.renew(pod);
            slot.answers.iter().for_each(|answers| answers.update(pod));
        }
        let pod = slot.worker.pod().clone();
        let deadline = slot.worker.deadline(now.elapsed);
        if deadline != slot.timer {
            if let Some(old) = slot.timer.take() {
                self.timers.remove(&(old, Arc::clone(&pod.uid)));
            }
            slot.timer = deadline;
            self.timers.extend(deadline.map(|deadline| (deadline, Arc::clone(&pod.uid))));
        }
        if !slot.worker.claims() {
            slot.forget_references();
        }
        for action in actions {
            self.act(&pod, action);
        }
    }

    fn announce(
        &mut self,
        pod: &PodRef,
        path: Option<String>,
        kind: EventKind,
        reason: String,
        message: String,
    ) {
        let now = self.start.elapsed();
        if self.workers.get_mut(&pod.uid).is_some_and(|slot| !slot.allowance.take(now)) {
            return debug!(%pod, reason, "too many events on one pod: one is dropped");
        }
        let severity = match kind {
            EventKind::Normal => Severity::Normal,
            EventKind::Warning => Severity::Warning,
        };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            uid: Some(pod.uid.to_string()),
            field_path: path,
            ..ObjectReference::default()
        };
        self.events.push(about, severity, reason, message);
    }
}

impl Slot {
    fn new(worker: Worker) -> Self {
        Self {
            worker,
            timer: None,
            call: None,
            answers: None,
            wait: None,
            freshness: Freshness::default(),
            allowance: Allowance::default(),
        }
    }
}

#[cfg(test)]
mod simulation;
