//! The state machine's actions while the process is stopping.

use std::sync::Arc;

use vk_supervisor::Now;

use super::{Action, NodeCall, NodeStateMachine, ObservedNode, OnStop};

impl NodeStateMachine {
    /// Leaves the Node as configured, then releases the lease.
    pub(super) fn advance_shutdown(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.wake_at = None;
        if self.in_flight {
            return;
        }
        if now.elapsed < self.not_before {
            self.wake_at = Some(self.not_before);
            return;
        }
        // Without a valid lease, the Node may belong to another process.
        if let Some(call) = self.shutdown_call(now).filter(|_| self.lease.may_write(now)) {
            self.in_flight = true;
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

    /// The Node call that the shutdown still needs.
    fn shutdown_call(&mut self, now: Now) -> Option<NodeCall> {
        if !self.registered || self.settings.on_stop == OnStop::HandOver {
            return None;
        }
        let node = match &self.node {
            ObservedNode::Unknown => return Some(NodeCall::Read),
            ObservedNode::Absent => return None,
            ObservedNode::Present(node) => Arc::clone(node),
        };
        if self.settings.on_stop == OnStop::Delete {
            return node.metadata.uid.clone().map(|uid| NodeCall::Delete { uid });
        }
        let condition = self.ready_condition();
        let wanted = self.desired.wanted_status(&condition);
        let posted = self.status.as_ref().is_some_and(|written| written.requested == wanted);
        (!posted).then(|| self.status_call(now, &node, &condition))
    }
}
