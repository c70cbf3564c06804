//! Evaluates queues of waiting pods, and gives their pods to nodes.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::pod::may_get_successor_of_same_name;

use super::{
    SchedulingGate, Stage,
    placement_step::{Placing, Step},
    placing_limits::PlacingLimits,
    report::{NO_FEASIBLE_NODE, waiting_message},
    trial,
    wait_queue::{Position, WaitMessage, WaitQueue},
};
use crate::{
    choose::{Certainty, Choice, LOCAL},
    cluster_state::{ClusterState, may_be_local},
    context::PlacementContext,
    effect::Method,
    eviction::AfterEviction,
    explain::{CONVERTED, machines_verdict},
    fit_answers::{Knowledge, MAX_AGE},
    pod_state,
};

/// What nodes are asked about a queue.
pub(super) struct Question<'a> {
    /// By what the answers are remembered.
    pub(super) key: Arc<str>,
    /// A pod, or several that go to one node together.
    pub(super) pods: Vec<Arc<Pod>>,
    /// By what failures of trials are remembered.
    pub(super) failures: &'a str,
    /// The only node in question.
    pub(super) only: Option<&'a str>,
}

/// What nodes have said.
pub(super) struct NodeVerdicts {
    /// Nodes that would take the pods, or may.
    pub(super) choices: Vec<Choice>,
    /// Why others would not.
    pub(super) reasons: Vec<(Arc<str>, String)>,
    /// The queue is evaluated again after this time.
    pub(super) period: Duration,
    /// A node that may help does not answer.
    pub(super) is_silent: bool,
}

/// The result of evaluating a queue.
pub(super) enum Evaluated {
    /// All that can be done was done.
    Done,
    /// Answers to this question are awaited until then, and other queues have to wait as well: what is decided for this queue changes the
    /// answers to theirs.
    Blocked(Arc<str>, Duration),
    /// Nodes may not be asked again before then.
    Later(Duration),
    /// No more questions are allowed before then.
    Throttled(Duration),
}

impl SchedulingGate {
    /// Evaluates the queues that are due, as far as answers and the budget allow.
    pub(super) fn evaluate_queues(&mut self, now: Duration, context: &mut PlacementContext) {
        self.wake = Duration::MAX;
        if let Some((key, until)) = self.blocked.take()
            && now < until
            && context.answers.is_pending(&key)
        {
            // All answers are awaited before anything is computed again.
            self.wake = until;
            self.blocked = Some((key, until));
            return;
        }
        // Evaluating a queue can make others due only after a second.
        for _ in 0..2 {
            if self.pass.is_empty() {
                self.turns.begin_pass();
            }
            if self.pass.is_empty() || self.pass_is_outdated {
                self.order_pass(now);
            }
            while let Some(shape) = self.pass.front().cloned() {
                let Some(queue) = self.queues.get(&shape).filter(|queue| is_due(now, queue, &self.limits))
                else {
                    self.pass.pop_front();
                    continue;
                };
                let is_new = queue.last.is_none();
                let evaluated = self.evaluate(now, &shape, context);
                if let (Evaluated::Done | Evaluated::Later(_), Some(queue)) =
                    (&evaluated, self.queues.get_mut(&shape))
                {
                    self.turns.take(queue, is_new);
                }
                match evaluated {
                    Evaluated::Done => {}
                    Evaluated::Later(until) => {
                        if let Some(queue) = self.queues.get_mut(&shape) {
                            queue.not_before = until;
                        }
                    }
                    Evaluated::Blocked(key, until) => {
                        self.blocked = Some((key, until));
                        self.wake = until;
                        return;
                    }
                    Evaluated::Throttled(until) => {
                        self.wake = until;
                        return;
                    }
                }
                self.pass.pop_front();
            }
        }
        // For the others, the answer to a call continues here.
        let may_be_placed = self.queues.values().filter(|queue| self.limits.may_place(&queue.namespace));
        let next = may_be_placed.map(WaitQueue::due).min().unwrap_or(Duration::MAX);
        self.wake = next.max(now + Duration::from_millis(1));
    }

    /// Collects the queues that are due.
    fn order_pass(&mut self, now: Duration) {
        let limits = &self.limits;
        let due = self.queues.iter().filter(|(_, queue)| is_due(now, queue, limits));
        self.pass = self.turns.order(due);
        self.pass_is_outdated = false;
    }

