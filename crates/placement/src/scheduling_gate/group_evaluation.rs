//! Evaluates groups of pods, and gives all pods of a group to one node.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::pod::may_get_successor_of_same_name;

use super::{
    SchedulingGate, Stage,
    evaluation::{Evaluated, NodeVerdicts, Question, local_choice},
    placement_step::{Placing, Step},
    pod_group::{GroupPlace, name_of},
    report::{NO_FEASIBLE_NODE, waiting_message},
    trial,
    wait_queue::{Position, WaitMessage},
};
use crate::{
    choose::{Certainty, Choice, LOCAL},
    cluster_state::ClusterState,
    context::PlacementContext,
    effect::{Method, TrialOutcome},
    fit_answers::MAX_AGE,
    pod_state,
    query_pod::{self, MAX_GROUP_BYTES},
};

/// The reason if pods of a group are missing.
const INCOMPLETE: &str = "GroupIncomplete";
/// The reason if a group has all its pods, and this one is left.
const COMPLETE: &str = "GroupComplete";
/// The reason if the pods of a group say nothing that makes sense.
const INVALID: &str = "InvalidGroup";
/// That pods are missing is reported when for this time no other one has come.
const GRACE: Duration = Duration::from_secs(5);

/// The pods of a group that are to be placed now.
struct Selection {
    positions: Vec<Position>,
    pods: Vec<Arc<Pod>>,
    /// The node of the others.
    node: Option<Arc<str>>,
    /// The others are placed, and not just on trial.
    is_committed: bool,
    /// What a message says about the group.
    about: String,
}

impl SchedulingGate {
    /// Asks what has to be asked about a group, and places its pods when all of them fit on one node.
    pub(super) fn evaluate_group(
        &mut self,
        now: Duration,
        key: &Arc<str>,
        context: &mut PlacementContext,
    ) -> Evaluated {
        let selection = match self.select(now, key, context) {
            Ok(selection) => selection,
            Err((message, period)) => {
                if let Some(queue) = self.queues.get_mut(key) {
                    queue.evaluated(now, period);
                    if let Some((reason, text)) = message {
                        queue.message = Some(WaitMessage { reason, text: text.into() });
                        self.pods_due_at(now);
                    }
                }
                return Evaluated::Done;
            }
        };
        let disclosed: Vec<Arc<Pod>> =
            selection.pods.iter().map(|pod| Arc::new(query_pod::disclosed(pod))).collect();
        let mut hasher = DefaultHasher::new();
        let mut bytes = 0;
        for pod in &disclosed {
            let text = serde_json::to_vec(pod).unwrap_or_default();
            text.hash(&mut hasher);
            bytes += text.len();
        }
        if bytes > MAX_GROUP_BYTES {
            let text = format!(
                "the pods of group {} have {bytes} bytes, and nodes can be asked about at most {MAX_GROUP_BYTES} together: \
                 remove what their manifests do not need, such as annotations, or make the group smaller",
                name_of(key)
            );
            if let Some(queue) = self.queues.get_mut(key) {
                queue.evaluated(now, MAX_AGE);
                queue.message = Some(WaitMessage { reason: INVALID, text: text.into() });
            }
            self.pods_due_at(now);
            return Evaluated::Done;
        }
        let question = Question {
            key: format!("{key} {:x}", hasher.finish()).into(),
            pods: disclosed,
            failures: key,
            only: selection.node.as_deref(),
        };
        let answers = match self.ask_nodes(now, &question, context) {
            Ok(answers) => answers,
            Err(evaluated) => return evaluated,
        };
        let (period, is_silent) = (answers.period, answers.is_silent);
        self.place_group(now, key, selection, answers, context);
        if let Some(queue) = self.queues.get_mut(key) {
            queue.evaluated(now, period);
            queue.count_silence(is_silent);
        }
        Evaluated::Done
    }

