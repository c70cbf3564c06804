//! The vendor's rate limits: a token bucket for each action.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Calls that the vendor allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Calls at once.
    pub burst: f64,
    /// Calls a second in the long run.
    pub per_second: f64,
}

/// Rate limits of the account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    limits: BTreeMap<&'static str, Limit>,
    filled: BTreeMap<&'static str, (f64, Timestamp)>,
}

// === impl Limit ===

impl Limit {
    const fn per_minute(calls: u32) -> Self {
        Self { burst: calls as f64, per_second: calls as f64 / 60.0 }
    }
}

// === impl Buckets ===

impl Buckets {
    /// What the vendor's documentation says.
    pub(crate) fn of_vendor() -> Self {
        const WRITES: Limit = Limit { burst: 100.0, per_second: 20.0 };
        let limits = [
            ("CreateContainerGroup", WRITES),
            ("DeleteContainerGroup", WRITES),
            ("UpdateContainerGroup", Limit::per_minute(1000)),
            ("RestartContainerGroup", Limit::per_minute(1000)),
            ("DescribeContainerGroups", Limit::per_minute(2000)),
            ("DescribeContainerGroupStatus", Limit::per_minute(10_000)),
            ("DescribeContainerGroupEvents", Limit::per_minute(10_000)),
            ("DescribeContainerGroupMetric", Limit::per_minute(2000)),
            ("DescribeMultiContainerGroupMetric", Limit::per_minute(2000)),
            ("DescribeContainerLog", Limit::per_minute(500)),
            ("ExecContainerCommand", Limit::per_minute(500)),
            ("DescribeContainerGroupPrice", Limit::per_minute(1000)),
            ("DescribeRegions", Limit::per_minute(10_000)),
            ("TagResources", Limit::per_minute(1000)),
            ("UntagResources", Limit::per_minute(1000)),
            ("ListTagResources", Limit::per_minute(1000)),
        ];
        Self { limits: limits.into(), filled: BTreeMap::new() }
    }

    /// Another limit for an action.
    pub(crate) fn set(&mut self, action: &'static str, limit: Limit) {
        self.limits.insert(action, limit);
        self.filled.remove(action);
    }

    /// Takes a token. Without one, says after how many milliseconds there is one.
    pub(crate) fn take(&mut self, action: &str, now: Timestamp) -> Result<(), u64> {
        let Some((action, limit)) = self.limits.get_key_value(action) else { return Ok(()) };
        let (tokens, since) = self.filled.entry(action).or_insert((limit.burst, now));
        let passed = now.duration_since(*since).as_secs_f64().max(0.0);
        *tokens = (*tokens + passed * limit.per_second).min(limit.burst);
        *since = now;
        if *tokens >= 1.0 {
            *tokens -= 1.0;
            return Ok(());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
        Err(((1.0 - *tokens) / limit.per_second * 1000.0).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_bucket_holds_its_burst_and_fills_at_its_rate() {
        let mut buckets = Buckets::of_vendor();
        let start = Timestamp::UNIX_EPOCH;
        for _ in 0..100 {
            buckets.take("CreateContainerGroup", start).unwrap();
        }
        assert_eq!(buckets.take("CreateContainerGroup", start), Err(50));
        assert_eq!(buckets.take("DeleteContainerGroup", start), Ok(()), "each action has its own");
        let later = start + SignedDuration::from_secs(1);
        for _ in 0..20 {
            buckets.take("CreateContainerGroup", later).unwrap();
        }
        assert!(buckets.take("CreateContainerGroup", later).is_err());
    }
}
