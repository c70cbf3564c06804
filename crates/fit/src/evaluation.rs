//! The evaluation of a query: pods in their order, each with those before it present.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{
    ability::{LowerNode, Verdict},
    node_selector::LabelLookup,
};

use crate::{
    anti_affinity::AntiAffinityTerm,
    filter::{Available, Eligible, Failure, Failures, Filter, MILLION, available, free_resources, lacking},
    node_info::{NodeInfo, Usage},
    pod_info::{PodInfo, Requirements, Shape},
    quota::{self, Admission, NamespaceQuotas},
    resource::QueryNames,
    snapshot::{Settings, Snapshot},
    uid::Uid,
};

/// The prefix of the resources that stand for the devices of a DeviceClass.
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// How many different kinds of waiting pods are placed. Each of them has to be checked for all nodes.
const MAX_WAITING_KINDS: usize = 64;
/// How many kinds of pods a query may have. For each, all nodes are checked, and those that it fits on are remembered.
const MAX_KINDS: usize = 256;
const MANY_KINDS: &str = "pods of too many kinds in one question";
const MANY_WAIT: &str = "too many different pods that wait for a node";
const MAY_TAKE_THE_ROOM: &str = "pods that wait for a node and may take the room";

/// A question about pods.
#[derive(Clone, Copy, Default)]
pub struct Query<'a> {
    /// Pods that are present although the snapshot may not have them. Those that it has count once.
    pub held: &'a [Arc<Pod>],
    /// The pods to evaluate.
    pub pods: &'a [Arc<Pod>],
    /// Pods that are gone although the snapshot may have them.
    pub without: &'a [Arc<Pod>],
    /// The nodes that the question is about, by their labels; `None` for all.
    pub nodes: Option<&'a dyn Fn(LabelLookup<'_>) -> bool>,
}

/// Usage of the nodes where it differs from the snapshot, because of pods that are not on a node yet or that are thought away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placements {
    usages: HashMap<u32, Usage>,
    /// The pods that placed pods keep away.
    anti_affinity: Vec<Arc<[AntiAffinityTerm]>>,
}

/// Where the pods that are not scheduled yet will probably go.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingPlacements {
    /// Those that need nothing that is not modelled.
    certain: Placements,
    /// All of them, if there are others.
    all: Option<Placements>,
    /// There are too many different ones to place them all.
    too_many: bool,
}

/// Evaluates pods one after the other.
struct Evaluation<'a> {
    snapshot: &'a Snapshot,
    /// The nodes that are checked, and which of them count.
    slots: Range<u32>,
    eligible: Eligible<'a>,
    names: QueryNames<'a>,
    placements: Placements,
    /// The quotas of the namespaces that pods were evaluated in.
    quotas: HashMap<String, NamespaceQuotas<'a>>,
    /// Counts the placed pods.
    version: u64,
    groups: Vec<Group>,
    /// Whether there were pods of more kinds than that. Where they will go is not known.
    too_many_kinds: bool,
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
        self.fit_in(query, self.slots())
    }

    /// The same for one node alone, without a look at the others.
    pub fn fit_on(&self, node: &str, pods: &[Arc<Pod>]) -> Vec<Verdict> {
        let slot = self.known_node(node);
        self.fit_in(&Query { pods, ..Query::default() }, slot.map_or(0..0, |slot| slot..slot + 1))
    }

    fn fit_in(&self, query: &Query<'_>, slots: Range<u32>) -> Vec<Verdict> {
        let WaitingPlacements { certain, all, too_many } = self.placements_without(&uids(query.without));
        let mut certain = Evaluation::of_query(self, query, slots.clone(), certain);
        let mut all = all.map(|all| Evaluation::of_query(self, query, slots, all));
        let last = query.pods.len().saturating_sub(1);
        let evaluate = |(index, pod): (usize, &Arc<Pod>)| {
            let is_last = index == last;
            let (verdict, with_all) =
                (certain.next(pod, is_last), all.as_mut().map(|all| all.next(pod, is_last)));
            // Pods that wait can only take room away: a refusal without them stands.
            match (verdict, with_all) {
                (Verdict::Fits { .. }, Some(Verdict::Refused { .. })) => Verdict::unknown(MAY_TAKE_THE_ROOM),
                (Verdict::Fits { .. }, _) if too_many => Verdict::unknown(MANY_WAIT),
                (Verdict::Fits { .. }, Some(with_all)) => with_all,
                (verdict, _) => verdict,
            }
        };
        query.pods.iter().enumerate().map(evaluate).collect()
    }

    /// The nodes with the most room for a pod, and what is free on them. First those that it fits on, the emptiest first; then those that
    /// lack resources, the one that lacks the smallest part first.
    pub fn best_nodes(&self, query: &Query<'_>, pod: &Pod, count: usize) -> Vec<LowerNode> {
        let WaitingPlacements { certain, all, .. } = self.placements_without(&uids(query.without));
        let mut evaluation = Evaluation::new(self, query.nodes, all.unwrap_or(certain));
        let requirements = PodInfo::new(pod, &mut evaluation.names).requirements;
        let (volumes, _) = self.volumes.of(&requirements.claims);
        let mut filter = Filter::new(&self.sets, &requirements, volumes, query.nodes);
        let mut best: Vec<_> = Vec::new();
        for (slot, node) in (0..).zip(&self.nodes) {
            let usage = evaluation.placements.usage(slot, node);
            let (Some(checked), Some(state)) = (filter.check(node, usage), &node.state) else { continue };
            let order = match checked {
                Ok(available) => (0, available.fullness),
                Err(Failure::Resource(..)) => (1, lacking(&requirements.shape, state, usage)),
                Err(_) => continue,
            };
            best.push((order, node.rank, node, state, usage));
        }
        best.sort_by_key(|(order, rank, ..)| (*order, *rank));
        let with_room = best.into_iter().take(count).map(|(_, _, node, state, usage)| {
            let free = free_resources(&state.allocatable, usage, &self.names);
            LowerNode { name: node.name.to_string(), free }
        });
        with_room.collect()
    }

    /// The slots of all nodes.
    fn slots(&self) -> Range<u32> {
        0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    fn has(&self, pod: &Pod) -> bool {
        pod.metadata.uid.as_deref().is_some_and(|uid| self.has_pod(uid))
    }

    /// The placements of the waiting pods, when these pods are gone.
    fn placements_without(&self, without: &HashSet<Uid>) -> WaitingPlacements {
        let is_known = |uid: &Uid| self.record(uid).is_some() || self.waiting.contains_key(uid);
        if without.iter().any(is_known) {
            WaitingPlacements::new(self, without)
        } else if self.waiting.is_empty() {
            WaitingPlacements::default()
        } else {
            self.waiting_placements().clone()
        }
    }
}

