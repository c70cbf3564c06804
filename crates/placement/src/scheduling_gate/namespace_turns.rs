//! Whose turn it is: no namespace waits for all queues of another, of one namespace neither new queues nor old ones for all others, and no queue
//! for those of higher priority that have had their turn.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::wait_queue::WaitQueue;

/// The turns that namespaces have had. They outlive a pass, which is ordered anew whenever there is a new queue.
#[derive(Debug, Default)]
pub(super) struct NamespaceTurns {
    count: u64,
    /// The last turn before the pass began.
    before_pass: u64,
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
    /// A queue was evaluated, for the first time if it `was_new`.
    pub(super) fn take(&mut self, queue: &mut WaitQueue, was_new: bool) {
        self.count += 1;
        self.last.insert(Arc::clone(&queue.namespace), Turn { number: self.count, was_new });
        queue.turn = self.count;
    }

    /// All queues of the pass have had their turn: another pass begins.
    pub(super) fn begin_pass(&mut self) {
        self.before_pass = self.count;
    }

    /// The order in which queues are evaluated: by priority. Among equal ones it is one of each namespace in turn, beginning with the one
    /// that has waited for its turn for the longest time. Of a namespace, those that are new and those that were not evaluated for the
    /// longest time take turns. A queue that has had its turn in this pass comes before none that has not because of its priority.
    pub(super) fn order<'a>(
        &mut self,
        queues: impl Iterator<Item = (&'a Arc<str>, &'a WaitQueue)>,
    ) -> VecDeque<Arc<str>> {
        let mut queues: Vec<_> = queues.collect();
        if queues.iter().all(|(_, queue)| queue.turn > self.before_pass) {
            // Only queues that have had their turn are left, and those that have come since.
            self.begin_pass();
        }
        let had_turn = |queue: &WaitQueue| queue.last.is_some() && queue.turn > self.before_pass;
        let left = queues.iter().filter(|(_, queue)| !had_turn(queue));
        let lowest = left.map(|(_, queue)| queue.priority).min().unwrap_or(i32::MAX);
        let priority =
            |queue: &WaitQueue| if had_turn(queue) { queue.priority.min(lowest) } else { queue.priority };
        queues.sort_by_key(|(_, queue)| (queue.last, queue.pods.first()));
        let mut counts: HashMap<(i32, &str, bool), u64> = HashMap::new();
        let mut in_namespace: Vec<_> = queues
            .into_iter()
            .map(|(key, queue)| {
                let is_new = queue.last.is_none();
                let count = counts.entry((priority(queue), &*queue.namespace, is_new)).or_default();
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
                let rank = ranks.entry((priority(queue), &*queue.namespace)).or_default();
                *rank += 1;
                let turn = self.last.get(&queue.namespace).map(|turn| turn.number);
                ((Reverse(priority(queue)), *rank, turn, queue.pods.first()), key)
            })
            .collect();
        order.sort_by_key(|(order, _)| *order);
        order.into_iter().map(|(_, key)| Arc::clone(key)).collect()
    }

    /// How many queues were evaluated.
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
        let mut queue = WaitQueue::new(&pod, 0);
        queue.join(Position::of(&pod, &name.into(), Duration::ZERO));
        queue.last = last.map(Duration::from_secs);
        (name.into(), queue)
    }

    fn order(turns: &mut NamespaceTurns, queues: &[(Arc<str>, WaitQueue)]) -> String {
        let order = turns.order(queues.iter().map(|(key, queue)| (key, queue)));
        order.iter().map(|key| &**key).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn namespaces_take_turns_and_so_do_new_queues_and_old_ones() {
        let mut turns = NamespaceTurns::default();
        let mut queues = [
            queue("a", "a-new-0", None),
            queue("a", "a-new-1", None),
            queue("a", "a-old-0", Some(5)),
            queue("a", "a-old-1", Some(6)),
            queue("b", "b-old-0", Some(9)),
            queue("b", "b-old-1", Some(8)),
        ];
        assert_eq!(order(&mut turns, &queues), "a-new-0 b-old-1 a-old-0 b-old-0 a-new-1 a-old-1");
        turns.take(&mut queues[0].1, true);
        assert_eq!(order(&mut turns, &queues), "b-old-1 a-old-0 b-old-0 a-new-0 a-old-1 a-new-1");
        turns.take(&mut queues[5].1, false);
        assert_eq!(order(&mut turns, &queues), "a-old-0 b-old-1 a-new-0 b-old-0 a-old-1 a-new-1");
        turns.retain(queues[..4].iter().map(|(_, queue)| queue));
        assert_eq!(turns.last.len(), 1);
    }

    #[test]
    fn a_queue_that_has_had_its_turn_comes_before_no_other_because_of_its_priority() {
        let mut turns = NamespaceTurns::default();
        let mut queues: Vec<_> = ["high", "middle", "low"].map(|name| queue(name, name, Some(1))).into();
        for ((_, queue), priority) in queues.iter_mut().zip([2, 1, 0]) {
            queue.priority = priority;
        }
        assert_eq!(order(&mut turns, &queues), "high middle low");
        turns.take(&mut queues[0].1, false);
        assert_eq!(order(&mut turns, &queues), "middle low high");
        turns.take(&mut queues[1].1, false);
        assert_eq!(order(&mut turns, &queues), "low high middle");
        turns.take(&mut queues[2].1, false);
        queues.push(queue("new", "new", None));
        queues[3].1.turn = turns.count();
        assert_eq!(order(&mut turns, &queues), "high middle new low", "another pass begins");
    }
}
