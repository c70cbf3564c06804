//! Removes the scheduling gate of pods when a node has room for them.
//!
//! Pods wait in queues of equal shape, in the order of priority and age. A queue is evaluated when something has changed that matters to it:
//! its nodes are asked as far as their last answers do not hold any more, and its pods are given to the nodes that have room. A pod is
//! nominated for its node, which keeps the room in the upper cluster, and then loses its gate. Until the node has taken notice of it, queries
//! name it as held.
//!
//! The pods of a group wait in one queue, and go to one node together. The gate of its oldest pod is removed first, when all of them are
//! nominated, or were placed below on trial. That one write decides for the group: the others follow to the same node, whoever leads then.
//! Pods of the same controllers that have succeeded are waited for no more.

mod calls;
mod evaluation;
mod group_evaluation;
mod group_step;
mod group_trial;
mod namespace_turns;
mod placement_step;
mod placing_limits;
mod pod_group;
mod report;
mod stage_sets;
mod tracked_pod;
mod trial;
mod ungated;
mod wait_queue;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{PodRef, placement::trial_node};
use vk_supervisor::Now;

use self::{
    group_step::place_of,
    namespace_turns::NamespaceTurns,
    placement_step::Step,
    placing_limits::PlacingLimits,
    pod_group::PodGroups,
    stage_sets::StageSets,
    tracked_pod::{Stage, TrackedPod, failure_key},
    trial::Trial,
    ungated::Ungated,
    wait_queue::{Position, WaitQueue},
};
use crate::{
    choose::Preference,
    cluster_state::{Changed, ClusterState},
    context::PlacementContext,
    effect::{ApiCall, CallId, Effect, Method, Outcome, TrialOutcome},
    pod_state::{self, Gating},
    trial_failures::TrialFailures,
};

/// How pods are placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateSettings {
    /// The preference among nodes that have room.
    pub preference: Preference,
    /// Whether nodes that cannot be asked are candidates, too.
    pub local: bool,
    /// Whether a nomination does not bind kube-scheduler, before Kubernetes 1.35: pods then get a node selector on the host name.
    pub pin: bool,
    /// How long a pod is on trial on a node whose backend finds no room for it; `None` if pods are placed by what nodes answer alone.
    pub trial: Option<Duration>,
}

/// The pods that have our gate, or had it and are not bound yet.
#[derive(Debug)]
pub(crate) struct SchedulingGate {
    settings: GateSettings,
    pods: BTreeMap<Arc<str>, TrackedPod>,
    stages: StageSets,
    /// Waiting pods by group, and others by shape.
    queues: BTreeMap<Arc<str>, WaitQueue>,
    groups: PodGroups,
    /// The queues that are evaluated next. A new pass begins when all were, so that no queue is left out if there are more than can be
    /// asked about.
    pass: VecDeque<Arc<str>>,
    turns: NamespaceTurns,
    /// Queues have come since the pass began.
    pass_is_outdated: bool,
    /// The queue whose answers are awaited, and until when.
    blocked: Option<(Arc<str>, Duration)>,
    limits: PlacingLimits,
    failures: TrialFailures,
    /// Pods that were nominated when they were first seen: an earlier process has not removed their gates, or its call is in flight.
    nominated: Vec<Arc<str>>,
    /// Pods that have lost their gate since the last step.
    placed: Vec<PlacedPod>,
    calls: HashMap<CallId, Arc<str>>,
    /// When queues are to be evaluated.
    wake: Duration,
    /// When something is due for single pods: a report, another attempt of a call, a pod that should be bound.
    pods_due: Duration,
}

/// A pod that has just lost its gate.
#[derive(Debug)]
struct PlacedPod {
    identity: PodRef,
    node: Arc<str>,
    method: Method,
    waited: Duration,
}

// === impl SchedulingGate ===

