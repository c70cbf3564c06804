//! Simulation of the node controller against a fake server, with seeded fault schedules: calls that fail before or after
//! they took effect, a broken watch, a failing or hanging provider, changes of the Node by others, restarts. After the
//! faults the Node must be as desired, and fields of others must never be lost.

mod replicas;
mod server;

use std::collections::BTreeMap;

use jiff::Timestamp;
use rand::SeedableRng as _;
use vk_kube::lease::LeaseTimes;
use vk_provider::{NodeTemplate, quantity::Quantity};

use self::server::{FOREIGN, FakeServer};
use super::*;
use crate::node::{desired::DesiredNode, template::NodeConfig};

const FAULT_PERIOD: Duration = Duration::from_mins(3);
/// Longest recovery: a restarted process waits a whole lease duration, then for a hanging ping, then for backoffs.
const RECOVERY_PERIOD: Duration = Duration::from_mins(3);

/// Current behaviour of the provider.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ProviderHealth {
    Healthy,
    Failing,
    Hanging,
}

struct NodeSimulation {
    server: FakeServer,
    machine: NodeStateMachine,
    generation: u64,
    queue: BTreeMap<(Duration, u64), Scheduled>,
    sequence: u64,
    now: Duration,
    rng: StdRng,
    health: ProviderHealth,
    in_flight: [u32; 3],
    node_calls: u32,
    /// Log of events and actions; only kept when a failed seed is replayed.
    trace: Option<Vec<String>>,
}

/// A scheduled occurrence.
#[derive(Debug)]
enum Scheduled {
    Deliver(u64, Event),
    Wake(u64),
    Interfere,
    Watch,
}

fn desired() -> DesiredNode {
    let config = NodeConfig {
        name: "vk".into(),
        internal_ip: [10, 0, 0, 1].into(),
        external_ip: None,
        hostname: None,
        kubelet_port: 10250,
        operating_system: "linux".into(),
        kubelet_version: "v1.36.4-vk-0.1.0".into(),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        annotations: [("note".to_owned(), "b".to_owned())].into(),
        taints: vec![server::taint("virtual-kubelet.io/provider", "mock")],
        declared_features: None,
    };
    let template = NodeTemplate {
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        taints: config.taints.clone(),
        capacity: [("cpu".to_owned(), Quantity::milli(1500))].into(),
        ..NodeTemplate::default()
    };
    DesiredNode::new(&config, template, false)
}

fn settings() -> Settings {
    Settings {
        ping_interval: Duration::from_secs(10),
        ping_timeout: Duration::from_secs(5),
        status_interval: Duration::from_mins(5),
        lease: LeaseTimes {
            duration: Duration::from_secs(40),
            renew_deadline: Duration::from_secs(27),
            standby: None,
        },
        on_stop: OnStop::Leave,
    }
}

fn machine(generation: u64, seed: u64) -> NodeStateMachine {
    // Without a boot ID the successor cannot know that its predecessor is dead, and has to wait.
    let instance = format!("host///{generation}/0").parse().expect("an instance");
    NodeStateMachine::new("vk", instance, settings(), desired(), StdRng::seed_from_u64(seed))
}

