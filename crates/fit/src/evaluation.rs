//! The evaluation of a query: pods in their order, each with those before it present.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{ability::Verdict, node_selector::LabelLookup};

use crate::{
    anti_affinity::AntiAffinityTerm,
    filter::{Available, Eligible, Failures, Filter, MILLION, available},
    node_info::{NodeInfo, Usage},
    pod_info::{PodInfo, Requirements, Shape},
    resource::ResourceNames,
    snapshot::{Settings, Snapshot},
    uid::Uid,
};

/// A question about pods.
#[derive(Clone, Copy, Default)]
pub struct Query<'a> {
    /// Pods that are present although the snapshot may not have them. Those that it has count once.
    pub held: &'a [Arc<Pod>],
    /// The pods to evaluate.
    pub pods: &'a [Arc<Pod>],
    /// UIDs of pods that are gone.
    pub without: &'a [Arc<str>],
    /// The nodes that the question is about, by their labels; `None` for all.
    pub nodes: Option<&'a dyn Fn(LabelLookup<'_>) -> bool>,
}

/// Usage of the nodes where it differs from the snapshot, because of pods that are not on a node yet or that are thought away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placements {
    usages: HashMap<u32, Usage>,
    /// The pods that placed pods keep away.
    anti_affinity: Vec<AntiAffinityTerm>,
}

/// Evaluates pods one after the other.
struct Evaluation<'a> {
    snapshot: &'a Snapshot,
    eligible: Eligible<'a>,
    names: ResourceNames,
    placements: Placements,
    /// Counts the placed pods.
    version: u64,
    groups: Vec<Group>,
}

/// A node that a pod may get: by fullness, then by rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    fullness: u32,
    rank: u32,
    slot: u32,
}

/// Pods with equal requirements. All nodes are checked once for them, and again only after pods with other requirements were placed.
struct Group {
    requirements: Requirements,
    /// The number of placed pods that `room` and `failures` include.
    version: u64,
    room: u64,
    failures: Failures,
    /// Nodes by fullness, the emptiest first. An entry may be outdated: the node may be fuller than that.
    candidates: BinaryHeap<Reverse<Candidate>>,
    unknown: Option<&'static str>,
}

impl Snapshot {
    /// One verdict for each of the pods, as [`Fit::fit`](vk_provider::ability::Fit::fit) describes it.
    ///
    /// Which node a pod without a node will get is not known. It is placed on the emptiest node that it fits on, as kube-scheduler
    /// prefers it.
    pub fn fit(&self, query: &Query<'_>) -> Vec<Verdict> {
        let without: HashSet<Uid> = query.without.iter().map(|uid| Uid::from(&**uid)).collect();
        let mut evaluation = Evaluation::new(self, query.nodes, self.placements_without(&without));
        for pod in query.held {
            let is_known = pod.metadata.uid.as_deref().is_some_and(|uid| self.has_pod(uid));
            if !is_known {
                let info = PodInfo::new(pod, &mut evaluation.names);
                evaluation.place(&info);
            }
        }
        let last = query.pods.len().saturating_sub(1);
        let evaluate = |(index, pod): (usize, &Arc<Pod>)| {
            let info = PodInfo::new(pod, &mut evaluation.names);
            let verdict = evaluation.verdict(&info);
            if index < last && !matches!(verdict, Verdict::Refused { .. }) {
                evaluation.place(&info);
            }
            verdict
        };
        query.pods.iter().enumerate().map(evaluate).collect()
    }

    /// The name of the node that a pod would probably get: the emptiest one that it fits on.
    pub fn best_node(&self, pod: &Pod) -> Option<&str> {
        let mut evaluation = Evaluation::new(self, None, self.placements_without(&HashSet::new()));
        let info = PodInfo::new(pod, &mut evaluation.names);
        let index = evaluation.group(&info.requirements);
        let best = evaluation.best(index)?;
        Some(&self.nodes[best.slot as usize].name)
    }

    /// The placements of the waiting pods, when these pods are gone.
    fn placements_without(&self, without: &HashSet<Uid>) -> Placements {
        let is_known = |uid: &Uid| self.record(uid).is_some() || self.waiting.contains_key(uid);
        if without.iter().any(is_known) {
            Placements::of_waiting(self, without)
        } else if self.waiting.is_empty() {
            Placements::default()
        } else {
            self.waiting_placements().clone()
        }
    }
}

// === impl Placements ===

impl Placements {
    /// The placements of the snapshot's pods that are not scheduled yet, when the pods `without` are gone.
    pub(crate) fn of_waiting(snapshot: &Snapshot, without: &HashSet<Uid>) -> Self {
        let mut placements = Self::default();
        for record in without.iter().filter_map(|uid| snapshot.record(uid)) {
            let node = &snapshot.nodes[record.node as usize];
            placements.usage_mut(record.node, node).remove(snapshot.shapes.get(record.shape));
        }
        let mut evaluation = Evaluation::new(snapshot, None, placements);
        for (_, info) in snapshot.waiting.iter().filter(|(uid, _)| !without.contains(uid)) {
            evaluation.place(info);
        }
        evaluation.placements
    }

    fn usage<'a>(&'a self, slot: u32, node: &'a NodeInfo) -> &'a Usage {
        if self.usages.is_empty() { &node.usage } else { self.usages.get(&slot).unwrap_or(&node.usage) }
    }

