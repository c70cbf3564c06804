//! Which lower events are told above, and when: a synchronous machine.
//!
//! Listings come again when a watch breaks. What is new in one is known by its version, and not by memory of all events that a cluster
//! has: most of them are not about our pods.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use vk_provider::{PodEvent, PodRef};

use super::{
    Twins,
    word::{About, Word},
};

#[cfg(test)]
mod tests;

/// How long an event may wait for its pod to become known: what is known of pods comes by another watch.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is asked for meanwhile.
const RETRY: Duration = Duration::from_millis(500);
/// How many events wait. Those of other people's pods wait too.
const WAITING: usize = 1024;
/// The same event is not told again sooner, however often it happens; and then ever more seldom, so that it does not use up what the core lets
/// be told of a pod.
const REPEAT: Duration = Duration::from_mins(1);
const SELDOM: Duration = Duration::from_mins(10);
/// How many events a pod may have at once for one reason, and when it may have another.
const BURST: u32 = 25;
const ANOTHER: Duration = Duration::from_secs(30);
/// How many events are remembered, to tell a repetition.
const REMEMBERED: usize = 8192;
/// How many allowances are kept before those are dropped that are as if they were new.
const ALLOWANCES: usize = 4096;

/// Decides what is told.
#[derive(Debug)]
pub(super) struct Relay {
    scopes: Vec<Scope>,
    told: Told,
    allowances: HashMap<(Arc<str>, String), Allowance>,
    /// What waits for its pod, from the oldest to the newest, with the time until which it does.
    waiting: VecDeque<(Duration, Word)>,
    /// When it is asked for again.
    retry: Option<Duration>,
}

/// What one watch has told.
#[derive(Debug, Default)]
struct Scope {
    /// What is not newer was there before, or was heard. Before the first listing there is none.
    floor: Option<u64>,
    /// The newest version in the listing that is under way.
    listing: Option<u64>,
}

/// What was told lately, by the event and the pod.
#[derive(Debug, Default)]
struct Told {
    last: HashMap<(String, Arc<str>), Last>,
    order: VecDeque<(String, Arc<str>)>,
}

/// When an event was told last.
#[derive(Clone, Copy, Debug)]
struct Last {
    count: i32,
    at: Duration,
    /// When it may be told again.
    gap: Duration,
}

/// How many events a pod may still have for one reason.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u32,
    since: Duration,
}

// === impl Relay ===

impl Relay {
    /// With so many watches.
    pub(super) fn new(scopes: usize) -> Self {
        Self {
            scopes: (0..scopes).map(|_| Scope::default()).collect(),
            told: Told::default(),
            allowances: HashMap::new(),
            waiting: VecDeque::new(),
            retry: None,
        }
    }

    /// A listing begins.
    pub(super) fn begin(&mut self, scope: usize) -> Vec<PodEvent> {
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.listing = Some(0);
        }
        Vec::new()
    }

    /// A listing is complete.
    pub(super) fn listed(&mut self, scope: usize) -> Vec<PodEvent> {
        if let Some(scope) = self.scopes.get_mut(scope) {
            let newest = scope.listing.take().filter(|newest| *newest > 0);
            // Also if that is older than what was heard: what is gone does not come back, but for a server that was set back, and what is
            // said there from then on is new.
            scope.floor = Some(newest.or(scope.floor).unwrap_or(0));
        }
        Vec::new()
    }

    /// An event was seen. Answers what is to be told.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        scope: usize,
        word: Word,
        pods: &dyn Twins,
    ) -> Vec<PodEvent> {
        if !self.scopes.get_mut(scope).is_some_and(|scope| scope.is_news(word.version)) {
            return Vec::new();
        }
        let targets = targets(&word, pods);
        if targets.is_empty() {
            if self.waiting.len() == WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back((now + PATIENCE, word));
            self.retry.get_or_insert(now + RETRY);
            return Vec::new();
        }
        self.tell(now, &word, targets)
    }

    /// Time passes: what waits is tried again.
    pub(super) fn tick(&mut self, now: Duration, pods: &dyn Twins) -> Vec<PodEvent> {
        if self.retry.is_none_or(|retry| now < retry) {
            return Vec::new();
        }
        let mut told = Vec::new();
        for (until, word) in std::mem::take(&mut self.waiting) {
            let targets = targets(&word, pods);
            if !targets.is_empty() {
                told.extend(self.tell(now, &word, targets));
            } else if now < until {
                self.waiting.push_back((until, word));
            }
        }
        self.retry = (!self.waiting.is_empty()).then(|| now + RETRY);
        told
    }

    /// When there is something to do without anything being heard.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.retry
    }

    fn tell(&mut self, now: Duration, word: &Word, pods: Vec<PodRef>) -> Vec<PodEvent> {
        let mut told = Vec::new();
        for pod in pods {
            let key = (word.uid.clone(), Arc::clone(&pod.uid));
            if self.told.is_news(&key, word.count, now) && self.may(&pod, &word.reason, now) {
                self.told.remember(key, word.count, now);
                told.push(word.on(pod));
            }
        }
        told
    }

    fn may(&mut self, pod: &PodRef, reason: &str, now: Duration) -> bool {
        if self.allowances.len() >= ALLOWANCES {
            self.allowances.retain(|_, allowance| {
                allowance.earn(now);
                allowance.left < BURST
            });
        }
        let key = (Arc::clone(&pod.uid), reason.to_owned());
        let allowance = self.allowances.entry(key).or_insert(Allowance { left: BURST, since: now });
        allowance.take(now)
    }
}

/// The upper pods that an event is told on.
fn targets(word: &Word, pods: &dyn Twins) -> Vec<PodRef> {
    match &word.about {
        About::Pod { namespace, name, uid } => pods.twin(namespace, name, uid).into_iter().collect(),
        About::Claim { namespace, name } => pods.users(namespace, name),
    }
}

// === impl Scope ===

impl Scope {
    /// Whether what has this version was not there before.
    fn is_news(&mut self, version: u64) -> bool {
        if let Some(newest) = &mut self.listing {
            *newest = version.max(*newest);
            self.floor.is_some_and(|floor| version > floor)
        } else {
            self.floor = self.floor.map(|floor| floor.max(version));
            true
        }
    }
}

// === impl Told ===

impl Told {
    fn is_news(&self, key: &(String, Arc<str>), count: i32, now: Duration) -> bool {
        self.last.get(key).is_none_or(|last| count > last.count && now >= last.at + last.gap)
    }

    fn remember(&mut self, key: (String, Arc<str>), count: i32, now: Duration) {
        let gap = self.last.get(&key).map_or(REPEAT, |last| (last.gap * 2).min(SELDOM));
        if self.last.insert(key.clone(), Last { count, at: now, gap }).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.last.remove(&oldest));
        }
    }
}

// === impl Allowance ===

impl Allowance {
    fn earn(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.since).as_secs() / ANOTHER.as_secs();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(earned).min(BURST);
        self.since = if self.left == BURST { now } else { self.since + ANOTHER * earned };
    }

    fn take(&mut self, now: Duration) -> bool {
        self.earn(now);
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}
