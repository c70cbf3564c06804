//! What the cloud holds: its groups, and what will happen to them when.
//!
//! Nothing here waits: every call first carries out what is due by the clock. Containers are simulated by a script, or are
//! processes, which [`Effect`]s start and stop.

mod catalog;
mod containers;
mod deletion;
mod group;
mod lifecycle;
mod script;
mod settings;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::Value;

pub(crate) use self::{
    catalog::{Size, grid, per_second, price_of},
    group::{Container, ContainerState, Event, Group, GroupStatus, LogLine, Outcome, Usage},
};
pub use self::{
    script::Script,
    settings::{Settings, StockCheck, Timing},
};
use crate::error::{ApiError, Result};

/// How many ended groups of a region stay after the time of retention.
const ENDED_GROUPS: usize = 100;

/// The groups of an account in a region.
pub(crate) struct Cloud {
    pub(crate) settings: Settings,
    /// By order of creation.
    groups: BTreeMap<u64, Group>,
    ids: BTreeMap<String, u64>,
    due: BTreeMap<(Timestamp, u64), Due>,
    sequence: u64,
    rng: StdRng,
    /// Answers by action and client token, with the request.
    tokens: BTreeMap<(String, String), (Value, Value)>,
    /// Groups that are gone, for accounts.
    pub(crate) records: Vec<BillingRecord>,
    effects: Vec<Effect>,
    /// Whether containers are processes.
    has_processes: bool,
    now: Timestamp,
}

/// What a group has cost.
#[derive(Clone, Debug, PartialEq)]
pub struct BillingRecord {
    /// Of the group.
    pub id: String,
    /// Of the group.
    pub name: String,
    /// From its creation.
    pub from: Timestamp,
    /// To its end. `None` while it is billed.
    pub to: Option<Timestamp>,
    /// What is billed.
    pub cpu: f64,
    /// In GiB.
    pub memory: f64,
}

/// What happens at some time. Containers are numbered, init containers first; a run is one start of a container.
#[derive(Clone, Debug)]
enum Due {
    Schedule(u64),
    Pull(u64),
    Start(u64, usize),
    Ready(u64, usize, u64),
    Exit(u64, usize, u64, Outcome),
    Deadline(u64),
    Updated(u64),
    Gone(u64),
    Forget(u64),
}

/// What a runtime of processes does.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Start {
        group: u64,
        container: usize,
        run: u64,
    },
    /// Ends all containers within this time.
    Stop {
        group: u64,
        grace: SignedDuration,
    },
    Remove {
        group: u64,
    },
}

// === impl BillingRecord ===

impl BillingRecord {
    /// Seconds that are billed by `now`.
    pub fn seconds(&self, now: Timestamp) -> f64 {
        self.to.unwrap_or(now).duration_since(self.from).as_secs_f64()
    }
}

// === impl Cloud ===

impl Cloud {
    pub(crate) fn new(settings: Settings, has_processes: bool, seed: u64, now: Timestamp) -> Self {
        Self {
            settings,
            groups: BTreeMap::new(),
            ids: BTreeMap::new(),
            due: BTreeMap::new(),
            sequence: 0,
            rng: StdRng::seed_from_u64(seed),
            tokens: BTreeMap::new(),
            records: Vec::new(),
            effects: Vec::new(),
            has_processes,
            now,
        }
    }

    /// Carries out what is due.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
        {
            let ((at, _), due) = entry.remove_entry();
            self.now = at.max(self.now);
            self.happen(due);
        }
        self.now = now.max(self.now);
        self.forget_ended();
    }

    /// When the next thing happens.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    fn after(&mut self, delay: SignedDuration, due: Due) {
        self.sequence += 1;
        self.due.insert((self.now + delay, self.sequence), due);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Schedule(group) => self.schedule(group),
            Due::Pull(group) => self.pull(group),
            Due::Start(group, container) => self.start(group, container),
            Due::Ready(group, container, run) => self.set_ready(group, container, run, true),
            Due::Exit(group, container, run, outcome) => self.exited(group, container, run, outcome),
            Due::Deadline(group) => self.exceed_deadline(group),
            Due::Updated(group) => self.finish_update(group),
            Due::Gone(group) => self.gone(group),
            Due::Forget(group) => self.forget(group),
        }
    }

    /// All groups, the newest first, those included that lists do not show yet.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (u64, &Group)> {
        self.groups.iter().rev().map(|(number, group)| (*number, group))
    }

    pub(crate) fn group(&self, number: u64) -> Option<&Group> {
        self.groups.get(&number)
    }

    pub(crate) fn group_mut(&mut self, number: u64) -> Option<&mut Group> {
        self.groups.get_mut(&number)
    }

    /// The group with this id, unless it is gone.
    pub(crate) fn find(&self, id: &str) -> Result<(u64, &Group)> {
        let number = self.ids.get(id).ok_or_else(|| ApiError::no_group(id))?;
        let group = self.groups.get(number).filter(|group| !group.is_gone);
        Ok((*number, group.ok_or_else(|| ApiError::no_group(id))?))
    }

    /// The answer to a request with the same client token, if there was one.
    pub(crate) fn answered(&self, action: &str, request: &Value) -> Result<Option<Value>> {
        let Some(token) = request["ClientToken"].as_str().filter(|token| !token.is_empty()) else {
            return Ok(None);
        };
        match self.tokens.get(&(action.to_owned(), token.to_owned())) {
            Some((same, answer)) if same == request => Ok(Some(answer.clone())),
            Some(_) => Err(ApiError::new(
                400,
                "IdempotentParameterMismatch",
                "The request uses the same client token as a previous, but non-identical request.",
            )),
            None => Ok(None),
        }
    }

    pub(crate) fn remember(&mut self, action: &str, request: &Value, answer: &Value) {
        if let Some(token) = request["ClientToken"].as_str().filter(|token| !token.is_empty()) {
            let key = (action.to_owned(), token.to_owned());
            self.tokens.insert(key, (request.clone(), answer.clone()));
        }
    }

    /// A name that nobody else has: a prefix and twenty letters and digits.
    pub(crate) fn new_id(&mut self, prefix: &str) -> String {
        const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let letters = (0..20).map(|_| char::from(LETTERS[self.rng.random_range(0..LETTERS.len())]));
        let letters: String = letters.collect();
        format!("{prefix}{letters}")
    }

    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.rng.random_range(0..below)
    }

    /// CPUs of groups that have not ended.
    pub(crate) fn used_cpu(&self) -> f64 {
        self.groups.values().filter(|group| group.billed_to.is_none()).map(|group| group.size.cpu).sum()
    }

    /// What each group has cost, those that exist included.
    pub(crate) fn bills(&self) -> Vec<BillingRecord> {
        let existing = self.groups.values().filter(|group| !group.is_gone).map(Group::bill);
        self.records.iter().cloned().chain(existing).collect()
    }

    /// Only the last ended groups stay after the time of retention.
    fn forget_ended(&mut self) {
        let ended: Vec<(Timestamp, u64)> = self
            .groups
            .iter()
            .filter(|(_, group)| group.status.is_ended() && !group.is_gone)
            .filter_map(|(number, group)| Some((group.ended?, *number)))
            .collect();
        if ended.len() <= ENDED_GROUPS {
            return;
        }
        let mut ended = ended;
        ended.sort_unstable();
        let old = self.now - self.settings.timing.retention;
        let surplus = ended.len() - ENDED_GROUPS;
        for (_, number) in ended.into_iter().take(surplus).filter(|(at, _)| *at < old) {
            self.gone(number);
        }
    }
}
