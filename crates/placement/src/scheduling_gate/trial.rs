//! Pods on trial: a node runs a pod before it is bound, so that the scheduler of its backend decides whether there is room.
//!
//! What is done next follows from the pod alone, so another process can go on at any moment. The node removes the label of a trial when
//! nothing of the pod is left there; until then the pod goes to no other node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use vk_kube::{Error, event::Severity};
use vk_provider::placement::{LONGEST_TRIAL, declares_trial, trial_began, trial_node, trial_until};
use vk_supervisor::{Backoff, Now};

use super::{SchedulingGate, Stage};
use crate::{
    context::PlacementContext,
    effect::{Answer, ApiCall, CallId, Effect, FormerNode, Outcome, TrialOutcome},
    explain::is_ready,
    names,
    pod_state::{self, LowerVerdict},
};

/// How much longer than the patience a node may take until it says anything.
pub(super) const MARGIN: Duration = Duration::from_secs(30);
/// How long a node keeps what it runs of a pod whose gate was removed and that is not bound yet.
pub(super) const UNTIL_BOUND: Duration = Duration::from_mins(2);
/// How soon a node is looked for again that has to have a host name.
const WITHOUT_PIN: Duration = Duration::from_secs(1);
/// A node should confirm within this time that nothing of a pod is left.
const CONFIRMED_WITHIN: Duration = Duration::from_mins(1);
/// If it is Ready and takes no pods on trial any more, its pods wait this long: by then its new process has found and removed what an earlier one
/// has left.
const CLEANED_UP_WITHIN: Duration = Duration::from_mins(10);
/// The reason of the event if it does not.
const NOT_CONFIRMED: &str = "TrialNotConfirmed";

/// A pod on trial.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) node: Arc<str>,
    pub(super) call: Option<CallId>,
    /// The last call removes the gate.
    is_accepting: bool,
    /// When the next call may be made.
    due: Duration,
    backoff: Backoff,
    /// Since when the scheduler of the backend says that it finds no lower node.
    unscheduled_since: Option<Duration>,
    /// Since when only the node has to do something.
    over_since: Option<Duration>,
    /// What the node was when it was last looked at, and since when.
    node_state: (NodeState, Duration),
    is_reported: bool,
    /// The failure was recorded.
    is_recorded: bool,
    /// The pod keeps its gate until the backend has placed all pods of its group.
    pub(super) is_held: bool,
    /// It may be over before the gates of all pods of the group are removed.
    pub(super) is_short: bool,
    /// Why the trials of its group end.
    pub(super) ended: Option<(TrialOutcome, String)>,
}

/// Who would remove what is left of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// The node, when its process can.
    Present,
    /// The node is Ready, and takes no pods on trial any more.
    WithoutTrials,
    /// The node does not exist.
    Absent,
}

/// What is to be done about a pod on trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing before then.
    Wait(Duration),
    /// The node has taken the pod.
    Accept,
    /// The node has taken the pod, and has to keep it longer.
    Extend,
    /// The node does not take it.
    End(TrialOutcome, String),
    /// The node does not do its part.
    ReportNotConfirmed,
    /// No node has taken notice of it.
    Remove,
    /// The node will not remove what is left of the trial.
    RemoveForNode,
}

// === impl NodeState ===

impl NodeState {
    pub(super) fn of(node: Option<&Arc<Node>>) -> Self {
        match node {
            None => Self::Absent,
            Some(node) if is_ready(node) && !declares_trial(node) => Self::WithoutTrials,
            Some(_) => Self::Present,
        }
    }
}

// === impl Trial ===

