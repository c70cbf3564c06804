//! A cloud in memory, with every fault that clouds have, on the clock of the test.

mod backend;
mod call_faults;
mod control;
mod group;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use vk_provider::Quantity;
use vk_supervisor::Clock;

pub use self::{
    call_faults::{CallFaults, PageFault},
    group::FakeGroup,
};
use crate::backend::{
    CallError, Caps, Class, ExecLimits, GroupRef, Idempotency, LogLimits, Naming, Observed, Price, TagLimits,
    Updates,
};

/// What happens to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It fails in this way, and nothing was done.
    Refused(Class),
    /// It is carried out, and its answer is lost.
    AnswerLost,
    /// It is carried out this much later, and has no answer.
    CarriedOutLater(Duration),
    /// It never ends.
    Hangs,
    /// It panics.
    Panics,
}

/// How the cloud behaves.
#[derive(Clone, Debug)]
pub struct Behavior {
    /// How long a group takes to run.
    pub start: Duration,
    /// How long a group takes to go after its delete.
    pub stop: Duration,
    /// How old lists are.
    pub lag: Duration,
    /// How many groups are on a page.
    pub page: usize,
    /// Whether we may see our groups. Otherwise lists are empty.
    pub visible: bool,
    /// By how much the cloud's clock is ahead.
    pub clock_error: SignedDuration,
    /// The quota of CPUs.
    pub quota: Option<i64>,
    /// Zones without stock.
    pub sold_out: Vec<String>,
    /// What all answers about groups say that nobody understands, instead of a state.
    pub nonsense: Option<String>,
}

/// A cloud in memory. Clones are the same cloud.
#[derive(Clone)]
pub struct FakeCloud(Arc<Inner>);

struct Inner {
    caps: Caps,
    clock: Clock,
    faults: CallFaults,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    behavior: Behavior,
    groups: Vec<FakeGroup>,
    tokens: BTreeMap<String, GroupRef>,
    logs: BTreeMap<(String, String), Vec<(Timestamp, String)>>,
    price: Option<Price>,
}

// === impl Behavior ===

impl Default for Behavior {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(5),
            stop: Duration::from_secs(5),
            lag: Duration::ZERO,
            page: 200,
            visible: true,
            clock_error: SignedDuration::ZERO,
            quota: None,
            sold_out: Vec::new(),
            nonsense: None,
        }
    }
}

// === impl State ===

impl State {
    /// What the cloud says about a group.
    fn observed(&self, group: &FakeGroup, at: Timestamp) -> Observed {
        let observed = group.observed(at, self.behavior.clock_error);
        match &self.behavior.nonsense {
            None => observed,
            Some(nonsense) => Observed {
                owner: observed.owner,
                complete: true,
                malformed: vec![nonsense.clone()],
                ..Observed::new(observed.group)
            },
        }
    }
}

// === impl FakeCloud ===

impl FakeCloud {
    /// A cloud with a feed, tokens, and everything else that a cloud can have.
    pub fn new(clock: Clock) -> Self {
        Self::with_caps(clock, Self::all_caps())
    }

    /// A cloud that can do these things.
    pub fn with_caps(clock: Clock, caps: Caps) -> Self {
        Self(Arc::new(Inner { caps, clock, faults: CallFaults::default(), state: Mutex::default() }))
    }

    /// Everything that a cloud can do.
    pub fn all_caps() -> Caps {
        Caps {
            naming: Naming::Assigned,
            idempotency: Idempotency::Token,
            consistency: Duration::from_secs(10),
            feed: true,
            detail_batch: 20,
            stats_batch: Some(20),
            tags: TagLimits { count: 20, key: 64, value: 128 },
            logs: Some(LogLimits { lines: 2000, bytes: 1 << 20, stamped: true, previous: true }),
            exec: Some(ExecLimits { arguments: 20, characters: 256 }),
            updates: Updates { images: true, resources: false, files: true },
            rates: BTreeMap::new(),
            deadline: Duration::from_secs(10),
        }
    }

    /// Changes how the cloud behaves.
    pub fn set(&self, change: impl FnOnce(&mut Behavior)) {
        change(&mut self.0.state.lock().behavior);
    }

    /// The price of every size.
    pub fn set_price(&self, price: Price) {
        self.0.state.lock().price = Some(price);
    }

    /// Writes a line to the log of a container of all pods of this name.
    pub fn log(&self, pod: &str, container: &str, line: &str) {
        let now = self.0.clock.now();
        let key = (pod.to_owned(), container.to_owned());
        self.0.state.lock().logs.entry(key).or_default().push((now, line.to_owned()));
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn used(state: &State, now: Timestamp) -> Quantity {
        let live = state.groups.iter().filter(|group| group.is_live(now)).count();
        Quantity::units(i64::try_from(live).unwrap_or(i64::MAX))
    }
}

fn refused(class: Class) -> CallError {
    let text = format!("the fake cloud was told to fail: {}", class.name());
    CallError::new(class, text)
}

impl std::fmt::Debug for FakeCloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeCloud").finish_non_exhaustive()
    }
}
