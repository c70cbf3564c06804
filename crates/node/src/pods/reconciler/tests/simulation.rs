//! The reconciler against models of an API server and a backend, under seeded schedules of faults: calls that fail before or
//! after they took effect, that hang or are slow, answers that come after a cancellation, watches that break or lose an event
//! and go on, a cache that is old, write permits that are scarce, a backend that loses pods, users who create, change, delete
//! and force-delete, a clock that jumps, restarts, statuses that the API server refuses.
//!
//! At all times: one lifecycle call per UID; no UID comes back once it was stopped; nothing wanted is stopped; nothing is killed
//! before the grace period that was seen; a pod leaves the API server only when nothing of it runs, and leaves also when its
//! status is refused; a pod on trial loses its label only when nothing of it runs, or when it is bound; what others wrote survives; a pod of
//! another owner and one that is on trial here stay. When the storm is over, API server and backend agree, also about pods that are
//! bound elsewhere or whose trial has ended, and then nothing is written or called any more.

mod backend;
mod deletions;
mod executor;
mod inputs;
mod placement;
mod server;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use vk_provider::{PodChange, PodRef, placement::trial_node};

use self::{
    backend::{Backend, ON_TRIAL, STRANGER, State, UNWELCOME},
    deletions::SeenDeletions,
    executor::CallInFlight,
    server::{FOREIGN, Fate, Server, StatusRejection},
};
use crate::pods::{
    Policy,
    admission::Checks,
    reconciler::{
        Input, PodReconciler,
        effect::{Completion, EffectId},
    },
    watch_audit::PodVersions,
};

const STORM: Duration = Duration::from_mins(2);
/// The longest way back: back-offs, grace periods and their lag, and two lists before an orphan is removed.
const CALM: Duration = Duration::from_mins(5);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// More than any schedule needs: beyond that something runs in circles.
const MOST_EVENTS: u32 = 100_000;

struct World {
    server: Server,
    backend: Backend,
    reconciler: PodReconciler,
    /// Counts the processes.
    process: u64,
    deletions: SeenDeletions,
    /// Lifecycle calls in flight on the backend.
    calls: BTreeMap<EffectId, CallInFlight>,
    /// How often a backend that does not push is asked.
    poll: Option<Duration>,
    checks: Checks,
    node: Node,
    pushes: VecDeque<PodChange>,
    watch_broken: bool,
    watch_due: bool,
    trial_watch_broken: bool,
    trial_watch_due: bool,
    /// What the API server's cache had the last time.
    cached_versions: PodVersions,
    queue: BTreeMap<(Duration, u64), Scheduled>,
    sequence: u64,
    now: Duration,
    /// The deadline for which a wake-up is scheduled.
    wake_at: Option<Duration>,
    /// The error of our wall clock.
    clock_error: jiff::SignedDuration,
    rng: StdRng,
    published: BTreeMap<Arc<str>, String>,
    events: u32,
    /// What happened, recorded only when a failed seed is replayed.
    trace: Option<Vec<String>>,
}

/// What will happen. The number is the process that it concerns.
#[derive(Debug)]
enum Scheduled {
    Wake(u64, Duration),
    Answer(u64, Completion),
    CallEnd(u64, EffectId),
    WritePermit(u64),
    ReadPod(u64, EffectId, PodRef),
    Node(u64),
    ListVersions(u64),
    Versions(u64, PodVersions),
    Annotate(u64, PodRef, String),
    Relist(u64),
    Watch,
    TrialRelist(u64),
    TrialWatch,
    Placement,
    Push,
    InstanceChanged(Arc<str>),
    Meddle,
    Publish,
    Calm,
}

fn new_reconciler(poll: Option<Duration>, checks: Checks, rng: &mut StdRng) -> PodReconciler {
    let policy = Policy { poll, checks, host_ips: vec!["10.0.0.1".to_owned()], ..Policy::default() };
    PodReconciler::new("vk".to_owned(), policy, StdRng::seed_from_u64(rng.random()))
}

