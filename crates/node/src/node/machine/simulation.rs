//! The node controller against a server of a few lines, under seeded schedules of faults: calls that fail before or after
//! they took effect, a watch that breaks, a provider that fails or hangs, other people's hands on the Node, restarts.
//! When the storm is over, everything must be as wanted; and at no time may other people's things be lost.

mod replicas;
mod server;

use std::collections::BTreeMap;

use jiff::Timestamp;
use rand::SeedableRng as _;
use vk_provider::{NodeTemplate, quantity::Quantity};

use self::server::{FOREIGN, Server};
use super::*;
use crate::node::{desired::Desired, lease::Terms, template::Base};

const STORM: Duration = Duration::from_mins(3);
/// Longest way back: a restarted process waits a whole lease, then a hung ping, then back-offs.
const CALM: Duration = Duration::from_mins(3);

/// How the provider behaves for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Well,
    Unwell,
    Hung,
}

struct World {
    server: Server,
    machine: Machine,
    generation: u64,
    queue: BTreeMap<(Duration, u64), Scheduled>,
    sequence: u64,
    now: Duration,
    rng: StdRng,
    mood: Mood,
    under_way: [u32; 3],
    node_calls: u32,
    /// What happened, written down only when a failed seed is replayed.
    trace: Option<Vec<String>>,
}

/// What will happen.
#[derive(Debug)]
enum Scheduled {
    Tell(u64, Event),
    Wake(u64),
    Meddle,
    Watch,
}

fn desired() -> Desired {
    let base = Base {
        name: "vk".into(),
        internal_ip: [10, 0, 0, 1].into(),
        external_ip: None,
        kubelet_port: 10250,
        operating_system: "linux".into(),
        kubelet_version: "v1.36.4-vk-0.1.0".into(),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        annotations: [("note".to_owned(), "b".to_owned())].into(),
        taints: vec![server::taint("virtual-kubelet.io/provider", "mock")],
        declared_features: std::collections::BTreeSet::new(),
    };
    let template = NodeTemplate {
        labels: base.labels.clone(),
        annotations: base.annotations.clone(),
        taints: base.taints.clone(),
        capacity: [("cpu".to_owned(), Quantity::milli(1500))].into(),
        ..NodeTemplate::default()
    };
    Desired::new(&base, template, false)
}

fn settings() -> Settings {
    Settings {
        ping_interval: Duration::from_secs(10),
        ping_timeout: Duration::from_secs(5),
        status_interval: Duration::from_mins(5),
        lease: Terms {
            duration: Duration::from_secs(40),
            renew_deadline: Duration::from_secs(27),
            standby: None,
        },
        on_stop: OnStop::Leave,
    }
}

fn machine(generation: u64, seed: u64) -> Machine {
    // A host without a known boot: the successor cannot see that its predecessor is dead, and has to wait.
    let instance = format!("host///{generation}/0").parse().expect("an instance");
    Machine::new("vk", instance, settings(), desired(), StdRng::seed_from_u64(seed))
}

impl World {
    fn new(seed: u64, traced: bool) -> Self {
        let mut world = Self {
            server: Server::default(),
            machine: machine(1, seed),
            generation: 1,
            queue: BTreeMap::new(),
            sequence: 0,
            now: Duration::ZERO,
            rng: StdRng::seed_from_u64(seed),
            mood: Mood::Well,
            under_way: [0; 3],
            node_calls: 0,
            trace: traced.then(Vec::new),
        };
        world.schedule(Duration::ZERO, Scheduled::Tell(1, Event::Tick));
        let meddlings = world.rng.random_range(0..12);
        for _ in 0..meddlings {
            let when = world.rng.random_range(Duration::ZERO..STORM);
            world.schedule(when, Scheduled::Meddle);
        }
        world
    }

    fn schedule(&mut self, when: Duration, what: Scheduled) {
        self.sequence += 1;
        self.queue.insert((when, self.sequence), what);
    }

