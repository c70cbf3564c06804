//! The decisions about one pod: events in, actions out.
//!
//! One worker per UID. It knows what the API server wants (the pod), what the provider has (present or absent, and the
//! status it reports), and compares the two after every event. At most one lifecycle call, one look at the status and one
//! write to the API server are under way at a time; a later event never waits for an older one's retry.

mod admitting;
mod calling;
mod looking;
mod publishing;
mod sizing;
mod slot;
mod stopping;
mod words;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};
use rand::rngs::StdRng;
use vk_provider::{EventKind, PodRef};
use vk_supervisor::Backoff;

use self::{admitting::Admission, sizing::Resizing, slot::Slot};
use super::{digest::Digest, fingerprint::Fingerprint, missed::Known, status};
use crate::now::Now;

pub use self::words::{Action, Call, Event, Policy, Refusal, Write};

/// Whether the backend has the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Nobody asked yet.
    Unknown,
    /// It certainly does not.
    Absent,
    /// It has, or may have.
    Present,
}

/// Why a pod does not start, for people.
#[derive(Clone, Debug)]
struct Held {
    /// The reason at the containers.
    state: String,
    /// The reason at the pod.
    reason: Option<String>,
    message: String,
    /// Nothing but a change of the pod can help.
    parked: bool,
}

/// What was written last, and what the server made of it.
#[derive(Debug)]
struct Written {
    asked: Digest,
    there: Digest,
}

/// The state of one pod.
pub struct Worker {
    pod: PodRef,
    policy: Arc<Policy>,
    desired: Option<Arc<Pod>>,
    /// Of our part of its status, once it was needed.
    there: Option<Digest>,
    /// The pod as it was last in the API server, for the time after it left.
    last_known: Option<Arc<Pod>>,
    presence: Presence,
    /// The provider has accepted the pod in this process.
    accepted: bool,
    admission: Admission,
    /// The node has refused the pod for good.
    rejected: bool,
    /// Of the pod as it is wanted.
    print: Option<Fingerprint>,
    /// Of the pod with which the last call was made, unless that is to be repeated.
    acted_on: Option<Fingerprint>,
    /// Of the pod that the provider has taken last.
    settled: Option<Fingerprint>,
    resizing: Option<Box<Resizing>>,
    /// Why the provider did not take the last change: a kind and a message.
    unchanged: Option<(String, String)>,
    generation: Option<i64>,
    reported: Option<Box<PodStatus>>,
    /// The core's own verdict, which stands above what the provider says.
    failed: Option<(String, String)>,
    held: Option<Held>,
    /// Nothing of it runs. Containers that have ended are not enough, because they may be between two lives: the phase must
    /// be final, or the backend must have been told to stop the pod before it was looked at.
    ended: bool,
    /// The backend has taken our request to stop it.
    stopping: bool,
    removed: bool,
    /// This UID has left the API server, and never comes back: an answer that says otherwise is an old one.
    gone: bool,
    /// The watch has told so, too: from now on it tells nothing old.
    watched_out: bool,
    /// When the grace of the last delete call ends.
    stop_by: Option<Duration>,
    /// Annotations to be written.
    annotations: BTreeMap<String, Option<String>>,
    /// Labels to be written.
    labels: BTreeMap<String, Option<String>>,
    /// Annotations and labels that the provider has published: it need not hear of them.
    published: BTreeSet<String>,
    life: Slot,
    /// How often in a row a call was repeated because what it missed had appeared.
    recalls: u32,
    call: Option<Call>,
    write: Slot,
    written: Option<Written>,
    asked: Option<Digest>,
    /// The phase that was written last, with whatever success.
    said: Option<String>,
    look_busy: bool,
    /// A lifecycle call began or ended since the look under way was asked for.
    look_old: bool,
    /// The provider pushed a status since then, or said that there is nothing of the pod.
    look_passed: bool,
    look_due: Option<Duration>,
    /// How often nothing had changed in a row.
    same_looks: u32,
    /// For looks that fail.
    look_backoff: Backoff,
    refused: Vec<String>,
    told_overdue: bool,
    told_killing: bool,
    /// When `activeDeadlineSeconds` is over.
    expiry: Option<Duration>,
}

// === impl Worker ===

impl Worker {
    /// A worker that knows nothing yet. `listed` tells that the provider's pods are known and this is not one of them.
    pub fn new(pod: PodRef, policy: Arc<Policy>, listed: bool) -> Self {
        Self {
            pod,
            policy,
            desired: None,
            there: None,
            last_known: None,
            presence: if listed { Presence::Absent } else { Presence::Unknown },
            accepted: false,
            admission: Admission::Open,
            rejected: false,
            print: None,
            acted_on: None,
            settled: None,
            resizing: None,
            unchanged: None,
            generation: None,
            reported: None,
            failed: None,
            held: None,
            ended: false,
            stopping: false,
            removed: false,
            gone: false,
            watched_out: false,
            stop_by: None,
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            published: BTreeSet::new(),
            life: Slot::new(Duration::from_secs(30)),
            recalls: 0,
            call: None,
            write: Slot::new(Duration::from_secs(10)),
            written: None,
            asked: None,
            said: None,
            look_busy: false,
            look_old: false,
            look_passed: false,
            look_due: None,
            same_looks: 0,
            look_backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            refused: Vec::new(),
            told_overdue: false,
            told_killing: false,
            expiry: None,
        }
    }

