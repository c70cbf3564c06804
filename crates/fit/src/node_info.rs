//! What fit needs to know about a node.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Taint};
use vk_provider::{
    host_port::HostPort,
    node_selector::{HOSTNAME, LabelLookup},
    requests::amounts,
};

use crate::{
    interner::{Interner, StringPool},
    pod_info::Shape,
    resource::{Resource, ResourceIds as _, ResourceNames, ResourceSum},
};

/// A node and what its pods use of it.
#[derive(Debug, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: Arc<str>,
    /// Breaks ties between equally good nodes: the same in every process, whatever the order of events.
    pub(crate) rank: u32,
    /// `None` if pods are bound to a node of this name that is not known (any more).
    pub(crate) state: Option<NodeState>,
    pub(crate) usage: Usage,
    /// The number of pods that are bound to it.
    pub(crate) pods: usize,
}

/// The parts of a Node object that decide about pods.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub(crate) ready: bool,
    pub(crate) unschedulable: bool,
    /// Its labels without the host name, which would make every set of labels different.
    pub(crate) labels: u32,
    pub(crate) hostname: Option<Arc<str>>,
    pub(crate) taints: u32,
    pub(crate) allocatable: Resource,
}

/// What pods use of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) requested: ResourceSum,
    /// By their numbers. A port may be in it twice: pods that are bound without a scheduler may share one.
    ports: HashMap<i32, Vec<HostPort>>,
}

/// Labels, sorted by key.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LabelSet(Box<[(Arc<str>, Arc<str>)]>);

/// The taints of a node that keep pods off it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct TaintSet(Box<[TaintKey]>);

/// A taint without the time at which it was added.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TaintKey {
    key: String,
    value: String,
    effect: String,
}

/// The sets that nodes share.
#[derive(Debug, Default)]
pub(crate) struct NodeSets {
    pub(crate) labels: Interner<LabelSet>,
    pub(crate) taints: Interner<TaintSet>,
    strings: StringPool,
}

// === impl NodeInfo ===

impl NodeInfo {
    /// A node of which only the name is known.
    pub(crate) fn new(name: Arc<str>) -> Self {
        // FNV-1a.
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let rank = name.bytes().fold(0x811c_9dc5, hash);
        Self { name, rank, ..Self::default() }
    }
}

// === impl NodeSets ===

impl NodeSets {
    /// Reads a Node object.
    pub(crate) fn read(&mut self, node: &Node, name: &Arc<str>, names: &mut ResourceNames) -> NodeState {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let none = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        let pairs = labels.iter().filter(|(key, _)| *key != HOSTNAME);
        let pairs = pairs.map(|(key, value)| (self.strings.get(key), self.strings.get(value))).collect();
        let hostname = labels
            .get(HOSTNAME)
            .map(|hostname| if **hostname == **name { Arc::clone(name) } else { hostname.as_str().into() });
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let ready =
            |one: &k8s_openapi::api::core::v1::NodeCondition| one.type_ == "Ready" && one.status == "True";
        NodeState {
            ready: conditions.iter().any(ready),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            labels: self.labels.acquire(LabelSet(pairs)),
            hostname,
            taints: self.taints.acquire(TaintSet::new(taints)),
            allocatable: names.read(&amounts(status.and_then(|status| status.allocatable.as_ref()))),
        }
    }

    pub(crate) fn release(&mut self, state: &NodeState) {
        self.labels.release(state.labels);
        self.taints.release(state.taints);
    }
}

// === impl NodeState ===

impl NodeState {
    /// The value of a label.
    pub(crate) fn label<'a>(&'a self, sets: &'a NodeSets, key: &str) -> Option<&'a str> {
        if key == HOSTNAME { self.hostname.as_deref() } else { sets.labels.get(self.labels).get(key) }
    }

    /// Calls `check` with the labels, and caches the answer for nodes with the same labels unless it depends on the host name.
    pub(crate) fn check_labels(
        &self,
        sets: &NodeSets,
        cache: &mut LabelCache,
        check: impl FnOnce(LabelLookup<'_>) -> bool,
    ) -> bool {
        if let Some(answer) = cache.0[self.labels as usize] {
            return answer;
        }
        let asked_for_hostname = std::cell::Cell::new(false);
        let answer = check(&|key: &str| {
            asked_for_hostname.set(asked_for_hostname.get() || key == HOSTNAME);
            self.label(sets, key)
        });
        if !asked_for_hostname.get() {
            cache.0[self.labels as usize] = Some(answer);
        }
        answer
    }
}

/// Answers by set of labels.
#[derive(Debug)]
pub(crate) struct LabelCache(Vec<Option<bool>>);

impl LabelCache {
    pub(crate) fn new(sets: &NodeSets) -> Self {
        Self(vec![None; sets.labels.bound()])
    }
}

// === impl LabelSet ===

impl LabelSet {
    fn get(&self, key: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        Some(&self.0[index].1)
    }
}

// === impl TaintSet ===

impl TaintSet {
    fn new(taints: &[Taint]) -> Self {
        let key = |taint: &Taint| TaintKey {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        };
        let keeps_off = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        Self(taints.iter().filter(keeps_off).map(key).collect())
    }

    /// The key of the first taint that is not tolerated.
    pub(crate) fn untolerated(&self, tolerates: impl Fn(&Taint) -> bool) -> Option<&str> {
        let taint = |one: &TaintKey| Taint {
            key: one.key.clone(),
            value: Some(one.value.clone()),
            effect: one.effect.clone(),
            time_added: None,
        };
        self.0.iter().find(|one| !tolerates(&taint(one))).map(|one| one.key.as_str())
    }
}

// === impl Usage ===

impl Usage {
    pub(crate) fn add(&mut self, shape: &Shape) {
        self.requested.add(&shape.requests);
        for port in &shape.ports {
            self.ports.entry(port.number()).or_default().push(port.clone());
        }
    }

    pub(crate) fn remove(&mut self, shape: &Shape) {
        self.requested.subtract(&shape.requests);
        for port in &shape.ports {
            let Some(used) = self.ports.get_mut(&port.number()) else { continue };
            if let Some(index) = used.iter().position(|used| used == port) {
                used.swap_remove(index);
            }
            if used.is_empty() {
                self.ports.remove(&port.number());
            }
        }
    }

    /// Whether a port is in use.
    pub(crate) fn has_port(&self, port: &HostPort) -> bool {
        self.ports.get(&port.number()).is_some_and(|used| used.iter().any(|used| used.conflicts(port)))
    }

    /// Makes equal usage compare equal.
    pub(crate) fn sort(&mut self) {
        self.ports.values_mut().for_each(|used| used.sort());
    }
}