impl World {
    fn new(seed: u64, traced: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let poll = rng.random_bool(0.3).then_some(Duration::from_secs(10));
        let checks = if rng.random_bool(0.5) { Checks::Full } else { Checks::Off };
        let stranger = rng.random_bool(0.5).then_some("other");
        let mut world = Self {
            server: Server::with_trials(),
            backend: Backend::with_strangers(stranger),
            reconciler: new_reconciler(poll, checks, &mut rng),
            checks,
            node: server::node(),
            process: 0,
            deletions: SeenDeletions::default(),
            calls: BTreeMap::new(),
            poll,
            pushes: VecDeque::new(),
            watch_broken: false,
            watch_due: false,
            trial_watch_broken: false,
            trial_watch_due: false,
            cached_versions: PodVersions::default(),
            queue: BTreeMap::new(),
            sequence: 0,
            now: Duration::ZERO,
            wake_at: None,
            clock_error: jiff::SignedDuration::ZERO,
            rng,
            published: BTreeMap::new(),
            events: 0,
            trace: traced.then(Vec::new),
        };
        let meddlings = world.rng.random_range(5..40);
        for _ in 0..meddlings {
            let when = world.rng.random_range(Duration::ZERO..STORM);
            world.schedule(when, Scheduled::Meddle);
        }
        for _ in 0..world.rng.random_range(0..60) {
            let when = world.rng.random_range(Duration::ZERO..STORM);
            world.schedule(when, Scheduled::Placement);
        }
        world.schedule(STORM, Scheduled::Calm);
        // Two that follow closely on each other, so that one may come while the other is written.
        world.schedule(STORM + CALM / 2, Scheduled::Publish);
        world.schedule(STORM + CALM / 2 + Duration::from_millis(20), Scheduled::Publish);
        world.restart();
        world
    }

    fn schedule(&mut self, when: Duration, what: Scheduled) {
        self.sequence += 1;
        self.queue.insert((when, self.sequence), what);
    }

    fn later(&mut self, delay: Duration, what: Scheduled) {
        self.schedule(self.now + delay, what);
    }

    fn in_storm(&self) -> bool {
        self.now < STORM
    }

    /// A short delay, and in the storm now and then a long one.
    fn delay(&mut self) -> Duration {
        let limit = if self.in_storm() && self.rng.random_bool(0.15) { 15_000 } else { 60 };
        Duration::from_millis(self.rng.random_range(1..limit))
    }

    fn run(&mut self, until: Duration) {
        while self.queue.first_key_value().is_some_and(|((when, _), _)| *when <= until) {
            let Some(((when, _), what)) = self.queue.pop_first() else { return };
            self.now = self.now.max(when);
            self.events += 1;
            assert!(self.events < MOST_EVENTS, "something runs in circles");
            self.happen(what);
            self.follow_watch();
            self.follow_trial_watch();
        }
        self.now = until;
    }

    fn happen(&mut self, what: Scheduled) {
        let current = self.process;
        match what {
            Scheduled::Wake(process, at) if process == current => self.wake(at),
            Scheduled::Answer(process, completion) if process == current => {
                self.feed(Input::Completed(completion));
            }
            Scheduled::CallEnd(process, id) if process == current => self.call_ends(id),
            Scheduled::WritePermit(process) if process == current => self.feed(Input::WritePermit),
            Scheduled::ReadPod(process, id, pod) if process == current => self.read_pod(id, pod),
            Scheduled::Node(process) if process == current => {
                self.feed(Input::Node(Some(Arc::new(self.node.clone()))));
            }
            Scheduled::ListVersions(process) if process == current => self.list_versions(),
            Scheduled::Versions(process, versions) if process == current => self.show_versions(versions),
            Scheduled::Annotate(process, pod, key) if process == current => {
                let annotations = [(key, Some("yes".to_owned()))].into();
                self.feed(Input::Provider(PodChange::Annotations(pod, annotations)));
            }
            Scheduled::Relist(process) if process == current => self.relist(),
            Scheduled::Watch => self.watch(),
            Scheduled::TrialRelist(process) if process == current => self.relist_trials(),
            Scheduled::TrialWatch => self.watch_trials(),
            Scheduled::Placement => self.place(),
            Scheduled::Push => self.push(),
            Scheduled::InstanceChanged(uid) => self.instance_changed(&uid),
            Scheduled::Meddle => self.meddle(),
            Scheduled::Publish => self.publish(),
            Scheduled::Calm => self.calm(),
            _ => {}
        }
    }

