//! Leases: the heartbeat of a node, and the lock that lets only one process run it; and likewise the lock of any other component
//! with several replicas ([`Election`]).
//!
//! A process acquires the lease before it touches what the lease guards. While another process holds and renews it, this process
//! exits with an error, or stands by if there are several replicas. It acquires the lease at once if the holder released it or is
//! certainly dead, and otherwise when the lease was not renewed for its whole duration.
//!
//! Each renewal sets a [`WriteDeadline`], which is over before any other process can acquire the lease.

mod acquisition;
mod call;
mod election;
mod lock;
mod times;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rand::{RngExt as _, rngs::StdRng};
use serde_json::{Value, json};
use vk_supervisor::{Backoff, Now};

pub use self::{
    call::{LeaseCall, LeaseClient},
    election::Election,
    lock::{INSTANCE_ANNOTATION, LeaseConflict, LeaseLock},
    times::{LeaseTimes, WriteDeadline},
};
use crate::{Error, Instance, Kind};

/// Acquires and renews one lease. Times count from the controller's start.
#[derive(Debug)]
pub struct Renewer {
    lock: LeaseLock,
    instance: Instance,
    times: LeaseTimes,
    state: State,
    /// The lease as last read or written.
    lease: Option<Lease>,
    /// UID of the Node, which owns the lease object.
    owner: Option<String>,
    in_flight: bool,
    /// When the call in flight was sent.
    sent: Option<Now>,
    write_deadline: Option<WriteDeadline>,
    due: Duration,
    release_due: Duration,
    backoff: Backoff,
}

#[derive(Debug, PartialEq)]
enum State {
    /// Not read yet.
    Unknown,
    /// It does not exist.
    Absent,
    /// Another process has it. We acquire it at `until` if it is not renewed before.
    CheckingHolder { renewed: Option<Timestamp>, until: Duration },
    /// Another replica is the leader. We acquire the lease at `until` if its version does not change before.
    Standby { version: Option<String>, until: Duration, duration: Duration },
    /// Another replica was the leader and its lease was deleted. We create it at `until` if the leader does not before.
    Vanished { until: Duration },
    /// Held, or free to acquire.
    Ours,
    /// Released or deleted.
    Released,
}

// === impl Renewer ===

impl Renewer {
    /// A lease with these times, renewed four times per duration.
    pub fn new(lock: LeaseLock, instance: Instance, times: LeaseTimes) -> Self {
        let backoff = Backoff::new(Duration::from_millis(200), times.duration / 6);
        Self {
            lock,
            instance,
            times,
            state: State::Unknown,
            lease: None,
            owner: None,
            in_flight: false,
            sent: None,
            write_deadline: None,
            due: Duration::ZERO,
            release_due: Duration::ZERO,
            backoff,
        }
    }

    /// Whether this process holds the lease, as far as it knows.
    pub fn is_held(&self) -> bool {
        self.state == State::Ours && self.holds(self.lease.as_ref())
    }

    /// Until when writes may be started; `None` if they may not.
    pub fn write_deadline(&self) -> Option<WriteDeadline> {
        self.write_deadline
    }

    /// Whether a write may be started now.
    pub fn may_write(&self, now: Now) -> bool {
        self.write_deadline.is_some_and(|deadline| deadline.allows(now))
    }

    /// Fails if our lease was not renewed in time, so that another replica may be the leader now.
    pub fn check_expiry(&self, now: Now) -> Result<(), LeaseConflict> {
        if self.has_expired(now) {
            return Err(LeaseConflict::Expired { lock: self.lock.clone() });
        }
        Ok(())
    }

    fn has_expired(&self, now: Now) -> bool {
        self.times.standby.is_some() && self.write_deadline.is_some_and(|deadline| !deadline.allows(now))
    }

    /// When [`Self::check_expiry`] fails without a renewal.
    pub fn expires_at(&self) -> Option<Duration> {
        self.write_deadline.filter(|_| self.times.standby.is_some()).map(|deadline| deadline.elapsed)
    }

    /// Whether another replica is the leader.
    pub fn is_on_standby(&self) -> bool {
        matches!(self.state, State::Standby { .. } | State::Vanished { .. })
    }

    /// Whether the lease was released.
    pub fn is_released(&self) -> bool {
        self.state == State::Released
    }

    fn holds(&self, lease: Option<&Lease>) -> bool {
        lease.and_then(|lease| self.lock.holder(lease)).as_ref() == Some(&self.instance)
    }

    /// Makes the Node with this UID the owner of the lease object.
    pub fn set_owner(&mut self, uid: &str, now: Duration) {
        if self.owner.as_deref() != Some(uid) {
            self.owner = Some(uid.to_owned());
            self.due = now;
        }
    }

    /// When the next call is due; `None` while one is in flight.
    pub fn next_deadline(&self) -> Option<Duration> {
        (!self.in_flight && self.state != State::Released).then_some(self.due)
    }

    /// When the next attempt to release is due; `None` while a call is in flight.
    pub fn release_deadline(&self) -> Option<Duration> {
        (!self.in_flight && self.state != State::Released).then_some(self.release_due)
    }

