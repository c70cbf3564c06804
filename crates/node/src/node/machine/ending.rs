//! What is left to do when the process stops.

use std::sync::Arc;

use super::{Action, Known, Machine, NodeCall, OnStop};
use crate::now::Now;

impl Machine {
    /// Leaves the Node as the settings say, and gives the lease back.
    pub(super) fn wind_up(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.wake = None;
        if self.under_way {
            return;
        }
        if now.elapsed < self.not_before {
            self.wake = Some(self.not_before);
            return;
        }
        // Where the lease may be another's by now, so may the Node.
        if let Some(call) = self.last_call(now).filter(|_| self.lease.permits(now)) {
            self.under_way = true;
            return actions.push(Action::Node(call));
        }
        self.releasing = true;
        let delete = self.settings.on_stop == OnStop::Delete;
        actions.extend(self.lease.release(now.elapsed, delete).map(Action::Lease));
        if self.lease.is_released() {
            self.finished = true;
            actions.push(Action::Finished);
        }
    }

    /// What is left to do on the Node before the end.
    fn last_call(&mut self, now: Now) -> Option<NodeCall> {
        if !self.registered || self.settings.on_stop == OnStop::HandOver {
            return None;
        }
        let node = match &self.node {
            Known::Nothing => return Some(NodeCall::Read),
            Known::Absent => return None,
            Known::Present(node) => Arc::clone(node),
        };
        if self.settings.on_stop == OnStop::Delete {
            return node.metadata.uid.clone().map(|uid| NodeCall::Delete { uid });
        }
        let condition = self.ready_condition();
        let wanted = self.desired.status_wanted(&condition);
        let posted = self.status.as_ref().is_some_and(|written| written.asked == wanted);
        (!posted).then(|| self.status_call(now, &node, &condition))
    }
}
