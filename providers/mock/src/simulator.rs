//! Simulates the lifecycle of pods: a state machine without clock, tasks or I/O.
//!
//! The caller passes the time: [`PodSimulator::apply`] executes a request, [`PodSimulator::advance`] processes everything that is due,
//! and [`PodSimulator::next_deadline`] returns when to call it next. Every change happens at its scheduled time, however late the call.

mod address;
mod container;
mod pod;
mod request;
mod status;
pub(crate) mod usage;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use vk_provider::{Error, PodRef, Result, error::Kind};

use self::{
    address::AddressPool,
    pod::{AdvanceOutcome, SimulatedPod},
};

pub use self::{
    address::Cidr,
    request::{ChangedPod, DesiredPod, ListedPod, Reply, Request},
    usage::{UsageCounter, UsageRate},
};

/// All pods of all nodes.
#[derive(Default)]
pub struct PodSimulator {
    pods: HashMap<Arc<str>, SimulatedPod>,
    /// UIDs by node, sorted, so that lists are stable.
    nodes: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    timers: BTreeSet<(Timestamp, Arc<str>)>,
    pools: HashMap<Cidr, AddressPool>,
    journal: BTreeMap<Arc<str>, u32>,
    changes: Vec<ChangedPod>,
}

// === impl PodSimulator ===

impl PodSimulator {
    /// Creates a simulator without pods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Executes a request, after everything that was due before.
    pub fn apply(&mut self, now: Timestamp, request: Request) -> Result<Reply> {
        self.advance(now);
        match request {
            Request::Create(desired) => self.create(now, *desired),
            Request::Update(desired) => self.update(now, *desired),
            Request::Delete { pod, grace } => {
                let entry = self.entry(&pod, "delete")?;
                if entry.has_stopped() {
                    let stopped = entry.reference.clone();
                    self.remove(&stopped.uid);
                    return Err(Error::not_found(format!("delete pod {stopped}: it has stopped already")));
                }
                entry.stop(now, grace);
                self.touch(&pod.uid, now);
                Ok(Reply::Done)
            }
            Request::Status(pod) => match self.status(&pod) {
                Some(status) => Ok(Reply::Status(Box::new(status))),
                None => Err(Error::not_found(format!("read status: no pod {pod}"))),
            },
            Request::List { node } => Ok(Reply::Pods(self.list(&node))),
            Request::Vanish(pod) => {
                self.entry(&pod, "lose")?;
                self.remove(&pod.uid);
                Ok(Reply::Done)
            }
            Request::Finish { pod, container, exit_code } => {
                self.entry(&pod, "finish")?.finish(now, &container, exit_code)?;
                self.touch(&pod.uid, now);
                Ok(Reply::Done)
            }
            Request::Journal => Ok(Reply::Journal(self.journal.clone())),
            Request::Ping => Ok(Reply::Done),
        }
    }

    /// Processes everything that is due by this time.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some((due, uid)) = self.timers.first().cloned() {
            if due > now {
                break;
            }
            self.touch(&uid, now);
        }
    }

    /// When the next change is due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Returns the pods that changed since the last call.
    pub fn take_changes(&mut self) -> Vec<ChangedPod> {
        std::mem::take(&mut self.changes)
    }

    /// The status of a pod; `None` if it does not exist.
    pub fn status(&self, pod: &PodRef) -> Option<PodStatus> {
        self.pods.get(&pod.uid).map(status::of)
    }

    fn create(&mut self, now: Timestamp, desired: DesiredPod) -> Result<Reply> {
        let pod = reference(&desired)?;
        if let Some(entry) = self.pods.get_mut(&pod.uid) {
            // Adopted: apply the current spec, which may have changed meanwhile.
            entry.update(now, desired)?;
            self.touch(&pod.uid, now);
            return Ok(Reply::Done);
        }
        let spec = desired.pod.spec.as_ref();
        if spec.is_none_or(|spec| spec.containers.is_empty()) {
            return Err(Error::invalid(format!("create pod {pod}: it has no containers")));
        }
        let address = if spec.is_some_and(|spec| spec.host_network == Some(true)) {
            None
        } else {
            let range = desired.pod_cidr;
            let taken = self.pools.entry(range).or_default().allocate(range);
            let taken = taken.ok_or_else(|| {
                Error::new(Kind::Exhausted, format!("create pod {pod}: no address is left in {range}"))
            })?;
            Some((range, taken))
        };
        *self.journal.entry(Arc::clone(&pod.uid)).or_default() += 1;
        self.nodes.entry(Arc::clone(&desired.node)).or_default().insert(Arc::clone(&pod.uid));
        let uid = Arc::clone(&pod.uid);
        self.pods.insert(Arc::clone(&uid), SimulatedPod::new(now, pod, desired, address));
        self.touch(&uid, now);
        Ok(Reply::Done)
    }

    fn update(&mut self, now: Timestamp, desired: DesiredPod) -> Result<Reply> {
        let pod = reference(&desired)?;
        self.entry(&pod, "update")?.update(now, desired)?;
        self.touch(&pod.uid, now);
        Ok(Reply::Done)
    }

    fn list(&self, node: &str) -> Vec<ListedPod> {
        let uids = self.nodes.get(node).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid))
            .map(|entry| ListedPod {
                pod: entry.reference.clone(),
                node: Arc::clone(&entry.node),
                status: status::of(entry),
                meters: entry.meters(),
            })
            .collect()
    }

    fn entry(&mut self, pod: &PodRef, verb: &str) -> Result<&mut SimulatedPod> {
        self.pods.get_mut(&pod.uid).ok_or_else(|| Error::not_found(format!("{verb} pod: no pod {pod}")))
    }

    /// Processes what is due for a pod after a request, and records that it changed.
    fn touch(&mut self, uid: &Arc<str>, now: Timestamp) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.advance(now) == AdvanceOutcome::Gone {
            self.remove(uid);
            return;
        }
        let due = entry.next_deadline();
        if due != entry.due {
            if let Some(old) = entry.due {
                self.timers.remove(&(old, Arc::clone(uid)));
            }
            if let Some(new) = due {
                self.timers.insert((new, Arc::clone(uid)));
            }
            entry.due = due;
        }
        self.changes.push(ChangedPod { node: Arc::clone(&entry.node), pod: entry.reference.clone() });
    }

    fn remove(&mut self, uid: &Arc<str>) {
        let Some(entry) = self.pods.remove(uid) else { return };
        if let Some(due) = entry.due {
            self.timers.remove(&(due, Arc::clone(uid)));
        }
        if let Some((range, address)) = entry.address {
            self.pools.entry(range).or_default().release(address);
        }
        if let Some(uids) = self.nodes.get_mut(&entry.node) {
            uids.remove(uid);
            if uids.is_empty() {
                self.nodes.remove(&entry.node);
            }
        }
        self.changes.push(ChangedPod { node: entry.node, pod: entry.reference });
    }
}

impl fmt::Debug for PodSimulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodSimulator").field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}

fn reference(desired: &DesiredPod) -> Result<PodRef> {
    PodRef::of(&desired.pod).ok_or_else(|| Error::invalid("the pod has no namespace, name or uid"))
}

#[cfg(test)]
mod tests;