    /// The call that is due, if any.
    pub fn start(&mut self, now: Duration, wall: Timestamp) -> Option<LeaseCall> {
        if self.in_flight || now < self.due {
            return None;
        }
        let call = match self.state {
            State::Absent => LeaseCall::Create(self.body(wall)),
            State::Ours => LeaseCall::Renew(self.body(wall)),
            State::Released => return None,
            _ => LeaseCall::Read,
        };
        self.in_flight = true;
        self.sent = Some(Now { elapsed: now, wall });
        Some(call)
    }

    /// The call that releases the lease, so that the next process need not wait. `None` while a call is in flight, or if
    /// there is nothing to release.
    pub fn release(&mut self, now: Duration, delete: bool) -> Option<LeaseCall> {
        if self.in_flight || self.state == State::Released || now < self.release_due {
            return None;
        }
        // Others acquire a released lease at once.
        self.write_deadline = None;
        let Some(lease) = self.lease.as_ref().filter(|lease| self.holds(Some(lease))) else {
            self.state = State::Released;
            return None;
        };
        self.in_flight = true;
        if let (true, Some(uid)) = (delete, &lease.metadata.uid) {
            return Some(LeaseCall::Delete { uid: uid.clone() });
        }
        let mut metadata = json!({"resourceVersion": lease.metadata.resource_version});
        if matches!(self.lock, LeaseLock::Node(_)) {
            metadata["annotations"] = json!({INSTANCE_ANNOTATION: null});
        }
        Some(LeaseCall::Release(json!({"metadata": metadata, "spec": {"holderIdentity": null}})))
    }

    /// Handles the response to a call.
    pub fn on_answer(
        &mut self,
        now: Duration,
        wall: Timestamp,
        call: &LeaseCall,
        answer: Result<Option<Lease>, Error>,
        rng: &mut StdRng,
    ) -> Result<(), LeaseConflict> {
        self.in_flight = false;
        if let Err(error) = &answer {
            self.lock.log_failed_call(error, self.backoff.failures() == 0);
        }
        match (call, answer) {
            (LeaseCall::Release(_) | LeaseCall::Delete { .. }, Ok(_)) => self.state = State::Released,
            (LeaseCall::Read, Ok(Some(lease))) => return self.on_read(now, wall, lease),
            (_, Ok(Some(lease))) => {
                self.lease = Some(lease);
                self.state = State::Ours;
                // Count from when the renewal was sent; others count from when they see it, which is later.
                self.write_deadline =
                    self.sent.map(|sent| WriteDeadline::after(sent, self.times.renew_deadline));
                self.backoff.reset();
                self.due = now + self.times.renew_interval().mul_f64(rng.random_range(1.0..1.04));
                if self.owner.is_some() && self.owner.as_deref() != self.observed_owner() {
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
                    // On a conflict our copy is outdated. Another process may hold the lease, so leave it.
                    if error.kind == Kind::Conflict {
                        self.state = State::Released;
                    }
                }
                Kind::NotFound => self.on_missing(now, rng),
                Kind::Conflict | Kind::AlreadyExists | Kind::Replaced => {
                    self.state = State::Unknown;
                    self.due = now + self.conflict_backoff(rng);
                }
                _ => {
                    // A server that wants more time than that would cost us the lease.
                    let asked = error.retry_after.map(|asked| asked.min(self.times.renew_interval()));
                    self.due = now + self.backoff.next(asked, rng);
                }
            },
        }
        Ok(())
    }

    /// Backoff after a conflict: no delay the first time.
    fn conflict_backoff(&mut self, rng: &mut StdRng) -> Duration {
        let first = self.backoff.failures() == 0;
        let wait = self.backoff.next(None, rng);
        if first { Duration::ZERO } else { wait }
    }

    fn observed_owner(&self) -> Option<&str> {
        let owners = self.lease.as_ref()?.metadata.owner_references.as_ref()?;
        owners.iter().find(|owner| owner.kind == "Node").map(|owner| owner.uid.as_str())
    }

    fn body(&self, wall: Timestamp) -> Value {
        let current = self.lease.as_ref().filter(|_| self.state == State::Ours);
        let mut metadata = json!({"name": self.lock.name(), "namespace": self.lock.namespace()});
        if matches!(self.lock, LeaseLock::Node(_)) {
            metadata["annotations"] = json!({INSTANCE_ANNOTATION: self.instance.to_string()});
        }
        if let Some(version) = current.and_then(|lease| lease.metadata.resource_version.as_ref()) {
            metadata["resourceVersion"] = json!(version);
        }
        if let Some(uid) = &self.owner {
            // Keep other owners, and set the Node's current UID.
            let others =
                current.and_then(|lease| lease.metadata.owner_references.as_ref()).into_iter().flatten();
            let mut owners: Vec<Value> =
                others.filter(|owner| owner.kind != "Node").map(|owner| json!(owner)).collect();
            owners.push(json!({"apiVersion": "v1", "kind": "Node", "name": self.lock.name(), "uid": uid}));
            metadata["ownerReferences"] = json!(owners);
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.lock.holder_identity(&self.instance),
                "leaseDurationSeconds": self.times.duration.as_secs(),
                "renewTime": micros(wall),
            },
        })
    }
}

/// Formats a Kubernetes `MicroTime`.
fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests;