    /// Asks what has to be asked about a queue, and places its pods once that is known.
    fn evaluate(&mut self, now: Duration, shape: &Arc<str>, context: &mut PlacementContext) -> Evaluated {
        if self.groups.get(shape).is_some() {
            return self.evaluate_group(now, shape, context);
        }
        let Some(queue) = self.queues.get(shape) else { return Evaluated::Done };
        let Some(pod) = queue.first(now).and_then(|uid| self.pods.get(uid)).map(|it| Arc::clone(&it.pod))
        else {
            return Evaluated::Done;
        };
        let question = Question { key: Arc::clone(shape), pods: vec![pod], failures: shape, only: None };
        let NodeVerdicts { choices, reasons, period, is_silent } =
            match self.ask_nodes(now, &question, context) {
                Ok(answers) => answers,
                Err(evaluated) => return evaluated,
            };
        let is_interrupted = self.place(now, shape, choices, reasons, context);
        if let Some(queue) = self.queues.get_mut(shape) {
            queue.evaluated(now, period);
            queue.count_silence(is_silent);
            queue.has_new_pods = is_interrupted;
        }
        Evaluated::Done
    }

    /// Asks the nodes whose answers are not known, and collects what they said.
    pub(super) fn ask_nodes(
        &self,
        now: Duration,
        question: &Question<'_>,
        context: &mut PlacementContext,
    ) -> Result<NodeVerdicts, Evaluated> {
        let Question { key, pods, failures, only } = question;
        let avoided: BTreeSet<String> = pods
            .iter()
            .flat_map(|pod| context.avoid.nodes(pod).into_iter().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let (mut choices, mut reasons) = (Vec::new(), Vec::new());
        let (mut to_ask, mut wait, mut later) = (Vec::new(), None::<Duration>, None::<Duration>);
        let local_failure = self.failures.of(failures, LOCAL).filter(|failure| now < failure.retry);
        let (mut is_silent, mut retry) =
            (false, local_failure.map_or(Duration::MAX, |failure| failure.retry));
        for upper in context.cluster.upper_verdicts(pods, *only) {
            let upper_fit = match upper.verdict {
                Ok(fit) => fit,
                Err(why) => {
                    reasons.push((upper.node, why));
                    continue;
                }
            };
            match context.answers.knowledge(now, key, &upper.node) {
                Knowledge::Current(verdict, placed) => {
                    let is_avoided = avoided.contains(&*upper.node);
                    let choice = Choice::of(&upper.node, &verdict, placed, upper_fit, is_avoided);
                    let failure = self.failures.of(failures, &upper.node);
                    match (choice, failure) {
                        (None, _) => reasons.push((upper.node, verdict.to_string())),
                        (Some(_), Some(failure)) if now < failure.retry => {
                            retry = retry.min(failure.retry);
                            reasons.push((upper.node, format!("tried: {}", failure.why)));
                        }
                        (Some(mut choice), failure) => {
                            choice.failures = failure.map_or(0, |failure| failure.count);
                            choice.is_certain_above = upper.is_certain;
                            choices.push(choice);
                        }
                    }
                }
                Knowledge::Pending(until) => wait = Some(wait.map_or(until, |wait| wait.min(until))),
                Knowledge::Ask(at) if at <= now => to_ask.push(upper.node),
                Knowledge::Ask(at) => later = Some(later.map_or(at, |later| later.max(at))),
                Knowledge::Silent(why) => {
                    is_silent = true;
                    context.answers.report_silent(&upper.node);
                    reasons.push((upper.node, format!("not asked: {why}")));
                }
            }
        }
        if let Some(until) = later {
            return Err(Evaluated::Later(until));
        }
        if !to_ask.is_empty() {
            if let Err(until) = context.budget.take(now, &to_ask) {
                return Err(Evaluated::Throttled(until));
            }
            for node in to_ask {
                context.ask(now, key, pods, &node);
                if let Knowledge::Pending(until) = context.answers.knowledge(now, key, &node) {
                    wait = Some(wait.map_or(until, |wait| wait.min(until)));
                }
            }
        }
        if let Some(until) = wait {
            return Err(Evaluated::Blocked(Arc::clone(key), until));
        }
        let queue = self.queues.get(*failures).filter(|_| is_silent);
        let period = queue.map_or(MAX_AGE, WaitQueue::silence_period).min(retry.saturating_sub(now));
        Ok(NodeVerdicts { choices, reasons, period, is_silent })
    }

    /// Gives the pods of a queue to the nodes that have room. The others wait, and the reasons say why. Returns whether more could be placed, but
    /// too many calls are in flight.
    fn place(
        &mut self,
        now: Duration,
        shape: &Arc<str>,
        mut choices: Vec<Choice>,
        mut reasons: Vec<(Arc<str>, String)>,
        context: &mut PlacementContext,
    ) -> bool {
        let Some(queue) = self.queues.get(shape) else { return false };
        let positions: Vec<Position> = queue.ready(now).cloned().collect();
        let considers_local = self.settings.local && context.cluster.local_nodes() > 0;
        let local_failures = self.local_failures(now, shape);
        let (mut local_reason, mut is_interrupted) = (None, false);
        for position in positions {
            let Some(tracked) = self.pods.get_mut(&position.uid) else { continue };
            let pod = Arc::clone(&tracked.pod);
            for choice in &mut choices {
                if !context.cluster.can_hold(&choice.name, 1) {
                    choice.room = choice.placed;
                }
            }
            let local = considers_local.then(|| {
                let failures = local_failures.clone()?;
                let (choice, node) = local_choice(&pod, &context.cluster)?;
                Ok((Choice { failures, ..choice }, node))
            });
            let mut local_node = None;
            match local {
                Some(Ok((choice, node))) => {
                    local_node = Some(node);
                    choices.push(choice);
                }
                Some(Err(why)) => local_reason = Some(why),
                None => {}
            }
            let best = self.settings.preference.best(&mut choices).map(|best| {
                best.placed += 1;
                (Arc::clone(&best.name), best.certainty, best.is_certain_above)
            });
            choices.retain(|choice| *choice.name != *LOCAL);
            let Some((name, certainty, is_certain_above)) = best else { break };
            if !self.limits.may_place(&tracked.identity.namespace) {
                is_interrupted = true;
                break;
            }
            let node = local_node.filter(|_| *name == *LOCAL).unwrap_or_else(|| Arc::clone(&name));
            context.cluster.assume(&pod, &node);
            context.answers.placed(shape, &node);
            let object = context.cluster.node(&node);
            // A pin cannot be removed. Where kube-scheduler may refuse the pinned pod, an eviction has to help.
            let may_be_pinned = is_certain_above || AfterEviction::of(&pod) == AfterEviction::Replaced;
            let is_tried = self.settings.trial.is_some()
                && may_be_pinned
                && object.is_some_and(|it| trial::takes_trials(it))
                && !may_get_successor_of_same_name(&pod);
            let step = match is_tried {
                true if pod_state::claims(&pod).is_empty() => Step::StartTrial,
                true => Step::ReadClaims,
                false => Step::Nominate,
            };
            let method = if certainty == Certainty::Fits { Method::Fits } else { Method::Unknown };
            // A machine that was chosen without being sure may be the wrong one.
            let is_sure = if *name == *LOCAL { certainty == Certainty::Fits } else { may_be_pinned };
            let pin = object.filter(|_| self.settings.pin && is_sure).and_then(|node| trial::hostname(node));
            self.limits.enter(&tracked.identity.namespace);
            self.set_stage(&position.uid, Stage::Placing(Placing::new(now, node, pin, step, method)));
            self.call(now, &position.uid, context);
        }
        let Some(queue) = self.queues.get_mut(shape) else { return false };
        for choice in choices {
            reasons.push((choice.name, "its room is for pods before this one".to_owned()));
        }
        reasons.sort();
        if considers_local {
            let why = local_reason.unwrap_or_else(|| "its room is for pods before this one".to_owned());
            reasons.push((LOCAL.into(), why));
        }
        if !is_interrupted {
            queue.message =
                Some(WaitMessage { reason: NO_FEASIBLE_NODE, text: waiting_message(&reasons).into() });
        }
        self.pods_due_at(now);
        is_interrupted
    }

    /// How often pods of this queue have failed on the nodes that cannot be asked, or why these are not tried now.
    pub(super) fn local_failures(&self, now: Duration, key: &str) -> Result<u32, String> {
        match self.failures.of(key, LOCAL) {
            Some(failure) if now < failure.retry => Err(format!("tried: {}", failure.why)),
            failure => Ok(failure.map_or(0, |failure| failure.count)),
        }
    }
}

/// Whether a queue is to be evaluated, and its pods may be placed.
fn is_due(now: Duration, queue: &WaitQueue, limits: &PlacingLimits) -> bool {
    queue.due() <= now && limits.may_place(&queue.namespace)
}

/// The choice of a node that cannot be asked, or why there is none.
pub(super) fn local_choice(pod: &Arc<Pod>, cluster: &ClusterState) -> Result<(Choice, Arc<str>), String> {
    if !may_be_local(pod) {
        return Err(CONVERTED.to_owned());
    }
    let local = cluster.local_verdict(pod).ok_or("no nodes")?;
    match (Choice::of_local(&local.verdict), local.best) {
        (Some(choice), Some(node)) => Ok((choice, node)),
        _ => Err(machines_verdict(&local.verdict)),
    }
}
