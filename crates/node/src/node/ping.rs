//! Provider health: at most one ping at a time, with a timeout, and more often while pings fail.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_provider::node::{Condition, ConditionStatus};
use vk_supervisor::Backoff;

use super::desired::ready;

/// Result of a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PingResult {
    /// The provider is healthy.
    Ok,
    /// The provider reported an error.
    Failed(String),
    /// The provider did not answer in time.
    TimedOut,
}

/// Schedules the pings of one node and keeps the last result. Times count from the controller's start.
#[derive(Debug)]
pub struct Pinger {
    interval: Duration,
    timeout: Duration,
    last: Option<PingResult>,
    in_flight: bool,
    ping_again: bool,
    due: Duration,
    backoff: Backoff,
}

impl Pinger {
    /// Pings every `interval`, starting at once.
    pub fn new(interval: Duration, timeout: Duration) -> Self {
        // Ping again soon after a failure, so that a recovery is noticed soon.
        let backoff = Backoff::new(interval.min(Duration::from_secs(1)), interval);
        Self {
            interval,
            timeout,
            last: None,
            in_flight: false,
            ping_again: false,
            due: Duration::ZERO,
            backoff,
        }
    }

    /// Whether to ping now. True at most once until [`Pinger::on_result`].
    pub fn start_if_due(&mut self, now: Duration) -> bool {
        let start = !self.in_flight && now >= self.due;
        self.in_flight |= start;
        start
    }

    /// Records a result and returns whether the provider's health changed.
    pub fn on_result(&mut self, now: Duration, result: PingResult, rng: &mut StdRng) -> bool {
        self.in_flight = false;
        let wait = if result == PingResult::Ok {
            self.backoff.reset();
            self.interval
        } else {
            self.backoff.next(None, rng)
        };
        self.due = if std::mem::take(&mut self.ping_again) { now } else { now + wait };
        let changed = self.last.as_ref() != Some(&result);
        self.last = Some(result);
        changed
    }

    /// Requests a ping at once, or another one after the ping in flight.
    pub fn request_ping(&mut self, now: Duration) {
        if self.in_flight {
            self.ping_again = true;
        } else {
            self.due = self.due.min(now);
        }
    }

    /// When to ping next; `None` while a ping is in flight.
    pub fn next_deadline(&self) -> Option<Duration> {
        (!self.in_flight).then_some(self.due)
    }

    /// The last result.
    pub fn last_result(&self) -> Option<&PingResult> {
        self.last.as_ref()
    }

    /// The node's Ready condition; `None` before the first result.
    pub fn ready_condition(&self) -> Option<Condition> {
        Some(match self.last.as_ref()? {
            PingResult::Ok => ready(ConditionStatus::True, "KubeletReady", "the provider is ready"),
            PingResult::Failed(message) => ready(ConditionStatus::False, "ProviderNotReady", message.clone()),
            PingResult::TimedOut => {
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
    fn there_is_never_a_second_ping_in_flight() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut pinger = Pinger::new(INTERVAL, INTERVAL);
        assert!(pinger.start_if_due(Duration::ZERO));
        pinger.request_ping(Duration::from_secs(50));
        assert!(!pinger.start_if_due(Duration::from_secs(100)));
        assert_eq!(pinger.next_deadline(), None);
        assert!(pinger.on_result(Duration::from_secs(101), PingResult::TimedOut, &mut rng));
        assert!(pinger.start_if_due(Duration::from_secs(101)), "the ping requested meanwhile is not lost");
    }

    #[test]
    fn a_failing_provider_is_pinged_sooner_than_a_healthy_one() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut pinger = Pinger::new(INTERVAL, INTERVAL);
        pinger.start_if_due(Duration::ZERO);
        pinger.on_result(Duration::ZERO, PingResult::Failed("no".into()), &mut rng);
        assert!(pinger.next_deadline().unwrap() <= Duration::from_secs(1));
        pinger.start_if_due(Duration::from_secs(1));
        pinger.on_result(Duration::from_secs(1), PingResult::Ok, &mut rng);
        assert_eq!(pinger.next_deadline(), Some(Duration::from_secs(11)));
    }
}
