//! The node's lease: the heartbeat that keeps it from being given up, and the mark of the one process that runs it.
//!
//! A process takes the lease before it touches the Node. While another process holds it and renews it, the second one
//! stops and says so, or stands by where there are to be several. It goes on at once when the holder has released the lease
//! or is certainly dead, and otherwise when the lease was not renewed for its whole duration.
//!
//! Having taken it gives a [`Permit`]: until when writes may begin. It ends before anybody else can take the lease.

mod claim;
mod permit;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rand::{RngExt as _, rngs::StdRng};
use serde_json::{Value, json};
use vk_kube::{Error, Kind};
use vk_supervisor::Backoff;

pub use self::permit::{Permit, Terms};
use super::instance::Instance;
use crate::now::Now;

/// Names the process that holds the lease.
pub const INSTANCE_ANNOTATION: &str = "virtual-kubelet.io/instance";

/// A call on the lease.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseCall {
    /// Read it.
    Read,
    /// Create it.
    Create(Value),
    /// Renew it, by a merge patch under its resourceVersion.
    Renew(Value),
    /// Give it back, likewise.
    Release(Value),
    /// Delete it, because the node goes.
    Delete {
        /// The lease's UID.
        uid: String,
    },
}

/// Why this process must not run the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Taken {
    /// Another process was there first.
    #[error(
        "node {node} is already run by {holder}, which has just renewed its lease; stop it, or choose another name with --nodename"
    )]
    InUse {
        /// The node.
        node: String,
        /// Who holds it.
        holder: String,
    },
    /// Another process took over while this one did not renew the lease.
    #[error(
        "node {node} was taken over by {holder} while this process could not renew its lease; this process stops"
    )]
    Lost {
        /// The node.
        node: String,
        /// Who holds it now.
        holder: String,
    },
    /// The lease was not renewed in time, so that another process may have it.
    #[error(
        "the lease of node {node} could not be renewed in time; this process may not go on with the node"
    )]
    Lapsed {
        /// The node.
        node: String,
    },
}

/// The renewing of one lease. Times count from the controller's start.
#[derive(Debug)]
pub struct Renewer {
    node: String,
    instance: Instance,
    terms: Terms,
    state: State,
    seen: Option<Lease>,
    owner: Option<String>,
    under_way: bool,
    /// When the call under way was sent.
    sent: Option<Now>,
    permit: Option<Permit>,
    due: Duration,
    release_due: Duration,
    backoff: Backoff,
}

#[derive(Debug, PartialEq)]
enum State {
    /// Nothing is known of it.
    Unknown,
    /// There is none.
    Absent,
    /// Somebody else has it; ours at `until` if it is not renewed before.
    Watching { renewed: Option<Timestamp>, until: Duration },
    /// Somebody else leads, whose lease was like this; ours at `until` if it stays so.
    StandingBy { version: Option<String>, until: Duration, theirs: Duration },
    /// Somebody else led, and the lease was deleted under their hands; ours at `until` if they do not create it again.
    Vanished { until: Duration },
    /// Free to take, or ours.
    Ours,
    /// Given back or deleted.
    Released,
}

// === impl Renewer ===

impl Renewer {
    /// A lease on these terms, renewed four times in its duration.
    pub fn new(node: String, instance: Instance, terms: Terms) -> Self {
        let backoff = Backoff::new(Duration::from_millis(200), terms.duration / 6);
        Self {
            node,
            instance,
            terms,
            state: State::Unknown,
            seen: None,
            owner: None,
            under_way: false,
            sent: None,
            permit: None,
            due: Duration::ZERO,
            release_due: Duration::ZERO,
            backoff,
        }
    }

    /// Whether the lease was taken, so that the Node may be touched.
    pub fn is_held(&self) -> bool {
        self.state == State::Ours && self.holds(self.seen.as_ref())
    }

    /// Until when writes may begin, if they may at all.
    pub fn permit(&self) -> Option<Permit> {
        self.permit
    }

    /// Whether a write may begin now.
    pub fn permits(&self, now: Now) -> bool {
        self.permit.is_some_and(|permit| permit.holds(now))
    }

    /// Whether another replica may lead by now, because the lease was ours and was not renewed in time.
    pub fn has_lapsed(&self, now: Now) -> bool {
        self.terms.standby.is_some() && self.permit.is_some_and(|permit| !permit.holds(now))
    }

    /// When that will be.
    pub fn lapse(&self) -> Option<Duration> {
        self.permit.filter(|_| self.terms.standby.is_some()).map(|permit| permit.elapsed)
    }

    /// Whether another replica leads.
    pub fn is_standing_by(&self) -> bool {
        matches!(self.state, State::StandingBy { .. } | State::Vanished { .. })
    }

    /// Whether the lease was given back.
    pub fn is_released(&self) -> bool {
        self.state == State::Released
    }

    /// Whether the last call failed already.
    pub fn is_failing(&self) -> bool {
        self.backoff.failures() > 0
    }

    fn holds(&self, lease: Option<&Lease>) -> bool {
        lease.and_then(instance_of).as_ref() == Some(&self.instance)
    }

    /// The Node was registered with this UID: the lease belongs to it from now on.
    pub fn owned_by(&mut self, uid: &str, now: Duration) {
        if self.owner.as_deref() != Some(uid) {
            self.owner = Some(uid.to_owned());
            self.due = now;
        }
    }

