//! Simulated resource usage of a container, with counters that never decrease.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{fnv, lifecycle::Lifecycle, time::between};

const MIB: u64 = 1024 * 1024;

/// Current usage and total CPU time of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageCounter {
    /// Current usage; zero while it does not run.
    pub usage: UsageRate,
    /// Since when `usage` applies.
    since: Timestamp,
    /// CPU time of this instance before `since`, in nanoseconds.
    spent: u64,
    /// CPU time of earlier instances.
    before: u64,
}

/// Usage at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRate {
    /// Billionths of a core.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
}

// === impl UsageCounter ===

impl UsageCounter {
    /// CPU time of this instance, in nanoseconds.
    pub fn spent(&self, now: Timestamp) -> u64 {
        self.spent.saturating_add(grown(self.usage.cpu, self.since, now))
    }

    /// CPU time including earlier instances.
    pub fn total(&self, now: Timestamp) -> u64 {
        self.before.saturating_add(self.spent(now))
    }

    /// Starts a new instance.
    pub(super) fn start(&mut self, at: Timestamp, usage: UsageRate) {
        *self = Self { usage, since: at, spent: 0, before: self.total(at) };
    }

    /// Changes the usage from now on.
    pub(super) fn set(&mut self, at: Timestamp, usage: UsageRate) {
        *self = Self { usage, since: at, spent: self.spent(at), before: self.before };
    }

    /// Ends the instance.
    pub(super) fn stop(&mut self, at: Timestamp) {
        self.set(at, UsageRate::default());
    }
}

// === impl UsageRate ===

impl UsageRate {
    /// The scripted usage, or values that look random and are constant for a container.
    pub(super) fn of(life: &Lifecycle, uid: &str, container: &str) -> Self {
        let seed = fnv(format!("{uid}/{container}").as_bytes());
        let scripted = |amount: i64, grain: u64| u64::try_from(amount).unwrap_or(0).saturating_mul(grain);
        Self {
            // 1 to 50 thousandths of a core, and 8 to 72 MiB.
            cpu: life
                .cpu
                .map_or_else(|| (seed % 50 + 1) * 1_000_000, |cpu| scripted(cpu.to_milli(), 1_000_000)),
            memory: life
                .memory
                .map_or_else(|| (seed / 64 % 64 + 8) * MIB, |memory| scripted(memory.to_units(), 1)),
        }
    }
}

/// The increase since then at this rate per second.
pub(crate) fn grown(rate: u64, since: Timestamp, now: Timestamp) -> u64 {
    let grown = between(since, now).as_millis() * u128::from(rate) / 1000;
    u64::try_from(grown).unwrap_or(u64::MAX)
}