    fn run(&mut self, until: Duration) {
        while self.queue.first_key_value().is_some_and(|((when, _), _)| *when <= until) {
            let Some(((when, _), what)) = self.queue.pop_first() else { return };
            self.now = self.now.max(when);
            match what {
                Scheduled::Tell(generation, event) if generation == self.generation => self.tell(event),
                Scheduled::Wake(generation)
                    if generation == self.generation
                        && self.machine.deadline().is_some_and(|deadline| deadline <= self.now) =>
                {
                    self.tell(Event::Tick);
                }
                Scheduled::Meddle => self.meddle(),
                Scheduled::Watch => {
                    let event = self.server.node().map_or(Event::Missing, |node| Event::Seen(Arc::new(node)));
                    self.tell(event);
                }
                _ => {}
            }
            assert!(self.server.foreign_things_survive(), "other people's things were lost");
        }
        self.now = until;
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::Pong(_) => self.under_way[0] = 0,
            Event::NodeAnswer(..) => self.under_way[1] = 0,
            Event::LeaseAnswer(..) => self.under_way[2] = 0,
            _ => {}
        }
        self.note(|| format!("<- {event:?}"));
        let wall = server::START.parse::<Timestamp>().expect("a time")
            + jiff::SignedDuration::try_from(self.now).expect("short");
        for action in self.machine.handle(Now { elapsed: self.now, wall }, event) {
            self.note(|| format!("-> {action:?}"));
            self.act(action);
        }
        assert!(self.under_way.iter().all(|count| *count <= 1), "two calls of one kind at a time");
        if let Some(deadline) = self.machine.deadline() {
            let generation = self.generation;
            self.schedule(deadline.max(self.now), Scheduled::Wake(generation));
        }
    }

    fn act(&mut self, action: Action) {
        let generation = self.generation;
        match action {
            Action::Ping => {
                self.under_way[0] += 1;
                let (delay, pong) = match self.mood {
                    Mood::Well => (Duration::from_millis(5), Pong::Well),
                    Mood::Unwell => (Duration::from_millis(5), Pong::Unwell("down".into())),
                    Mood::Hung => (settings().ping_timeout, Pong::Silent),
                };
                self.schedule(self.now + delay, Scheduled::Tell(generation, Event::Pong(pong)));
            }
            Action::Node(call) => {
                self.under_way[1] += 1;
                self.node_calls += 1;
                let (answer, delay) =
                    self.fate(|server| server.node_call(&call).map(|node| node.map(Arc::new)));
                let event = Event::NodeAnswer(call, answer);
                self.schedule(self.now + delay, Scheduled::Tell(generation, event));
                self.watch();
            }
            Action::Lease(call) => {
                self.under_way[2] += 1;
                let (answer, delay) =
                    self.fate(|server| server.lease_call(&call).map(|lease| lease.map(Box::new)));
                self.schedule(
                    self.now + delay,
                    Scheduled::Tell(generation, Event::LeaseAnswer(call, answer)),
                );
            }
            Action::Announce(..) | Action::Finished => {}
            Action::GiveUp(taken) => panic!("nobody else is there: {taken}"),
        }
    }

    /// What becomes of a call: in the storm it may fail before or after it took effect, and take long.
    fn fate<T>(
        &mut self,
        call: impl FnOnce(&mut Server) -> Result<T, Error>,
    ) -> (Result<T, Error>, Duration) {
        // Now and then so slow that other things happen in the meantime.
        let limit = if self.now < STORM && self.rng.random_bool(0.1) { 9000 } else { 50 };
        let delay = Duration::from_millis(self.rng.random_range(1..limit));
        if self.now >= STORM || self.rng.random_bool(0.6) {
            return (call(&mut self.server), delay);
        }
        let kind =
            [Kind::Timeout, Kind::Conflict, Kind::Replaced, Kind::Throttled, Kind::Server, Kind::Unreachable]
                [self.rng.random_range(0..6)];
        let mut error = Error::new(kind, "as scheduled");
        if kind == Kind::Throttled {
            error.retry_after = Some(Duration::from_secs(self.rng.random_range(1..8)));
        }
        let slow = if kind == Kind::Timeout { Duration::from_secs(10) } else { delay };
        // A connection that breaks may do so after the server has acted.
        if matches!(kind, Kind::Timeout | Kind::Unreachable | Kind::Server) && self.rng.random_bool(0.5) {
            let _ = call(&mut self.server);
        }
        (Err(error), slow)
    }

    /// The watch reports the latest, late; in the storm sometimes not at all until it is listed again.
    fn watch(&mut self) {
        let broken = self.now < STORM && self.rng.random_bool(0.3);
        let delay = if broken {
            Duration::from_secs(20)
        } else {
            Duration::from_millis(self.rng.random_range(1..200))
        };
        self.schedule(self.now + delay, Scheduled::Watch);
    }

    fn meddle(&mut self) {
        match self.rng.random_range(0..11) {
            0 => self.server.delete_node(),
            1 => self.server.delete_lease(),
            2 => self.server.add_foreign_things(),
            3 => self.server.edit(|node| node["metadata"]["labels"]["team"] = "stolen".into()),
            4 => self.server.edit(|node| node["status"]["conditions"] = Value::Array(Vec::new())),
            5 => self.server.edit(|node| node["spec"]["taints"] = Value::Array(Vec::new())),
            6 => self.server.edit(|node| node["status"]["capacity"]["cpu"] = "9".into()),
            7 => self.mood = Mood::Unwell,
            8 => self.mood = Mood::Hung,
            9 => self.mood = Mood::Well,
            // Killed and started again.
            _ => {
                self.generation += 1;
                self.under_way = [0; 3];
                self.machine = machine(self.generation, self.generation);
                let generation = self.generation;
                self.note(|| "killed and started again".to_owned());
                self.schedule(self.now, Scheduled::Tell(generation, Event::Tick));
            }
        }
        let mood = self.mood;
        self.note(|| format!("meddled; the provider is {mood:?}"));
        self.watch();
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} {}", self.now, what()).chars().take(240).collect());
        }
    }

    fn check(&self) {
        let node = self.server.node().expect("the Node exists");
        let labels = node.metadata.labels.clone().unwrap_or_default();
        assert_eq!(labels.get("team").map(String::as_str), Some("a"), "our label");
        let status = node.status.clone().unwrap_or_default();
        assert_eq!(status.capacity.unwrap_or_default()["cpu"].0, "1500m", "our capacity");
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready").expect("Ready is there");
        let expected = if self.mood == Mood::Well { "True" } else { "False" };
        assert_eq!(ready.status, expected, "Ready with a provider that is {:?}", self.mood);
        assert!(!node.spec.clone().unwrap_or_default().taints.unwrap_or_default().is_empty(), "our taint");
        let lease = self.server.lease().expect("the lease exists");
        let owners = lease.metadata.owner_references.clone().unwrap_or_default();
        let uids: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
        assert_eq!(
            uids,
            [node.metadata.uid.as_deref().unwrap_or_default()],
            "the lease belongs to today's Node"
        );
        let renewed = lease.spec.and_then(|spec| spec.renew_time).expect("renewed").0;
        let wall = server::START.parse::<Timestamp>().expect("a time")
            + jiff::SignedDuration::try_from(self.now).expect("short");
        assert!(wall.duration_since(renewed).as_secs() <= 11, "the lease is fresh");
    }
}

