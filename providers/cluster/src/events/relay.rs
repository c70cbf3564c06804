//! The synchronous state machine that decides which lower events are relayed, and when.
//!
//! A watch that breaks lists all events again. New events are recognised by their version rather than by remembering all events of a
//! cluster, most of which are not about our pods.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use vk_provider::{PodEvent, PodRef};

use super::{
    PodLookup,
    lower_event::{InvolvedObject, LowerEvent},
};

#[cfg(test)]
mod tests;

/// How long an event waits for its pod to become known. Pods are reported by another watch.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);
/// How often waiting events are retried.
const RETRY: Duration = Duration::from_millis(500);
/// The maximum number of waiting events, including those about pods of others.
const MAX_WAITING: usize = 1024;
/// The delay before the same event is relayed again, which doubles up to a maximum, so that it does not use up the events that the core
/// allows for a pod.
const MIN_REPEAT: Duration = Duration::from_mins(1);
const MAX_REPEAT: Duration = Duration::from_mins(10);
/// How many events with the same reason a pod may get at once, and how often one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(30);
/// How many sent events are remembered to detect repetitions.
const MAX_SENT: usize = 8192;
/// How many token buckets there are at most. Reasons are made up by others, so there may be any number of them: those without a bucket of
/// their own share one.
const MAX_BUCKETS: usize = 4096;

/// Decides which events are relayed.
#[derive(Debug)]
pub(super) struct EventRelay {
    scopes: Vec<WatchScope>,
    sent: SentEvents,
    buckets: HashMap<(Arc<str>, String), TokenBucket>,
    /// The bucket of all events without one of their own.
    shared_bucket: TokenBucket,
    /// When full buckets were last dropped.
    swept: Duration,
    /// Events that wait for their pod, oldest first, each with its deadline.
    waiting: VecDeque<(Duration, LowerEvent)>,
    /// When the waiting events are retried.
    retry: Option<Duration>,
}

/// The progress of one watch.
#[derive(Debug, Default)]
struct WatchScope {
    /// Events up to this version are old. `None` before the first list.
    floor: Option<u64>,
    /// The newest version in the list in progress.
    listing: Option<u64>,
}

/// Recently relayed events, by event and pod.
#[derive(Debug, Default)]
struct SentEvents {
    last: HashMap<(String, Arc<str>), LastSent>,
    order: VecDeque<(String, Arc<str>)>,
}

/// When an event was relayed last.
#[derive(Clone, Copy, Debug)]
struct LastSent {
    count: i32,
    at: Duration,
    /// The delay before it may be relayed again.
    gap: Duration,
}

/// How many events with one reason a pod may still get.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    left: u32,
    since: Duration,
}

// === impl EventRelay ===

impl EventRelay {
    /// A relay for this number of watches.
    pub(super) fn new(scopes: usize) -> Self {
        Self {
            scopes: (0..scopes).map(|_| WatchScope::default()).collect(),
            sent: SentEvents::default(),
            buckets: HashMap::new(),
            shared_bucket: TokenBucket { left: BURST, since: Duration::ZERO },
            swept: Duration::ZERO,
            waiting: VecDeque::new(),
            retry: None,
        }
    }

