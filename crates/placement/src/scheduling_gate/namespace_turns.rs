//! Whose turn it is: no namespace waits for all queues of another, and of one namespace neither new queues nor old ones for all others.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::wait_queue::WaitQueue;

/// The turns that namespaces have had. They outlive a pass, which begins anew whenever there is a new queue.
#[derive(Debug, Default)]
pub(super) struct NamespaceTurns {
    count: u64,
    last: HashMap<Arc<str>, Turn>,
}

/// The last turn of a namespace.
#[derive(Debug)]
struct Turn {
    number: u64,
    /// The queue had not been evaluated before.
    was_new: bool,
}

// === impl NamespaceTurns ===

impl NamespaceTurns {
    /// A queue is evaluated.
    pub(super) fn take(&mut self, queue: &WaitQueue) {
        self.count += 1;
        let turn = Turn { number: self.count, was_new: queue.last.is_none() };
        self.last.insert(Arc::clone(&queue.namespace), turn);
    }

    /// The order in which queues are evaluated: by priority. Among equal ones it is one of each namespace in turn, beginning with the one
    /// that has waited for its turn for the longest time. Of a namespace, those that are new and those that were not evaluated for the
    /// longest time take turns.
    pub(super) fn order<'a>(
        &self,
        queues: impl Iterator<Item = (&'a Arc<str>, &'a WaitQueue)>,
    ) -> VecDeque<Arc<str>> {
        let mut queues: Vec<_> = queues.collect();
        queues.sort_by_key(|(_, queue)| (queue.last, queue.pods.first()));
        let mut counts: HashMap<(i32, &str, bool), u64> = HashMap::new();
        let mut in_namespace: Vec<_> = queues
            .into_iter()
            .map(|(key, queue)| {
                let is_new = queue.last.is_none();
                let count = counts.entry((queue.priority, &*queue.namespace, is_new)).or_default();
                *count += 1;
                let was_new = self.last.get(&queue.namespace).is_some_and(|turn| turn.was_new);
                (*count, is_new == was_new, key, queue)
            })
            .collect();
        in_namespace.sort_by_key(|(count, is_second, ..)| (*count, *is_second));
        let mut ranks: HashMap<(i32, &str), u64> = HashMap::new();
        let mut order: Vec<_> = in_namespace
            .into_iter()
            .map(|(_, _, key, queue)| {
                let rank = ranks.entry((queue.priority, &*queue.namespace)).or_default();
                *rank += 1;
                let turn = self.last.get(&queue.namespace).map(|turn| turn.number);
                ((Reverse(queue.priority), *rank, turn, queue.pods.first()), key)
            })
            .collect();
        order.sort_by_key(|(order, _)| *order);
        order.into_iter().map(|(_, key)| Arc::clone(key)).collect()
    }

    /// How many queues were evaluated.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Forgets the namespaces that have no queue.
    pub(super) fn retain<'a>(&mut self, queues: impl Iterator<Item = &'a WaitQueue>) {
        let used: HashSet<&str> = queues.map(|queue| &*queue.namespace).collect();
        self.last.retain(|namespace, _| used.contains(&**namespace));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::scheduling_gate::wait_queue::Position;

    /// A queue with a pod, which was evaluated at this second.
    fn queue(namespace: &str, name: &str, last: Option<u64>) -> (Arc<str>, WaitQueue) {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}})).unwrap();
        let mut queue = WaitQueue::new(&pod);
        queue.join(Position::of(&pod, &name.into(), Duration::ZERO));
        queue.last = last.map(Duration::from_secs);
        (name.into(), queue)
    }

    fn order(turns: &NamespaceTurns, queues: &[(Arc<str>, WaitQueue)]) -> String {
        let order = turns.order(queues.iter().map(|(key, queue)| (key, queue)));
        order.iter().map(|key| &**key).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn namespaces_take_turns_and_so_do_new_queues_and_old_ones() {
        let mut turns = NamespaceTurns::default();
        let queues = [
            queue("a", "a-new-0", None),
            queue("a", "a-new-1", None),
            queue("a", "a-old-0", Some(5)),
            queue("a", "a-old-1", Some(6)),
            queue("b", "b-old-0", Some(9)),
            queue("b", "b-old-1", Some(8)),
        ];
        assert_eq!(order(&turns, &queues), "a-new-0 b-old-1 a-old-0 b-old-0 a-new-1 a-old-1");
        turns.take(&queues[0].1);
        assert_eq!(order(&turns, &queues), "b-old-1 a-old-0 b-old-0 a-new-0 a-old-1 a-new-1");
        turns.take(&queues[5].1);
        assert_eq!(order(&turns, &queues), "a-old-0 b-old-1 a-new-0 b-old-0 a-old-1 a-new-1");
        turns.retain(queues[..4].iter().map(|(_, queue)| queue));
        assert_eq!(turns.last.len(), 1);
    }
}