impl SchedulingGate {
    pub(crate) fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            pods: BTreeMap::new(),
            stages: StageSets::default(),
            queues: BTreeMap::new(),
            groups: PodGroups::default(),
            pass: VecDeque::new(),
            turns: NamespaceTurns::default(),
            pass_is_outdated: false,
            blocked: None,
            limits: PlacingLimits::default(),
            failures: TrialFailures::default(),
            nominated: Vec::new(),
            placed: Vec::new(),
            calls: HashMap::new(),
            wake: Duration::MAX,
            pods_due: Duration::MAX,
        }
    }

    /// A pod was added or changed.
    pub(crate) fn apply_pod(&mut self, now: Now, pod: &Arc<Pod>, cluster: &ClusterState) {
        let Some(identity) = PodRef::of(pod) else { return };
        if self.pods.get(&identity.uid).is_some_and(|tracked| tracked.is_outdated(pod)) {
            return;
        }
        self.groups.observe(&identity.uid, pod);
        let over = pod.metadata.deletion_timestamp.is_some() || pod_state::node(pod).is_some();
        if let Some(node) = pod_state::node(pod).filter(|_| !self.failures.is_empty())
            && let Some(tracked) = self.pods.get(&identity.uid)
        {
            self.failures.clear(&failure_key(pod, tracked.group.as_deref()), place_of(node, cluster));
        }
        if pod_state::gating(pod) == Gating::Open {
            self.observe_removed_gate(now.elapsed, &identity.uid);
        }
        match pod_state::gating(pod) {
            _ if over => self.remove_pod(&identity.uid),
            Gating::Ours => self.apply_gated(now, identity, pod),
            Gating::Open if pod_state::is_ungated_by_us(pod) => self.apply_ungated(now, identity, pod),
            Gating::OthersFirst | Gating::Open => self.remove_pod(&identity.uid),
        }
    }

    fn apply_gated(&mut self, now: Now, identity: PodRef, pod: &Arc<Pod>) {
        let uid = Arc::clone(&identity.uid);
        if let Some(tracked) = self.pods.get_mut(&uid) {
            let before = std::mem::replace(&mut tracked.pod, Arc::clone(pod));
            self.observe_group(now.elapsed, &uid);
            if self.observe_trial(now.elapsed, &uid, pod) {
                return;
            }
            let Some(tracked) = self.pods.get(&uid) else { return };
            // While a node is being told, the watch is behind what we have written.
            if let Stage::Waiting { queue, .. } = &tracked.stage {
                if **queue != *queue_key(pod) {
                    self.wait(&uid, Duration::ZERO);
                } else if tracked.group.is_some() && pod_state::shape(&before) != pod_state::shape(pod) {
                    self.touch_group(&uid);
                }
            }
            return;
        }
        let stage = if let Some(node) = trial_node(pod) {
            self.pods_due_at(now.elapsed);
            Stage::OnTrial(Trial::new(now.elapsed, node))
        } else {
            if pod_state::nominated_node(pod).is_some() {
                self.nominated.push(Arc::clone(&uid));
            }
            let position = Position::of(pod, &uid, Duration::ZERO);
            Stage::Waiting { queue: self.enqueue(pod, &position), position }
        };
        self.insert(TrackedPod::new(now.elapsed, identity, pod, stage));
    }

    fn insert(&mut self, mut tracked: TrackedPod) {
        let uid = Arc::clone(&tracked.identity.uid);
        tracked.group = pod_state::group(&tracked.pod).map(|key| self.groups.track(&key, &uid));
        self.stages.enter(&uid, &tracked.stage);
        self.pods.insert(uid, tracked);
    }

    /// The labels of a pod may have changed.
    fn observe_group(&mut self, now: Duration, uid: &Arc<str>) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let key = pod_state::group(&tracked.pod);
        if key.as_deref() == tracked.group.as_deref() {
            return;
        }
        if let Stage::Placing(placing) = &mut tracked.stage {
            placing.release(now);
        }
        if let Some(before) = tracked.group.take() {
            self.groups.untrack(&before, uid);
        }
        tracked.group = key.map(|key| self.groups.track(&key, uid));
        self.pods_due_at(now);
    }

    /// Something has changed that may let the group of this pod go on.
    fn touch_group(&mut self, uid: &str) {
        if let Some(group) = self.pods.get(uid).and_then(|tracked| tracked.group.as_ref()) {
            self.groups.touch(group);
        }
    }

    fn apply_ungated(&mut self, now: Now, identity: PodRef, pod: &Arc<Pod>) {
        let uid = Arc::clone(&identity.uid);
        self.pods_due_at(now.elapsed);
        let Some(tracked) = self.pods.get_mut(&uid) else {
            let stage = Stage::Ungated(Ungated::since_placed(now, pod));
            return self.insert(TrackedPod::new(now.elapsed, identity, pod, stage));
        };
        tracked.pod = Arc::clone(pod);
        if matches!(tracked.stage, Stage::Ungated(_)) {
            return;
        }
        // An earlier process has removed the gate, or a call that seemed to have failed.
        self.set_stage(&uid, Stage::Ungated(Ungated::new(now.elapsed, None)));
    }

    /// The gate of the pod is gone. The watch may say so before the answer to the call does, which may also be lost.
    fn observe_removed_gate(&mut self, now: Duration, uid: &str) {
        let Some(tracked) = self.pods.get(uid) else { return };
        let (method, node) = match &tracked.stage {
            Stage::Placing(placing) if placing.step == Step::Ungate => (placing.method, &placing.node),
            Stage::OnTrial(trial) if trial.is_accepting() => (Method::Trial, &trial.node),
            _ => return,
        };
        self.placed.push(PlacedPod {
            identity: tracked.identity.clone(),
            node: Arc::clone(node),
            method,
            waited: now.saturating_sub(tracked.since),
        });
        let node = Arc::clone(node);
        if let Some(group) = tracked.group.clone() {
            self.groups.place(&group, &tracked.identity.uid, &node);
        }
        let ungated = Ungated::new(now, Some(node));
        self.pods_due_at(ungated.deadline().min(now));
        if let Some(uid) = self.pods.get_key_value(uid).map(|(uid, _)| Arc::clone(uid)) {
            self.set_stage(&uid, Stage::Ungated(ungated));
        }
    }

    /// Says of pods that they were placed.
    fn report_placed(&mut self, context: &mut PlacementContext) {
        for PlacedPod { identity: pod, node, method, waited } in self.placed.drain(..) {
            context.effects.push(Effect::Count(Outcome::Placed { method, waited }));
            if method == Method::Trial {
                context.effects.push(Effect::Count(Outcome::Trial(TrialOutcome::Accepted)));
                // For people. Nothing depends on it, so it is not repeated.
                context.effects.push(Effect::Call(context.ids.next(), ApiCall::ReportPlaced { pod, node }));
            }
        }
    }

    /// The pod is bound, has ended or is gone, or is none of ours.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        let Some(tracked) = self.pods.remove(uid) else { return };
        let is_evicted = matches!(&tracked.stage, Stage::Ungated(ungated) if ungated.is_evicted());
        self.left_stage(&tracked.identity, tracked.stage);
        if let Some(group) = tracked.group {
            self.groups.untrack(&group, uid);
            if self.groups.get(&group).is_none() && !is_evicted {
                // Another one with the same name has nothing to do with it.
                self.failures.forget(&group);
            }
        }
    }

    /// The pod does not exist any more.
    pub(crate) fn pod_gone(&mut self, uid: &str) {
        self.groups.unplace(uid);
        self.remove_pod(uid);
    }

    /// A pod of a group has succeeded.
    pub(crate) fn pod_succeeded(&mut self, pod: &Pod) {
        self.groups.succeed(pod);
    }

    /// A pod that had succeeded does not exist any more.
    pub(crate) fn succeeded_pod_gone(&mut self, uid: &str) {
        self.groups.forget_succeeded(|succeeded| succeeded == uid);
    }

    /// A list of the pods that have succeeded is complete: those that it did not have are gone.
    pub(crate) fn succeeded_pods_listed(&mut self, uids: &[Arc<str>]) {
        let listed: HashSet<&str> = uids.iter().map(|uid| &**uid).collect();
        self.groups.forget_succeeded(|succeeded| !listed.contains(succeeded));
    }

    /// A pod enters a stage, and leaves the one before.
    fn set_stage(&mut self, uid: &Arc<str>, stage: Stage) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let (identity, before) = (tracked.identity.clone(), std::mem::replace(&mut tracked.stage, stage));
        self.left_stage(&identity, before);
        if let Some(tracked) = self.pods.get(uid) {
            self.stages.enter(uid, &tracked.stage);
        }
    }

    fn left_stage(&mut self, pod: &PodRef, stage: Stage) {
        self.stages.leave(&pod.uid, &stage);
        match stage {
            Stage::Waiting { queue, position } => self.dequeue(&queue, &position),
            Stage::Placing(placing) if placing.is_of_group() => {}
            Stage::Placing(placing) => self.limits.leave(&pod.namespace, placing.call.is_some()),
            Stage::OnTrial(_) | Stage::Ungated(_) => {}
        }
    }

    /// A list of the pods is complete: those that it did not have are gone.
    pub(crate) fn pods_listed(&mut self, cluster: &ClusterState) {
        let tracked = self.pods.keys().cloned().chain(self.groups.placed());
        let gone: Vec<Arc<str>> = tracked.filter(|uid| !cluster.has_pod(uid)).collect();
        for uid in gone {
            self.pod_gone(&uid);
        }
    }

    /// Forgets what is not needed any more.
    pub(crate) fn keep_house(&mut self, now: Duration) {
        self.failures.expire(now);
        self.turns.retain(self.queues.values());
    }

    /// Nodes have changed, or pods have left them.
    pub(crate) fn cluster_changed(&mut self, changed: &Changed) {
        if changed.local || !changed.nodes.is_empty() {
            for queue in self.queues.values_mut() {
                queue.is_outdated = true;
            }
        }
    }

    /// A node answers that did not when queues were evaluated.
    pub(crate) fn node_answers_again(&mut self) {
        for queue in self.queues.values_mut() {
            queue.is_outdated |= queue.is_silent();
        }
    }

    /// Whether answers about a shape, or about a group, are in use.
    pub(crate) fn has_shape(&self, shape: &str) -> bool {
        self.queues.contains_key(shape)
            || shape.split_once(' ').is_some_and(|(group, _)| self.queues.contains_key(group))
    }

    /// The number of pods that wait, by what they wait for.
    pub(crate) fn waiting(&self) -> [(&'static str, usize); 4] {
        let StageSets { placing, on_trial, ungated } = &self.stages;
        let [placing, on_trial, not_bound] = [placing, on_trial, ungated].map(BTreeSet::len);
        let no_node = self.pods.len() - placing - on_trial - not_bound;
        [("no_node", no_node), ("placing", placing), ("on_trial", on_trial), ("not_bound", not_bound)]
    }

    /// How many queues were evaluated.
    #[cfg(test)]
    pub(crate) fn evaluations(&self) -> u64 {
        self.turns.count()
    }

    /// When [`step`](Self::step) has something to do.
    pub(crate) fn next_deadline(&self) -> Duration {
        self.wake.min(self.pods_due)
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, now: Now, context: &mut PlacementContext) {
        self.report_placed(context);
        self.resume_nominated(now.elapsed, context);
        self.advance_groups(now.elapsed, context);
        self.evaluate_queues(now.elapsed, context);
        self.advance_groups(now.elapsed, context);
        if self.pods_due <= now.elapsed {
            self.pods_due = Duration::MAX;
            self.report(now.elapsed, context);
            self.retry_calls(now.elapsed, context);
            self.check_trials(now, context);
            self.check_ungated(now.elapsed, context);
            self.advance_groups(now.elapsed, context);
        }
    }

    fn pods_due_at(&mut self, at: Duration) {
        self.pods_due = self.pods_due.min(at);
    }

    /// Puts a pod into the queue of its group, or of its shape. It is placed after `not_before`.
    fn wait(&mut self, uid: &Arc<str>, not_before: Duration) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let pod = Arc::clone(&tracked.pod);
        // All pods of a group wait as long as one of them.
        let of_pod = if tracked.group.is_some() { Duration::ZERO } else { not_before };
        let position = Position::of(&pod, uid, of_pod);
        if let Stage::Waiting { queue, position } = &tracked.stage {
            let (queue, position) = (Arc::clone(queue), position.clone());
            self.dequeue(&queue, &position);
        }
        let queue = self.enqueue(&pod, &position);
        if of_pod < not_before
            && let Some(queue) = self.queues.get_mut(&queue)
        {
            queue.not_before = queue.not_before.max(not_before);
        }
        if let Some(tracked) = self.pods.get_mut(uid) {
            let before = std::mem::replace(&mut tracked.stage, Stage::Waiting { queue, position });
            let identity = tracked.identity.clone();
            if !matches!(before, Stage::Waiting { .. }) {
                self.left_stage(&identity, before);
            }
        }
    }

    fn enqueue(&mut self, pod: &Pod, position: &Position) -> Arc<str> {
        let text = queue_key(pod);
        let known = self.queues.get_key_value(&*text).map(|(key, _)| Arc::clone(key));
        let key = known.unwrap_or_else(|| {
            self.pass_is_outdated = true;
            text.into()
        });
        let turn = self.turns.count();
        let queue = self.queues.entry(Arc::clone(&key)).or_insert_with(|| WaitQueue::new(pod, turn));
        queue.priority = queue.priority.max(pod_state::priority(pod));
        queue.join(position.clone());
        key
    }

    fn dequeue(&mut self, key: &Arc<str>, position: &Position) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.leave(position);
        if queue.pods.is_empty() {
            self.queues.remove(key);
        }
    }
}

/// The queue in which a pod waits: that of its group, or else of its shape.
fn queue_key(pod: &Pod) -> String {
    pod_state::group(pod).unwrap_or_else(|| pod_state::shape(pod))
}
