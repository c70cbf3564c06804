//! Token buckets and who waits for them. Knows no clock.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::Limits;
use crate::backend::{Action, Rate};

/// The share of all calls that polls can have whatever else waits.
const POLL_SHARE: f64 = 0.2;
/// How long a rate that was halved takes to recover from nothing to all.
const RECOVERY: Duration = Duration::from_mins(1);
/// Calls that are throttled so shortly after each other were sent at the same rate: it is halved once.
const ONE_HALVING: Duration = Duration::from_secs(1);
/// The smallest part of a rate that is left after much throttling.
const SMALLEST: f64 = 1.0 / 64.0;
/// Turns are this much apart at least, so that rounding errors do not make the driver spin.
const TICK: Duration = Duration::from_millis(1);

/// All buckets, and those who wait.
#[derive(Debug)]
pub(super) struct Buckets<T> {
    total: Bucket,
    /// What is left of the share of polls.
    polls: Bucket,
    actions: BTreeMap<Action, Bucket>,
    waiting: BTreeMap<Queue, VecDeque<T>>,
    /// The number of the last turn of each queue: queues of one priority take turns.
    served: BTreeMap<Queue, u64>,
    turns: u64,
}

/// A queue of those who wait for the same action. Lookups of single groups, of which there may be many, have a queue of their own: they do not
/// hold up the list of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Queue {
    pub(super) action: Action,
    pub(super) is_lookup: bool,
}

#[derive(Clone, Debug)]
struct Bucket {
    rate: Rate,
    /// The part of the rate in effect: less than 1 after throttling.
    factor: f64,
    /// When it was last halved.
    halved: Option<Duration>,
    tokens: f64,
    updated: Duration,
    blocked_until: Duration,
}

/// Who comes first. Smaller is earlier.
fn priority(action: Action) -> u8 {
    match action {
        Action::Delete => 0,
        Action::Create | Action::Update => 1,
        Action::Logs | Action::Exec | Action::Stats | Action::Price => 2,
        Action::Observe | Action::Changes | Action::Detail | Action::Probe => 3,
    }
}

fn is_poll(action: Action) -> bool {
    priority(action) == 3
}

// === impl Buckets ===

impl<T> Buckets<T> {
    pub(super) fn new(limits: &Limits) -> Self {
        let total = limits.total;
        let share = Rate { per_second: total.per_second * POLL_SHARE, burst: 1.0 };
        let actions = limits.actions.iter().map(|(action, rate)| (*action, Bucket::new(*rate)));
        Self {
            total: Bucket::new(total),
            polls: Bucket::new(share),
            actions: actions.collect(),
            waiting: BTreeMap::new(),
            served: BTreeMap::new(),
            turns: 0,
        }
    }

    pub(super) fn push(&mut self, queue: Queue, who: T) {
        self.waiting.entry(queue).or_default().push_back(who);
    }

