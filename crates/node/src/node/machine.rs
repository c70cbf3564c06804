//! The node controller's decisions: events in, actions out, no clock and no network of its own.
//!
//! It is level-triggered. Every event updates what is known, and then `Machine::advance` compares what is wanted with
//! what is there and starts whatever is missing; a lost event costs time, never correctness. At most one ping, one call
//! on the Node and one call on the lease are under way at a time.

mod call;
mod ending;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use rand::{RngExt as _, rngs::StdRng};
use serde_json::Value;
use tracing::{debug, info, warn};
use vk_kube::{Error, Kind};
use vk_provider::{
    EventKind,
    node::{Condition, ConditionStatus},
};
use vk_supervisor::Backoff;

use super::{
    adopt,
    desired::{Desired, ready},
    instance::Instance,
    lease::{LeaseCall, Permit, Renewer, Taken},
    ping::{Pings, Pong},
    settings::{OnStop, Settings},
};
use crate::now::Now;

pub use self::call::NodeCall;

/// What the machine is told.
#[derive(Debug)]
pub enum Event {
    /// Time passed.
    Tick,
    /// The provider answered a ping.
    Pong(Pong),
    /// The Node was seen by the watch.
    Seen(Arc<Node>),
    /// The watch says that the Node is gone.
    Missing,
    /// The provider or the user describes the node anew; whether the provider is well may have changed with it.
    Described(Box<Desired>),
    /// A call on the Node was answered. `None` where the answer carries no Node.
    NodeAnswer(NodeCall, Result<Option<Arc<Node>>, Error>),
    /// A call on the lease was answered.
    LeaseAnswer(LeaseCall, Result<Option<Box<Lease>>, Error>),
    /// The process stops.
    Stop,
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ping the provider.
    Ping,
    /// Do this on the Node, and report [`Event::NodeAnswer`].
    Node(NodeCall),
    /// Do this on the lease, and report [`Event::LeaseAnswer`].
    Lease(LeaseCall),
    /// Tell people, by an event on the Node.
    Announce(EventKind, &'static str, String),
    /// All that a stop asks for is done.
    Finished,
    /// This process must not run the node.
    GiveUp(Taken),
}

/// What is known of the Node object.
#[derive(Debug)]
enum Known {
    /// Nothing certain.
    Nothing,
    /// It does not exist.
    Absent,
    /// It was like this.
    Present(Arc<Node>),
}

/// What we wrote last of some part of the Node, and what the server made of it. A later difference from `there` is
/// somebody else's doing; comparing with what we asked for instead would loop for ever where the server normalises.
#[derive(Debug)]
struct Written {
    asked: Value,
    there: Value,
}

/// The state of one node's controller.
pub struct Machine {
    name: String,
    settings: Settings,
    desired: Box<Desired>,
    pings: Pings,
    lease: Renewer,
    node: Known,
    under_way: bool,
    not_before: Duration,
    backoff: Backoff,
    metadata: Option<Written>,
    status: Option<Written>,
    post_due: Duration,
    repairs: Backoff,
    repair_not_before: Duration,
    /// When the Node's part has something to do because of time alone.
    wake: Option<Duration>,
    /// What the status call under way asks for.
    asked_status: Option<(Value, Condition)>,
    was_ready: Option<ConditionStatus>,
    registered: bool,
    told_taints: bool,
    stopping: bool,
    /// The Node is done with, and the lease is being given back.
    releasing: bool,
    finished: bool,
    rng: StdRng,
}

// === impl Machine ===

impl Machine {
    /// A controller that knows nothing yet.
    pub fn new(name: &str, instance: Instance, settings: Settings, desired: Desired, rng: StdRng) -> Self {
        Self {
            name: name.to_owned(),
            pings: Pings::new(settings.ping_interval, settings.ping_timeout),
            lease: Renewer::new(name.to_owned(), instance, settings.lease),
            settings,
            desired: Box::new(desired),
            node: Known::Nothing,
            under_way: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            metadata: None,
            status: None,
            post_due: Duration::ZERO,
            repairs: Backoff::new(Duration::from_secs(1), Duration::from_mins(1)),
            repair_not_before: Duration::ZERO,
            wake: None,
            asked_status: None,
            was_ready: None,
            registered: false,
            told_taints: false,
            stopping: false,
            releasing: false,
            finished: false,
            rng,
        }
    }

