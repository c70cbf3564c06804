//! How many questions may be asked per second.

use std::{collections::HashMap, sync::Arc, time::Duration};

/// Questions per second to one node.
const RATE_OF_NODE: u32 = 200;
/// Questions per second to all nodes together.
const RATE: u32 = 1000;

/// A budget for each node, so that one that is asked much keeps nobody from asking others, and one for all.
#[derive(Debug, Default)]
pub(crate) struct QueryBudget {
    nodes: HashMap<Arc<str>, TokenBucket>,
    all: TokenBucket,
}

/// A token bucket that holds the questions of one second.
#[derive(Debug, Default)]
struct TokenBucket {
    full_at: Duration,
}

// === impl QueryBudget ===

impl QueryBudget {
    /// Takes a question to each of these nodes, or says when to try again.
    pub(crate) fn take(&mut self, now: Duration, nodes: &[Arc<str>]) -> Result<(), Duration> {
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let of_node = |node| self.nodes.get(node).map_or(now, |bucket| bucket.ready(now, RATE_OF_NODE, 1));
        let ready = nodes.iter().map(of_node).chain([self.all.ready(now, RATE, count)]).max();
        if let Some(ready) = ready.filter(|ready| *ready > now) {
            return Err(ready);
        }
        self.all.take(now, RATE, count);
        for node in nodes {
            self.nodes.entry(Arc::clone(node)).or_default().take(now, RATE_OF_NODE, 1);
        }
        Ok(())
    }

    /// Forgets the nodes that may be asked as much as any other.
    pub(crate) fn forget_full(&mut self, now: Duration) {
        self.nodes.retain(|_, bucket| bucket.full_at > now);
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    /// When this many tokens can be taken. More than one second's worth can be taken when the bucket is full.
    fn ready(&self, now: Duration, rate: u32, count: u32) -> Duration {
        let (debt, limit) = (self.full_at.saturating_sub(now), Duration::from_secs(1));
        let after = debt + cost(rate, count);
        if debt.is_zero() || after <= limit { now } else { now + after.saturating_sub(limit).min(debt) }
    }

    fn take(&mut self, now: Duration, rate: u32, count: u32) {
        self.full_at = self.full_at.max(now) + cost(rate, count);
    }
}

fn cost(rate: u32, count: u32) -> Duration {
    (Duration::from_secs(1) / rate).saturating_mul(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<Arc<str>> {
        (0..count).map(|index| format!("vk-{index}").into()).collect()
    }

    /// How many rounds of questions to these nodes there are in ten seconds.
    fn rounds(budget: &mut QueryBudget, nodes: &[Arc<str>]) -> usize {
        let (mut now, mut rounds) = (Duration::from_secs(5), 0);
        let end = now + Duration::from_secs(10);
        while now < end {
            match budget.take(now, nodes) {
                Ok(()) => rounds += 1,
                Err(until) => {
                    assert!(until > now);
                    now = until;
                }
            }
        }
        rounds
    }

    #[test]
    fn a_node_is_asked_at_most_two_hundred_questions_per_second_and_all_together_a_thousand() {
        for (count, expected) in [(1, 1990..=2210), (4, 1990..=2210), (10, 990..=1110), (70, 141..=160)] {
            let rounds = rounds(&mut QueryBudget::default(), &nodes(count));
            assert!(expected.contains(&rounds), "{count} nodes: {rounds}");
        }
    }

    #[test]
    fn a_node_that_is_asked_much_keeps_nobody_from_asking_others() {
        let (mut budget, now) = (QueryBudget::default(), Duration::from_secs(5));
        while budget.take(now, &nodes(1)).is_ok() {}
        assert_eq!(budget.take(now, &["other".into()]), Ok(()));
        budget.forget_full(now + Duration::from_secs(2));
        assert!(budget.nodes.is_empty());
    }

    #[test]
    fn a_pod_with_more_nodes_than_that_is_evaluated_when_nothing_else_was() {
        let mut budget = QueryBudget::default();
        let now = Duration::from_secs(5);
        assert_eq!(budget.take(now, &nodes(5000)), Ok(()));
        let again = budget.take(now, &nodes(5000)).unwrap_err();
        assert_eq!(again, now + Duration::from_secs(5));
        assert_eq!(budget.take(again, &nodes(5000)), Ok(()));
    }
}
