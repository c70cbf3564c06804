//! Whether the provider is well: one ping at a time, with a time limit, and sooner again while it fails.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_provider::node::{Condition, ConditionStatus};
use vk_supervisor::Backoff;

use super::desired::ready;

/// How the provider answered a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pong {
    /// It is well.
    Well,
    /// It says that it is not.
    Unwell(String),
    /// It did not answer in time.
    Silent,
}

/// The pings of one node. Times count from the controller's start.
#[derive(Debug)]
pub struct Pings {
    interval: Duration,
    timeout: Duration,
    last: Option<Pong>,
    under_way: bool,
    again: bool,
    due: Duration,
    backoff: Backoff,
}

impl Pings {
    /// Pings every `interval`; the first at once.
    pub fn new(interval: Duration, timeout: Duration) -> Self {
        // After a failure the next ping comes soon, so that a recovery shows soon.
        let backoff = Backoff::new(interval.min(Duration::from_secs(1)), interval);
        Self { interval, timeout, last: None, under_way: false, again: false, due: Duration::ZERO, backoff }
    }

    /// Whether to ping now. True at most once until [`Pings::answered`].
    pub fn start(&mut self, now: Duration) -> bool {
        let start = !self.under_way && now >= self.due;
        self.under_way |= start;
        start
    }

    /// Takes the answer; tells whether the node's health changed.
    pub fn answered(&mut self, now: Duration, pong: Pong, rng: &mut StdRng) -> bool {
        self.under_way = false;
        let wait = if pong == Pong::Well {
            self.backoff.reset();
            self.interval
        } else {
            self.backoff.next(None, rng)
        };
        self.due = if std::mem::take(&mut self.again) { now } else { now + wait };
        let changed = self.last.as_ref() != Some(&pong);
        self.last = Some(pong);
        changed
    }

    /// The provider says that something changed: ping at once, or once more after the ping under way.
    pub fn soon(&mut self, now: Duration) {
        if self.under_way {
            self.again = true;
        } else {
            self.due = self.due.min(now);
        }
    }

    /// When to ping next; `None` while one is under way.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.under_way).then_some(self.due)
    }

    /// The last answer.
    pub fn last(&self) -> Option<&Pong> {
        self.last.as_ref()
    }

    /// The node's Ready condition; `None` before the first answer.
    pub fn ready(&self) -> Option<Condition> {
        Some(match self.last.as_ref()? {
            Pong::Well => ready(ConditionStatus::True, "KubeletReady", "the provider is ready"),
            Pong::Unwell(message) => ready(ConditionStatus::False, "ProviderNotReady", message.clone()),
            Pong::Silent => {
                let message = format!("the provider did not answer a ping within {:?}", self.timeout);
                ready(ConditionStatus::False, "ProviderTimeout", message)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn there_is_never_a_second_ping_under_way() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut pings = Pings::new(INTERVAL, INTERVAL);
        assert!(pings.start(Duration::ZERO));
        pings.soon(Duration::from_secs(50));
        assert!(!pings.start(Duration::from_secs(100)));
        assert_eq!(pings.deadline(), None);
        assert!(pings.answered(Duration::from_secs(101), Pong::Silent, &mut rng));
        assert!(pings.start(Duration::from_secs(101)), "the hint that came meanwhile is not lost");
    }

    #[test]
    fn a_failing_provider_is_asked_sooner_than_a_healthy_one() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut pings = Pings::new(INTERVAL, INTERVAL);
        pings.start(Duration::ZERO);
        pings.answered(Duration::ZERO, Pong::Unwell("no".into()), &mut rng);
        assert!(pings.deadline().unwrap() <= Duration::from_secs(1));
        pings.start(Duration::from_secs(1));
        pings.answered(Duration::from_secs(1), Pong::Well, &mut rng);
        assert_eq!(pings.deadline(), Some(Duration::from_secs(11)));
    }
}
