//! What happens to calls: faults for single calls, for pages and for shares of all calls, a limit of their rate, and groups that lists hide.
//! For the cloud in memory and for tests of backends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;

use super::Fault;
use crate::{
    backend::{Action, CallError, CallResult, Class, Page, Rate},
    identity,
};

/// What happens to a page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFault {
    /// The call fails.
    Lost,
    /// Its groups are missing, and it says so.
    Incomplete,
    /// It names itself as the next page.
    Repeated,
    /// The cloud does not accept its token.
    TokenRefused,
}

/// What happens to the calls of a cloud, and how many there were.
#[derive(Debug, Default)]
pub struct CallFaults(Mutex<Faults>);

#[derive(Debug, Default)]
struct Faults {
    single: BTreeMap<Action, VecDeque<Fault>>,
    throttled_every: Option<u64>,
    share: Option<(f64, StdRng)>,
    outage: Option<Class>,
    limit: Option<Bucket>,
    page: Option<(usize, PageFault)>,
    /// The numbers of pages by their tokens.
    numbers: HashMap<String, usize>,
    hidden: BTreeSet<String>,
    calls: BTreeMap<Action, u64>,
    failed: BTreeMap<Action, u64>,
}

#[derive(Debug)]
struct Bucket {
    rate: Rate,
    tokens: f64,
    updated: Instant,
}

// === impl CallFaults ===

impl CallFaults {
    /// The next call of this kind has this fault; those that follow, the faults that were set after it.
    pub fn fail(&self, action: Action, fault: Fault) {
        self.0.lock().single.entry(action).or_default().push_back(fault);
    }

    /// Every so many calls is throttled.
    pub fn throttle(&self, every: Option<u64>) {
        self.0.lock().throttled_every = every;
    }

    /// This share of all calls is throttled, at random.
    pub fn throttle_share(&self, share: Option<f64>) {
        self.0.lock().share = share.map(|share| (share, StdRng::seed_from_u64(1)));
    }

    /// All calls fail.
    pub fn set_outage(&self, class: Option<Class>) {
        self.0.lock().outage = class;
    }

    /// Calls beyond this rate are throttled.
    pub fn limit(&self, rate: Rate) {
        self.0.lock().limit = Some(Bucket { rate, tokens: rate.burst, updated: Instant::now() });
    }

    /// This page of every list of all groups has a fault; the first page is 1.
    pub fn fail_page(&self, fault: Option<(usize, PageFault)>) {
        self.0.lock().page = fault;
    }

    /// Lists, and the feed, leave out the groups of these pods.
    pub fn hide(&self, uids: &[&str]) {
        self.0.lock().hidden = uids.iter().map(|uid| (*uid).to_owned()).collect();
    }

    /// The calls that were made, also those that failed.
    pub fn calls(&self, action: Action) -> u64 {
        self.0.lock().calls.get(&action).copied().unwrap_or_default()
    }

    /// All calls that were made.
    pub fn total_calls(&self) -> u64 {
        self.0.lock().calls.values().sum()
    }

    /// The calls that were throttled or failed otherwise.
    pub fn failed_calls(&self) -> u64 {
        self.0.lock().failed.values().sum()
    }

    /// Counts a call, and says what happens to it.
    pub fn begin(&self, action: Action) -> Option<Fault> {
        let mut faults = self.0.lock();
        *faults.calls.entry(action).or_default() += 1;
        let total: u64 = faults.calls.values().sum();
        let is_over = faults.limit.as_mut().is_some_and(|bucket| !bucket.take());
        let every = faults.throttled_every.is_some_and(|every| total.is_multiple_of(every));
        let is_drawn = faults.share.as_mut().is_some_and(|(share, rng)| rng.random_bool(*share));
        let throttled = || (is_over || every || is_drawn).then_some(Class::Throttled { after: None });
        let single = faults.single.get_mut(&action).and_then(VecDeque::pop_front);
        let fault = single.or_else(|| faults.outage.clone().or_else(throttled).map(Fault::Refused));
        if fault.is_some() {
            *faults.failed.entry(action).or_default() += 1;
        }
        fault
    }

    /// The number of a page, by the token that asks for it; an error if its call fails.
    pub fn begin_page(&self, token: Option<&str>) -> CallResult<usize> {
        let faults = self.0.lock();
        let number = token.map_or(1, |token| faults.numbers.get(token).copied().unwrap_or(1));
        match faults.page {
            Some((at, PageFault::Lost)) if at == number => {
                Err(CallError::ambiguous("the test loses this page"))
            }
            Some((at, PageFault::TokenRefused)) if at == number => {
                Err(CallError::new(Class::Invalid, "the test refuses the token of this page"))
            }
            _ => Ok(number),
        }
    }

    /// Applies the fault of a page that was read.
    pub fn end_page(&self, number: usize, token: Option<&str>, page: &mut Page) {
        let mut faults = self.0.lock();
        match faults.page {
            Some((at, PageFault::Incomplete)) if at == number => {
                page.groups.clear();
                page.incomplete = true;
            }
            Some((at, PageFault::Repeated)) if at == number => {
                page.next = token.map(str::to_owned).or_else(|| page.next.take());
            }
            _ => {}
        }
        if let Some(next) = page.next.clone().filter(|next| Some(&**next) != token) {
            faults.numbers.insert(next, number + 1);
        }
    }

    /// Leaves out the groups that lists hide.
    pub fn filter(&self, page: &mut Page) {
        let faults = self.0.lock();
        let uid = |name: &str| identity::parse_name(name).map(|(uid, _)| uid);
        page.groups.retain(|group| {
            faults.hidden.is_empty()
                || uid(&group.group.name).is_none_or(|uid| !faults.hidden.contains(&*uid))
        });
    }
}

// === impl Bucket ===

impl Bucket {
    fn take(&mut self) -> bool {
        let elapsed: Duration = self.updated.elapsed();
        self.updated = Instant::now();
        self.tokens = (self.tokens + elapsed.as_secs_f64() * self.rate.per_second).min(self.rate.burst);
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }
}