    /// When to look again; `None` while a call is under way.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.under_way && self.state != State::Released).then_some(self.due)
    }

    /// When to try again to give it back; `None` while a call is under way.
    pub fn release_deadline(&self) -> Option<Duration> {
        (!self.under_way && self.state != State::Released).then_some(self.release_due)
    }

    /// The call that is due, if any.
    pub fn start(&mut self, now: Duration, wall: Timestamp) -> Option<LeaseCall> {
        if self.under_way || now < self.due {
            return None;
        }
        let call = match self.state {
            State::Absent => LeaseCall::Create(self.body(wall)),
            State::Ours => LeaseCall::Renew(self.body(wall)),
            State::Released => return None,
            _ => LeaseCall::Read,
        };
        self.under_way = true;
        self.sent = Some(Now { elapsed: now, wall });
        Some(call)
    }

    /// The call that gives the lease back: nobody has to wait for it then. `None` when a call is under way, or when
    /// there is nothing to give back.
    pub fn release(&mut self, now: Duration, delete: bool) -> Option<LeaseCall> {
        if self.under_way || self.state == State::Released || now < self.release_due {
            return None;
        }
        // Whoever finds it free takes it at once.
        self.permit = None;
        let Some(seen) = self.seen.as_ref().filter(|lease| self.holds(Some(lease))) else {
            self.state = State::Released;
            return None;
        };
        self.under_way = true;
        if let (true, Some(uid)) = (delete, &seen.metadata.uid) {
            return Some(LeaseCall::Delete { uid: uid.clone() });
        }
        Some(LeaseCall::Release(json!({
            "metadata": {"resourceVersion": seen.metadata.resource_version, "annotations": {INSTANCE_ANNOTATION: null}},
            "spec": {"holderIdentity": null},
        })))
    }

    /// Takes the answer to a call.
    pub fn answered(
        &mut self,
        now: Duration,
        wall: Timestamp,
        call: &LeaseCall,
        answer: Result<Option<Lease>, Error>,
        rng: &mut StdRng,
    ) -> Result<(), Taken> {
        self.under_way = false;
        match (call, answer) {
            (LeaseCall::Release(_) | LeaseCall::Delete { .. }, Ok(_)) => self.state = State::Released,
            (LeaseCall::Read, Ok(Some(lease))) => return self.read(now, wall, lease),
            (_, Ok(Some(lease))) => {
                self.seen = Some(lease);
                self.state = State::Ours;
                // From when it was sent: others count from when they see it, which is later.
                self.permit = self.sent.map(|sent| Permit::after(sent, self.terms.renew_deadline));
                self.backoff.reset();
                // Four renewals in a lease's life, a little apart from other nodes': as the kubelet does.
                self.due = now + (self.terms.duration / 4).mul_f64(rng.random_range(1.0..1.04));
                if self.owner.is_some() && self.owner.as_deref() != self.owner_there() {
                    self.due = now;
                }
            }
            (_, Ok(None)) => self.due = now,
            (call, Err(error)) => match error.kind {
                Kind::NotFound if matches!(call, LeaseCall::Release(_) | LeaseCall::Delete { .. }) => {
                    self.state = State::Released;
                }
                _ if matches!(call, LeaseCall::Release(_) | LeaseCall::Delete { .. }) => {
                    self.release_due = now + self.backoff.next(error.retry_after, rng);
                    // Our copy may be out of date; somebody else's lease is not ours to give back.
                    if error.kind == Kind::Conflict {
                        self.state = State::Released;
                    }
                }
                Kind::NotFound => self.missing(now, rng),
                Kind::Conflict | Kind::AlreadyExists | Kind::Replaced => {
                    self.state = State::Unknown;
                    self.due = now + self.backoff_after_second_try(rng);
                }
                _ => self.due = now + self.backoff.next(error.retry_after, rng),
            },
        }
        Ok(())
    }

    /// A lost race is settled at once the first time, and with patience when it goes on.
    fn backoff_after_second_try(&mut self, rng: &mut StdRng) -> Duration {
        let first = self.backoff.failures() == 0;
        let wait = self.backoff.next(None, rng);
        if first { Duration::ZERO } else { wait }
    }

    fn owner_there(&self) -> Option<&str> {
        let owners = self.seen.as_ref()?.metadata.owner_references.as_ref()?;
        owners.iter().find(|owner| owner.kind == "Node").map(|owner| owner.uid.as_str())
    }

    fn body(&self, wall: Timestamp) -> Value {
        let seen = self.seen.as_ref().filter(|_| self.state == State::Ours);
        let mut metadata = json!({
            "name": self.node,
            "namespace": "kube-node-lease",
            "annotations": {INSTANCE_ANNOTATION: self.instance.to_string()},
        });
        if let Some(version) = seen.and_then(|lease| lease.metadata.resource_version.as_ref()) {
            metadata["resourceVersion"] = json!(version);
        }
        if let Some(uid) = &self.owner {
            // Other people's owners stay; the Node is the one with today's UID.
            let others =
                seen.and_then(|lease| lease.metadata.owner_references.as_ref()).into_iter().flatten();
            let mut owners: Vec<Value> =
                others.filter(|owner| owner.kind != "Node").map(|owner| json!(owner)).collect();
            owners.push(json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}));
            metadata["ownerReferences"] = json!(owners);
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.node,
                "leaseDurationSeconds": self.terms.duration.as_secs(),
                "renewTime": micros(wall),
            },
        })
    }
}

fn instance_of(lease: &Lease) -> Option<Instance> {
    lease.metadata.annotations.as_ref()?.get(INSTANCE_ANNOTATION)?.parse().ok()
}

/// A time as Kubernetes writes its micro times.
fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests;