    /// A list begins.
    pub(super) fn begin_listing(&mut self, scope: usize) -> Vec<PodEvent> {
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.listing = Some(0);
        }
        Vec::new()
    }

    /// A list is complete.
    pub(super) fn finish_listing(&mut self, scope: usize) -> Vec<PodEvent> {
        if let Some(scope) = self.scopes.get_mut(scope) {
            let newest = scope.listing.take().filter(|newest| *newest > 0);
            // Taken even if it is older than the floor: deleted events do not come back, but an API server restored from a backup starts
            // with older versions, and its new events count.
            scope.floor = Some(newest.or(scope.floor).unwrap_or(0));
        }
        Vec::new()
    }

    /// Handles an event and returns the events to send.
    pub(super) fn handle_event(
        &mut self,
        now: Duration,
        scope: usize,
        event: LowerEvent,
        pods: &dyn PodLookup,
    ) -> Vec<PodEvent> {
        if !self.scopes.get_mut(scope).is_some_and(|scope| scope.is_new(event.version)) {
            return Vec::new();
        }
        let targets = targets(&event, pods);
        if targets.is_empty() {
            if self.waiting.len() == MAX_WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back((now + LOOKUP_TIMEOUT, event));
            self.retry.get_or_insert(now + RETRY);
            return Vec::new();
        }
        self.publish(now, &event, targets)
    }

    /// Retries the waiting events.
    pub(super) fn tick(&mut self, now: Duration, pods: &dyn PodLookup) -> Vec<PodEvent> {
        if self.retry.is_none_or(|retry| now < retry) {
            return Vec::new();
        }
        let mut events = Vec::new();
        for (until, event) in std::mem::take(&mut self.waiting) {
            let targets = targets(&event, pods);
            if !targets.is_empty() {
                events.extend(self.publish(now, &event, targets));
            } else if now < until {
                self.waiting.push_back((until, event));
            }
        }
        self.retry = (!self.waiting.is_empty()).then(|| now + RETRY);
        events
    }

    /// When to call [`Self::tick`].
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.retry
    }

    fn publish(&mut self, now: Duration, event: &LowerEvent, pods: Vec<PodRef>) -> Vec<PodEvent> {
        let mut events = Vec::new();
        for pod in pods {
            let key = (event.uid.clone(), Arc::clone(&pod.uid));
            if self.sent.is_new(&key, event.count, now) && self.try_spend(&pod, &event.reason, now) {
                self.sent.remember(key, event.count, now);
                events.push(event.on(pod));
            }
        }
        events
    }

    fn try_spend(&mut self, pod: &PodRef, reason: &str, now: Duration) -> bool {
        if self.buckets.len() >= MAX_BUCKETS && now >= self.swept + REFILL {
            self.swept = now;
            self.buckets.retain(|_, bucket| {
                bucket.refill(now);
                bucket.left < BURST
            });
        }
        let key = (Arc::clone(&pod.uid), reason.to_owned());
        let is_full = self.buckets.len() >= MAX_BUCKETS;
        match self.buckets.entry(key) {
            Entry::Occupied(bucket) => bucket.into_mut().take(now),
            Entry::Vacant(_) if is_full => self.shared_bucket.take(now),
            Entry::Vacant(place) => place.insert(TokenBucket { left: BURST, since: now }).take(now),
        }
    }
}

/// The upper pods that an event is relayed to.
fn targets(event: &LowerEvent, pods: &dyn PodLookup) -> Vec<PodRef> {
    match &event.involved {
        InvolvedObject::Pod { namespace, name, uid } => {
            pods.upper_pod(namespace, name, uid).into_iter().collect()
        }
        InvolvedObject::Claim { namespace, name } => pods.claim_users(namespace, name),
    }
}

// === impl WatchScope ===

impl WatchScope {
    /// Whether an event of this version is new.
    fn is_new(&mut self, version: u64) -> bool {
        if let Some(newest) = &mut self.listing {
            *newest = version.max(*newest);
            self.floor.is_some_and(|floor| version > floor)
        } else {
            self.floor = self.floor.map(|floor| floor.max(version));
            true
        }
    }
}

// === impl SentEvents ===

impl SentEvents {
    fn is_new(&self, key: &(String, Arc<str>), count: i32, now: Duration) -> bool {
        self.last.get(key).is_none_or(|last| count > last.count && now >= last.at + last.gap)
    }

    fn remember(&mut self, key: (String, Arc<str>), count: i32, now: Duration) {
        let gap = self.last.get(&key).map_or(MIN_REPEAT, |last| (last.gap * 2).min(MAX_REPEAT));
        if self.last.insert(key.clone(), LastSent { count, at: now, gap }).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > MAX_SENT {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.last.remove(&oldest));
        }
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    fn refill(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.since).as_secs() / REFILL.as_secs();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(earned).min(BURST);
        self.since = if self.left == BURST { now } else { self.since + REFILL * earned };
    }

    fn take(&mut self, now: Duration) -> bool {
        self.refill(now);
        let try_spend = self.left > 0;
        self.left -= u32::from(try_spend);
        try_spend
    }
}
