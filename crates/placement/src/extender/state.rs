//! What the extender knows: the nodes that can be asked, what they answered, and the pods that are on their way to them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_provider::{
    ability::{Cause, Verdict},
    placement::{FitAnswer, FitQuery, declares_fit, trial_began},
};
use vk_supervisor::Now;

use super::protocol::FilterResult;
use crate::{
    avoid::AvoidTable,
    choose::{Choice, Preference},
    cluster_state::UpperFit,
    fit_answers::{AnswerTimes, FitAnswers, Knowledge, QueryId},
    held_pods::HeldPods,
    names, pod_state,
};

/// All queries of a call together may take this long: kube-scheduler schedules no other pod meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Answers hold until a pod is expected on the node, and this long at most. In a burst of equal pods each node is asked once. A node that is not
/// waited for passes, so only one that made a call wait in vain is not.
const TIMES: AnswerTimes = AnswerTimes {
    patience: PATIENCE,
    slow: PATIENCE,
    period: Duration::ZERO,
    max_age: Duration::from_millis(200),
};
/// A pod that passed is expected on the best node for this long. If it is not bound by then, kube-scheduler has decided otherwise.
const EXPECTED_FOR: Duration = Duration::from_secs(2);
/// How often what is not needed any more is forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Causes that a reason names.
const NAMED_CAUSES: usize = 3;
/// The length of a reason, which comes from a node.
const REASON_CHARS: usize = 200;
/// Why a node is left out on which pods of the same controller were stuck.
const AVOIDED: &str = "pods of the same controller were stuck there";
/// Why a node is left out to which more pods are on their way than a query can name.
const NO_SPACE: &str = "too many pods are on their way to the node";

/// What the extender knows.
#[derive(Debug)]
pub(super) struct ExtenderState {
    preference: Preference,
    /// Nodes that can be asked, by name.
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    answers: FitAnswers,
    /// Pods that their nodes may not have seen yet: those that are expected there, and those that were just bound.
    held: HeldPods,
    /// Pods that have passed and are not bound yet, by UID.
    expected: HashMap<Arc<str>, ExpectedPod>,
    /// The nodes that placement has chosen for pods, by UID, as the watch shows it: anybody could write it into a request.
    chosen: HashMap<Arc<str>, Arc<str>>,
    avoid: AvoidTable,
    housekeeping: Duration,
}

/// A pod that has passed and is not bound yet.
#[derive(Debug)]
struct ExpectedPod {
    node: Arc<str>,
    until: Duration,
}

/// A call of `filter`.
#[derive(Debug)]
pub(super) struct FilterCall {
    pod: Arc<Pod>,
    shape: Arc<str>,
    /// The nodes that were asked for it. Their answers are final, unless other pods came meanwhile.
    asked: HashSet<Arc<str>>,
}

/// A question to send.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: QueryId,
    pub(super) node: Arc<Node>,
    pub(super) query: FitQuery,
}

/// What has to be known before a call can be answered.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// Questions that nobody has asked yet.
    pub(super) questions: Vec<Question>,
    /// Until when answers are awaited, of these questions and of earlier ones.
    pub(super) until: Option<Duration>,
}

/// The answer to `filter`, and the nodes that have passed only because they did not answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filtered {
    pub(super) result: FilterResult,
    pub(super) unanswered: usize,
}

/// Whether a pod may preempt others on a node.
#[derive(Debug)]
pub(super) enum PreemptionCheck {
    /// The node cannot be asked.
    Passes,
    NoSpace,
    Ask(Arc<Node>, FitQuery),
}

/// What is known about a pod on a node.
enum NodeVerdict {
    /// The node cannot be asked, or placement has chosen it for the pod.
    Passes,
    NoSpace,
    Known(Verdict, u32),
    Unanswered,
}

// === impl ExtenderState ===

impl ExtenderState {
    pub(super) fn new(preference: Preference) -> Self {
        Self {
            preference,
            nodes: BTreeMap::new(),
            answers: FitAnswers::new(TIMES),
            held: HeldPods::default(),
            expected: HashMap::new(),
            chosen: HashMap::new(),
            avoid: AvoidTable::default(),
            housekeeping: Duration::ZERO,
        }
    }

