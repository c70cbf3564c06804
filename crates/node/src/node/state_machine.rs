//! The node controller's decisions: events in, actions out, without a clock or network of its own.
//!
//! It is level-triggered: every event updates the observed state, then `NodeStateMachine::advance` compares it with the
//! desired state and starts whatever is missing. A lost event costs time, never correctness. At most one ping, one Node
//! call and one lease call are in flight at a time.

mod call;
mod shutdown;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use rand::{RngExt as _, rngs::StdRng};
use serde_json::Value;
use tracing::{debug, info, warn};
use vk_kube::{
    Error, Instance, Kind,
    lease::{LeaseCall, LeaseConflict, LeaseLock, Renewer, WriteDeadline},
};
use vk_provider::{
    EventKind,
    node::{Condition, ConditionStatus},
};
use vk_supervisor::{Backoff, Now};

use super::{
    desired::{DesiredNode, ready},
    go_migration,
    ping::{PingResult, Pinger},
    settings::{OnStop, Settings},
};

pub use self::call::NodeCall;

/// Input of the state machine.
#[derive(Debug)]
pub enum Event {
    /// Time passed.
    Tick,
    /// A ping finished.
    Pinged(PingResult),
    /// The watch observed the Node.
    Seen(Arc<Node>),
    /// The watch found that the Node is gone.
    Missing,
    /// The provider or the user changed the description of the node. The provider's health may have changed with it.
    Described(Box<DesiredNode>),
    /// A Node call finished. `None` if the response has no Node.
    NodeAnswer(NodeCall, Result<Option<Arc<Node>>, Error>),
    /// A lease call finished.
    LeaseAnswer(LeaseCall, Result<Option<Box<Lease>>, Error>),
    /// The process is stopping.
    Stop,
}

/// Output of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ping the provider.
    Ping,
    /// Make this Node call and report [`Event::NodeAnswer`].
    Node(NodeCall),
    /// Make this lease call and report [`Event::LeaseAnswer`].
    Lease(LeaseCall),
    /// Record an event on the Node.
    RecordEvent(EventKind, &'static str, String),
    /// The shutdown is complete.
    Finished,
    /// This process must not run the node.
    GiveUp(LeaseConflict),
}

/// The Node object as last observed.
#[derive(Debug)]
enum ObservedNode {
    /// It must be read.
    Unknown,
    /// It does not exist.
    Absent,
    /// The latest known version.
    Present(Arc<Node>),
}

/// Our last write of one part of the Node, and the server's result. A later difference from `result` was made by someone
/// else. Comparing with `requested` instead would loop forever where the server normalises values.
#[derive(Debug)]
struct LastWrite {
    requested: Value,
    result: Value,
}

/// The state of one node's controller.
pub struct NodeStateMachine {
    settings: Settings,
    desired: Box<DesiredNode>,
    pinger: Pinger,
    lease: Renewer,
    node: ObservedNode,
    in_flight: bool,
    not_before: Duration,
    backoff: Backoff,
    metadata: Option<LastWrite>,
    status: Option<LastWrite>,
    post_due: Duration,
    repair_backoff: Backoff,
    repair_not_before: Duration,
    /// Next time at which a Node call is due.
    wake_at: Option<Duration>,
    /// The content of the status call in flight.
    pending_status: Option<(Value, Condition)>,
    posted_ready: Option<ConditionStatus>,
    registered: bool,
    taints_event_sent: bool,
    stopping: bool,
    /// The Node is finished and the lease is being released.
    releasing: bool,
    finished: bool,
    rng: StdRng,
}

// === impl NodeStateMachine ===

