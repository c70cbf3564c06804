//! A pod that is stuck on a virtual node.

use std::{borrow::Cow, cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_kube::event::Severity;
use vk_provider::{PodRef, pod::is_terminal};
use vk_supervisor::Now;

use super::{
    RETRY, SHORT_PERIOD,
    job::{JobRecord, JobRef},
};
use crate::{
    avoid::Controller,
    effect::{CallId, Effect},
    eviction::AfterEviction,
    names, pod_state,
};

/// The same thing is said again after this time at the earliest.
const SAY_AGAIN: Duration = Duration::from_mins(10);
/// The longest time between attempts to evict a pod.
const LONGEST_RETRY: Duration = Duration::from_mins(10);

/// A pod that is stuck on a virtual node.
#[derive(Debug)]
pub(super) struct StuckPod {
    pub(super) identity: PodRef,
    pub(super) pod: Arc<Pod>,
    /// The pod as its controller would create it again, and its shape.
    pub(super) again: Arc<Pod>,
    pub(super) shape: Arc<str>,
    /// The call in flight.
    pub(super) call: Option<CallId>,
    /// Why it is evicted.
    pub(super) why: String,
    due: Duration,
    /// When it may be considered because something changed: not before it is stuck for long enough.
    earliest: Duration,
    /// Evictions that failed, in a row.
    failures: u32,
    said: Option<(String, Duration)>,
}

/// What a call about a stuck pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its Job is being read.
    ReadingJob,
    /// Its node is being entered into the avoid table.
    Avoiding,
    Evicting,
}

/// Why a stuck pod is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Exemption {
    Lasting(Cow<'static, str>),
    /// It is not known whether its Job ignores disruption.
    UnknownJob(JobRef),
    /// That is being read, or could not be read until then.
    Until(Duration),
}

/// Since when a pod is stuck; `None` if it is not.
pub(super) fn stuck_since(now: Now, pod: &Pod) -> Option<Duration> {
    let scheduled = pod_state::condition(pod, names::SCHEDULED).filter(|one| one.status == "False")?;
    let is_over = is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() || pod_state::has_run(pod);
    if is_over || pod_state::node(pod).is_none() {
        return None;
    }
    let since = scheduled.last_transition_time.as_ref().map_or(now.wall, |time| time.0);
    let age = Duration::try_from(now.wall.duration_since(since)).unwrap_or_default();
    Some(now.elapsed.saturating_sub(age))
}

// === impl StuckPod ===

impl StuckPod {
    pub(super) fn new(identity: PodRef, pod: &Arc<Pod>, due: Duration) -> Self {
        let again = Arc::new(pod_state::unpinned(pod));
        Self {
            identity,
            pod: Arc::clone(pod),
            shape: pod_state::shape(&again).into(),
            again,
            call: None,
            why: String::new(),
            due,
            earliest: due,
            failures: 0,
            said: None,
        }
    }

    pub(super) fn update(&mut self, pod: &Arc<Pod>) {
        let (before, after) = (&self.pod.metadata, &pod.metadata);
        if before.annotations != after.annotations || before.owner_references != after.owner_references {
            // It may not be exempt any more.
            self.due = self.due.min(self.earliest);
        }
        self.pod = Arc::clone(pod);
        self.again = Arc::new(pod_state::unpinned(pod));
        self.shape = pod_state::shape(&self.again).into();
    }

    /// When it is considered next.
    pub(super) fn due(&self) -> Duration {
        if self.call.is_none() { self.due } else { Duration::MAX }
    }

    /// Pods with a higher priority come first, then older ones.
    pub(super) fn order(&self) -> (Reverse<i32>, Option<Timestamp>, Arc<str>) {
        let created = self.pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(pod_state::priority(&self.pod)), created, Arc::clone(&self.identity.uid))
    }

    pub(super) fn wait_until(&mut self, due: Duration) {
        self.call = None;
        self.due = due;
    }

    /// An eviction failed. Returns how long to wait.
    pub(super) fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        (RETRY * 2u32.saturating_pow(self.failures - 1)).min(LONGEST_RETRY)
    }

    /// Something has changed: it is considered soon.
    pub(super) fn reconsider(&mut self, now: Duration) {
        if self.due < Duration::MAX && self.failures == 0 {
            self.due = self.due.min((now + SHORT_PERIOD).max(self.earliest));
        }
    }

    /// Records an event, unless the last one said the same.
    pub(super) fn say(
        &mut self,
        now: Duration,
        reason: &'static str,
        severity: Severity,
        message: String,
        effects: &mut Vec<Effect>,
    ) {
        if let Some((said, at)) = &self.said
            && now < *at + SAY_AGAIN
            && *said == message
        {
            return;
        }
        self.said = Some((message.clone(), now));
        effects.push(Effect::RecordEvent(self.identity.clone(), severity, reason, message));
    }
}

// === impl Exemption ===

impl Exemption {
    /// Whether a pod may be evicted. `jobs` is what is known about Jobs.
    pub(super) fn of(pod: &Pod, jobs: &HashMap<JobRef, JobRecord>) -> Result<(), Self> {
        if pod_state::annotation(pod, names::DESCHEDULE) == Some("false") {
            return Err(Self::Lasting(
                "its annotation multicluster.virtual-kubelet.io/deschedule says so".into(),
            ));
        }
        if pod_state::group(pod).is_some() {
            return Err(Self::Lasting("the pods of its group stay together on one node".into()));
        }
        let after = match AfterEviction::of(pod) {
            // Nobody can create a controller with such a UID.
            _ if Controller::of(pod).is_none() => AfterEviction::Lost,
            after => after,
        };
        let job = JobRef::of(pod).filter(|_| after == AfterEviction::Counted);
        let Some(job) = job else { return after.obstacle().map_or(Ok(()), |why| Err(Self::Lasting(why))) };
        match jobs.get(&job) {
            Some(JobRecord::Ignores(true)) => Ok(()),
            Some(JobRecord::Ignores(false)) => Err(Self::Lasting(
                "its Job would count an eviction as a failure; a podFailurePolicy that ignores DisruptionTarget permits it"
                    .into(),
            )),
            Some(JobRecord::BeingRead) => Err(Self::Until(Duration::ZERO)),
            Some(JobRecord::Failed(until)) => Err(Self::Until(*until)),
            None => Err(Self::UnknownJob(job)),
        }
    }
}
