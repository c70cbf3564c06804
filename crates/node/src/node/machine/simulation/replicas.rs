//! Replicas of one node against a server of a few lines, under seeded schedules of faults: calls that fail before or after
//! they took effect or take effect long after they were given up, processes that are paused, killed and stopped, clocks that
//! are hours apart, run at different speeds and are set. At no time may two of them be permitted to write; and when the
//! storm is over, one leads, soon and from then on.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rand::SeedableRng as _;

use super::{desired, server, server::Server, *};
use crate::node::{instance::Instance, lease::Terms, machine::NodeCall};

const REPLICAS: usize = 3;
const STORM: Duration = Duration::from_secs(90);
/// A whole lease, the looks and back-offs around it, and calls.
const CALM: Duration = Duration::from_secs(25);
const LASTING: Duration = Duration::from_secs(30);

const TERMS: Terms = Terms {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    standby: Some(Duration::from_secs(1)),
};

/// One process, with clocks of its own.
struct Replica {
    machine: Option<Machine>,
    /// Counts lives and terms, so that what belongs to an old one is dropped.
    term: u64,
    instance: Instance,
    /// The steady clock: when the term began, and how fast it runs.
    begun: Duration,
    speed: f64,
    /// How far off the wall clock is.
    skew: SignedDuration,
    paused_until: Duration,
}

enum Scheduled {
    Tell(usize, u64, Event),
    Wake(usize, u64),
    /// The call reaches the server, and is answered after this time, unless it was given up.
    Arrive(usize, u64, Action, Option<Duration>),
    Fault(usize),
    Start(usize),
}

struct Replicas {
    server: Server,
    all: Vec<Replica>,
    lives: u64,
    queue: BTreeMap<(Duration, u64), Scheduled>,
    sequence: u64,
    now: Duration,
    /// How much happened at this moment.
    steps: u32,
    rng: StdRng,
    trace: Option<Vec<String>>,
}

fn settings() -> Settings {
    Settings { lease: TERMS, on_stop: OnStop::HandOver, ..super::settings() }
}

impl Replica {
    fn clocks(&self, now: Duration) -> Now {
        let start = server::START.parse::<Timestamp>().expect("a time");
        let wall = start + SignedDuration::try_from(now).expect("short") + self.skew;
        Now { elapsed: now.saturating_sub(self.begun).mul_f64(self.speed), wall }
    }

    /// Whether it would begin a write now, if it were awake.
    fn may_write(&self, now: Duration) -> bool {
        let permit = self.machine.as_ref().and_then(Machine::permit);
        permit.is_some_and(|permit| permit.holds(self.clocks(now)))
    }

    fn leads(&self, now: Duration) -> bool {
        self.may_write(now) && self.machine.as_ref().is_some_and(Machine::leads)
    }
}

impl Replicas {
    fn new(seed: u64, traced: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let replica = |rng: &mut StdRng| Replica {
            machine: None,
            term: 0,
            instance: Instance::this(),
            begun: Duration::ZERO,
            speed: rng.random_range(0.95..1.05),
            skew: SignedDuration::from_secs(rng.random_range(-7200..7200)),
            paused_until: Duration::ZERO,
        };
        let all = (0..REPLICAS).map(|_| replica(&mut rng)).collect();
        let (queue, trace) = (BTreeMap::new(), traced.then(Vec::new));
        let server = Server::default();
        let now = Duration::ZERO;
        let mut world = Self { server, all, lives: 0, queue, sequence: 0, now, steps: 0, rng, trace };
        for replica in 0..REPLICAS {
            let when = world.rng.random_range(Duration::ZERO..Duration::from_secs(5));
            world.schedule(when, Scheduled::Start(replica));
        }
        for _ in 0..world.rng.random_range(0..15) {
            let when = world.rng.random_range(Duration::ZERO..STORM);
            let replica = world.rng.random_range(0..REPLICAS);
            world.schedule(when, Scheduled::Fault(replica));
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
            self.steps = if when > self.now { 0 } else { self.steps + 1 };
            assert!(self.steps < 1000, "time stands still: something is due that nobody does");
            self.now = self.now.max(when);
            self.happen(what);
            let permitted: Vec<usize> =
                (0..REPLICAS).filter(|one| self.all[*one].may_write(self.now)).collect();
            assert!(permitted.len() <= 1, "{permitted:?} may write at {:?}", self.now);
        }
        self.now = until;
    }