impl Trial {
    pub(super) fn new(now: Duration, node: &str) -> Self {
        Self {
            node: node.into(),
            call: None,
            is_accepting: false,
            due: now,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(5)),
            unscheduled_since: None,
            over_since: None,
            node_state: (NodeState::Present, now),
            is_reported: false,
            is_recorded: false,
            is_held: false,
            is_short: false,
            ended: None,
        }
    }

    /// Whether the node has taken the pod, so that its gate is being removed.
    pub(super) fn is_accepting(&self) -> bool {
        self.is_accepting
    }

    /// When a trial that begins now is over.
    pub(super) fn end(now: Now, patience: Duration) -> jiff::Timestamp {
        now.wall.saturating_add(patience + MARGIN).unwrap_or(now.wall)
    }

    pub(super) fn next(&mut self, now: Now, pod: &Pod, patience: Duration, node: NodeState) -> Next {
        if trial_began(pod).is_none() {
            // A user has set the label: no node runs the pod.
            return Next::Remove;
        }
        if self.node_state.0 != node {
            self.node_state = (node, now.elapsed);
        }
        let left = trial_until(pod).and_then(|until| Duration::try_from(until.duration_since(now.wall)).ok());
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            let over_since = *self.over_since.get_or_insert(now.elapsed);
            let since = over_since.max(self.node_state.1);
            let late = match node {
                // A Node that was deleted while its process lives is there again soon.
                NodeState::Absent => since + CONFIRMED_WITHIN,
                _ => over_since + CONFIRMED_WITHIN,
            };
            return match node {
                _ if now.elapsed < late => Next::Wait(late),
                NodeState::Absent => Next::RemoveForNode,
                NodeState::WithoutTrials if now.elapsed >= since + CLEANED_UP_WITHIN => Next::RemoveForNode,
                _ if !self.is_reported => Next::ReportNotConfirmed,
                _ => Next::Wait(now.elapsed + CONFIRMED_WITHIN),
            };
        };
        self.over_since = None;
        let until = now.elapsed + left;
        if let Some((outcome, why)) = &self.ended {
            return Next::End(*outcome, why.clone());
        }
        match pod_state::lower_verdict(pod) {
            LowerVerdict::Scheduled if self.is_short => Next::Extend,
            LowerVerdict::Scheduled if self.is_held => Next::Wait(until),
            LowerVerdict::Scheduled => Next::Accept,
            LowerVerdict::Refused(why) => Next::End(TrialOutcome::Refused, why.to_owned()),
            LowerVerdict::NotScheduled(why) => {
                let end = *self.unscheduled_since.get_or_insert(now.elapsed) + patience;
                if now.elapsed >= end {
                    return Next::End(TrialOutcome::NotScheduled, why.to_owned());
                }
                Next::Wait(end.min(until))
            }
            LowerVerdict::Unknown => {
                self.unscheduled_since = None;
                Next::Wait(until)
            }
        }
    }
}

impl SchedulingGate {
    /// A pod with our gate has the label of a trial, or has lost it. Returns whether it is on trial.
    pub(super) fn observe_trial(&mut self, now: Duration, uid: &Arc<str>, pod: &Pod) -> bool {
        let Some(tracked) = self.pods.get_mut(uid) else { return false };
        match (&tracked.stage, trial_node(pod)) {
            (Stage::OnTrial(trial), Some(node)) if *trial.node == *node => {}
            (Stage::OnTrial(trial), None) => {
                if !trial.is_recorded {
                    let why = "the node has ended the trial";
                    self.failures.record(now, tracked.failure_key(), &trial.node, why);
                }
                self.wait(uid, Duration::ZERO);
                return false;
            }
            (_, Some(node)) => {
                self.set_stage(uid, Stage::OnTrial(Trial::new(now, node)));
            }
            (_, None) => return false,
        }
        self.pods_due_at(now);
        true
    }

    /// A Node was deleted. How long it is away counts from now, also if it was away before.
    pub(crate) fn node_gone(&mut self, now: Duration, name: &str) {
        for uid in &self.stages.on_trial {
            if let Some(Stage::OnTrial(trial)) = self.pods.get_mut(uid).map(|tracked| &mut tracked.stage)
                && *trial.node == *name
            {
                trial.node_state = (NodeState::Absent, now);
                self.pods_due = self.pods_due.min(now);
            }
        }
    }

    /// Does what is due about pods on trial.
    pub(super) fn check_trials(&mut self, now: Now, context: &mut PlacementContext) {
        // Without the setting, trials that an earlier process began are brought to their end.
        let patience = self.settings.trial.unwrap_or_default();
        self.check_group_trials(now, context);
        let mut due = BTreeMap::new();
        let mut next = Duration::MAX;
        for uid in &self.stages.on_trial {
            let Some(tracked) = self.pods.get_mut(uid) else { continue };
            let is_behind = tracked.is_behind();
            let Stage::OnTrial(trial) = &mut tracked.stage else { continue };
            if trial.call.is_some() || is_behind {
                // The answer, or the watch, continues here.
                continue;
            }
            if trial.due > now.elapsed {
                next = next.min(trial.due);
                continue;
            }
            let node = NodeState::of(context.cluster.node(&trial.node));
            match trial.next(now, &tracked.pod, patience, node) {
                Next::Wait(until) => next = next.min(until),
                action => drop(due.insert(Arc::clone(uid), action)),
            }
        }
        for (uid, action) in due {
            self.act_on_trial(now, &uid, action, context);
        }
        self.pods_due_at(next);
    }