/// Runs one schedule; the error is its trace, if one was asked for.
fn simulate(seed: u64, traced: bool) -> Result<(), String> {
    let mut world = World::new(seed, traced);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(STORM);
        world.run(STORM + CALM);
        world.check();
        let before = world.node_calls;
        world.run(STORM + CALM + Duration::from_mins(1));
        let calls = world.node_calls - before;
        assert!(calls <= 3, "{calls} calls on the Node in a minute in which nothing changes");
    }));
    outcome.map_err(|_| {
        let trace = world.trace.unwrap_or_default();
        trace[trace.len().saturating_sub(60)..].join("\n")
    })
}

/// So many seeds, or as many as `VK_SEEDS` says, or the one that `VK_SEED` names.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    variable("VK_SEED").map_or_else(|| 0..variable("VK_SEEDS").unwrap_or(usual), |seed| seed..seed + 1)
}

#[test]
fn after_any_storm_of_faults_the_node_is_as_wanted_and_nothing_foreign_was_lost() {
    for seed in seeds(1000) {
        if simulate(seed, false).is_err() {
            let trace = simulate(seed, true).expect_err("a seed fails every time");
            panic!(
                "seed {seed} failed; foreign things are {FOREIGN:?}; the last of its trace:\n{trace}\nreplay with VK_SEED={seed}"
            );
        }
    }
}