    fn happen(&mut self, what: Scheduled) {
        match what {
            Scheduled::Tell(one, term, _) | Scheduled::Wake(one, term) if term != self.all[one].term => {}
            // A process that is paused hears nothing until it goes on.
            Scheduled::Tell(one, ..) | Scheduled::Wake(one, _) if self.all[one].paused_until > self.now => {
                self.schedule(self.all[one].paused_until, what);
            }
            Scheduled::Tell(one, _, event) => self.tell(one, event),
            Scheduled::Wake(one, _) => {
                let clocks = self.all[one].clocks(self.now);
                let deadline = self.all[one].machine.as_ref().and_then(Machine::deadline);
                if deadline.is_some_and(|deadline| deadline <= clocks.elapsed) {
                    self.tell(one, Event::Tick);
                } else {
                    self.wake(one);
                }
            }
            Scheduled::Arrive(one, term, call, answered) => self.arrive(one, term, call, answered),
            Scheduled::Fault(one) => self.fault(one),
            Scheduled::Start(one) => {
                self.lives += 1;
                // A host without a known boot: nobody can see whether it is dead.
                self.all[one].instance = format!("host///{}/0", self.lives).parse().expect("an instance");
                self.begin(one);
            }
        }
    }

    /// Begins a term: with a machine that knows nothing.
    fn begin(&mut self, one: usize) {
        let seed = self.rng.random_range(0..u64::MAX);
        let replica = &mut self.all[one];
        let rng = StdRng::seed_from_u64(seed);
        replica.machine = Some(Machine::new("vk", replica.instance.clone(), settings(), desired(), rng));
        replica.begun = self.now;
        replica.term += 1;
        let term = replica.term;
        self.note(one, || "begins a term".to_owned());
        self.schedule(self.now, Scheduled::Tell(one, term, Event::Tick));
    }

    fn end(&mut self, one: usize) {
        self.all[one].machine = None;
        self.all[one].term += 1;
    }

    fn tell(&mut self, one: usize, event: Event) {
        self.note(one, || format!("<- {event:?}"));
        let clocks = self.all[one].clocks(self.now);
        let Some(machine) = &mut self.all[one].machine else { return };
        for action in machine.handle(clocks, event) {
            self.note(one, || format!("-> {action:?}"));
            self.act(one, action);
        }
        self.wake(one);
    }

    fn wake(&mut self, one: usize) {
        let replica = &self.all[one];
        let Some(deadline) = replica.machine.as_ref().and_then(Machine::deadline) else { return };
        let when = replica.begun + deadline.div_f64(replica.speed) + Duration::from_micros(1);
        let term = replica.term;
        self.schedule(when.max(self.now), Scheduled::Wake(one, term));
    }

    fn act(&mut self, one: usize, action: Action) {
        let term = self.all[one].term;
        match action {
            Action::Ping => {
                let when = self.now + Duration::from_millis(5);
                self.schedule(when, Scheduled::Tell(one, term, Event::Pong(Pong::Well)));
            }
            Action::Node(ref call) => {
                let read = *call == NodeCall::Read;
                assert!(read || self.all[one].may_write(self.now), "a write that nobody permitted");
                self.send(one, action);
            }
            Action::Lease(_) => self.send(one, action),
            Action::Announce(..) => {}
            Action::Finished => {
                self.end(one);
                self.come_back(one);
            }
            Action::GiveUp(_) => self.begin(one),
        }
    }

    /// A call goes its way. In the storm it may be lost, or answered by an error, or be so slow that it is given up and
    /// takes effect all the same.
    fn send(&mut self, one: usize, action: Action) {
        let stormy = self.now < STORM;
        let term = self.all[one].term;
        let limit = TERMS.renew_deadline / 3;
        let slow = if stormy && self.rng.random_bool(0.1) { 20_000 } else { 40 };
        let way = Duration::from_millis(self.rng.random_range(1..slow));
        let back = Duration::from_millis(self.rng.random_range(1..slow));
        let lost = stormy && self.rng.random_bool(0.1);
        let given_up = lost || way + back > limit;
        if given_up {
            let error = Error::new(Kind::Timeout, "as scheduled");
            self.schedule(self.now + limit, Scheduled::Tell(one, term, answer(action.clone(), Err(error))));
        }
        if !lost {
            let answered = (!given_up).then_some(back);
            self.schedule(self.now + way, Scheduled::Arrive(one, term, action, answered));
        }
    }