    fn act_on_trial(&mut self, now: Now, uid: &Arc<str>, action: Next, context: &mut PlacementContext) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let (pod, version, key) = (tracked.identity.clone(), tracked.version(), tracked.failure_key());
        let Stage::OnTrial(trial) = &mut tracked.stage else { return };
        let call = match action {
            Next::Wait(until) => return self.pods_due_at(until),
            Next::Accept => {
                let Some(pin) = context.cluster.node(&trial.node).and_then(|node| hostname(node)) else {
                    // The node was deleted and will register again. Without a pin the pod could be bound elsewhere.
                    trial.due = now.elapsed + WITHOUT_PIN;
                    return self.pods_due_at(now.elapsed + WITHOUT_PIN);
                };
                let trial_until = now.wall.saturating_add(UNTIL_BOUND).ok();
                let pin = Some(pin).filter(|_| !pod_state::selects_host_name(&tracked.pod));
                ApiCall::Ungate { pod, version, pin, trial_until }
            }
            Next::Extend => {
                trial.is_short = false;
                let until = now.wall.saturating_add(UNTIL_BOUND).unwrap_or(now.wall);
                ApiCall::ExtendTrial { pod, version, until }
            }
            Next::End(outcome, why) => {
                if !std::mem::replace(&mut trial.is_recorded, true) {
                    context.effects.push(Effect::Count(Outcome::Trial(outcome)));
                    self.failures.record(now.elapsed, key, &trial.node, &why);
                }
                ApiCall::EndTrial { pod, version }
            }
            Next::ReportNotConfirmed => {
                trial.is_reported = true;
                let node = &trial.node;
                let message = if trial.node_state.0 == NodeState::WithoutTrials {
                    let minutes = CLEANED_UP_WITHIN.as_secs() / 60;
                    format!(
                        "the trial on {node} is over, and {node}, which takes no pods on trial any more, has not confirmed \
                         that nothing of the pod is left there; the pod waits for it for {minutes} min"
                    )
                } else {
                    format!(
                        "the trial on {node} is over, and {node} has not confirmed that nothing of the pod is left there; if \
                         {node} does not come back, delete the Node"
                    )
                };
                context.effects.push(Effect::Count(Outcome::Trial(TrialOutcome::NotConfirmed)));
                context.effects.push(Effect::RecordEvent(pod, Severity::Warning, NOT_CONFIRMED, message));
                if !std::mem::replace(&mut trial.is_recorded, true) {
                    let why = "the node has not ended a trial";
                    self.failures.record(now.elapsed, key, &trial.node, why);
                }
                return self.pods_due_at(now.elapsed + CONFIRMED_WITHIN);
            }
            Next::Remove => ApiCall::RemoveTrial { pod, version, former: None },
            Next::RemoveForNode => {
                let node = Arc::clone(&trial.node);
                let former = match trial.node_state.0 {
                    NodeState::WithoutTrials => FormerNode::WithoutTrials(node),
                    NodeState::Absent | NodeState::Present => FormerNode::Gone(node),
                };
                ApiCall::RemoveTrial { pod, version, former: Some(former) }
            }
        };
        let id = context.ids.next();
        trial.call = Some(id);
        trial.is_accepting = matches!(call, ApiCall::Ungate { .. });
        self.calls.insert(id, Arc::clone(uid));
        context.effects.push(Effect::Call(id, call));
    }

    /// The last call about a pod on trial was answered.
    pub(super) fn trial_answered(
        &mut self,
        now: Duration,
        uid: &Arc<str>,
        answer: &Result<Answer, Error>,
        context: &mut PlacementContext,
    ) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let Stage::OnTrial(trial) = &mut tracked.stage else { return };
        trial.call = None;
        match answer {
            Ok(_) if trial.is_accepting => self.observe_removed_gate(now, uid),
            Ok(_) => trial.backoff.reset(),
            Err(error) => {
                // The watch shows by then what another writer did, or that the pod is gone.
                trial.due = now + trial.backoff.next(error.retry_after, &mut context.rng);
                let due = trial.due;
                self.pods_due_at(due);
            }
        }
    }
}

/// Whether a node takes pods on trial, and a pod can be pinned to it.
pub(super) fn takes_trials(node: &Node) -> bool {
    declares_trial(node) && hostname(node).is_some()
}

/// Whether a trial is over within this time, and can be made longer.
pub(super) fn ends_within(now: Timestamp, time: Duration, pod: &Pod) -> bool {
    let soon = now.saturating_add(time).unwrap_or(now);
    let latest = trial_began(pod).and_then(|began| began.saturating_add(LONGEST_TRIAL).ok());
    trial_until(pod).is_some_and(|until| until < soon && latest.is_some_and(|latest| until < latest))
}