fn uids(pods: &[Arc<Pod>]) -> HashSet<Uid> {
    pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).map(Uid::from).collect()
}

// === impl WaitingPlacements ===

impl WaitingPlacements {
    /// The placements of the snapshot's pods that are not scheduled yet, when the pods `without` are gone.
    pub(crate) fn new(snapshot: &Snapshot, without: &HashSet<Uid>) -> Self {
        let mut gone = Placements::default();
        for record in without.iter().filter_map(|uid| snapshot.record(uid)) {
            let node = &snapshot.nodes[record.node as usize];
            gone.usage_mut(record.node, node).remove(snapshot.shapes.get(record.shape));
        }
        let waiting =
            || snapshot.waiting.iter().filter(|(uid, _)| !without.contains(uid)).map(|(_, info)| info);
        let is_certain = |info: &PodInfo| {
            info.unmodelled.is_none() && snapshot.volumes.of(&info.requirements.claims).1.is_none()
        };
        let mut too_many = false;
        let mut place = |only_certain: bool| {
            let mut evaluation = Evaluation::new(snapshot, None, gone.clone());
            for info in waiting().filter(|info| !only_certain || is_certain(info)) {
                if evaluation.groups.len() < MAX_WAITING_KINDS || evaluation.has_group(&info.requirements) {
                    evaluation.put(info);
                } else {
                    too_many = true;
                }
            }
            evaluation.placements
        };
        let certain = place(true);
        let all = waiting().any(|info| !is_certain(info)).then(|| place(false));
        Self { certain, all, too_many }
    }
}

// === impl Placements ===

impl Placements {
    fn usage<'a>(&'a self, slot: u32, node: &'a NodeInfo) -> &'a Usage {
        if self.usages.is_empty() { &node.usage } else { self.usages.get(&slot).unwrap_or(&node.usage) }
    }

    fn usage_mut(&mut self, slot: u32, node: &NodeInfo) -> &mut Usage {
        self.usages.entry(slot).or_insert_with(|| node.usage.clone())
    }

    fn add(&mut self, slot: u32, node: &NodeInfo, shape: &Shape) {
        self.usage_mut(slot, node).add(shape);
        if !shape.anti_affinity.is_empty() {
            self.anti_affinity.push(Arc::clone(&shape.anti_affinity));
        }
    }
}

// === impl Evaluation ===

impl<'a> Evaluation<'a> {
    fn new(snapshot: &'a Snapshot, eligible: Eligible<'a>, placements: Placements) -> Self {
        let names = QueryNames::new(&snapshot.names);
        let (quotas, groups) = (HashMap::new(), Vec::new());
        let slots = snapshot.slots();
        Self {
            snapshot,
            slots,
            eligible,
            names,
            placements,
            quotas,
            version: 0,
            groups,
            too_many_kinds: false,
        }
    }