    /// Other policies hold from now on.
    pub fn follow(&mut self, policy: Arc<Policy>) {
        self.policy = policy;
    }

    /// Which pod it is.
    pub fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// The pod as it is wanted, while it is in the API server.
    pub fn desired(&self) -> Option<&Arc<Pod>> {
        self.desired.as_ref()
    }

    /// Who comes first where there is not room for all: those that were admitted before, and then the older ones.
    pub fn precedence(&self) -> (bool, Option<Timestamp>) {
        let pod = self.desired.as_ref();
        let status = pod.and_then(|pod| pod.status.as_ref());
        let started = status.is_some_and(|status| status.start_time.is_some());
        (!started, pod.and_then(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0))
    }

    /// Which version of the pod it knows.
    pub fn known(&self) -> Known {
        self.desired.as_deref().map_or(Known::Gone, |pod| Known::Version(version(pod).unwrap_or(0)))
    }

    /// Whether the backend may have something of this pod.
    pub fn may_run(&self) -> bool {
        (self.presence != Presence::Absent || self.call == Some(Call::Create)) && !self.ended
    }

    /// Takes an event and says what to do.
    pub fn handle(&mut self, now: Now, event: Event, rng: &mut StdRng) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {}
            Event::Desired(pod) => self.want(now, pod, &mut actions),
            Event::Gone => {
                self.watched_out = true;
                self.gone(now, &mut actions);
            }
            Event::Listed(status) => self.listed(status, &mut actions),
            Event::Reported(status) => {
                self.look_passed = true;
                let stopped = self.stopping && status::all_ended(&status);
                self.report(status, &mut actions);
                if stopped && !self.ended {
                    self.look_due = Some(now.elapsed);
                }
            }
            Event::Hint => self.look_due = Some(now.elapsed),
            Event::Annotations(annotations) => {
                self.publish(&annotations);
                self.annotations.extend(annotations);
            }
            Event::Labels(labels) => self.label(labels, &mut actions),
            Event::Turn => {
                self.write.busy = false;
                self.asked = None;
            }
            Event::Judged(verdict) => self.judged(verdict, &mut actions),
            Event::Sized(answer) => self.sized(answer, &mut actions),
            Event::Room => self.room(),
            Event::Appeared => self.appeared(now),
            Event::Called(call, answer) => self.called(now, call, answer, rng, &mut actions),
            Event::Looked(answer) => self.looked(now, answer, rng, &mut actions),
            Event::Wrote(write, answer) => self.wrote(now, &write, answer, rng, &mut actions),
        }
        self.advance(now, &mut actions);
        actions
    }

    /// When to send a [`Event::Tick`], if nothing else happens before.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let overdue = self.force_at().filter(|at| *at > now && self.is_ending() && self.may_run());
        let look = self.look_due.filter(|_| !self.look_busy && self.presence == Presence::Present);
        let expiry = self.expiry.filter(|at| *at > now && self.failed.is_none());
        [self.life.deadline(now), self.write.deadline(now), look, overdue, expiry].into_iter().flatten().min()
    }

    /// The provider has reported a final phase.
    fn is_over(&self) -> bool {
        status::is_terminal(self.reported.as_ref().and_then(|status| status.phase.as_deref()))
    }

    fn is_ending(&self) -> bool {
        self.desired.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    fn want(&mut self, now: Now, pod: Arc<Pod>, actions: &mut Vec<Action>) {
        let known = self.desired.as_ref();
        if self.gone || known.is_some_and(|known| version(known) > version(&pod)) {
            return;
        }
        if let Some(print) = self.print.filter(|_| self.knows(&pod)) {
            // The same again: of two that say the same, only this one is kept, which others hold, too.
            self.size(&pod, print);
            return self.hold(pod);
        }
        let was_ending = known.is_some_and(|known| known.metadata.deletion_timestamp.is_some());
        let grace_before = known.and_then(|known| known.metadata.deletion_grace_period_seconds);
        let is_ending = pod.metadata.deletion_timestamp.is_some();
        let hurried = grace_before != pod.metadata.deletion_grace_period_seconds;
        if is_ending && (!was_ending || hurried) {
            // Whatever failed before, this is new: no waiting. And what hangs shall not keep the pod.
            self.life.not_before = Duration::ZERO;
            self.cancel(now, actions);
            self.stop_by = None;
        }
        let print = self.print_of(&pod);
        if !is_ending && self.print.is_some_and(|before| before != print) {
            // The newest state does not wait for the retries of an older one.
            self.life.not_before = Duration::ZERO;
            if self.held.as_ref().is_some_and(|held| held.parked) {
                self.held = None;
                self.admission = Admission::Open;
            }
        }
        self.size(&pod, print);
        let resized = self.print.is_some_and(|before| before.size != print.size);
        if resized && self.resizing.is_none() && self.admission == Admission::Given {
            self.admission = Admission::Open;
        }
        self.print = Some(print);
        self.expiry = deadline_of(&pod, now);
        self.there = None;
        self.hold(pod);
    }

    /// Whether the pod is known in just this version.
    fn knows(&self, pod: &Pod) -> bool {
        let known = self.desired.as_deref().and_then(version);
        known.is_some() && known == version(pod)
    }

    fn hold(&mut self, pod: Arc<Pod>) {
        self.last_known = Some(Arc::clone(&pod));
        self.desired = Some(pod);
    }

    /// The pod is not in the API server any more: nobody waits for it, and what is left of it is stopped at once.
    fn gone(&mut self, now: Now, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.gone, true) {
            self.life.not_before = Duration::ZERO;
            self.cancel(now, actions);
        }
        self.desired = None;
    }

    /// Drops a call that may hang, unless it is just what is wanted. It may have taken effect.
    fn cancel(&mut self, now: Now, actions: &mut Vec<Action>) {
        let at_once = self.stop_by.is_some_and(|by| by <= now.elapsed);
        if self.call.is_some_and(|call| call != Call::Delete || !at_once) {
            actions.push(Action::Cancel);
            self.call = None;
            self.settled = None;
            self.look_old = true;
            self.life.busy = false;
            self.presence = Presence::Present;
        }
    }

    /// Starts whatever is missing.
    fn advance(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.expire(now, actions);
        self.live(now, actions);
        if self.look_due.is_some_and(|due| now.elapsed >= due)
            && !self.look_busy
            && self.presence == Presence::Present
        {
            self.look_busy = true;
            self.look_old = false;
            self.look_passed = false;
            self.look_due = None;
            actions.push(Action::Look);
        }
        if self.write.free(now.elapsed) {
            self.write(now, actions);
        }
        if self.admission == Admission::Given && !self.claims() {
            self.admission = Admission::Over;
            actions.push(Action::Release);
        }
        // An old word of the watch would make a new worker, which would create the pod again.
        let silent = self.watched_out || self.last_known.is_none();
        let idle = silent && self.call.is_none() && !self.write.busy && !self.look_busy;
        if self.desired.is_none() && !self.may_run() && self.presence != Presence::Unknown && idle {
            actions.push(Action::Forget);
        }
    }

    /// `activeDeadlineSeconds`: a pod that has had its time is failed.
    fn expire(&mut self, now: Now, actions: &mut Vec<Action>) {
        let over = self.desired.as_ref().is_none_or(|pod| status::has_ended(pod)) || self.is_ending();
        if over || self.failed.is_some() || self.expiry.is_none_or(|at| now.elapsed < at) {
            return;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.failed = Some(("DeadlineExceeded".to_owned(), message.to_owned()));
        self.life.not_before = Duration::ZERO;
        self.cancel(now, actions);
        actions.push(Action::Announce(EventKind::Normal, "DeadlineExceeded".into(), message.to_owned()));
    }

    /// The lifecycle call that is due.
    fn live(&mut self, now: Now, actions: &mut Vec<Action>) {
        if !self.life.free(now.elapsed) || self.call.is_some() || self.presence == Presence::Unknown {
            return;
        }
        let pod = match &self.desired {
            Some(pod) if pod.metadata.deletion_timestamp.is_none() && self.failed.is_none() => {
                Arc::clone(pod)
            }
            _ => return self.stop(now, actions),
        };
        if status::has_ended(&pod) || self.is_over() {
            // Everybody takes it for dead: it must not go on. But what has ended by itself stays, with its logs.
            let runs = self.reported.as_deref().is_some_and(|reported| !status::all_ended(reported));
            if runs && self.may_run() {
                self.stop(now, actions);
            }
            return;
        }
        let parked = self.held.as_ref().is_some_and(|held| held.parked);
        if parked || !self.admitted(&pod, actions) || !self.may_resize(&pod, actions) {
            return;
        }
        let print = self.print_to_send(&pod);
        let call = if !self.accepted {
            Call::Create
        } else if self.acted_on != Some(print) {
            Call::Update
        } else {
            return;
        };
        let bundle = self.bundle(&pod);
        actions.push(if call == Call::Create { Action::Create(bundle) } else { Action::Update(bundle) });
        self.ended = false;
        self.stopping = false;
        self.start(call);
        self.acted_on = Some(print);
        self.generation = pod.metadata.generation;
    }

    fn start(&mut self, call: Call) {
        self.life.busy = true;
        self.call = Some(call);
        self.look_old = true;
    }
}

pub(super) fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

fn has_started(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(ran)
}

fn ran(status: &PodStatus) -> bool {
    status.container_statuses.iter().flatten().any(|one| {
        let started = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
        one.state.as_ref().is_some_and(started) || one.restart_count > 0
    })
}

/// When the pod has had its time, by the controller's clock.
fn deadline_of(pod: &Pod, now: Now) -> Option<Duration> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start: Timestamp = pod.status.as_ref()?.start_time.as_ref()?.0;
    let age = Duration::try_from(now.wall.duration_since(start)).unwrap_or(Duration::ZERO);
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Some(now.elapsed + limit.saturating_sub(age))
}
