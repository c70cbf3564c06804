//! The pods that wait for a write permit, in the order in which they came.
//!
//! A connection carries only so many writes at a time. Nothing is queued but the pod's UID: what is written is decided when the
//! permit comes, so whatever happens to the pod meanwhile is in it, the pod keeps its place, and a long queue costs next to
//! nothing.

use std::{collections::VecDeque, sync::Arc};

/// The permits at hand and the pods that wait for one.
#[derive(Debug, Default)]
pub(in crate::pods) struct WriteQueue {
    available: usize,
    waiting: VecDeque<Arc<str>>,
    granted: GrantedPermit,
    /// A permit was requested and has not come yet.
    requested: bool,
}

/// A permit that was granted and is not used yet.
#[derive(Debug, Default, PartialEq, Eq)]
enum GrantedPermit {
    #[default]
    None,
    /// No pod was offered it yet.
    Unassigned,
    /// This pod may use it.
    For(Arc<str>),
}

// === impl WriteQueue ===

impl WriteQueue {
    /// How many permits are free now.
    pub(in crate::pods) fn set_available(&mut self, permits: usize) {
        self.available = permits;
    }

    /// Takes a permit for a write. `false`: the pod is queued, and is told when it has a permit.
    pub(in crate::pods) fn acquire(&mut self, uid: &Arc<str>) -> bool {
        if matches!(&self.granted, GrantedPermit::For(holder) if holder == uid) {
            self.granted = GrantedPermit::None;
            return true;
        }
        if self.waiting.is_empty() && self.available > 0 {
            self.available -= 1;
            return true;
        }
        self.waiting.push_back(Arc::clone(uid));
        false
    }

    /// Whether a permit is to be requested for the pods that wait. At most one request is outstanding.
    pub(in crate::pods) fn needs_request(&mut self) -> bool {
        !self.waiting.is_empty() && !std::mem::replace(&mut self.requested, true)
    }

    /// The requested permit came.
    pub(in crate::pods) fn grant(&mut self) {
        self.requested = false;
        self.granted = GrantedPermit::Unassigned;
    }

    /// The pod that may use the granted permit. Those before it had nothing to write any more.
    pub(in crate::pods) fn next_granted(&mut self) -> Option<Arc<str>> {
        if std::mem::take(&mut self.granted) == GrantedPermit::None {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.granted = GrantedPermit::For(Arc::clone(&next));
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    #[test]
    fn pods_are_served_in_the_order_in_which_they_came() {
        let mut queue = WriteQueue::default();
        queue.set_available(1);
        assert!(queue.acquire(&uid("a")));
        assert!(!queue.acquire(&uid("b")) && !queue.acquire(&uid("c")));
        assert!(queue.needs_request() && !queue.needs_request(), "one request at a time");
        // Free permits do not let a pod pass those that wait.
        queue.set_available(5);
        assert!(!queue.acquire(&uid("d")));
        queue.grant();
        assert_eq!(queue.next_granted().as_deref(), Some("b"));
        assert!(queue.acquire(&uid("b")));
        assert_eq!(queue.next_granted(), None, "the permit is used");
        assert!(queue.needs_request());
    }

    #[test]
    fn a_permit_that_a_pod_does_not_need_goes_to_the_next() {
        let mut queue = WriteQueue::default();
        assert!(!queue.acquire(&uid("a")) && !queue.acquire(&uid("b")));
        queue.grant();
        assert_eq!(queue.next_granted().as_deref(), Some("a"));
        assert_eq!(queue.next_granted().as_deref(), Some("b"));
        assert_eq!(queue.next_granted(), None);
        queue.set_available(0);
        assert!(!queue.acquire(&uid("c")), "the granted permit was given back");
    }
}