impl NodeStateMachine {
    /// A state machine without observations.
    pub fn new(
        name: &str,
        instance: Instance,
        settings: Settings,
        desired: DesiredNode,
        rng: StdRng,
    ) -> Self {
        Self {
            pinger: Pinger::new(settings.ping_interval, settings.ping_timeout),
            lease: Renewer::new(LeaseLock::Node(name.to_owned()), instance, settings.lease),
            settings,
            desired: Box::new(desired),
            node: ObservedNode::Unknown,
            in_flight: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            metadata: None,
            status: None,
            post_due: Duration::ZERO,
            repair_backoff: Backoff::new(Duration::from_secs(1), Duration::from_mins(1)),
            repair_not_before: Duration::ZERO,
            wake_at: None,
            pending_status: None,
            posted_ready: None,
            registered: false,
            taints_event_sent: false,
            stopping: false,
            releasing: false,
            finished: false,
            rng,
        }
    }

    /// Handles an event and returns the actions to take.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {}
            Event::Pinged(result) => self.on_ping_result(now, result),
            Event::Seen(node) => self.observe(node),
            Event::Missing => self.node = ObservedNode::Unknown,
            Event::Described(desired) => {
                self.taints_event_sent &= self.desired.has_same_taints(&desired);
                if self.desired != desired {
                    // A change requested by the provider is not a repair.
                    self.repair_backoff.reset();
                    self.repair_not_before = now.elapsed;
                }
                self.desired = desired;
                self.pinger.request_ping(now.elapsed);
            }
            Event::NodeAnswer(call, answer) => {
                self.in_flight = false;
                self.on_node_answer(now, &call, answer, &mut actions);
            }
            Event::LeaseAnswer(call, answer) => {
                let answer = answer.map(|lease| lease.map(|lease| *lease));
                if let Err(conflict) =
                    self.lease.on_answer(now.elapsed, now.wall, &call, answer, &mut self.rng)
                {
                    self.finished = true;
                    actions.push(Action::GiveUp(conflict));
                }
            }
            Event::Stop => self.stopping = true,
        }
        self.advance(now, &mut actions);
        actions
    }

    /// When to send an [`Event::Tick`] if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.finished {
            return None;
        }
        let others = if self.stopping {
            // The lease is released only after the Node is finished.
            [self.lease.release_deadline().filter(|_| self.releasing), None, None]
        } else {
            [self.lease.next_deadline(), self.lease.expires_at(), self.pinger.next_deadline()]
        };
        others.into_iter().chain([self.wake_at]).flatten().min()
    }

    /// Whether the Node is registered and was last posted as Ready.
    pub fn is_ready(&self) -> bool {
        self.registered && self.posted_ready == Some(ConditionStatus::True) && !self.stopping
    }

    /// Until when writes for this node may be started; `None` if they may not.
    pub fn write_deadline(&self) -> Option<WriteDeadline> {
        self.lease.write_deadline()
    }

    /// Whether this process holds the lease, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.lease.is_held()
    }

    /// Whether another replica is the leader and this one waits.
    pub fn is_on_standby(&self) -> bool {
        self.lease.is_on_standby()
    }

    /// Whether this process registered the Node.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    fn on_ping_result(&mut self, now: Now, result: PingResult) {
        let changed = self.pinger.on_result(now.elapsed, result, &mut self.rng);
        let Some(condition) = self.pinger.ready_condition().filter(|_| changed) else { return };
        if condition.status == ConditionStatus::True {
            info!("the provider is ready");
        } else {
            warn!(reason = condition.reason, message = condition.message, "the provider is not ready");
        }
    }

    /// Stores the Node unless a later version is known: the watch lags behind our writes, and the response to a slow write
    /// lags behind the watch.
    fn observe(&mut self, node: Arc<Node>) {
        match &self.node {
            ObservedNode::Present(known) if known.metadata.uid == node.metadata.uid => {
                if version(known) >= version(&node) {
                    return;
                }
            }
            // Our writes to a Node with another UID do not apply to this one.
            _ => (self.metadata, self.status) = (None, None),
        }
        self.node = ObservedNode::Present(node);
    }

    fn on_node_answer(
        &mut self,
        now: Now,
        call: &NodeCall,
        answer: Result<Option<Arc<Node>>, Error>,
        actions: &mut Vec<Action>,
    ) {
        match answer {
            Ok(node) => {
                self.backoff.reset();
                if let Some(node) = node {
                    self.observe(Arc::clone(&node));
                    self.on_node_written(now, call, &node, actions);
                } else {
                    self.node = ObservedNode::Absent;
                }
            }
            Err(error) => self.on_node_failed(now, call, &error, actions),
        }
    }

    fn on_node_written(&mut self, now: Now, call: &NodeCall, node: &Arc<Node>, actions: &mut Vec<Action>) {
        match call {
            NodeCall::Create(_) => {
                let (reason, message) = if self.registered {
                    ("Reregistered", "the Node was deleted and has been registered again")
                } else {
                    ("Starting", "virtual kubelet registered the Node")
                };
                info!("{message}");
                actions.push(Action::RecordEvent(EventKind::Normal, reason, message.to_owned()));
            }
            NodeCall::Metadata(body) => {
                let requested = body["metadata"].clone();
                self.metadata = Some(LastWrite { requested, result: self.desired.observed_metadata(node) });
            }
            NodeCall::Status(_) => {
                let Some((requested, ready)) = self.pending_status.take() else { return };
                self.status = Some(LastWrite { requested, result: self.desired.observed_status(node) });
                self.post_due =
                    now.elapsed + self.settings.status_interval.mul_f64(self.rng.random_range(0.9..1.0));
                if !self.registered {
                    info!(ready = ready.status == ConditionStatus::True, "the node is registered");
                }
                // The event follows the write, so that both agree even after an outage of the API server.
                let before = self.posted_ready.replace(ready.status);
                if before.is_some_and(|before| before != ready.status) && !self.stopping {
                    actions.push(match ready.status {
                        ConditionStatus::True => {
                            Action::RecordEvent(EventKind::Normal, "NodeReady", ready.message)
                        }
                        _ => Action::RecordEvent(EventKind::Warning, "NodeNotReady", ready.message),
                    });
                }
                self.registered = true;
            }
            _ => {}
        }
    }

    fn on_node_failed(&mut self, now: Now, call: &NodeCall, error: &Error, actions: &mut Vec<Action>) {
        let first = self.backoff.failures() == 0;
        let wait = self.backoff.next(error.retry_after, &mut self.rng);
        match (call, error.kind) {
            (NodeCall::Read | NodeCall::Delete { .. }, Kind::NotFound) => {
                self.backoff.reset();
                self.node = ObservedNode::Absent;
                return;
            }
            // Someone else changed or replaced the Node. Read it again, the first time without delay.
            (_, Kind::NotFound | Kind::Conflict | Kind::AlreadyExists | Kind::Replaced) => {
                debug!(kind = %error.kind, %error, "the Node changed meanwhile; reading it again");
                self.node = ObservedNode::Unknown;
                if first {
                    return;
                }
            }
            _ => {
                if first {
                    warn!(kind = %error.kind, %error, call = call.name(), "call on the Node failed; retrying");
                    if error.kind == Kind::Forbidden {
                        let message = format!("{}: permission denied: {error}", call.name());
                        actions.push(Action::RecordEvent(EventKind::Warning, "Forbidden", message));
                    }
                } else {
                    debug!(kind = %error.kind, %error, call = call.name(), ?wait, "call on the Node failed again");
                }
            }
        }
        self.not_before = now.elapsed + wait;
    }

    /// The desired Ready condition.
    fn ready_condition(&self) -> Condition {
        if self.stopping {
            return ready(ConditionStatus::False, "NodeShutdown", "virtual kubelet is shutting down");
        }
        self.pinger.ready_condition().unwrap_or_else(|| {
            ready(ConditionStatus::False, "Starting", "the provider has not been pinged yet")
        })
    }

    /// Starts whatever is missing.
    fn advance(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.finished {
            return;
        }
        if self.stopping {
            return self.advance_shutdown(now, actions);
        }
        if let Err(expired) = self.lease.check_expiry(now) {
            self.finished = true;
            return actions.push(Action::GiveUp(expired));
        }
        if self.pinger.start_if_due(now.elapsed) {
            actions.push(Action::Ping);
        }
        if let ObservedNode::Present(node) = &self.node
            && let Some(uid) = &node.metadata.uid
        {
            self.lease.set_owner(uid, now.elapsed);
        }
        actions.extend(self.lease.start(now.elapsed, now.wall).map(Action::Lease));
        // Do not touch the Node without a valid lease: another process may be running it.
        self.wake_at = None;
        if self.lease.is_held() && self.lease.may_write(now) && !self.in_flight {
            self.start_node_call(now, actions);
        }
    }

    fn start_node_call(&mut self, now: Now, actions: &mut Vec<Action>) {
        if now.elapsed < self.not_before {
            self.wake_at = Some(self.not_before);
            return;
        }
        let Some((call, repair)) = self.next_node_call(now, actions) else {
            self.wake_at = self.status.as_ref().map(|_| self.post_due);
            return;
        };
        if repair {
            // The first repair is immediate. Repeated repairs mean that someone keeps changing the Node, so back off.
            if now.elapsed < self.repair_not_before {
                self.wake_at = Some(self.repair_not_before);
                return;
            }
            if now.elapsed > self.repair_not_before + Duration::from_mins(2) {
                self.repair_backoff.reset();
            }
            self.repair_not_before = now.elapsed + self.repair_backoff.next(None, &mut self.rng);
        }
        self.in_flight = true;
        actions.push(Action::Node(call));
    }

    /// The next Node call that is needed, and whether it repairs a change made by someone else.
    fn next_node_call(&mut self, now: Now, actions: &mut Vec<Action>) -> Option<(NodeCall, bool)> {
        let node = match &self.node {
            ObservedNode::Unknown => return Some((NodeCall::Read, false)),
            ObservedNode::Absent => return Some((NodeCall::Create(self.desired.registration()), false)),
            ObservedNode::Present(node) => Arc::clone(node),
        };
        if let Some(patch) = go_migration::patch(&node) {
            info!("taking over a Node that the Go virtual kubelet registered");
            return Some((NodeCall::Migrate(patch), false));
        }
        let body = self.desired.metadata(&node);
        match &self.metadata {
            Some(written) if written.requested == body["metadata"] => {
                if written.result != self.desired.observed_metadata(&node) {
                    return Some((NodeCall::Metadata(body), true));
                }
            }
            _ => return Some((NodeCall::Metadata(body), false)),
        }
        if let Some(patch) = self.desired.spec_patch(&node) {
            return Some((NodeCall::Spec(patch), self.status.is_some()));
        }
        if self.desired.taints_are_protected(&node) && !self.taints_event_sent {
            self.taints_event_sent = true;
            let message = "the node's taints differ from the configuration, and a node identity may not change them; \
                           change them manually, or delete the Node so that it is registered again";
            warn!("{message}");
            actions.push(Action::RecordEvent(EventKind::Warning, "TaintsNotChanged", message.to_owned()));
        }
        if self.desired.addresses_differ(&node) {
            return Some((NodeCall::Addresses(self.desired.addresses(&node)), self.status.is_some()));
        }
        // Post no status before the first ping result.
        self.pinger.last_result()?;
        let condition = self.ready_condition();
        let wanted = self.desired.wanted_status(&condition);
        let repair = match &self.status {
            Some(written) if written.requested == wanted => {
                let changed_by_others = written.result != self.desired.observed_status(&node);
                if !changed_by_others && now.elapsed < self.post_due {
                    return None;
                }
                changed_by_others
            }
            _ => false,
        };
        Some((self.status_call(now, &node, &condition), repair))
    }

    fn status_call(&mut self, now: Now, node: &Node, condition: &Condition) -> NodeCall {
        self.pending_status = Some((self.desired.wanted_status(condition), condition.clone()));
        NodeCall::Status(self.desired.status(node, condition, now.wall))
    }
}

/// The resourceVersion as a number: of two versions of one object, the larger is the later.
fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests;
