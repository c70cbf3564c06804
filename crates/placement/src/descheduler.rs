//! Evicts pods that are stuck on a virtual node, if another node has room for them.
//!
//! A pod is stuck if no lower node takes it and none of its containers has ever run. Its controller creates another pod, which avoids the node
//! for some time: that is recorded before the eviction. Pods that nobody would create again are left alone, and so are those of Jobs and of
//! other controllers that may count an eviction as a failure.

mod alternative;
mod job;
mod stuck_pod;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Error, event::Severity};
use vk_provider::PodRef;
use vk_supervisor::Now;

use self::{
    alternative::Alternative,
    job::{JobRecord, JobRef},
    stuck_pod::{Exemption, Step, StuckPod},
};
use crate::{
    avoid::{Addition, Controller},
    cluster_state::Changed,
    context::PlacementContext,
    effect::{Answer, ApiCall, CallId, Effect, Outcome, is_gone, may_have_happened},
    pod_state,
};

/// The reason of events of pods that are evicted.
pub(crate) const DESCHEDULED: &str = "Descheduled";
/// The reason of events of stuck pods that are left alone.
pub(crate) const NOT_DESCHEDULED: &str = "NotDescheduled";
/// A call that failed is repeated after this time.
const RETRY: Duration = Duration::from_secs(10);
/// A Job that could not be read is read again after this time.
const JOB_RETRY: Duration = Duration::from_mins(5);
/// The most pods that are considered in one step, and how long others wait then: many wait for the same answers.
const BATCH: usize = 32;
const NEXT_BATCH: Duration = Duration::from_millis(100);
/// How often a stuck pod is considered again when nothing changes.
const PERIOD: Duration = Duration::from_mins(1);
/// And when something does.
const SHORT_PERIOD: Duration = Duration::from_secs(5);
/// The next pod of a controller waits at most this long for the evicted one to be gone.
const PATIENCE: Duration = Duration::from_mins(1);
/// The time in which [`DeschedulerSettings::most`] pods are evicted.
const MINUTE: Duration = Duration::from_mins(1);

/// When pods are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeschedulerSettings {
    /// How long a pod is stuck before it is evicted.
    pub after: Duration,
    /// The most evictions per minute.
    pub most: usize,
    /// For how long the node is avoided, the first time.
    pub avoid: Duration,
    /// Whether nodes that cannot be asked, such as the cluster's own machines, are candidates.
    pub local: bool,
    /// Only says what would be evicted.
    pub dry_run: bool,
}

/// The pods that are stuck.
#[derive(Debug)]
pub(crate) struct Descheduler {
    settings: DeschedulerSettings,
    pods: BTreeMap<Arc<str>, StuckPod>,
    calls: HashMap<CallId, PendingCall>,
    /// Controllers one of whose pods is being evicted, with that pod and until when others wait.
    busy: HashMap<Controller, (Arc<str>, Duration)>,
    /// Room that is left for the pods that replace evicted ones.
    promised: Vec<Promise>,
    /// When pods were evicted in the last minute, also those of which that is not certain.
    evictions: HashMap<Arc<str>, Duration>,
    jobs: HashMap<JobRef, JobRecord>,
    due: Duration,
}

/// A call in flight.
#[derive(Debug)]
struct PendingCall {
    pod: Arc<str>,
    step: Step,
    /// The entry in the avoid table for the eviction of the pod.
    avoided: Option<Addition>,
}

/// Room on a node for the pod that replaces an evicted one.
#[derive(Debug)]
struct Promise {
    node: Arc<str>,
    /// The evicted pod.
    pod: Arc<str>,
    until: Duration,
}

// === impl DeschedulerSettings ===

impl Default for DeschedulerSettings {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(30),
            most: 10,
            avoid: Duration::from_mins(5),
            local: true,
            dry_run: false,
        }
    }
}

// === impl Descheduler ===