    /// A node was added or changed.
    pub(super) fn apply_node(&mut self, node: Node) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        if self.nodes.get(&name).is_some_and(|known| **known == node) {
            return;
        }
        if declares_fit(&node) {
            self.answers.node_changed(&name);
            self.nodes.insert(name, Arc::new(node));
        } else {
            self.remove_node(&name);
        }
    }

    /// The nodes that can be asked, by name.
    pub(super) fn nodes(&self) -> Vec<(Arc<str>, Arc<Node>)> {
        self.nodes.iter().map(|(name, node)| (Arc::clone(name), Arc::clone(node))).collect()
    }

    /// A node was deleted.
    pub(super) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.answers.forget_node(name);
    }

    /// A full list of the nodes is complete; it had these.
    pub(super) fn nodes_listed(&mut self, listed: &HashSet<Arc<str>>) {
        let gone: Vec<_> = self.nodes.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        for name in gone {
            self.remove_node(&name);
        }
    }

    /// A pod was bound, or a bound one changed.
    pub(super) fn apply_bound_pod(&mut self, now: Duration, pod: &Pod) {
        let (Some(uid), Some(node)) = (pod.metadata.uid.as_deref(), pod_state::node(pod)) else { return };
        let was_expected = self.expected.get(uid).is_some_and(|expected| *expected.node == *node);
        if was_expected {
            self.expected.remove(uid);
        } else {
            self.forget_expected(uid);
        }
        let Some((node, _)) = self.nodes.get_key_value(node) else { return };
        let node = Arc::clone(node);
        if pod.metadata.deletion_timestamp.is_some() || !pod_state::may_be_unseen_by_node(pod) {
            return self.held.release(uid);
        }
        if !was_expected && !self.held.is_held(uid) {
            self.answers.placed(&pod_state::shape(pod), &node);
        }
        self.held.hold_for_some_time(now, &node, uid, pod);
    }

    /// A bound pod does not wait any more to be run, or is gone.
    pub(super) fn remove_bound_pod(&mut self, pod: &Pod) {
        if let Some(uid) = pod.metadata.uid.as_deref() {
            self.forget_expected(uid);
            self.held.release(uid);
        }
    }

    /// A pod that has no node was nominated for one, or has changed.
    pub(super) fn apply_nominated_pod(&mut self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        match pod_state::nominated_node(pod).filter(|_| is_placed(pod)) {
            Some(node) => drop(self.chosen.insert(uid.into(), node.into())),
            None => drop(self.chosen.remove(uid)),
        }
    }

    /// A pod is not nominated any more, or was bound, or is gone.
    pub(super) fn remove_nominated_pod(&mut self, uid: &str) {
        self.chosen.remove(uid);
    }

    /// A full list of the nominated pods is complete; it had these.
    pub(super) fn nominated_pods_listed(&mut self, listed: &HashSet<Arc<str>>) {
        self.chosen.retain(|uid, _| listed.contains(uid));
    }

    /// The avoid table has changed.
    pub(super) fn set_avoid_table(&mut self, data: &BTreeMap<String, String>) {
        self.avoid = AvoidTable::default();
        self.avoid.load(data);
    }

    /// The pod is to be scheduled: what was expected of it before does not count any more.
    pub(super) fn begin(&mut self, now: Duration, pod: Arc<Pod>) -> FilterCall {
        self.forget_expected(uid(&pod));
        if now >= self.housekeeping {
            self.forget_old(now);
        }
        let shape = pod_state::shape(&pod).into();
        FilterCall { pod, shape, asked: HashSet::new() }
    }

    fn forget_old(&mut self, now: Duration) {
        self.housekeeping = now + HOUSEKEEPING;
        let late = self.expected.iter().filter(|(_, expected)| expected.until <= now);
        let late: Vec<_> = late.map(|(uid, _)| Arc::clone(uid)).collect();
        for uid in late {
            self.forget_expected(&uid);
        }
        self.held.expire(now);
        self.answers.forget_old(now);
    }

    /// What has to be asked, and awaited, before a decision about the pod on these nodes.
    pub(super) fn missing(&mut self, now: Duration, call: &mut FilterCall, names: &[String]) -> Missing {
        let mut missing = Missing::default();
        let FilterCall { pod, shape, asked } = call;
        for name in names {
            let Some((name, node)) = self.nodes.get_key_value(name.as_str()) else { continue };
            if self.is_chosen(pod, name) || !self.held.can_hold(name, uid(pod)) {
                continue;
            }
            let was_asked = asked.contains(name);
            if !was_asked && is_used_up(&self.answers.knowledge(now, shape, name)) {
                self.answers.discard(shape, name);
            }
            let mut knowledge = self.answers.knowledge(now, shape, name);
            if let Knowledge::Ask(_) = knowledge
                && !(was_asked && self.answers.has_failed(shape, name))
            {
                let (name, node) = (Arc::clone(name), Arc::clone(node));
                asked.insert(Arc::clone(&name));
                let id = self.answers.ask(now, shape, &name);
                let query = FitQuery {
                    held: self.held.on(&name),
                    pods: vec![Arc::clone(pod)],
                    ..FitQuery::default()
                };
                missing.questions.push(Question { id, node, query });
                knowledge = self.answers.knowledge(now, shape, &name);
            }
            if let Knowledge::Pending(until) = knowledge {
                missing.until = missing.until.max(Some(until));
            }
        }
        missing
    }

    /// A question was answered, or has failed.
    pub(super) fn answered(&mut self, now: Duration, id: QueryId, answer: Result<FitAnswer, String>) {
        self.answers.answered(now, id, answer);
    }

    /// Which of the nodes pass. A node that has not answered does.
    pub(super) fn filter(&mut self, now: Now, call: &FilterCall, names: Vec<String>) -> Filtered {
        let mut filtered = Filtered::default();
        let result = &mut filtered.result;
        let FilterCall { pod, shape, .. } = call;
        for name in names {
            match self.verdict(now.elapsed, pod, shape, &name) {
                NodeVerdict::Known(Verdict::Refused { why, lasting }, _) => {
                    let failed = if lasting {
                        &mut result.failed_and_unresolvable_nodes
                    } else {
                        &mut result.failed_nodes
                    };
                    failed.insert(name, reason(&why));
                }
                NodeVerdict::NoSpace => drop(result.failed_nodes.insert(name, NO_SPACE.to_owned())),
                NodeVerdict::Unanswered => {
                    filtered.unanswered += 1;
                    result.node_names.push(name);
                }
                NodeVerdict::Known(..) | NodeVerdict::Passes => result.node_names.push(name),
            }
        }
        self.leave_avoided_nodes(now, pod, result);
        if let [only] = result.node_names.as_slice() {
            self.expect(now.elapsed, pod, shape, &only.clone());
        }
        filtered
    }

    /// Nodes on which pods of the same controller were stuck do not pass while others do.
    fn leave_avoided_nodes(&self, now: Now, pod: &Pod, result: &mut FilterResult) {
        let avoided = self.avoid.nodes_at(now.wall, pod);
        let is_avoided = |name: &String| avoided.contains(&name.as_str()) && !self.is_chosen(pod, name);
        if avoided.is_empty() || result.node_names.iter().all(is_avoided) {
            return;
        }
        let names = std::mem::take(&mut result.node_names);
        let (left_out, names): (Vec<_>, Vec<_>) = names.into_iter().partition(is_avoided);
        result.node_names = names;
        result.failed_nodes.extend(left_out.into_iter().map(|name| (name, AVOIDED.to_owned())));
    }

    /// The scores of nodes that have passed. From the answers to `filter`: nothing is asked.
    pub(super) fn prioritize(&mut self, now: Now, pod: &Arc<Pod>, names: &[String]) -> Vec<i64> {
        let shape = pod_state::shape(pod);
        let avoided = self.avoid.nodes_at(now.wall, pod);
        let any_room = UpperFit { room: u32::MAX, fullness: 100 };
        let unknown = Verdict::unknown("no answer");
        let choices: Vec<Choice> = names
            .iter()
            .map(|name| {
                let Some((node, _)) = self.nodes.get_key_value(name.as_str()) else {
                    // How full it is compared with others, kube-scheduler knows itself.
                    return Choice::of_machine();
                };
                let is_avoided = avoided.contains(&name.as_str());
                let (verdict, placed) = match self.verdict(now.elapsed, pod, &shape, name) {
                    NodeVerdict::Known(verdict, placed) => (verdict, placed),
                    NodeVerdict::NoSpace => (Verdict::refused(NO_SPACE, false), 0),
                    NodeVerdict::Passes => (Verdict::Fits { room: 1, fullness: 0 }, 0),
                    NodeVerdict::Unanswered => (unknown.clone(), 0),
                };
                let choice = Choice::of(node, &verdict, placed, any_room, is_avoided);
                choice
                    .or_else(|| Choice::of(node, &unknown, 0, any_room, true))
                    .unwrap_or_else(Choice::of_machine)
            })
            .collect();
        let scores = self.preference.scores(&choices);
        let best = scores.iter().zip(names).rev().max_by_key(|(score, _)| **score);
        if let Some((_, name)) = best {
            self.expect(now.elapsed, pod, &shape, name);
        }
        scores
    }

    /// What has to be asked before victims on a node are deleted for a pod.
    pub(super) fn preemption_check(
        &self,
        pod: &Arc<Pod>,
        name: &str,
        victims: Vec<Arc<str>>,
    ) -> PreemptionCheck {
        let Some(node) = self.nodes.get(name) else { return PreemptionCheck::Passes };
        if !self.held.can_hold(name, uid(pod)) {
            return PreemptionCheck::NoSpace;
        }
        let query = FitQuery {
            held: self.held.on(name),
            pods: vec![Arc::clone(pod)],
            without: victims,
            ..FitQuery::default()
        };
        PreemptionCheck::Ask(Arc::clone(node), query)
    }

    fn verdict(&self, now: Duration, pod: &Pod, shape: &str, name: &str) -> NodeVerdict {
        if !self.nodes.contains_key(name) || self.is_chosen(pod, name) {
            return NodeVerdict::Passes;
        }
        if !self.held.can_hold(name, uid(pod)) {
            return NodeVerdict::NoSpace;
        }
        match self.answers.knowledge(now, shape, name) {
            Knowledge::Current(verdict, placed) => NodeVerdict::Known(verdict, placed),
            Knowledge::Pending(_) | Knowledge::Ask(_) | Knowledge::Silent(_) => NodeVerdict::Unanswered,
        }
    }

    /// The pod will probably be bound to this node: it counts there from now on.
    fn expect(&mut self, now: Duration, pod: &Pod, shape: &str, node: &str) {
        let (Some(uid), Some((node, _))) = (pod.metadata.uid.as_deref(), self.nodes.get_key_value(node))
        else {
            return;
        };
        let node = Arc::clone(node);
        self.forget_expected(uid);
        self.answers.placed(shape, &node);
        self.held.hold(Arc::clone(&node), uid, pod);
        self.expected.insert(uid.into(), ExpectedPod { node, until: now + EXPECTED_FOR });
    }

    fn forget_expected(&mut self, uid: &str) {
        if let Some(expected) = self.expected.remove(uid) {
            self.held.release(uid);
            self.answers.node_changed(&expected.node);
        }
    }

    /// Whether placement has chosen this node for the pod: it was asked then, and has perhaps taken the pod.
    fn is_chosen(&self, pod: &Pod, node: &str) -> bool {
        self.chosen.get(uid(pod)).is_some_and(|chosen| **chosen == *node)
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether placement has placed the pod, or tries a node for it. A watch may show a little later that its gate was removed.
fn is_placed(pod: &Pod) -> bool {
    let placed = pod_state::condition(pod, names::PLACED);
    placed.is_some_and(|condition| condition.status == "True") || trial_began(pod).is_some()
}

/// Whether the node has room for no more pods than were placed since it answered.
fn is_used_up(knowledge: &Knowledge) -> bool {
    matches!(knowledge, Knowledge::Current(Verdict::Fits { room, .. }, placed) if placed >= room)
}

/// Why a node refuses a pod. kube-scheduler counts nodes by this text, so it has no numbers.
fn reason(why: &[Cause]) -> String {
    let (about_nodes, other): (Vec<&Cause>, Vec<&Cause>) = why.iter().partition(|cause| cause.nodes > 0);
    let mut parts: Vec<String> = other.into_iter().map(Cause::kind_text).collect();
    parts.dedup();
    if !about_nodes.is_empty() {
        let causes: BTreeSet<String> =
            about_nodes.into_iter().take(NAMED_CAUSES).map(Cause::kind_text).collect();
        let causes: Vec<String> = causes.into_iter().collect();
        parts.push(format!("no lower node takes the pod ({})", causes.join(", ")));
    }
    parts.join("; ").chars().take(REASON_CHARS).collect()
}

#[cfg(test)]
mod tests;