    /// Takes an event and says what to do.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {}
            Event::Pong(pong) => self.pong(now, pong),
            Event::Seen(node) => self.know(node),
            Event::Missing => self.node = Known::Nothing,
            Event::Described(desired) => {
                self.told_taints &= self.desired.has_taints_of(&desired);
                if self.desired != desired {
                    // What the provider wants changed is no repair.
                    self.repairs.reset();
                    self.repair_not_before = now.elapsed;
                }
                self.desired = desired;
                self.pings.soon(now.elapsed);
            }
            Event::NodeAnswer(call, answer) => {
                self.under_way = false;
                self.node_answered(now, &call, answer, &mut actions);
            }
            Event::LeaseAnswer(call, answer) => {
                let answer = answer.map(|lease| lease.map(|lease| *lease));
                if let Err(error) = &answer {
                    self.lease_failed(error);
                }
                if let Err(taken) = self.lease.answered(now.elapsed, now.wall, &call, answer, &mut self.rng) {
                    self.finished = true;
                    actions.push(Action::GiveUp(taken));
                }
            }
            Event::Stop => self.stopping = true,
        }
        self.advance(now, &mut actions);
        actions
    }

    /// When to send a [`Event::Tick`], if nothing else happens before.
    pub fn deadline(&self) -> Option<Duration> {
        if self.finished {
            return None;
        }
        let others = if self.stopping {
            // Not before the Node is done with: until then there is nothing to do about the lease.
            [self.lease.release_deadline().filter(|_| self.releasing), None, None]
        } else {
            [self.lease.deadline(), self.lease.lapse(), self.pings.deadline()]
        };
        others.into_iter().chain([self.wake]).flatten().min()
    }

    /// Whether the Node is registered, and whether it was last posted as Ready.
    pub fn is_ready(&self) -> bool {
        self.registered && self.was_ready == Some(ConditionStatus::True) && !self.stopping
    }

    /// Until when writes for this node may begin.
    pub fn permit(&self) -> Option<Permit> {
        self.lease.permit()
    }

    /// Whether the node is ours, as far as is known.
    pub fn leads(&self) -> bool {
        self.lease.is_held()
    }

    /// Whether another replica leads, and this one waits.
    pub fn is_standing_by(&self) -> bool {
        self.lease.is_standing_by()
    }

    /// Whether the Node was registered by this process.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    fn pong(&mut self, now: Now, pong: Pong) {
        let changed = self.pings.answered(now.elapsed, pong, &mut self.rng);
        let Some(condition) = self.pings.ready().filter(|_| changed) else { return };
        if condition.status == ConditionStatus::True {
            info!("the provider is ready");
        } else {
            warn!(reason = condition.reason, message = condition.message, "the provider is not ready");
        }
    }

    /// Takes note of the Node, unless a later version of it is known: the watch trails our writes, and the answer to a
    /// slow write trails the watch.
    fn know(&mut self, node: Arc<Node>) {
        match &self.node {
            Known::Present(known) if known.metadata.uid == node.metadata.uid => {
                if version(known) >= version(&node) {
                    return;
                }
            }
            // What we wrote to a Node of another UID says nothing about this one.
            _ => (self.metadata, self.status) = (None, None),
        }
        self.node = Known::Present(node);
    }

    fn node_answered(
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
                    self.know(Arc::clone(&node));
                    self.node_written(now, call, &node, actions);
                } else {
                    self.node = Known::Absent;
                }
            }
            Err(error) => self.node_failed(now, call, &error, actions),
        }
    }

    /// A lost race is everyday life, and so is a lease that is not there yet. Anything else is worth a line, once.
    fn lease_failed(&self, error: &Error) {
        let usual = matches!(error.kind, Kind::NotFound | Kind::Conflict | Kind::AlreadyExists);
        if !usual && !self.lease.is_failing() {
            warn!(kind = %error.kind, %error, "a call on the node's lease failed: trying again");
        } else {
            debug!(kind = %error.kind, %error, "a call on the node's lease failed");
        }
    }

    fn node_written(&mut self, now: Now, call: &NodeCall, node: &Arc<Node>, actions: &mut Vec<Action>) {
        match call {
            NodeCall::Create(_) => {
                let (reason, message) = if self.registered {
                    ("Reregistered", "the Node had been deleted, and is registered again")
                } else {
                    ("Starting", "virtual kubelet registered the Node")
                };
                info!("{message}");
                actions.push(Action::Announce(EventKind::Normal, reason, message.to_owned()));
            }
            NodeCall::Metadata(body) => {
                let asked = body["metadata"].clone();
                self.metadata = Some(Written { asked, there: self.desired.metadata_there(node) });
            }
            NodeCall::Status(_) => {
                let Some((asked, ready)) = self.asked_status.take() else { return };
                self.status = Some(Written { asked, there: self.desired.status_there(node) });
                self.post_due =
                    now.elapsed + self.settings.status_interval.mul_f64(self.rng.random_range(0.9..1.0));
                if !self.registered {
                    info!(ready = ready.status == ConditionStatus::True, "the node is registered");
                }
                // Told when the Node shows it: so both say the same, also after an outage of the API server.
                let before = self.was_ready.replace(ready.status);
                if before.is_some_and(|before| before != ready.status) && !self.stopping {
                    actions.push(match ready.status {
                        ConditionStatus::True => {
                            Action::Announce(EventKind::Normal, "NodeReady", ready.message)
                        }
                        _ => Action::Announce(EventKind::Warning, "NodeNotReady", ready.message),
                    });
                }
                self.registered = true;
            }
            _ => {}
        }
    }

    fn node_failed(&mut self, now: Now, call: &NodeCall, error: &Error, actions: &mut Vec<Action>) {
        let first = self.backoff.failures() == 0;
        let wait = self.backoff.next(error.retry_after, &mut self.rng);
        match (call, error.kind) {
            (NodeCall::Read | NodeCall::Delete { .. }, Kind::NotFound) => {
                self.backoff.reset();
                self.node = Known::Absent;
                return;
            }
            // Somebody was faster, or the Node is another one by now. Look, at once the first time.
            (_, Kind::NotFound | Kind::Conflict | Kind::AlreadyExists | Kind::Replaced) => {
                debug!(kind = %error.kind, %error, "the Node changed under our hands: reading it again");
                self.node = Known::Nothing;
                if first {
                    return;
                }
            }
            _ => {
                if first {
                    warn!(kind = %error.kind, %error, call = call.name(), "a call on the Node failed: trying again");
                    if error.kind == Kind::Forbidden {
                        let message = format!("not permitted to {}: {error}", call.name());
                        actions.push(Action::Announce(EventKind::Warning, "Forbidden", message));
                    }
                } else {
                    debug!(kind = %error.kind, %error, call = call.name(), ?wait, "a call on the Node failed again");
                }
            }
        }
        self.not_before = now.elapsed + wait;
    }

    /// The Ready condition that the Node shall have.
    fn ready_condition(&self) -> Condition {
        if self.stopping {
            return ready(ConditionStatus::False, "NodeShutdown", "virtual kubelet is shutting down");
        }
        self.pings
            .ready()
            .unwrap_or_else(|| ready(ConditionStatus::False, "Starting", "the provider was not asked yet"))
    }

    /// Starts whatever is missing.
    fn advance(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.finished {
            return;
        }
        if self.stopping {
            return self.wind_up(now, actions);
        }
        if self.lease.has_lapsed(now) {
            self.finished = true;
            return actions.push(Action::GiveUp(Taken::Lapsed { node: self.name.clone() }));
        }
        if self.pings.start(now.elapsed) {
            actions.push(Action::Ping);
        }
        if let Known::Present(node) = &self.node
            && let Some(uid) = &node.metadata.uid
        {
            self.lease.owned_by(uid, now.elapsed);
        }
        actions.extend(self.lease.start(now.elapsed, now.wall).map(Action::Lease));
        // No word on the Node before the lease is ours, nor when it may not be any more: another process may be running it.
        self.wake = None;
        if self.lease.is_held() && self.lease.permits(now) && !self.under_way {
            self.start_node_call(now, actions);
        }
    }

    fn start_node_call(&mut self, now: Now, actions: &mut Vec<Action>) {
        if now.elapsed < self.not_before {
            self.wake = Some(self.not_before);
            return;
        }
        let Some((call, repair)) = self.plan(now, actions) else {
            self.wake = self.status.as_ref().map(|_| self.post_due);
            return;
        };
        if repair {
            // The first repair is at once; one after the other means that somebody fights us.
            if now.elapsed < self.repair_not_before {
                self.wake = Some(self.repair_not_before);
                return;
            }
            if now.elapsed > self.repair_not_before + Duration::from_mins(2) {
                self.repairs.reset();
            }
            self.repair_not_before = now.elapsed + self.repairs.next(None, &mut self.rng);
        }
        self.under_way = true;
        actions.push(Action::Node(call));
    }

    /// The next call that the Node needs, and whether it repairs what somebody else changed.
    fn plan(&mut self, now: Now, actions: &mut Vec<Action>) -> Option<(NodeCall, bool)> {
        let node = match &self.node {
            Known::Nothing => return Some((NodeCall::Read, false)),
            Known::Absent => return Some((NodeCall::Create(self.desired.registration()), false)),
            Known::Present(node) => Arc::clone(node),
        };
        if let Some(patch) = adopt::migration(&node) {
            info!("adopting a Node that the Go virtual kubelet registered");
            return Some((NodeCall::Adopt(patch), false));
        }
        let body = self.desired.metadata(&node);
        match &self.metadata {
            Some(written) if written.asked == body["metadata"] => {
                if written.there != self.desired.metadata_there(&node) {
                    return Some((NodeCall::Metadata(body), true));
                }
            }
            _ => return Some((NodeCall::Metadata(body), false)),
        }
        if let Some(patch) = self.desired.spec_change(&node) {
            return Some((NodeCall::Spec(patch), self.status.is_some()));
        }
        if self.desired.taints_out_of_reach(&node) && !self.told_taints {
            self.told_taints = true;
            let message = "the node's taints differ from the settings, and a node identity may not change them: \
                           change them by hand, or delete the Node and let it be registered again";
            warn!("{message}");
            actions.push(Action::Announce(EventKind::Warning, "TaintsNotChanged", message.to_owned()));
        }
        if self.desired.addresses_differ(&node) {
            return Some((NodeCall::Addresses(self.desired.addresses(&node)), self.status.is_some()));
        }
        // Until the provider has answered once there is nothing to say about it.
        self.pings.last()?;
        let condition = self.ready_condition();
        let wanted = self.desired.status_wanted(&condition);
        let repair = match &self.status {
            Some(written) if written.asked == wanted => {
                let foreign = written.there != self.desired.status_there(&node);
                if !foreign && now.elapsed < self.post_due {
                    return None;
                }
                foreign
            }
            _ => false,
        };
        Some((self.status_call(now, &node, &condition), repair))
    }

    fn status_call(&mut self, now: Now, node: &Node, condition: &Condition) -> NodeCall {
        self.asked_status = Some((self.desired.status_wanted(condition), condition.clone()));
        NodeCall::Status(self.desired.status(node, condition, now.wall))
    }
}

/// A resourceVersion as a number: of one object's versions the larger is the later one.
fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod simulation;
