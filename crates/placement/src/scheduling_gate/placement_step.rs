//! A pod for which a node was chosen, while the API server is told.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Error, Kind};
use vk_supervisor::Backoff;

use super::{
    SchedulingGate, Stage,
    group_step::place_of,
    trial::{self, Trial},
};
use crate::{
    context::PlacementContext,
    effect::{Answer, CallId, Method, is_gone, is_refused},
    eviction::AfterEviction,
    names, pod_state,
};

/// A choice is given up if the API server does not take it within this time.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// A pod of which the API server refuses a change waits this long.
const AFTER_REFUSAL: Duration = Duration::from_mins(1);
const AFTER_CONFLICT: Duration = Duration::from_millis(500);

/// A pod for which a node was chosen.
#[derive(Debug)]
pub(super) struct Placing {
    pub(super) node: Arc<str>,
    /// The host name for the node selector, where a nomination is not enough.
    pub(super) pin: Option<String>,
    pub(super) step: Step,
    /// How the node was chosen, if there is no trial.
    pub(super) method: Method,
    /// The call in flight.
    pub(super) call: Option<CallId>,
    /// When the next call is due.
    pub(super) due: Duration,
    since: Duration,
    backoff: Backoff,
    /// It goes with others of its group.
    is_of_group: bool,
    /// How it goes on with the others of its group, if it has one.
    together: Option<Together>,
}

/// How a pod goes on with the others of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Together {
    /// Its step is done, and the others are waited for before the next one begins.
    Held,
    /// Its step may be done.
    Released,
    /// The group does not go to the node. The pod waits again when the call in flight is answered.
    Abandoned,
}

/// The calls, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Pods with claims that are not bound are placed by estimate: their trial would create volumes.
    ReadClaims,
    StartTrial,
    Nominate,
    Ungate,
}

// === impl Placing ===

impl Placing {
    pub(super) fn new(
        now: Duration,
        node: Arc<str>,
        pin: Option<String>,
        step: Step,
        method: Method,
    ) -> Self {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        Self {
            node,
            pin,
            step,
            method,
            call: None,
            due: now,
            since: now,
            backoff,
            is_of_group: false,
            together: None,
        }
    }

    /// A pod that goes with others of its group. What it does first needs no others only if that is to read something.
    pub(super) fn with_group(self) -> Self {
        let together = if self.step == Step::ReadClaims { Together::Released } else { Together::Held };
        Self { is_of_group: true, together: Some(together), ..self }
    }

    /// Whether its node was chosen together with others. That stays so if its labels change.
    pub(super) fn is_of_group(&self) -> bool {
        self.is_of_group
    }

    /// Whether the pod waits for others of its group.
    pub(super) fn is_held(&self) -> bool {
        self.together == Some(Together::Held)
    }

    /// Whether the pod waits again when the call in flight is answered.
    pub(super) fn is_abandoned(&self) -> bool {
        self.together == Some(Together::Abandoned)
    }

    /// The others of its group need not be waited for.
    pub(super) fn release(&mut self, now: Duration) {
        if self.is_held() {
            self.together = Some(Together::Released);
            (self.due, self.since) = (now, now);
        }
    }

    /// The group does not go to the node.
    pub(super) fn abandon(&mut self) {
        self.together = Some(Together::Abandoned);
    }

    fn hold(&mut self) {
        if self.together == Some(Together::Released) {
            self.together = Some(Together::Held);
        }
    }

    pub(super) fn sent(&mut self, now: Duration, id: CallId) {
        self.call = Some(id);
        self.due = now;
    }
}

impl SchedulingGate {
    /// Goes on with pods for which an earlier process has chosen a node that still takes them. If its last call is in flight, both say the same.
    pub(super) fn resume_nominated(&mut self, now: Duration, context: &mut PlacementContext) {
        let mut groups = BTreeSet::new();
        for uid in std::mem::take(&mut self.nominated) {
            let Some(tracked) = self.pods.get(&uid) else { continue };
            match &tracked.group {
                Some(group) => drop(groups.insert(Arc::clone(group))),
                None => {
                    if let Some(node) = nominated_node_that_takes(&tracked.pod, context) {
                        self.resume(now, &uid, node, context);
                        self.call(now, &uid, context);
                    }
                }
            }
        }
        for group in groups {
            self.resume_group(now, &group, context);
        }
    }

    /// Goes on with a pod that was nominated. If it is one of a group, it waits for the others first.
    pub(super) fn resume(
        &mut self,
        now: Duration,
        uid: &Arc<str>,
        node: Arc<str>,
        context: &mut PlacementContext,
    ) {
        let Some(tracked) = self.pods.get(uid) else { return };
        if !matches!(tracked.stage, Stage::Waiting { .. }) {
            return;
        }
        let is_of_group = tracked.group.is_some();
        // A pin cannot be removed. Where kube-scheduler may refuse the pinned pod, an eviction has to help.
        let is_certain = context.cluster.takes(&tracked.pod, &node) == Some(true);
        let may_be_pinned = is_certain || AfterEviction::of(&tracked.pod) == AfterEviction::Replaced;
        let is_pinned = is_of_group || self.settings.pin && may_be_pinned;
        context.cluster.assume(&tracked.pod, &node);
        let object = context.cluster.node(&node).filter(|_| is_pinned);
        let pin = object.and_then(|node| trial::hostname(node));
        let placing = Placing::new(now, node, pin, Step::Ungate, Method::Fits);
        if !is_of_group {
            self.limits.enter(&tracked.identity.namespace);
        }
        self.set_stage(uid, Stage::Placing(if is_of_group { placing.with_group() } else { placing }));
    }