impl NodeSimulation {
    fn new(seed: u64, traced: bool) -> Self {
        let mut simulation = Self {
            server: FakeServer::default(),
            machine: machine(1, seed),
            generation: 1,
            queue: BTreeMap::new(),
            sequence: 0,
            now: Duration::ZERO,
            rng: StdRng::seed_from_u64(seed),
            health: ProviderHealth::Healthy,
            in_flight: [0; 3],
            node_calls: 0,
            trace: traced.then(Vec::new),
        };
        simulation.schedule(Duration::ZERO, Scheduled::Deliver(1, Event::Tick));
        let interferences = simulation.rng.random_range(0..12);
        for _ in 0..interferences {
            let when = simulation.rng.random_range(Duration::ZERO..FAULT_PERIOD);
            simulation.schedule(when, Scheduled::Interfere);
        }
        simulation
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
                Scheduled::Deliver(generation, event) if generation == self.generation => self.deliver(event),
                Scheduled::Wake(generation)
                    if generation == self.generation
                        && self.machine.next_deadline().is_some_and(|deadline| deadline <= self.now) =>
                {
                    self.deliver(Event::Tick);
                }
                Scheduled::Interfere => self.interfere(),
                Scheduled::Watch => {
                    let event = self.server.node().map_or(Event::Missing, |node| Event::Seen(Arc::new(node)));
                    self.deliver(event);
                }
                _ => {}
            }
            assert!(self.server.foreign_fields_survive(), "fields of others were lost");
        }
        self.now = until;
    }

    fn deliver(&mut self, event: Event) {
        match &event {
            Event::Pinged(_) => self.in_flight[0] = 0,
            Event::NodeAnswer(..) => self.in_flight[1] = 0,
            Event::LeaseAnswer(..) => self.in_flight[2] = 0,
            _ => {}
        }
        self.log(|| format!("<- {event:?}"));
        let wall = server::START.parse::<Timestamp>().expect("a time")
            + jiff::SignedDuration::try_from(self.now).expect("short");
        for action in self.machine.handle(Now { elapsed: self.now, wall }, event) {
            self.log(|| format!("-> {action:?}"));
            self.act(action);
        }
        assert!(self.in_flight.iter().all(|count| *count <= 1), "two calls of one kind at a time");
        if let Some(deadline) = self.machine.next_deadline() {
            let generation = self.generation;
            self.schedule(deadline.max(self.now), Scheduled::Wake(generation));
        }
    }

    fn act(&mut self, action: Action) {
        let generation = self.generation;
        match action {
            Action::Ping => {
                self.in_flight[0] += 1;
                let (delay, pong) = match self.health {
                    ProviderHealth::Healthy => (Duration::from_millis(5), PingResult::Ok),
                    ProviderHealth::Failing => (Duration::from_millis(5), PingResult::Failed("down".into())),
                    ProviderHealth::Hanging => (settings().ping_timeout, PingResult::TimedOut),
                };
                self.schedule(self.now + delay, Scheduled::Deliver(generation, Event::Pinged(pong)));
            }
            Action::Node(call) => {
                self.in_flight[1] += 1;
                self.node_calls += 1;
                let (answer, delay) =
                    self.inject_faults(|server| server.node_call(&call).map(|node| node.map(Arc::new)));
                let event = Event::NodeAnswer(call, answer);
                self.schedule(self.now + delay, Scheduled::Deliver(generation, event));
                self.watch();
            }
            Action::Lease(call) => {
                self.in_flight[2] += 1;
                let (answer, delay) =
                    self.inject_faults(|server| server.lease_call(&call).map(|lease| lease.map(Box::new)));
                self.schedule(
                    self.now + delay,
                    Scheduled::Deliver(generation, Event::LeaseAnswer(call, answer)),
                );
            }
            Action::RecordEvent(..) | Action::Finished => {}
            Action::GiveUp(conflict) => panic!("no other process exists: {conflict}"),
        }
    }

    /// Performs a call. During the fault period it may fail before or after it took effect, and be slow.
    fn inject_faults<T>(
        &mut self,
        call: impl FnOnce(&mut FakeServer) -> Result<T, Error>,
    ) -> (Result<T, Error>, Duration) {
        // Sometimes so slow that other events happen meanwhile.
        let limit = if self.now < FAULT_PERIOD && self.rng.random_bool(0.1) { 9000 } else { 50 };
        let delay = Duration::from_millis(self.rng.random_range(1..limit));
        if self.now >= FAULT_PERIOD || self.rng.random_bool(0.6) {
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
        // A connection may break after the server performed the call.
        if matches!(kind, Kind::Timeout | Kind::Unreachable | Kind::Server) && self.rng.random_bool(0.5) {
            let _ = call(&mut self.server);
        }
        (Err(error), slow)
    }

    /// Schedules a delayed watch event. During the fault period it may only come with the next relist.
    fn watch(&mut self) {
        let broken = self.now < FAULT_PERIOD && self.rng.random_bool(0.3);
        let delay = if broken {
            Duration::from_secs(20)
        } else {
            Duration::from_millis(self.rng.random_range(1..200))
        };
        self.schedule(self.now + delay, Scheduled::Watch);
    }

    fn interfere(&mut self) {
        match self.rng.random_range(0..11) {
            0 => self.server.delete_node(),
            1 => self.server.delete_lease(),
            2 => self.server.add_foreign_fields(),
            3 => self.server.edit(|node| node["metadata"]["labels"]["team"] = "stolen".into()),
            4 => self.server.edit(|node| node["status"]["conditions"] = Value::Array(Vec::new())),
            5 => self.server.edit(|node| node["spec"]["taints"] = Value::Array(Vec::new())),
            6 => self.server.edit(|node| node["status"]["capacity"]["cpu"] = "9".into()),
            7 => self.health = ProviderHealth::Failing,
            8 => self.health = ProviderHealth::Hanging,
            9 => self.health = ProviderHealth::Healthy,
            // Kill and restart the process.
            _ => {
                self.generation += 1;
                self.in_flight = [0; 3];
                self.machine = machine(self.generation, self.generation);
                let generation = self.generation;
                self.log(|| "killed and started again".to_owned());
                self.schedule(self.now, Scheduled::Deliver(generation, Event::Tick));
            }
        }
        let health = self.health;
        self.log(|| format!("interfered; the provider is {health:?}"));
        self.watch();
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
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
        let expected = if self.health == ProviderHealth::Healthy { "True" } else { "False" };
        assert_eq!(ready.status, expected, "Ready with a provider that is {:?}", self.health);
        assert!(!node.spec.clone().unwrap_or_default().taints.unwrap_or_default().is_empty(), "our taint");
        let lease = self.server.lease().expect("the lease exists");
        let owners = lease.metadata.owner_references.clone().unwrap_or_default();
        let uids: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
        assert_eq!(
            uids,
            [node.metadata.uid.as_deref().unwrap_or_default()],
            "the lease belongs to the current Node"
        );
        let renewed = lease.spec.and_then(|spec| spec.renew_time).expect("renewed").0;
        let wall = server::START.parse::<Timestamp>().expect("a time")
            + jiff::SignedDuration::try_from(self.now).expect("short");
        assert!(wall.duration_since(renewed).as_secs() <= 11, "the lease is fresh");
    }
}