    fn arrive(&mut self, one: usize, term: u64, call: Action, answered: Option<Duration>) {
        let (before, after) = if self.now < STORM {
            (self.rng.random_bool(0.1), self.rng.random_bool(0.1))
        } else {
            (false, false)
        };
        let error = || Error::new(Kind::Server, "as scheduled");
        let outcome = if before { Err(error()) } else { serve(&mut self.server, &call) };
        let outcome = if after { Err(error()) } else { outcome };
        if let Some(back) = answered {
            self.schedule(self.now + back, Scheduled::Tell(one, term, answer(call, outcome)));
        }
    }

    fn fault(&mut self, one: usize) {
        let what = self.rng.random_range(0..5);
        self.note(one, || format!("fault {what}"));
        match what {
            0 | 1 => {
                let pause = Duration::from_millis(self.rng.random_range(100..40_000));
                self.all[one].paused_until = self.all[one].paused_until.max(self.now + pause).min(STORM);
            }
            2 if self.all[one].machine.is_some() => {
                self.end(one);
                self.come_back(one);
            }
            3 if self.all[one].machine.is_some() => {
                let term = self.all[one].term;
                self.schedule(self.now, Scheduled::Tell(one, term, Event::Stop));
            }
            _ => self.all[one].skew += SignedDuration::from_secs(self.rng.random_range(-600..600)),
        }
    }

    fn come_back(&mut self, one: usize) {
        let wait = Duration::from_millis(self.rng.random_range(1..10_000));
        self.schedule(self.now + wait, Scheduled::Start(one));
    }

    fn leaders(&self) -> Vec<usize> {
        (0..REPLICAS).filter(|one| self.all[*one].leads(self.now)).collect()
    }

    fn note(&mut self, one: usize, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} replica {one} {}", self.now, what()).chars().take(240).collect());
        }
    }
}

/// What came back from the server: a Node, a lease, or nothing of either.
type Outcome = Result<(Option<Arc<Node>>, Option<Box<Lease>>), Error>;

fn serve(server: &mut Server, call: &Action) -> Outcome {
    match call {
        Action::Node(call) => server.node_call(call).map(|node| (node.map(Arc::new), None)),
        Action::Lease(call) => server.lease_call(call).map(|lease| (None, lease.map(Box::new))),
        _ => Ok((None, None)),
    }
}

fn answer(call: Action, outcome: Outcome) -> Event {
    match call {
        Action::Node(call) => Event::NodeAnswer(call, outcome.map(|(node, _)| node)),
        Action::Lease(call) => Event::LeaseAnswer(call, outcome.map(|(_, lease)| lease)),
        _ => Event::Tick,
    }
}

/// Runs one schedule; the error is its trace, if one was asked for.
fn simulate(seed: u64, traced: bool) -> Result<(), String> {
    let mut world = Replicas::new(seed, traced);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(STORM + CALM);
        let leaders = world.leaders();
        assert_eq!(leaders.len(), 1, "{leaders:?} lead after the storm");
        world.run(STORM + CALM + LASTING);
        assert_eq!(world.leaders(), leaders, "nothing is wrong, so the leader stays");
    }));
    outcome.map_err(|_| {
        let trace = world.trace.unwrap_or_default();
        trace[trace.len().saturating_sub(80)..].join("\n")
    })
}

#[test]
fn never_may_two_replicas_write_and_after_any_storm_of_faults_one_leads() {
    for seed in super::seeds(300) {
        if simulate(seed, false).is_err() {
            let trace = simulate(seed, true).expect_err("a seed fails every time");
            panic!("seed {seed} failed; the last of its trace:\n{trace}\nreplay with VK_SEED={seed}");
        }
    }
}