/// The host name of a node, by which a pod is pinned to it.
pub(super) fn hostname(node: &Node) -> Option<String> {
    node.metadata.labels.as_ref()?.get(names::HOSTNAME).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vk_provider::placement::{REFUSED_REASON, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn pod(until: Option<&str>, verdict: Option<(&str, &str)>) -> Pod {
        let conditions: Vec<_> = verdict
            .into_iter()
            .map(|(status, reason)| json!({"type": names::SCHEDULED, "status": status, "reason": reason, "message": "m"}))
            .collect();
        let mut pod = json!({
            "metadata": {"labels": {TRIAL_LABEL: "vk"}, "annotations": until.map(|until| json!({TRIAL_UNTIL_ANNOTATION: until}))},
            "status": {"conditions": conditions},
        });
        let placed = json!({"type": names::PLACED, "status": "Unknown", "reason": names::ON_TRIAL, "lastTransitionTime": "2027-01-01T00:00:00Z"});
        pod["status"]["conditions"].as_array_mut().unwrap().push(placed);
        serde_json::from_value(pod).unwrap()
    }

    fn now(seconds: u64) -> Now {
        let elapsed = Duration::from_secs(seconds);
        Now { elapsed, wall: "2027-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap() + elapsed }
    }

    #[test]
    fn a_trial_ends_when_the_backend_says_yes_or_no_or_nothing_in_time() {
        let until = Some("2027-01-01T00:01:00Z");
        let mut trial = Trial::new(Duration::ZERO, "vk");
        let mut next =
            |seconds, verdict| trial.next(now(seconds), &pod(until, verdict), PATIENCE, NodeState::Present);
        let minute = Duration::from_mins(1);
        assert_eq!(next(0, None), Next::Wait(minute));
        assert_eq!(next(0, Some(("Unknown", names::ON_TRIAL))), Next::Wait(minute));
        assert_eq!(
            next(1, Some(("False", REFUSED_REASON))),
            Next::End(TrialOutcome::Refused, "m".to_owned())
        );
        assert_eq!(next(1, Some(("True", ""))), Next::Accept);
        let unscheduled = Some(("False", "Unschedulable"));
        assert_eq!(next(5, unscheduled), Next::Wait(Duration::from_secs(35)));
        assert_eq!(next(34, unscheduled), Next::Wait(Duration::from_secs(35)));
        assert_eq!(next(35, unscheduled), Next::End(TrialOutcome::NotScheduled, "m".to_owned()));
        assert_eq!(next(35, Some(("True", ""))), Next::Accept);
    }

    #[test]
    fn a_label_that_a_user_has_set_is_removed() {
        let mut pod = pod(Some("2027-01-01T00:01:00Z"), Some(("True", "")));
        pod.status = None;
        assert_eq!(
            Trial::new(Duration::ZERO, "vk").next(now(0), &pod, PATIENCE, NodeState::Present),
            Next::Remove
        );
    }

    #[test]
    fn what_is_left_of_a_trial_is_the_nodes_to_remove_unless_it_is_deleted() {
        for until in [None, Some("2026-12-31T23:59:59Z"), Some("soon")] {
            let pod = pod(until, Some(("True", "")));
            let mut trial = Trial::new(Duration::ZERO, "vk");
            let minute = Duration::from_mins(1);
            assert_eq!(trial.next(now(0), &pod, PATIENCE, NodeState::Absent), Next::Wait(minute));
            assert_eq!(trial.next(now(60), &pod, PATIENCE, NodeState::Absent), Next::RemoveForNode);
            assert_eq!(trial.next(now(60), &pod, PATIENCE, NodeState::Present), Next::ReportNotConfirmed);
            trial.is_reported = true;
            assert_eq!(trial.next(now(60), &pod, PATIENCE, NodeState::Present), Next::Wait(minute * 2));
        }
    }

    #[test]
    fn what_a_node_without_trials_has_left_is_removed_after_ten_minutes() {
        let pod = pod(None, Some(("True", "")));
        let mut trial = Trial::new(Duration::ZERO, "vk");
        let mut next = |seconds, node, is_reported| {
            trial.is_reported = is_reported;
            trial.next(now(seconds), &pod, PATIENCE, node)
        };
        assert_eq!(next(0, NodeState::Present, false), Next::Wait(Duration::from_mins(1)));
        assert_eq!(next(60, NodeState::WithoutTrials, false), Next::ReportNotConfirmed);
        assert_eq!(next(659, NodeState::WithoutTrials, true), Next::Wait(Duration::from_secs(719)));
        assert_eq!(next(659, NodeState::Present, true), Next::Wait(Duration::from_secs(719)));
        assert_eq!(next(660, NodeState::WithoutTrials, true), Next::Wait(Duration::from_mins(12)));
        assert_eq!(next(1259, NodeState::WithoutTrials, true), Next::Wait(Duration::from_secs(1319)));
        assert_eq!(next(1260, NodeState::WithoutTrials, true), Next::RemoveForNode);
    }
}