    /// With the pods of the query that are present, and without those that are gone.
    fn of_query(snapshot: &'a Snapshot, query: &Query<'a>, slots: Range<u32>, waiting: Placements) -> Self {
        let mut evaluation = Self { slots, ..Self::new(snapshot, query.nodes, waiting) };
        for pod in query.without.iter().filter(|pod| snapshot.has(pod)) {
            if let Some(quotas) = evaluation.quotas(pod) {
                quotas.remove(pod);
            }
        }
        for pod in query.held.iter().filter(|pod| !snapshot.has(pod)) {
            let info = PodInfo::new(pod, &mut evaluation.names);
            // One that a quota refuses does not come to the cluster.
            if matches!(evaluation.admission(pod), Admission::Admits { .. }) {
                evaluation.place(pod, &info);
            }
        }
        evaluation
    }

    /// The verdict on the next pod. Unless it is refused, or the last, the pod is present from now on.
    fn next(&mut self, pod: &Pod, is_last: bool) -> Verdict {
        let info = PodInfo::new(pod, &mut self.names);
        let verdict = quota::restrict(self.verdict(&info), &self.admission(pod));
        if !is_last && !matches!(verdict, Verdict::Refused { .. }) {
            self.place(pod, &info);
        }
        verdict
    }

    /// The quotas of a pod's namespace; `None` if it has none.
    fn quotas(&mut self, pod: &Pod) -> Option<&mut NamespaceQuotas<'a>> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let quotas = self.snapshot.quotas.get(namespace)?;
        if !self.quotas.contains_key(namespace) {
            self.quotas.insert(namespace.to_owned(), NamespaceQuotas::new(quotas.values()));
        }
        self.quotas.get_mut(namespace)
    }

    /// Whether the quotas admit a pod.
    fn admission(&mut self, pod: &Pod) -> Admission {
        self.quotas(pod).map_or(Admission::Admits { room: u32::MAX }, |quotas| quotas.check(pod))
    }

    /// Counts a pod as present from now on.
    fn place(&mut self, pod: &Pod, info: &PodInfo) {
        if let Some(quotas) = self.quotas(pod) {
            quotas.add(pod);
        }
        self.put(info);
    }

    fn verdict(&mut self, info: &PodInfo) -> Verdict {
        if info.other_scheduler {
            return Verdict::unknown("another scheduler");
        }
        let Some(index) = self.group(&info.requirements) else { return Verdict::unknown(MANY_KINDS) };
        if self.groups[index].version != self.version {
            self.groups[index] = self.check_all(info.requirements.clone());
        }
        let Some(Candidate { fullness, .. }) = self.best(index) else {
            return self.refusal(index);
        };
        let group = &self.groups[index];
        let too_many = || self.too_many_kinds.then_some(MANY_KINDS);
        let unknown = info.unmodelled.or(group.unknown).or_else(too_many);
        if let Some(why) = unknown.or_else(|| self.kept_away(info)) {
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
        let of_device_class =
            |name: &str| name.starts_with(DEVICE_CLASS) || device_class_resources.contains(name);
        if requested.map(|(id, _)| self.names.name(id)).any(of_device_class) {
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
        let present = self.snapshot.shapes.values().map(|shape| &shape.anti_affinity);
        let terms = present.chain(&self.placements.anti_affinity);
        terms
            .flat_map(|terms| terms.iter())
            .any(|term| term.selects(&info.namespace, &info.labels))
            .then_some("required anti-affinity of other pods")
    }

    /// Puts a pod on the node that it will probably get. One that fits nowhere waits and uses nothing.
    fn put(&mut self, info: &PodInfo) {
        let Some(index) = self.group(&info.requirements) else { return };
        let nominated = info.nominated_node.as_deref().and_then(|name| self.snapshot.known_node(name));
        let Some(slot) = nominated.or_else(|| self.best(index).map(|best| best.slot)) else { return };
        let group = &mut self.groups[index];
        let node = &self.snapshot.nodes[slot as usize];
        self.placements.add(slot, node, &group.requirements.shape);
        // A node that takes a pod has room for exactly one less like it.
        let was_current = group.version == self.version && nominated.is_none();
        self.version += 1;
        if was_current {
            group.version = self.version;
            group.room = group.room.saturating_sub(1);
        }
    }

    fn has_group(&self, requirements: &Requirements) -> bool {
        self.groups.iter().any(|group| group.requirements == *requirements)
    }

    /// The index of the pod's group; `None` if there are too many others.
    fn group(&mut self, requirements: &Requirements) -> Option<usize> {
        if let Some(index) = self.groups.iter().position(|group| group.requirements == *requirements) {
            return Some(index);
        }
        if self.groups.len() == MAX_KINDS {
            self.too_many_kinds = true;
            return None;
        }
        let group = self.check_all(requirements.clone());
        self.groups.push(group);
        Some(self.groups.len() - 1)
    }

    /// Checks all nodes for pods with these requirements.
    fn check_all(&self, requirements: Requirements) -> Group {
        let snapshot = self.snapshot;
        let (volumes, unknown) = snapshot.volumes.of(&requirements.claims);
        let mut filter = Filter::new(&snapshot.sets, &requirements, volumes, self.eligible);
        let (mut room, mut failures, mut candidates) = (0u64, Failures::default(), Vec::new());
        for slot in self.slots.clone() {
            let node = &snapshot.nodes[slot as usize];
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