/// Runs one fault schedule; the error is its trace, if requested.
fn simulate(seed: u64, traced: bool) -> Result<(), String> {
    let mut simulation = NodeSimulation::new(seed, traced);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        simulation.run(FAULT_PERIOD);
        simulation.run(FAULT_PERIOD + RECOVERY_PERIOD);
        simulation.check();
        let before = simulation.node_calls;
        simulation.run(FAULT_PERIOD + RECOVERY_PERIOD + Duration::from_mins(1));
        let calls = simulation.node_calls - before;
        assert!(calls <= 3, "{calls} calls on the Node in a minute in which nothing changes");
    }));
    outcome.map_err(|_| {
        let trace = simulation.trace.unwrap_or_default();
        trace[trace.len().saturating_sub(60)..].join("\n")
    })
}

/// `default` seeds, or as many as `VK_SEEDS` says, or only the seed `VK_SEED`.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    variable("VK_SEED").map_or_else(|| 0..variable("VK_SEEDS").unwrap_or(default), |seed| seed..seed + 1)
}

#[test]
fn the_node_recovers_from_any_fault_schedule_without_losing_foreign_fields() {
    for seed in seeds(1000) {
        if simulate(seed, false).is_err() {
            let trace = simulate(seed, true).expect_err("a seed fails every time");
            panic!(
                "seed {seed} failed; foreign fields are {FOREIGN:?}; end of its trace:\n{trace}\nreplay with VK_SEED={seed}"
            );
        }
    }
}
