//! Nodes where trials have failed, or that kube-scheduler has refused.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

/// How long a node is left out after the first trial of a pod of some shape has failed there. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(5);
const LONGEST_BACKOFF: Duration = Duration::from_mins(5);
const MAX_DOUBLINGS: u32 = 8;
/// A failure is forgotten this long after its back-off.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// The length of what is remembered of a reason.
const REASON_CHARS: usize = 300;

/// The failures, by shape and node: what one pod has learned holds for all pods like it.
#[derive(Debug, Default)]
pub(crate) struct TrialFailures {
    shapes: HashMap<String, BTreeMap<Arc<str>, TrialFailure>>,
}

/// The failures of trials of one shape on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrialFailure {
    /// How many trials have failed in a row.
    pub(crate) count: u32,
    /// When the node is tried again.
    pub(crate) retry: Duration,
    /// Why the last one has failed.
    pub(crate) why: String,
}

// === impl TrialFailures ===

impl TrialFailures {
    /// A trial has failed. Trials that went on at the same time count as one.
    pub(crate) fn record(&mut self, now: Duration, shape: String, node: &Arc<str>, why: &str) {
        let nodes = self.shapes.entry(shape).or_default();
        let count = match nodes.get(node) {
            Some(before) if now < before.retry => before.count,
            Some(before) => before.count.saturating_add(1),
            None => 1,
        };
        let backoff = FIRST_BACKOFF * 2u32.pow((count - 1).min(MAX_DOUBLINGS));
        let retry = now + backoff.min(LONGEST_BACKOFF);
        let why = why.chars().take(REASON_CHARS).collect();
        nodes.insert(Arc::clone(node), TrialFailure { count, retry, why });
    }

    /// Whether nothing has failed.
    pub(crate) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// A pod was bound to the node.
    pub(crate) fn clear(&mut self, shape: &str, node: &str) {
        if let Some(nodes) = self.shapes.get_mut(shape) {
            nodes.remove(node);
        }
    }

    /// Forgets the failures of a shape.
    pub(crate) fn forget(&mut self, shape: &str) {
        self.shapes.remove(shape);
    }

    /// The failures of a shape on a node.
    pub(crate) fn of(&self, shape: &str, node: &str) -> Option<&TrialFailure> {
        self.shapes.get(shape)?.get(node)
    }

    /// Forgets what is old.
    pub(crate) fn expire(&mut self, now: Duration) {
        self.shapes.retain(|_, nodes| {
            nodes.retain(|_, failure| now < failure.retry + FORGOTTEN_AFTER);
            !nodes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_node_is_tried_again_after_a_back_off_that_grows_to_five_minutes() {
        let mut failures = TrialFailures::default();
        let node: Arc<str> = "vk".into();
        let mut now = SECOND;
        let mut delays = Vec::new();
        for _ in 0..9 {
            failures.record(now, "shape".to_owned(), &node, "no");
            // Another pod, at the same time.
            failures.record(now, "shape".to_owned(), &node, "no");
            let failure = failures.of("shape", "vk").unwrap();
            delays.push(failure.retry.checked_sub(now).unwrap().as_secs());
            now = failure.retry;
        }
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        failures.clear("shape", "vk");
        assert_eq!(failures.of("shape", "vk"), None);
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut failures = TrialFailures::default();
        failures.record(SECOND, "shape".to_owned(), &"vk".into(), "no");
        failures.expire(500 * SECOND);
        assert!(failures.of("shape", "vk").is_some());
        failures.expire(700 * SECOND);
        assert!(failures.shapes.is_empty());
    }
}