    /// Killed and started again: each call in flight took effect or did not.
    fn restart(&mut self) {
        self.note(|| "the process starts".to_owned());
        let abandoned: Vec<EffectId> = self.calls.keys().copied().collect();
        for id in abandoned {
            let takes_effect = self.rng.random_bool(0.5);
            self.abandon(id, takes_effect);
        }
        self.process += 1;
        self.deletions = SeenDeletions::default();
        self.reconciler = new_reconciler(self.poll, self.checks, &mut self.rng);
        self.wake_at = None;
        self.pushes.clear();
        self.watch_broken = true;
        self.trial_watch_broken = true;
        let process = self.process;
        let trials = Duration::from_millis(self.rng.random_range(0..3000));
        self.later(trials, Scheduled::TrialRelist(process));
        let (node, list) = (self.rng.random_range(0..3000), self.rng.random_range(0..3000));
        self.later(Duration::from_millis(node), Scheduled::Node(process));
        self.later(Duration::from_millis(list), Scheduled::Relist(process));
        let versions = Duration::from_secs(self.rng.random_range(5..60));
        self.later(versions, Scheduled::ListVersions(process));
    }

    /// Users and machines interfere.
    fn meddle(&mut self) {
        let name = NAMES[self.rng.random_range(0..NAMES.len())];
        let choice = self.rng.random_range(0..18);
        self.note(|| format!("meddling {choice} with {name}"));
        match choice {
            0..=4 if self.server.named(name).is_none() => {
                let fate = ["runs", "runs", "runs", "restarts", "completes", "expires", "refused"];
                let fate = fate[self.rng.random_range(0..fate.len())];
                let refusal = ["", "", "", "", "named", "unnamed"];
                let refusal = refusal[self.rng.random_range(0..refusal.len())];
                let size = self.rng.random_range(1..4);
                self.server.create(name, fate, refusal, size);
            }
            5..=7 => {
                let grace = [1, 5, 30][self.rng.random_range(0..3)];
                self.server.delete(name, self.now, grace);
            }
            8 => self.server.delete(name, self.now, 0),
            9 => {
                let edit = self.rng.random_range(0..1000).to_string();
                self.server.edit(name, |pod| {
                    pod.metadata.labels.get_or_insert_default().insert("edit".to_owned(), edit);
                });
            }
            10 => self.server.edit(name, server::add_foreign_things),
            11 => self.server.edit(name, |pod| {
                if let Some(status) = &mut pod.status {
                    status.pod_ip = Some("9.9.9.9".to_owned());
                    status.conditions.iter_mut().flatten().for_each(|one| one.status = "Unknown".to_owned());
                }
            }),
            12 => self.server.edit(name, |pod| pod.metadata.finalizers = Some(vec![FOREIGN.to_owned()])),
            13 => {
                if let Some(lost) = self.backend.lose(&mut self.rng) {
                    self.note(|| format!("the backend loses {lost}"));
                    self.instance_changed(&lost.uid);
                }
            }
            14 => {
                if let Some(crashed) = self.backend.crash(self.now, &mut self.rng) {
                    self.follow_instance(&crashed.uid);
                    self.instance_changed(&crashed.uid);
                }
            }
            // The resources of a pod without a status are unknown after a restart: it gets what is wanted then.
            15 if self.server.named(name).is_some_and(|pod| server::is_sized(pod)) => {
                let sizes = [1, 2, 3, UNWELCOME, server::ROOM + 1];
                self.server.resize(name, sizes[self.rng.random_range(0..sizes.len())]);
            }
            16 => {
                let seconds = self.rng.random_range(-3600..3600);
                self.clock_error = jiff::SignedDuration::from_secs(seconds);
            }
            _ => self.restart(),
        }
    }