impl Descheduler {
    pub(crate) fn new(settings: DeschedulerSettings) -> Self {
        Self {
            settings,
            pods: BTreeMap::new(),
            calls: HashMap::new(),
            busy: HashMap::new(),
            promised: Vec::new(),
            evictions: HashMap::new(),
            jobs: HashMap::new(),
            due: Duration::MAX,
        }
    }

    /// A pod was added or changed.
    pub(crate) fn apply_pod(&mut self, now: Now, pod: &Arc<Pod>) {
        let Some(identity) = PodRef::of(pod) else { return };
        let Some(since) = stuck_pod::stuck_since(now, pod) else {
            return self.remove_pod(now.elapsed, &identity.uid);
        };
        let due = since + self.settings.after;
        match self.pods.get_mut(&identity.uid) {
            Some(known) => known.update(pod),
            None => drop(self.pods.insert(Arc::clone(&identity.uid), StuckPod::new(identity, pod, due))),
        }
        self.due = self.due.min(due);
    }

    /// The pod is gone, or not stuck any more.
    pub(crate) fn remove_pod(&mut self, now: Duration, uid: &str) {
        self.pods.remove(uid);
        if self.calls.values().any(|call| *call.pod == *uid && call.avoided.is_some()) {
            // Its answer continues here: it decides about the entry in the avoid table, which other pods of the controller share.
            return;
        }
        let before = self.busy.len();
        self.busy.retain(|_, (pod, _)| **pod != *uid);
        if self.busy.len() < before {
            self.due = now;
        }
    }

    /// A list of the pods is complete: those that it did not have are gone.
    pub(crate) fn pods_listed(&mut self, now: Duration, exists: impl Fn(&str) -> bool) {
        let gone: Vec<Arc<str>> = self.pods.keys().filter(|uid| !exists(uid)).cloned().collect();
        for uid in gone {
            self.remove_pod(now, &uid);
        }
    }

    /// Nodes have changed: there may be another node for stuck pods.
    pub(crate) fn cluster_changed(&mut self, now: Duration, changed: &Changed) {
        if changed.local || !changed.nodes.is_empty() {
            for pod in self.pods.values_mut() {
                pod.reconsider(now);
                self.due = self.due.min(pod.due());
            }
        }
    }

    /// Forgets Jobs that no stuck pod has.
    pub(crate) fn keep_house(&mut self) {
        let used: HashSet<JobRef> = self.pods.values().filter_map(|stuck| JobRef::of(&stuck.pod)).collect();
        self.jobs.retain(|job, _| used.contains(job));
    }

    /// The shapes in use.
    pub(crate) fn shapes(&self) -> HashSet<&str> {
        self.pods.values().map(|pod| &*pod.shape).collect()
    }