    fn usage_mut(&mut self, slot: u32, node: &NodeInfo) -> &mut Usage {
        self.usages.entry(slot).or_insert_with(|| node.usage.clone())
    }

    fn add(&mut self, slot: u32, node: &NodeInfo, shape: &Shape) {
        self.usage_mut(slot, node).add(shape);
        self.anti_affinity.extend_from_slice(&shape.anti_affinity);
    }
}

// === impl Evaluation ===

impl<'a> Evaluation<'a> {
    fn new(snapshot: &'a Snapshot, eligible: Eligible<'a>, placements: Placements) -> Self {
        let names = snapshot.names.clone();
        Self { snapshot, eligible, names, placements, version: 0, groups: Vec::new() }
    }

    fn verdict(&mut self, info: &PodInfo) -> Verdict {
        if info.other_scheduler {
            return Verdict::unknown("another scheduler");
        }
        let index = self.group(&info.requirements);
        if self.groups[index].version != self.version {
            self.groups[index] = self.check_all(info.requirements.clone());
        }
        let Some(Candidate { fullness, .. }) = self.best(index) else {
            return self.refusal(index);
        };
        let group = &self.groups[index];
        if let Some(why) = info.unmodelled.or(group.unknown).or_else(|| self.kept_away(info)) {
            return Verdict::unknown(why);
        }
        Verdict::Fits {
            room: u32::try_from(group.room).unwrap_or(u32::MAX),
            fullness: u8::try_from(fullness.div_ceil(MILLION / 100)).unwrap_or(100),
        }
    }

    fn refusal(&self, index: usize) -> Verdict {
        let group = &self.groups[index];
        let Settings { autoscales, device_class_resources } = &self.snapshot.settings;
        let requested = group.requirements.shape.requests.amounts();
        if *autoscales {
            return Verdict::unknown("an autoscaling cluster");
        }
        if requested.map(|(id, _)| self.names.name(id)).any(|name| device_class_resources.contains(name)) {
            return Verdict::unknown("resources of a device class");
        }
        let why = group.failures.causes(&self.snapshot.sets, &group.requirements, &self.names);
        if why.is_empty() {
            return Verdict::refused("no nodes", true);
        }
        Verdict::Refused { why, lasting: !group.failures.may_pass }
    }

    /// Whether anti-affinity of other pods may keep this one away from a node that it fits on.
    fn kept_away(&self, info: &PodInfo) -> Option<&'static str> {
        let present = self.snapshot.shapes.values().flat_map(|shape| &shape.anti_affinity);
        let mut terms = present.chain(&self.placements.anti_affinity);
        terms
            .any(|term| term.selects(&info.namespace, &info.labels))
            .then_some("required anti-affinity of other pods")
    }

    /// Puts a pod on the node that it will probably get. One that fits nowhere waits and uses nothing.
    fn place(&mut self, info: &PodInfo) {
        let index = self.group(&info.requirements);
        let Some(Candidate { slot, .. }) = self.best(index) else { return };
        let group = &mut self.groups[index];
        let node = &self.snapshot.nodes[slot as usize];
        self.placements.add(slot, node, &group.requirements.shape);
        // A node that takes a pod has room for exactly one less like it.
        let was_current = group.version == self.version;
        self.version += 1;
        if was_current {
            group.version = self.version;
            group.room = group.room.saturating_sub(1);
        }
    }

    /// The index of the pod's group.
    fn group(&mut self, requirements: &Requirements) -> usize {
        if let Some(index) = self.groups.iter().position(|group| group.requirements == *requirements) {
            return index;
        }
        let group = self.check_all(requirements.clone());
        self.groups.push(group);
        self.groups.len() - 1
    }

    /// Checks all nodes for pods with these requirements.
    fn check_all(&self, requirements: Requirements) -> Group {
        let snapshot = self.snapshot;
        let (volumes, unknown) = snapshot.volumes.of(&requirements.claims);
        let mut filter = Filter::new(&snapshot.sets, &requirements, volumes, self.eligible);
        let (mut room, mut failures, mut candidates) = (0u64, Failures::default(), Vec::new());
        for (slot, node) in (0..).zip(&snapshot.nodes) {
            match filter.check(node, self.placements.usage(slot, node)) {
                Some(Ok(available)) => {
                    room = room.saturating_add(available.room);
                    candidates.push(Reverse(Candidate {
                        fullness: available.fullness,
                        rank: node.rank,
                        slot,
                    }));
                }
                Some(Err(failure)) => failures.count(failure),
                None => {}
            }
        }
        Group { requirements, version: self.version, room, failures, candidates: candidates.into(), unknown }
    }

    /// The emptiest node that takes a pod of this group, and how full it is then.
    fn best(&mut self, index: usize) -> Option<Candidate> {
        let group = &mut self.groups[index];
        loop {
            let &Reverse(candidate) = group.candidates.peek()?;
            let node = &self.snapshot.nodes[candidate.slot as usize];
            let usage = self.placements.usage(candidate.slot, node);
            let checked = available(&group.requirements.shape, node.state.as_ref()?, usage);
            if checked.is_ok_and(|available| available.fullness <= candidate.fullness) {
                return Some(candidate);
            }
            // Outdated: pods were placed there since.
            group.candidates.pop();
            match checked {
                Ok(Available { fullness, .. }) => {
                    group.candidates.push(Reverse(Candidate { fullness, ..candidate }));
                }
                Err(failure) => group.failures.count(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests;