    /// The storm is over: calls that hang are answered, unless nobody waits for them, finalizers are removed, and the clock is corrected.
    fn calm(&mut self) {
        self.clock_error = jiff::SignedDuration::ZERO;
        for name in NAMES {
            self.server.edit(name, |pod| pod.metadata.finalizers = None);
        }
        let hung: Vec<EffectId> =
            self.calls.iter().filter(|(_, call)| call.hangs).map(|(id, _)| *id).collect();
        for id in hung {
            if self.calls.get(&id).is_some_and(|call| call.is_delete() || self.server.wants(&call.pod.uid)) {
                self.later(Duration::from_secs(1), Scheduled::CallEnd(self.process, id));
            }
        }
    }

    /// The backend publishes an annotation on each pod that it runs.
    fn publish(&mut self) {
        let pods = self.server.pods().filter_map(|pod| PodRef::of(pod));
        let running: Vec<PodRef> = pods.filter(|pod| self.backend.runs(&pod.uid, self.now)).collect();
        for pod in running {
            let key = format!("example.com/{}", self.sequence);
            self.published.insert(Arc::clone(&pod.uid), key.clone());
            self.later(Duration::from_millis(1), Scheduled::Annotate(self.process, pod, key));
        }
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} {}", self.now, what()).chars().take(300).collect());
        }
    }

    fn check(&mut self) {
        let pods: Vec<Arc<Pod>> = self.server.pods().cloned().collect();
        for pod in &pods {
            self.check_pod(pod);
        }
        for uid in self.backend.uids(self.now).iter().filter(|uid| !Backend::is_untouchable(uid)) {
            assert!(self.server.by_uid(uid).is_some(), "{uid} is an orphan in the backend");
        }
        self.check_room();
        assert!(self.backend.runs(STRANGER, self.now), "the pod of another owner is gone");
        assert!(self.backend.runs(ON_TRIAL, self.now), "the pod that is on trial here is gone");
        for pod in self.server.tried() {
            assert_eq!(trial_node(pod), None, "the trial of {} is over", server::uid(pod));
        }
        for uid in self.reconciler.uids() {
            assert!(self.server.by_uid(&uid).is_some(), "{uid} still has a worker");
        }
    }

    fn check_pod(&self, pod: &Pod) {
        let uid = server::uid(pod);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        assert!(pod.metadata.deletion_timestamp.is_none(), "{name} ({uid}) still exists");
        assert_eq!(trial_node(pod), None, "{name} ({uid}) is bound");
        let status = pod.status.clone().unwrap_or_default();
        let state = self.backend.state(uid, self.now);
        let seen = (server::phase(pod), status.reason.as_deref(), state);
        if self.checks == Checks::Full && seen == ("Failed", Some("OutOfcpu"), State::Gone) {
            return;
        }
        let refusal = server::status_rejection(pod);
        if refusal == StatusRejection::Unnamed {
            return;
        }
        match server::fate(pod) {
            // The backend lost it, and its containers are not restarted after any exit.
            Fate::Restarts if seen == ("Failed", Some("NotFound"), State::Gone) => {}
            Fate::Runs | Fate::Restarts => {
                assert_eq!(seen, ("Running", None, State::Running), "{name} ({uid})");
                let ready = status.conditions.iter().flatten().find(|one| one.type_ == "Ready");
                assert_eq!(ready.map(|one| one.status.as_str()), Some("True"), "{name} ({uid}) is Ready");
                let has_address = status.pod_ip.as_deref() == Some("10.1.0.1");
                assert!(
                    has_address || refusal == StatusRejection::Named,
                    "{name} ({uid}): {:?}",
                    status.pod_ip
                );
                let own = status.conditions.iter().flatten().filter(|one| one.type_.starts_with("sim."));
                let own: Vec<(&str, &str)> = own.map(|one| (&*one.type_, &*one.status)).collect();
                assert_eq!(own, [(server::AT_WORK, "True")], "{name} ({uid}) has the provider's conditions");
                let labels = pod.metadata.labels.clone().unwrap_or_default();
                assert_eq!(self.backend.labels(uid), Some(&labels), "the labels of {name} ({uid})");
                self.check_size(pod);
                if let Some(key) = self.published.get(uid) {
                    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
                    assert!(annotations.contains_key(key), "the annotation {key} of {name} ({uid})");
                }
            }
            Fate::Completes => assert!(matches!(seen.0, "Succeeded" | "Failed"), "{name} ({uid}): {seen:?}"),
            Fate::Expires => {
                assert_eq!((seen.0, seen.1), ("Failed", Some("DeadlineExceeded")), "{name} ({uid})");
                assert!(!self.backend.runs(uid, self.now), "{name} ({uid}) runs");
            }
            Fate::Refused => {
                assert_eq!(seen, ("Failed", Some("ProviderFailed"), State::Gone), "{name} ({uid})");
            }
        }
    }
}

