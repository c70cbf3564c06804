//! How many pods are placed at the same time: a namespace whose updates fail, or are not answered, keeps no other one waiting.

use std::{collections::HashMap, sync::Arc};

/// Calls in flight for pods without a group. A connection carries about a hundred requests.
const MAX_CALLS: usize = 96;
/// Pods of one namespace, with those whose call has failed and will be repeated.
const MAX_PODS: usize = 64;

/// The pods without a group for which the API server is being told a node, and the calls in flight for them.
#[derive(Debug, Default)]
pub(super) struct PlacingLimits {
    namespaces: HashMap<Arc<str>, Usage>,
    calls: usize,
}

/// What is in use by a namespace.
#[derive(Debug, Default)]
struct Usage {
    pods: usize,
    calls: usize,
}

// === impl PlacingLimits ===

impl PlacingLimits {
    /// Whether another pod of the namespace may be placed.
    pub(super) fn may_place(&self, namespace: &str) -> bool {
        self.usage(namespace).is_none_or(|usage| usage.pods < MAX_PODS) && self.may_call(namespace)
    }

    /// Whether another call may be made for a pod of the namespace. It gets at most as many as are left for others.
    pub(super) fn may_call(&self, namespace: &str) -> bool {
        self.usage(namespace).map_or(0, |usage| usage.calls) < MAX_CALLS.saturating_sub(self.calls)
    }

    /// A node was chosen for a pod.
    pub(super) fn enter(&mut self, namespace: &Arc<str>) {
        self.namespaces.entry(Arc::clone(namespace)).or_default().pods += 1;
    }

    /// A pod has its node, or waits again. The answer to its call is not awaited.
    pub(super) fn leave(&mut self, namespace: &str, has_call: bool) {
        if has_call {
            self.answered(namespace);
        }
        let Some(usage) = self.namespaces.get_mut(namespace) else { return };
        usage.pods -= 1;
        if usage.pods == 0 {
            self.namespaces.remove(namespace);
        }
    }

    /// A call is made for a pod.
    pub(super) fn sent(&mut self, namespace: &str) {
        if let Some(usage) = self.namespaces.get_mut(namespace) {
            usage.calls += 1;
            self.calls += 1;
        }
    }

    /// A call was answered.
    pub(super) fn answered(&mut self, namespace: &str) {
        if let Some(usage) = self.namespaces.get_mut(namespace) {
            usage.calls -= 1;
            self.calls -= 1;
        }
    }

    fn usage(&self, namespace: &str) -> Option<&Usage> {
        self.namespaces.get(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places as many pods of a namespace as may be, with a call each.
    fn fill(limits: &mut PlacingLimits, namespace: &str) -> usize {
        let mut pods = 0;
        while limits.may_place(namespace) {
            limits.enter(&namespace.into());
            limits.sent(namespace);
            pods += 1;
        }
        pods
    }

    #[test]
    fn a_namespace_leaves_as_many_calls_to_others_as_it_has() {
        let mut limits = PlacingLimits::default();
        assert_eq!(["a", "b", "c", "d"].map(|namespace| fill(&mut limits, namespace)), [48, 24, 12, 6]);
        (0..48).for_each(|_| limits.leave("a", true));
        assert_eq!((limits.calls, limits.namespaces.len()), (42, 3));
        (0..12).for_each(|_| limits.answered("c"));
        assert!(limits.may_place("c") && limits.may_place("a"));
    }

    #[test]
    fn pods_whose_calls_have_failed_take_no_calls_from_others() {
        let mut limits = PlacingLimits::default();
        for _ in 0..MAX_PODS {
            assert!(limits.may_place("a"));
            limits.enter(&"a".into());
            limits.sent("a");
            limits.answered("a");
        }
        assert!(!limits.may_place("a") && limits.may_call("a"));
        assert_eq!(fill(&mut limits, "b"), 48);
    }
}
