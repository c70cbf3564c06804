//! Nodes and the pods on them, kept current by the events of watches.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota};
use vk_provider::{pod::is_terminal, requests::ResourceList};

use crate::{
    evaluation::WaitingPlacements,
    interner::Interner,
    node_info::{NodeInfo, NodeSets, Usage},
    pod_info::{PodInfo, Shape},
    resource::{Resource, ResourceId, ResourceNames, ResourceSum},
    uid::Uid,
    volume::Volumes,
};

/// What a cluster is like, beside its objects.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Whether nodes are added when pods need them. A pod that fits on no node may fit on a new one.
    pub autoscales: bool,
    /// Extended resources that a DeviceClass provides: a node need not list them.
    pub device_class_resources: HashSet<String>,
}

/// The nodes of a cluster and what their pods use.
///
/// Nodes and pods come in any order, as from two watches: a pod may be known before its node, and stay when its node is gone. Of a pod on a
/// node only its UID, its node and its shape are kept, and equal shapes are stored once.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(crate) settings: Settings,
    pub(crate) names: ResourceNames,
    pub(crate) sets: NodeSets,
    pub(crate) nodes: Vec<NodeInfo>,
    by_name: HashMap<Arc<str>, u32>,
    vacant: Vec<u32>,
    pub(crate) shapes: Interner<Shape>,
    pods: HashMap<Uid, PodRecord>,
    /// Pods that are not scheduled yet.
    pub(crate) waiting: BTreeMap<Uid, PodInfo>,
    /// Where the waiting pods will probably go. Computed when it is needed.
    waiting_placements: OnceLock<WaitingPlacements>,
    pub(crate) volumes: Volumes,
    /// The quotas by namespace and name.
    pub(crate) quotas: HashMap<String, BTreeMap<String, ResourceQuota>>,
}

/// What pods request of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeUsage {
    /// The requests of the pods that were named, with their number as `pods`.
    pub own: ResourceList,
    /// The requests of all others.
    pub others: ResourceList,
}

/// A pod on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodRecord {
    pub(crate) node: u32,
    pub(crate) shape: u32,
}

/// How many objects a snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Nodes.
    pub nodes: usize,
    /// Pods on nodes.
    pub pods: usize,
    /// Pods that are not scheduled yet.
    pub waiting: usize,
    /// Different shapes of the pods on nodes.
    pub shapes: usize,
    /// Different sets of labels of the nodes.
    pub label_sets: usize,
}

// === impl Snapshot ===

impl Snapshot {
    /// Creates an empty snapshot.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// The extended resources that a DeviceClass provides have changed.
    pub fn set_device_class_resources(&mut self, resources: HashSet<String>) {
        self.settings.device_class_resources = resources;
    }