    /// Removes those who wait no longer.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&T) -> bool) {
        for queue in self.waiting.values_mut() {
            queue.retain(|who| !is_gone(who));
        }
    }

    /// The next one whose turn it is.
    pub(super) fn pop(&mut self, now: Duration) -> Option<T> {
        self.refill(now);
        if !self.total.has_token(now) {
            return None;
        }
        let ready =
            |queue: &Queue| self.actions.get(&queue.action).is_none_or(|bucket| bucket.has_token(now));
        let candidates: Vec<Queue> = self.occupied().filter(ready).collect();
        let served = |queue: &Queue| self.served.get(queue).copied().unwrap_or_default();
        let polls = candidates.iter().copied().filter(|queue| is_poll(queue.action));
        let poll = polls.min_by_key(served);
        let first = candidates.iter().copied().min_by_key(|queue| (priority(queue.action), served(queue)));
        let queue = poll.filter(|_| self.polls.has_token(now)).or(first)?;
        self.turns += 1;
        self.served.insert(queue, self.turns);
        self.total.take();
        if is_poll(queue.action) {
            self.polls.take();
        }
        if let Some(bucket) = self.actions.get_mut(&queue.action) {
            bucket.take();
        }
        self.waiting.get_mut(&queue)?.pop_front()
    }

    /// The queues in which somebody waits.
    fn occupied(&self) -> impl Iterator<Item = Queue> {
        self.waiting.iter().filter(|(_, queue)| !queue.is_empty()).map(|(queue, _)| *queue)
    }

    /// When the next turn may come; `None` if nobody waits.
    pub(super) fn next_turn(&self, now: Duration) -> Option<Duration> {
        let due = self.occupied().map(|queue| {
            let own = self.actions.get(&queue.action).map_or(Duration::ZERO, |bucket| bucket.ready_at(now));
            own.max(self.total.ready_at(now))
        });
        due.min().map(|at| at.max(now + TICK))
    }

    /// The cloud has refused a call because there were too many.
    pub(super) fn throttled(&mut self, now: Duration, action: Action, after: Option<Duration>) {
        self.refill(now);
        let rate = self.total.rate;
        let bucket = self.actions.entry(action).or_insert_with(|| Bucket::new(rate));
        if bucket.halved.is_none_or(|halved| now >= halved + ONE_HALVING) {
            bucket.halved = Some(now);
            bucket.factor = (bucket.factor / 2.0).max(SMALLEST);
        }
        bucket.tokens = bucket.tokens.min(0.0);
        // A proxy that asks for hours does not blind a node.
        let delay = after.unwrap_or_default().min(super::LONGEST_DELAY);
        bucket.blocked_until = bucket.blocked_until.max(now + delay);
    }

    pub(super) fn estimated_wait(&mut self, now: Duration, action: Action) -> Duration {
        self.refill(now);
        let count = |is_ahead: &dyn Fn(Action) -> bool| -> usize {
            self.waiting.iter().filter(|(queue, _)| is_ahead(queue.action)).map(|(_, who)| who.len()).sum()
        };
        let ahead = count(&|other| priority(other) < priority(action) || other == action);
        let own = count(&|other| other == action);
        let wait = |bucket: &Bucket, ahead: usize| {
            let ahead = f64::from(u32::try_from(ahead).unwrap_or(u32::MAX));
            let missing = (ahead + 1.0 - bucket.tokens).max(0.0);
            // A rate that was halved recovers meanwhile.
            let recovered = RECOVERY.as_secs_f64() + missing / bucket.rate.per_second;
            let seconds = (missing / bucket.effective_rate()).min(recovered);
            bucket.blocked_until.saturating_sub(now)
                + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        let total = wait(&self.total, ahead);
        self.actions.get(&action).map_or(total, |bucket| wait(bucket, own).max(total))
    }

    fn refill(&mut self, now: Duration) {
        let all = [&mut self.total, &mut self.polls];
        all.into_iter().chain(self.actions.values_mut()).for_each(|bucket| bucket.refill(now));
    }
}

// === impl Bucket ===

impl Bucket {
    fn new(rate: Rate) -> Self {
        let rate = Rate { per_second: rate.per_second.max(0.001), burst: rate.burst.max(1.0) };
        Self {
            rate,
            factor: 1.0,
            halved: None,
            tokens: rate.burst,
            updated: Duration::ZERO,
            blocked_until: Duration::ZERO,
        }
    }

    fn effective_rate(&self) -> f64 {
        self.rate.per_second * self.factor
    }

    fn refill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        let before = self.factor;
        self.factor = (before + elapsed / RECOVERY.as_secs_f64()).min(1.0);
        let rate = self.rate.per_second * f64::midpoint(before, self.factor);
        // A throttled action has no burst until it has recovered.
        let burst = if self.factor < 1.0 { 1.0 } else { self.rate.burst };
        self.tokens = (self.tokens + elapsed * rate).min(burst.max(self.tokens.min(self.rate.burst)));
    }

    fn has_token(&self, now: Duration) -> bool {
        // Rounding must not cost a turn.
        self.tokens >= 1.0 - 1e-6 && now >= self.blocked_until
    }

    fn take(&mut self) {
        self.tokens -= 1.0;
    }

    fn ready_at(&self, now: Duration) -> Duration {
        let missing = (1.0 - self.tokens).max(0.0) / self.effective_rate();
        let wait = Duration::try_from_secs_f64(missing).unwrap_or(RECOVERY);
        (now + wait).max(self.blocked_until)
    }
}