    /// When [`step`](Self::step) has something to do.
    pub(crate) fn next_deadline(&self) -> Duration {
        self.due
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, now: Now, context: &mut PlacementContext) {
        if self.due > now.elapsed {
            return;
        }
        self.due = Duration::MAX;
        self.evictions.retain(|_, at| *at + MINUTE > now.elapsed);
        self.busy.retain(|_, (_, until)| *until > now.elapsed);
        self.promised.retain(|promise| promise.until > now.elapsed);
        let mut due: Vec<Arc<str>> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.due() <= now.elapsed)
            .map(|(uid, _)| uid.clone())
            .collect();
        due.sort_by_key(|uid| self.pods.get(uid).map(StuckPod::order));
        for uid in due.iter().take(BATCH) {
            self.consider(now, uid, context);
        }
        let next = self.pods.values().map(StuckPod::due).min().unwrap_or(Duration::MAX);
        let pause = if due.len() > BATCH { NEXT_BATCH } else { Duration::from_millis(1) };
        self.due = self.due.min(next).max(now.elapsed + pause);
    }

    /// Evicts a pod that is stuck for long enough, or says why not.
    fn consider(&mut self, now: Now, pod_uid: &Arc<str>, context: &mut PlacementContext) {
        let Some(stuck) = self.pods.get_mut(pod_uid) else { return };
        let Some(node) =
            pod_state::node(&stuck.pod).filter(|node| context.cluster.virtual_node(node).is_some())
        else {
            return stuck.wait_until(now.elapsed + PERIOD);
        };
        let node = node.to_owned();
        match Exemption::of(&stuck.pod, &self.jobs) {
            Ok(()) => {}
            Err(Exemption::Lasting(why)) => {
                stuck.say(
                    now.elapsed,
                    NOT_DESCHEDULED,
                    Severity::Normal,
                    why.into_owned(),
                    &mut context.effects,
                );
                return stuck.wait_until(Duration::MAX);
            }
            Err(Exemption::Until(until)) => return stuck.wait_until(until.max(now.elapsed + RETRY)),
            Err(Exemption::UnknownJob(job)) => {
                let (namespace, name, uid) = (job.namespace.clone(), job.name.clone(), job.uid.clone());
                self.jobs.insert(job, JobRecord::BeingRead);
                let call = ApiCall::ReadJob { namespace, name, uid };
                return self.call(pod_uid, Step::ReadingJob, None, call, context);
            }
        }
        let Some(controller) = Controller::of(&stuck.pod) else { return };
        if let Some((_, until)) = self.busy.get(&controller) {
            return stuck.wait_until(*until);
        }
        if self.evictions.len() >= self.settings.most {
            let free = self.evictions.values().min().map_or(now.elapsed, |at| *at + MINUTE);
            return stuck.wait_until(free);
        }
        let promised = |node: &str| self.promised.iter().filter(|promise| *promise.node == *node).count();
        let found = match alternative::find(now.elapsed, stuck, &node, promised, self.settings.local, context)
        {
            Alternative::Node(found) => found,
            Alternative::Wait(until) => return stuck.wait_until(until),
            Alternative::None(why) => {
                stuck.say(now.elapsed, NOT_DESCHEDULED, Severity::Normal, why, &mut context.effects);
                return stuck.wait_until(now.elapsed + PERIOD);
            }
        };
        let why = format!("no lower node of {node} takes it, and {found} has room");
        if self.settings.dry_run {
            context.effects.push(Effect::Count(Outcome::Evicted { dry_run: true }));
            let message = format!("would be evicted: {why}");
            stuck.say(now.elapsed, NOT_DESCHEDULED, Severity::Normal, message, &mut context.effects);
            return stuck.wait_until(Duration::MAX);
        }
        stuck.why = why;
        let until = now.elapsed + PATIENCE;
        self.promised.push(Promise { node: found, pod: Arc::clone(pod_uid), until });
        self.evictions.insert(Arc::clone(pod_uid), now.elapsed);
        self.busy.insert(controller.clone(), (Arc::clone(pod_uid), until));
        let (changes, addition) = context.avoid.add(now.wall, &controller, &node, self.settings.avoid);
        self.call(pod_uid, Step::Avoiding, Some(addition), ApiCall::WriteAvoidTable(changes), context);
    }

    /// The call with this id was answered. Returns whether it is one of ours.
    pub(crate) fn answered(
        &mut self,
        now: Duration,
        id: CallId,
        answer: &Result<Answer, Error>,
        context: &mut PlacementContext,
    ) -> bool {
        let Some(PendingCall { pod: uid, step, avoided }) = self.calls.remove(&id) else { return false };
        self.due = now;
        // The watch may have shown that the pod is gone before the eviction was answered.
        if step == Step::Evicting && answer.is_ok() {
            context.effects.push(Effect::Count(Outcome::Evicted { dry_run: false }));
        }
        let Some(stuck) = self.pods.get_mut(&uid).filter(|stuck| stuck.call == Some(id)) else {
            // It is gone, or was not stuck any more.
            let is_sent = step == Step::Evicting;
            let may_be_evicted = match answer {
                Ok(_) => is_sent,
                Err(error) => is_sent && (is_gone(error) || may_have_happened(error)),
            };
            if may_be_evicted || !context.cluster.has_pod(&uid) {
                self.busy.retain(|_, (pod, _)| *pod != uid);
            } else if avoided.is_some() {
                self.not_evicted(&uid, avoided, context);
            }
            return true;
        };
        match (step, answer) {
            (Step::ReadingJob, answer) => {
                let record = match answer {
                    Ok(Answer::JobIgnoresDisruption(ignores)) => JobRecord::Ignores(*ignores),
                    // Without its Job nobody creates the pod again.
                    Err(error) if is_gone(error) => JobRecord::Ignores(false),
                    Err(error) => {
                        let message = format!("its Job cannot be read: {error}");
                        stuck.say(now, NOT_DESCHEDULED, Severity::Warning, message, &mut context.effects);
                        JobRecord::Failed(now + JOB_RETRY)
                    }
                    Ok(_) => JobRecord::Failed(now + JOB_RETRY),
                };
                if let Some(job) = JobRef::of(&stuck.pod) {
                    self.jobs.insert(job, record);
                }
                stuck.wait_until(now);
            }
            (Step::Avoiding, Ok(_)) => {
                let (pod, why) = (stuck.identity.clone(), stuck.why.clone());
                context.effects.push(Effect::RecordEvent(
                    pod.clone(),
                    Severity::Normal,
                    DESCHEDULED,
                    format!("evicting it: {why}"),
                ));
                let version = pod_state::version(&stuck.pod);
                // The minute and the time for which others wait begin now: the answer may have been late.
                self.evictions.insert(Arc::clone(&uid), now);
                if let Some(controller) = Controller::of(&stuck.pod) {
                    self.busy.insert(controller, (Arc::clone(&uid), now + PATIENCE));
                }
                for promise in self.promised.iter_mut().filter(|promise| *promise.pod == *uid) {
                    promise.until = now + PATIENCE;
                }
                self.call(&uid, Step::Evicting, avoided, ApiCall::Evict { pod, version }, context);
            }
            (Step::Avoiding, Err(error)) => {
                let message = format!("not evicted: the node to avoid cannot be recorded: {error}");
                stuck.say(now, NOT_DESCHEDULED, Severity::Warning, message, &mut context.effects);
                let wait = stuck.failed();
                stuck.wait_until(now + wait);
                self.not_evicted(&uid, avoided, context);
            }
            (Step::Evicting, Ok(_)) => stuck.wait_until(now + PERIOD),
            (Step::Evicting, Err(error)) if is_gone(error) => stuck.wait_until(now + PERIOD),
            (Step::Evicting, Err(error)) => {
                context.effects.push(Effect::Count(Outcome::EvictionRefused));
                let message = format!("cannot be evicted: {error}");
                stuck.say(now, NOT_DESCHEDULED, Severity::Warning, message, &mut context.effects);
                // If it may be evicted, others wait as if it was. If it was not, it is its turn again when they would have theirs.
                let wait = stuck.failed();
                stuck.wait_until(now + wait);
                if !may_have_happened(error) {
                    self.not_evicted(&uid, avoided, context);
                }
            }
        }
        true
    }

    /// The eviction did not take place, and others of the controller need not wait for it.
    fn not_evicted(&mut self, uid: &Arc<str>, avoided: Option<Addition>, context: &mut PlacementContext) {
        self.busy.retain(|_, (pod, _)| pod != uid);
        self.promised.retain(|promise| promise.pod != *uid);
        self.evictions.remove(uid);
        if let Some(addition) = avoided {
            context.avoid.withdraw(addition);
        }
    }

    fn call(
        &mut self,
        uid: &Arc<str>,
        step: Step,
        avoided: Option<Addition>,
        call: ApiCall,
        context: &mut PlacementContext,
    ) {
        let Some(stuck) = self.pods.get_mut(uid) else { return };
        let id = context.ids.next();
        stuck.call = Some(id);
        self.calls.insert(id, PendingCall { pod: Arc::clone(uid), step, avoided });
        context.effects.push(Effect::Call(id, call));
    }
}