    /// A node was added or changed.
    pub fn apply_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref() else { return };
        let slot = self.slot(name);
        let info = &mut self.nodes[slot as usize];
        let state = self.sets.read(node, &info.name, &mut self.names);
        // Most updates of a node are reports that it is alive.
        if info.state.as_ref() == Some(&state) {
            self.sets.release(&state);
            return;
        }
        self.waiting_placements.take();
        if let Some(old) = info.state.replace(state) {
            self.sets.release(&old);
        }
    }

    /// A node was deleted.
    pub fn remove_node(&mut self, name: &str) {
        let Some(&slot) = self.by_name.get(name) else { return };
        self.waiting_placements.take();
        if let Some(old) = self.nodes[slot as usize].state.take() {
            self.sets.release(&old);
        }
        self.free_if_unused(slot);
    }

    /// A pod was added or changed. One that has ended counts no longer; one that waits for kube-scheduler counts as if it were about to get
    /// a node. Returns whether the usage of a node has changed.
    pub fn apply_pod(&mut self, pod: &Pod) -> bool {
        let Some(uid) = pod.metadata.uid.as_deref() else { return false };
        let spec = pod.spec.as_ref();
        let node = spec.and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty());
        let is_gated = spec.is_some_and(|spec| spec.scheduling_gates.iter().flatten().next().is_some());
        match node {
            _ if is_terminal(pod) => self.remove_pod(uid),
            Some(node) => self.bind(Uid::from(uid), node, pod),
            None if is_gated || pod.metadata.deletion_timestamp.is_some() => self.remove_pod(uid),
            None => {
                let changed = self.remove_pod(uid);
                let info = PodInfo::new(pod, &mut self.names);
                if !info.other_scheduler {
                    self.waiting_placements.take();
                    self.waiting.insert(Uid::from(uid), info);
                }
                changed
            }
        }
    }

    /// A pod was deleted. Returns whether the usage of a node has changed.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        self.remove(&Uid::from(uid))
    }

    /// A pod was deleted.
    pub fn remove(&mut self, uid: &Uid) -> bool {
        if self.waiting.remove(uid).is_some() {
            self.waiting_placements.take();
        }
        let Some(record) = self.pods.remove(uid) else { return false };
        self.waiting_placements.take();
        let info = &mut self.nodes[record.node as usize];
        info.usage.remove(self.shapes.get(record.shape));
        info.pods -= 1;
        self.shapes.release(record.shape);
        self.free_if_unused(record.node);
        true
    }

    /// A claim was added or changed.
    pub fn apply_claim(&mut self, claim: &PersistentVolumeClaim) {
        self.waiting_placements.take();
        self.volumes.apply_claim(claim);
    }

    /// A claim was deleted.
    pub fn remove_claim(&mut self, namespace: &str, name: &str) {
        self.waiting_placements.take();
        self.volumes.remove_claim(namespace, name);
    }

    /// A volume was added or changed.
    pub fn apply_volume(&mut self, volume: &PersistentVolume) {
        self.waiting_placements.take();
        self.volumes.apply_volume(volume);
    }

    /// A volume was deleted.
    pub fn remove_volume(&mut self, name: &str) {
        self.waiting_placements.take();
        self.volumes.remove_volume(name);
    }

    /// A quota was added or changed.
    pub fn apply_quota(&mut self, quota: &ResourceQuota) {
        let (Some(namespace), Some(name)) = (&quota.metadata.namespace, &quota.metadata.name) else { return };
        self.quotas.entry(namespace.clone()).or_default().insert(name.clone(), quota.clone());
    }

    /// A quota was deleted.
    pub fn remove_quota(&mut self, namespace: &str, name: &str) {
        let Some(quotas) = self.quotas.get_mut(namespace) else { return };
        quotas.remove(name);
        if quotas.is_empty() {
            self.quotas.remove(namespace);
        }
    }

    /// What pods request of each node, those with the UIDs `own` and all others apart.
    pub fn usage<'a>(&self, own: impl IntoIterator<Item = &'a str>) -> BTreeMap<&str, NodeUsage> {
        let mut parts: HashMap<u32, (ResourceSum, ResourceSum)> = HashMap::new();
        for record in own.into_iter().filter_map(|uid| self.record(&Uid::from(uid))) {
            let total = &self.nodes[record.node as usize].usage.requested;
            let (own, others) =
                parts.entry(record.node).or_insert_with(|| (ResourceSum::default(), total.clone()));
            let requests = &self.shapes.get(record.shape).requests;
            own.add(requests);
            others.subtract(requests);
        }
        let used = |(slot, node): (u32, &'_ NodeInfo)| {
            node.state.as_ref()?;
            let usage = match parts.get(&slot) {
                Some((own, others)) => {
                    NodeUsage { own: self.names.to_list(own), others: self.names.to_list(others) }
                }
                None => {
                    NodeUsage { others: self.names.to_list(&node.usage.requested), ..NodeUsage::default() }
                }
            };
            Some((slot, usage))
        };
        let all = (0..).zip(&self.nodes).filter_map(used);
        all.map(|(slot, usage)| (&*self.nodes[slot as usize].name, usage)).collect()
    }

    /// How many objects there are.
    pub fn size(&self) -> Size {
        Size {
            nodes: self.nodes.iter().filter(|node| node.state.is_some()).count(),
            pods: self.pods.len(),
            waiting: self.waiting.len(),
            shapes: self.shapes.len(),
            label_sets: self.sets.labels.len(),
        }
    }

    /// Whether a pod with this UID is known.
    pub fn has_pod(&self, uid: &str) -> bool {
        let uid = Uid::from(uid);
        self.pods.contains_key(&uid) || self.waiting.contains_key(&uid)
    }

    /// Computes the usage of all nodes anew and compares. Returns the number of differences, which are repaired: each is a bug. Also forgets
    /// the names of resources that nothing uses any more.
    pub fn repair(&mut self) -> usize {
        let mut nodes: Vec<(Usage, usize)> = self.nodes.iter().map(|_| Default::default()).collect();
        let mut users: HashMap<u32, usize> = HashMap::new();
        for record in self.pods.values() {
            let (usage, pods) = &mut nodes[record.node as usize];
            usage.add(self.shapes.get(record.shape));
            *pods += 1;
            *users.entry(record.shape).or_default() += 1;
        }
        let mut differences = 0;
        for (info, (mut usage, pods)) in self.nodes.iter_mut().zip(nodes) {
            usage.sort();
            info.usage.sort();
            if info.usage != usage || info.pods != pods {
                (info.usage, info.pods) = (usage, pods);
                differences += 1;
            }
        }
        let counts: Vec<(u32, usize)> = self.shapes.users().collect();
        for (id, count) in counts {
            let actual = users.get(&id).copied().unwrap_or(0);
            if actual != count {
                self.shapes.set_users(id, actual);
                differences += 1;
            }
        }
        if differences > 0 {
            self.waiting_placements.take();
        }
        let allocatable = self.nodes.iter().filter_map(|node| node.state.as_ref()).map(|it| &it.allocatable);
        let waiting = self.waiting.values().map(|info| &info.requirements.shape);
        let requests = self.shapes.values().chain(waiting).map(|shape| &shape.requests);
        let in_use: HashSet<ResourceId> =
            allocatable.chain(requests).flat_map(Resource::scalar_ids).collect();
        self.names.retain(&in_use);
        differences
    }

    pub(crate) fn record(&self, uid: &Uid) -> Option<PodRecord> {
        self.pods.get(uid).copied()
    }

    /// Where the waiting pods will probably go.
    pub(crate) fn waiting_placements(&self) -> &WaitingPlacements {
        self.waiting_placements.get_or_init(|| WaitingPlacements::new(self, &HashSet::new()))
    }

    #[cfg(test)]
    pub(crate) fn has_waiting_placements(&self) -> bool {
        self.waiting_placements.get().is_some()
    }

    /// The slot of a node that exists.
    pub(crate) fn known_node(&self, name: &str) -> Option<u32> {
        let slot = self.by_name.get(name).copied()?;
        self.nodes[slot as usize].state.is_some().then_some(slot)
    }

    fn bind(&mut self, uid: Uid, node: &str, pod: &Pod) -> bool {
        if self.waiting.remove(&uid).is_some() {
            self.waiting_placements.take();
        }
        let shape = self.shapes.acquire(Shape::on_node(pod, &mut self.names));
        let slot = self.slot(node);
        let new = PodRecord { node: slot, shape };
        let old = self.pods.insert(uid, new);
        if old == Some(new) {
            // Only something changed that does not matter here, as in most updates.
            self.shapes.release(shape);
            return false;
        }
        self.waiting_placements.take();
        let info = &mut self.nodes[slot as usize];
        info.usage.add(self.shapes.get(shape));
        info.pods += 1;
        if let Some(old) = old {
            let info = &mut self.nodes[old.node as usize];
            info.usage.remove(self.shapes.get(old.shape));
            info.pods -= 1;
            self.shapes.release(old.shape);
            self.free_if_unused(old.node);
        }
        true
    }

    /// The slot of a node, known or not.
    fn slot(&mut self, name: &str) -> u32 {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let name: Arc<str> = name.into();
        let info = NodeInfo::new(Arc::clone(&name));
        let slot = if let Some(slot) = self.vacant.pop() {
            self.nodes[slot as usize] = info;
            slot
        } else {
            self.nodes.push(info);
            u32::try_from(self.nodes.len() - 1).expect("invariant: fewer than 2^32 nodes")
        };
        self.by_name.insert(name, slot);
        slot
    }

    fn free_if_unused(&mut self, slot: u32) {
        let info = &mut self.nodes[slot as usize];
        if info.state.is_none() && info.pods == 0 {
            self.by_name.remove(&info.name);
            *info = NodeInfo::default();
            self.vacant.push(slot);
        }
    }
}

#[cfg(test)]
mod tests;