impl World {
    /// A pod has the requested resources, or its status says why not.
    fn check_size(&self, pod: &Pod) {
        let uid = server::uid(pod);
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
        let said: Vec<(&str, &str)> = conditions
            .unwrap_or_default()
            .iter()
            .filter(|one| one.type_.starts_with("PodResize"))
            .map(|one| (one.type_.as_str(), one.reason.as_deref().unwrap_or_default()))
            .collect();
        let (wanted, there) = (server::size(pod), self.backend.size(uid));
        if wanted == there {
            assert_eq!(said, [], "{uid} has its size");
            return;
        }
        let refused = wanted == UNWELCOME || (self.checks == Checks::Full && wanted > server::ROOM);
        let reason = if refused { "Infeasible" } else { "Deferred" };
        let deferred = self.checks == Checks::Full && said == [("PodResizePending", "Deferred")];
        assert!(deferred || said == [("PodResizePending", reason)], "{uid}: {wanted}, has {there}, {said:?}");
    }

    /// Everything that runs fits on the node.
    fn check_room(&self) {
        let uids = self.backend.uids(self.now);
        let running = uids.iter().filter(|uid| self.backend.runs(uid, self.now));
        let used: u32 = running.map(|uid| self.backend.size(uid)).sum();
        assert!(self.checks != Checks::Full || used <= server::ROOM, "{used} of {}", server::ROOM);
    }
}

/// Runs one schedule. The error is its trace, if one was requested.
fn simulate(seed: u64, traced: bool) -> Result<(), String> {
    let mut world = World::new(seed, traced);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(STORM);
        world.run(STORM + CALM);
        world.check();
        let before = (world.server.writes, world.backend.lifecycle_calls, world.backend.reads);
        world.run(STORM + CALM + Duration::from_mins(1));
        let reads = world.backend.reads - before.2;
        let most = world.poll.map_or(0, |_| 7 * world.server.pods().count() as u64);
        assert!(reads <= most, "{reads} reads in a minute in which nothing changes");
        assert_eq!(
            (world.server.writes, world.backend.lifecycle_calls),
            (before.0, before.1),
            "a quiet minute"
        );
        world.check();
    }));
    outcome.map_err(|_| world.trace.unwrap_or_default().join("\n"))
}

#[test]
fn after_any_storm_of_faults_the_api_server_and_the_backend_agree_and_nothing_was_lost() {
    let variable = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds =
        variable("VK_SEED").map_or_else(|| 0..variable("VK_SEEDS").unwrap_or(200), |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return None;
            }
            if simulate(seed, false).is_err() {
                return Some(seed);
            }
        }
    };
    let mut failed: Vec<u64> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().filter_map(|one| one.join().expect("a thread that catches panics")).collect()
    });
    failed.sort_unstable();
    if let Some(&seed) = failed.first() {
        let trace = simulate(seed, true).expect_err("a seed fails every time");
        panic!("the seeds {failed:?} failed; the trace of {seed}:\n{trace}\nreplay with VK_SEED={seed}");
    }
}