    /// The last call for a pod was answered.
    pub(super) fn placing_answered(
        &mut self,
        now: Duration,
        uid: &Arc<str>,
        answer: &Result<Answer, Error>,
        context: &mut PlacementContext,
    ) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let Stage::Placing(placing) = &mut tracked.stage else { return };
        placing.call = None;
        if !placing.is_of_group() {
            self.limits.answered(&tracked.identity.namespace);
        }
        let is_final = matches!(placing.step, Step::StartTrial | Step::Ungate);
        if placing.is_abandoned() && !(is_final && answer.is_ok()) {
            return self.wait_again(uid, now + AFTER_CONFLICT, context);
        }
        match answer {
            Ok(answer) => {
                placing.backoff.reset();
                let next = match placing.step {
                    Step::ReadClaims if *answer == Answer::ClaimsBound(true) => Step::StartTrial,
                    Step::ReadClaims => Step::Nominate,
                    Step::Nominate => Step::Ungate,
                    Step::StartTrial => {
                        let trial = Stage::OnTrial(Trial::new(now, &placing.node));
                        return self.set_stage(uid, trial);
                    }
                    Step::Ungate => return self.observe_removed_gate(now, uid),
                };
                self.next_step(now, uid, next, context);
            }
            // Without permission to read claims, none is known to be bound.
            Err(error) if placing.step == Step::ReadClaims && is_refused(error) => {
                self.next_step(now, uid, Step::Nominate, context);
            }
            // The watch will show what has changed: perhaps another leader was faster.
            Err(error) if error.kind == Kind::Conflict => {
                self.give_up(uid, now + AFTER_CONFLICT, context);
            }
            // The watch will say so.
            Err(error) if is_gone(error) => self.give_up(uid, now + AFTER_REFUSAL, context),
            Err(error) if is_refused(error) => {
                // Perhaps because of the node: others are tried first.
                let place = place_of(&placing.node, &context.cluster).into();
                self.failures.record(now, tracked.failure_key(), &place, &error.to_string());
                self.give_up(uid, now + AFTER_REFUSAL, context);
            }
            Err(error) => {
                let wait = placing.backoff.next(error.retry_after, &mut context.rng);
                placing.due = now + wait;
                self.pods_due = self.pods_due.min(placing.due);
                if placing.due > placing.since + GIVE_UP_AFTER {
                    self.give_up(uid, now + wait, context);
                }
            }
        }
    }

    fn next_step(&mut self, now: Duration, uid: &Arc<str>, step: Step, context: &mut PlacementContext) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let Stage::Placing(placing) = &mut tracked.stage else { return };
        placing.step = step;
        placing.hold();
        if !placing.is_held() {
            self.call(now, uid, context);
        }
    }

    /// Repeats calls that have failed.
    pub(super) fn retry_calls(&mut self, now: Duration, context: &mut PlacementContext) {
        let mut due = Vec::new();
        for uid in &self.stages.placing {
            if let Some(Stage::Placing(placing)) = self.pods.get(uid).map(|tracked| &tracked.stage)
                && placing.call.is_none()
                && !placing.is_held()
            {
                due.push((Arc::clone(uid), placing.due));
            }
        }
        for (uid, at) in due {
            if at > now {
                self.pods_due_at(at);
                continue;
            }
            self.check_nomination(&uid);
            self.call(now, &uid, context);
        }
    }

    /// A write of an earlier leader that arrived late may have taken the nomination away: then it is made again before the gate is removed.
    fn check_nomination(&mut self, uid: &str) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let (is_behind, nominated) = (tracked.is_behind(), pod_state::nominated_node(&tracked.pod));
        if let Stage::Placing(placing) = &mut tracked.stage
            && placing.step == Step::Ungate
            && !is_behind
            && nominated != Some(&*placing.node)
        {
            placing.step = Step::Nominate;
        }
    }

    /// The pod waits again, for any node, and so do the others of its group if none of them has a node.
    fn give_up(&mut self, uid: &Arc<str>, not_before: Duration, context: &mut PlacementContext) {
        self.wait_again(uid, not_before, context);
        if let Some(group) = self.pods.get(uid).and_then(|tracked| tracked.group.clone()) {
            self.give_up_group(&group, not_before, context);
        }
    }

    /// The pod waits again, for any node.
    pub(super) fn wait_again(
        &mut self,
        uid: &Arc<str>,
        not_before: Duration,
        context: &mut PlacementContext,
    ) {
        let changed = context.cluster.forget(uid);
        for node in &changed.nodes {
            context.answers.node_changed(node);
        }
        self.cluster_changed(&changed);
        self.wait(uid, not_before);
    }
}

/// The node that was chosen for the pod, if the upper cluster would let the pod go there. The nomination of a trial is no choice: its node may have
/// ended the trial because nobody led.
pub(super) fn nominated_node_that_takes(pod: &Arc<Pod>, context: &PlacementContext) -> Option<Arc<str>> {
    let is_chosen =
        pod_state::condition(pod, names::PLACED).is_some_and(|condition| condition.status == "True");
    let node = pod_state::nominated_node(pod).filter(|_| is_chosen)?;
    context.cluster.takes(pod, node).map(|_| node.into())
}