    /// The pods that are to be placed now, or what to say about the group, and when to look again.
    #[expect(clippy::type_complexity, reason = "a message, and when to look again")]
    fn select(
        &mut self,
        now: Duration,
        key: &Arc<str>,
        context: &PlacementContext,
    ) -> Result<Selection, (Option<(&'static str, String)>, Duration)> {
        let nothing = || (None, MAX_AGE);
        let stages = self.group_stages(key);
        let pods = stages.waiting.iter().filter_map(|position| self.pods.get(&position.uid));
        let priority = pods.map(|tracked| pod_state::priority(&tracked.pod)).max();
        if let Some((queue, priority)) = self.queues.get_mut(key).zip(priority) {
            queue.priority = priority;
        }
        if !stages.placing.is_empty() {
            // The answers to their calls continue here.
            return Err(nothing());
        }
        let size = self.group_size(key).map_err(|why| (Some((INVALID, why)), MAX_AGE))?;
        let name = name_of(key);
        let succeeded = self.succeeded(key);
        let Some(group) = self.groups.get_mut(key) else { return Err(nothing()) };
        let placed = group.placed();
        let place = match group.place(&context.cluster) {
            GroupPlace::None => None,
            GroupPlace::On(node) => Some(node),
            GroupPlace::Split(nodes) => {
                let text = format!(
                    "pods of group {name} are on several nodes ({}), so it is not clear where the others belong: delete \
                     those on all nodes but one",
                    nodes.join(", ")
                );
                return Err((Some((INVALID, text)), MAX_AGE));
            }
        };
        if placed >= size {
            let node = place.unwrap_or_default();
            let text = format!(
                "group {name} has its {size} pods on {node}: this one waits until one of them has ended or is deleted"
            );
            return Err((Some((COMPLETE, text)), MAX_AGE));
        }
        let (on_trial, waiting) = (stages.on_trial.len(), stages.waiting.len());
        let present = placed + on_trial + waiting;
        let since = group.since(now, present);
        let is_committed = place.is_some();
        let missing = (size - placed).saturating_sub(on_trial);
        if missing == 0 {
            return Err(nothing());
        }
        if !is_committed && waiting < missing {
            let left = (since + GRACE).saturating_sub(now);
            if !left.is_zero() {
                return Err((None, left));
            }
            // Those that have succeeded will not come again.
            let present = present + succeeded;
            if present < size {
                let text =
                    format!("{present} of {size} pods of group {name} exist without other scheduling gates");
                return Err((Some((INCOMPLETE, text)), MAX_AGE));
            }
        }
        let node = match place {
            None if on_trial > 0 => {
                Some(self.trial_node_of(now, &stages.on_trial, context).ok_or_else(nothing)?)
            }
            place => place,
        };
        let about = match &node {
            Some(node) if is_committed => {
                format!("the rest of group {name} goes to {node}, where {placed} of its {size} pods are")
            }
            _ => format!("the {size} pods of group {name} go to one node together"),
        };
        // Those for which a process before this one has chosen a node come first: their gates may be about to be removed.
        let mut positions = stages.waiting;
        positions.sort_by_key(|position| {
            let tracked = self.pods.get(&position.uid);
            (
                tracked.is_none_or(|tracked| pod_state::nominated_node(&tracked.pod).is_none()),
                position.clone(),
            )
        });
        positions.truncate(missing);
        positions.sort();
        let pods = positions.iter().filter_map(|position| self.pods.get(&position.uid));
        let pods = pods.map(|tracked| Arc::clone(&tracked.pod)).collect();
        Ok(Selection { positions, pods, node, is_committed, about })
    }

    /// Gives the selected pods of a group to the best node that has room for all of them. Otherwise they wait, and the reasons say why.
    fn place_group(
        &mut self,
        now: Duration,
        key: &Arc<str>,
        selection: Selection,
        answers: NodeVerdicts,
        context: &mut PlacementContext,
    ) {
        let Selection { positions, pods, node: only, is_committed, about } = selection;
        let NodeVerdicts { mut choices, mut reasons, .. } = answers;
        choices.retain(|choice| {
            let object = context.cluster.node(&choice.name);
            let why = if object.and_then(|node| trial::hostname(node)).is_none() {
                "it has no label kubernetes.io/hostname"
            } else if !context.cluster.can_hold(&choice.name, pods.len()) {
                "many other pods are on their way there"
            } else {
                return true;
            };
            reasons.push((Arc::clone(&choice.name), why.to_owned()));
            false
        });
        let mut local_nodes = Vec::new();
        let is_local = only.as_deref().is_none_or(|only| only == LOCAL);
        let mut local_reason = None;
        if is_local && self.settings.local && context.cluster.local_nodes() > 0 {
            let failures = self.local_failures(now, key);
            match failures.and_then(|failures| Ok((failures, local_plan(&pods, &mut context.cluster)?))) {
                Ok((failures, (choice, nodes))) => {
                    choices.push(Choice { failures, ..choice });
                    local_nodes = nodes;
                }
                Err(why) => local_reason = Some((LOCAL.into(), why)),
            }
        }
        let best = self.settings.preference.best(&mut choices);
        let best = best.map(|best| (Arc::clone(&best.name), best.certainty));
        let Some((name, certainty)) = best else {
            reasons.sort();
            reasons.extend(local_reason);
            if let Some(only) = only.filter(|only| reasons.is_empty() && **only != *LOCAL) {
                reasons.push((only, "it does not exist, or cannot be asked".to_owned()));
            }
            let text = format!("{about}: {}", waiting_message(&reasons));
            if !is_committed {
                self.end_group_trials(now, key, TrialOutcome::NotScheduled, &text);
            }
            if let Some(queue) = self.queues.get_mut(key) {
                queue.message = Some(WaitMessage { reason: NO_FEASIBLE_NODE, text: text.into() });
            }
            return self.pods_due_at(now);
        };
        let nodes = if *name == *LOCAL { local_nodes } else { vec![Arc::clone(&name); pods.len()] };
        let is_tried = self.settings.trial.is_some()
            && context.cluster.virtual_node(&name).is_some_and(|node| trial::takes_trials(node))
            && !pods.iter().any(|pod| may_get_successor_of_same_name(pod));
        let method = if certainty == Certainty::Fits { Method::Fits } else { Method::Unknown };
        for ((position, pod), node) in positions.iter().zip(&pods).zip(nodes) {
            context.cluster.assume(pod, &node);
            context.answers.placed(&pod_state::shape(pod), &node);
            // A nomination does not bind kube-scheduler, and the pods of a group stay together.
            let pin = context.cluster.node(&node).and_then(|node| trial::hostname(node));
            let step = match is_tried {
                true if pod_state::claims(pod).is_empty() => Step::StartTrial,
                true => Step::ReadClaims,
                false => Step::Nominate,
            };
            let placing = Placing::new(now, node, pin, step, method).with_group();
            self.set_stage(&position.uid, Stage::Placing(placing));
            if step == Step::ReadClaims {
                self.call(now, &position.uid, context);
            }
        }
        self.groups.touch(key);
    }
}

/// The machines of the upper cluster that take these pods, as one choice, or why not all fit there.
fn local_plan(pods: &[Arc<Pod>], cluster: &mut ClusterState) -> Result<(Choice, Vec<Arc<str>>), String> {
    let mut plan: Vec<(Choice, Arc<str>)> = Vec::new();
    let mut failure = None;
    for pod in pods {
        let found = local_choice(pod, cluster).and_then(|(choice, node)| {
            if choice.certainty != Certainty::Fits {
                return Err("it is not certain that all fit".to_owned());
            }
            let has_name = cluster.node(&node).is_some_and(|node| trial::hostname(node).is_some());
            if has_name { Ok((choice, node)) } else { Err("no label kubernetes.io/hostname".to_owned()) }
        });
        match found {
            Ok((choice, node)) => {
                // The next one finds what is left.
                cluster.assume(pod, &node);
                plan.push((choice, node));
            }
            Err(why) => {
                failure = Some(format!("room for {} of {} pods; {why}", plan.len(), pods.len()));
                break;
            }
        }
    }
    for pod in pods.iter().take(plan.len()) {
        // Nothing has changed in the end.
        let _ = cluster.forget(pod.metadata.uid.as_deref().unwrap_or_default());
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let fullness = plan.iter().map(|(choice, _)| choice.fullness).max().unwrap_or_default();
    let (choices, nodes): (Vec<_>, Vec<_>) = plan.into_iter().unzip();
    let choice = choices.into_iter().next().ok_or("no pods")?;
    Ok((Choice { room: 1, fullness, ..choice }, nodes))
}
