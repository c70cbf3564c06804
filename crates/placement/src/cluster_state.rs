//! What is known about the upper cluster: its nodes, what their pods use, and which pods are on their way to a node.

mod machine_terms;
mod node;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_fit::{Query, Snapshot, Uid};
use vk_provider::{
    ability::{Cause, LowerNode, Verdict},
    node_selector::LabelLookup,
    placement::declares_fit,
    pod::is_terminal,
};

pub(crate) use self::node::trim_node;
use self::{
    machine_terms::{remove_machine_terms, without_machine_terms},
    node::{POOL_KEY, in_pool},
};
use crate::{
    choose::LOCAL,
    explain::Candidate,
    held_pods::HeldPods,
    names,
    pod_state::{self, Gating, LowerVerdict},
    query_pod,
};

/// The upper cluster, as its watches show it, with the pods that placement has decided about.
///
/// A pod whose gate is being removed counts on the node that was chosen for it, as in the cache of kube-scheduler ("assumed"), and so do one
/// that is nominated and one that is on trial. Other pods that wait for kube-scheduler do not count: where they will go, and when, is not known.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// All nodes and what their pods request. Each node that can be asked is in a pool of its own, all others are in one.
    snapshot: Snapshot,
    /// Nodes that can be asked, by name.
    virtual_nodes: BTreeMap<Arc<str>, Arc<Node>>,
    /// Other nodes.
    local_nodes: HashMap<Arc<str>, Arc<Node>>,
    assumed: HashMap<Arc<str>, AssumedPod>,
    /// Pods that their nodes may not have seen yet.
    held: HeldPods,
    /// All pods, and whether the list in progress has had them.
    pods: HashMap<Uid, bool>,
}

/// A pod that placement has decided about, and that is not bound yet.
#[derive(Debug)]
struct AssumedPod {
    pod: Arc<Pod>,
    node: Arc<str>,
    /// The watch has shown that it is on trial there.
    is_on_trial: bool,
}

/// What an event changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Nodes on which there may be more or less room than before.
    pub(crate) nodes: Vec<Arc<str>>,
    /// Whether the nodes that cannot be asked have changed.
    pub(crate) local: bool,
    /// A node that a pod has begun to use for which it was not expected. There is no reason to try others there, but less room than it said.
    pub(crate) used: Option<Arc<str>>,
}

/// A node that can be asked, and whether the upper cluster would let the pod go there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpperVerdict {
    pub(crate) node: Arc<str>,
    pub(crate) verdict: Result<UpperFit, String>,
    /// Whether the pod has no rule that only kube-scheduler knows, such as a hard spread, or claims.
    pub(crate) is_certain: bool,
}

/// How well a pod fits on a node of the upper cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpperFit {
    /// For how many pods like it there is room.
    pub(crate) room: u32,
    /// The percentage of the scarcest resource that is used with the pod.
    pub(crate) fullness: u8,
}

/// What is known about the nodes that cannot be asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LocalVerdict {
    pub(crate) verdict: Verdict,
    /// The node with the most room for the pod.
    pub(crate) best: Option<Arc<str>>,
}

// === impl ClusterState ===

impl ClusterState {
    /// A node was added or changed.
    pub(crate) fn apply_node(&mut self, node: Node) -> Changed {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let before = self.node(&name).cloned();
        if before.as_deref() == Some(&node) {
            return Changed::default();
        }
        self.snapshot.apply_node(&in_pool(&node));
        let changed = Changed { nodes: vec![Arc::clone(&name)], local: true, ..Changed::default() };
        if declares_fit(&node) {
            self.local_nodes.remove(&name);
            self.virtual_nodes.insert(name, Arc::new(node));
            // Only where it was one of the others before.
            let was_local = before.is_some_and(|before| !declares_fit(&before));
            return Changed { local: was_local, ..changed };
        }
        self.virtual_nodes.remove(&name);
        self.local_nodes.insert(name, Arc::new(node));
        changed
    }

    /// A node was deleted.
    pub(crate) fn remove_node(&mut self, name: &str) -> Changed {
        self.snapshot.remove_node(name);
        let was_virtual = self.virtual_nodes.remove(name).is_some();
        let was_local = self.local_nodes.remove(name).is_some();
        let nodes = if was_virtual { vec![name.into()] } else { Vec::new() };
        Changed { nodes, local: was_local, ..Changed::default() }
    }

    /// The names of all nodes.
    pub(crate) fn node_names(&self) -> Vec<Arc<str>> {
        self.virtual_nodes.keys().chain(self.local_nodes.keys()).cloned().collect()
    }

    /// A node, if it exists.
    pub(crate) fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.virtual_nodes.get(name).or_else(|| self.local_nodes.get(name))
    }

    /// A node that can be asked, if it exists.
    pub(crate) fn virtual_node(&self, name: &str) -> Option<&Arc<Node>> {
        self.virtual_nodes.get(name)
    }

    /// A pod was added or changed.
    pub(crate) fn apply_pod(&mut self, now: Duration, pod: &Arc<Pod>) -> Changed {
        let Some(uid) = pod.metadata.uid.as_deref() else { return Changed::default() };
        self.pods.insert(Uid::from(uid), true);
        let is_over = is_terminal(pod) || pod.metadata.deletion_timestamp.is_some();
        let is_open = pod_state::gating(pod) == Gating::Open;
        let trial = pod_state::unbound_trial_node(pod);
        let was_on_trial = self.assumed.get(uid).is_some_and(|assumed| assumed.is_on_trial);
        // The watch shows what became of the assumption.
        let assumed = match trial {
            Some(node) => {
                let on_trial = AssumedPod { pod: Arc::clone(pod), node: node.into(), is_on_trial: true };
                self.assumed.insert(uid.into(), on_trial)
            }
            None if is_over || is_open || was_on_trial => self.assumed.remove(uid),
            None => None,
        };
        let expected = self.assumed.get(uid).map(|assumed| Arc::clone(&assumed.node));
        let nominated = pod_state::nominated_node(pod).filter(|_| is_open && !is_over);
        let node = pod_state::node(pod).or(expected.as_deref()).or(nominated);
        let changed = match node {
            Some(node) => self.snapshot.apply_pod(&bound(pod, node)),
            None => self.snapshot.remove_pod(uid),
        };
        self.hold(now, uid, pod);
        match (assumed, node) {
            (Some(assumed), node) if node != Some(&*assumed.node) => self.changed_on(&assumed.node),
            (_, Some(node)) if changed && is_terminal(pod) => self.changed_on(node),
            (None, Some(node)) if changed && expected.is_none() => {
                let used = self.virtual_nodes.get_key_value(node).map(|(name, _)| Arc::clone(name));
                Changed { used, ..Changed::default() }
            }
            _ => Changed::default(),
        }
    }

    /// A pod was deleted.
    pub(crate) fn remove_pod(&mut self, pod: &Pod) -> Changed {
        let Some(uid) = pod.metadata.uid.as_deref() else { return Changed::default() };
        self.pods.remove(&Uid::from(uid));
        let assumed = self.assumed.remove(uid).map(|assumed| assumed.node);
        self.held.release(uid);
        let changed = self.snapshot.remove_pod(uid);
        let node = pod_state::node(pod).or(assumed.as_deref()).or_else(|| pod_state::nominated_node(pod));
        match node {
            Some(node) if changed => self.changed_on(node),
            _ => Changed::default(),
        }
    }

    /// A full list of the pods begins.
    pub(crate) fn pods_restarted(&mut self) {
        self.pods.values_mut().for_each(|listed| *listed = false);
    }

    /// A full list of the pods is complete: what it did not have is gone. Returns whether anything is.
    pub(crate) fn pods_listed(&mut self) -> bool {
        let gone: Vec<Uid> =
            self.pods.iter().filter(|(_, listed)| !**listed).map(|(uid, _)| uid.clone()).collect();
        for uid in &gone {
            self.pods.remove(uid);
            self.snapshot.remove(uid);
        }
        let pods = &self.pods;
        self.assumed.retain(|uid, _| pods.contains_key(&Uid::from(&**uid)));
        self.held.retain(|uid| pods.contains_key(&Uid::from(uid)));
        !gone.is_empty()
    }

    /// Whether a pod exists.
    pub(crate) fn has_pod(&self, uid: &str) -> bool {
        self.pods.contains_key(&Uid::from(uid))
    }

    /// Counts a pod on a node from now on, although it is not bound yet.
    pub(crate) fn assume(&mut self, pod: &Arc<Pod>, node: &Arc<str>) {
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        self.snapshot.apply_pod(&bound(pod, node));
        let assumed = AssumedPod { pod: Arc::clone(pod), node: Arc::clone(node), is_on_trial: false };
        self.assumed.insert(uid.into(), assumed);
        self.held.hold(Arc::clone(node), uid, pod);
    }

    /// The pod does not go to the node on which it was assumed.
    pub(crate) fn forget(&mut self, uid: &str) -> Changed {
        let Some(AssumedPod { pod, node, .. }) = self.assumed.remove(uid) else { return Changed::default() };
        self.held.release(uid);
        self.snapshot.apply_pod(&pod);
        self.changed_on(&node)
    }

    /// The pods that a node may not have seen yet.
    pub(crate) fn held(&self, node: &str) -> Vec<Arc<Pod>> {
        self.held.on(node)
    }

    /// Whether a query about a node can name so many more pods.
    pub(crate) fn can_hold(&self, node: &str, pods: usize) -> bool {
        self.held.has_space(node, pods)
    }

    /// Forgets the held pods whose nodes have seen them by now.
    pub(crate) fn expire_held(&mut self, now: Duration) {
        self.held.expire(now);
    }

    /// What the upper cluster says about a pod, or about several that go to one node together, on each node that can be asked, or on
    /// `only` this one.
    pub(crate) fn upper_verdicts(&self, pods: &[Arc<Pod>], only: Option<&str>) -> Vec<UpperVerdict> {
        let pods: Vec<Arc<Pod>> = pods.iter().map(without_machine_terms).collect();
        let verdict = |(name, node): (&Arc<str>, &Arc<Node>)| {
            let mut is_certain = true;
            let verdict = self.upper_verdict(name, node, &pods, &mut is_certain);
            UpperVerdict { node: Arc::clone(name), verdict, is_certain }
        };
        let nodes = self.virtual_nodes.iter().filter(|(name, _)| only.is_none_or(|only| *only == ***name));
        nodes.map(verdict).collect()
    }

    /// Whether the upper cluster would let the pod go to a node, and if so, whether that is certain.
    pub(crate) fn takes(&self, pod: &Arc<Pod>, node: &str) -> Option<bool> {
        let Some(object) = self.virtual_nodes.get(node) else {
            return match self.snapshot.fit_on(node, std::slice::from_ref(pod)).pop()? {
                Verdict::Fits { .. } => Some(true),
                Verdict::Unknown { .. } => Some(false),
                Verdict::Refused { .. } => None,
            };
        };
        let mut is_certain = true;
        self.upper_verdict(node, object, std::slice::from_ref(pod), &mut is_certain).ok()?;
        Some(is_certain)
    }

    fn upper_verdict(
        &self,
        name: &str,
        node: &Node,
        pods: &[Arc<Pod>],
        is_certain: &mut bool,
    ) -> Result<UpperFit, String> {
        if name == LOCAL {
            return Err(format!("the name {LOCAL} means the cluster's own machines: rename the node"));
        }
        if let Some(obstacle) = pods.iter().find_map(|pod| Candidate::obstacle_of(node, pod)) {
            return Err(obstacle);
        }
        let mut verdicts = self.snapshot.fit_on(name, pods);
        if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Unknown { .. })) {
            // kube-scheduler decides about the rest, but no more pods fit than the node has resources for.
            *is_certain = false;
            let pods: Vec<_> = pods.iter().map(|pod| Arc::new(query_pod::resources_only(pod))).collect();
            verdicts = self.snapshot.fit_on(name, &pods);
        }
        // Each verdict counts the pods before it.
        let mut fit = UpperFit { room: u32::MAX, fullness: 100 };
        for (number, verdict) in verdicts.into_iter().enumerate() {
            match verdict {
                Verdict::Fits { room, fullness } => fit = UpperFit { room, fullness },
                Verdict::Unknown { .. } => {}
                Verdict::Refused { why, .. } => {
                    let why = why.iter().map(plain).collect::<Vec<_>>().join(", ");
                    let is_alone = pods.len() == 1;
                    return Err(if is_alone {
                        why
                    } else {
                        format!("room for {number} of {} pods; {why}", pods.len())
                    });
                }
            }
        }
        Ok(fit)
    }

    /// What is known about the nodes that cannot be asked; `None` if there are none.
    pub(crate) fn local_verdict(&self, pod: &Arc<Pod>) -> Option<LocalVerdict> {
        if self.local_nodes.is_empty() {
            return None;
        }
        if let Some(why) = pod_state::too_large(pod) {
            return Some(LocalVerdict { verdict: Verdict::refused(why, true), best: None });
        }
        let nodes = |labels: LabelLookup<'_>| labels(POOL_KEY).is_none();
        let query = Query { pods: &[Arc::clone(pod)], nodes: Some(&nodes), ..Query::default() };
        let verdict = self.snapshot.fit(&query).pop()?;
        let best = match verdict {
            Verdict::Refused { .. } => None,
            _ => self.best_local_nodes(pod, 1).pop().map(|node| node.name.into()),
        };
        Some(LocalVerdict { verdict, best })
    }

    /// The nodes that cannot be asked and come closest to taking a pod, best first, with what is free on them.
    pub(crate) fn best_local_nodes(&self, pod: &Arc<Pod>, count: usize) -> Vec<LowerNode> {
        let nodes = |labels: LabelLookup<'_>| labels(POOL_KEY).is_none();
        let query = Query { pods: &[Arc::clone(pod)], nodes: Some(&nodes), ..Query::default() };
        self.snapshot.best_nodes(&query, pod, count)
    }

    /// How many nodes cannot be asked.
    pub(crate) fn local_nodes(&self) -> usize {
        self.local_nodes.len()
    }

    /// Computes all usage anew. Returns the number of differences that were repaired: each is a bug.
    pub(crate) fn repair(&mut self) -> usize {
        self.snapshot.repair()
    }

    fn changed_on(&self, node: &str) -> Changed {
        if self.virtual_nodes.contains_key(node) {
            Changed { nodes: vec![node.into()], ..Changed::default() }
        } else {
            Changed { local: true, ..Changed::default() }
        }
    }

    /// Updates the held pods with a pod that was seen.
    fn hold(&mut self, now: Duration, uid: &str, pod: &Arc<Pod>) {
        if let Some(node) = pod_state::unbound_trial_node(pod) {
            // When the node says something about the pod, it has taken notice of it.
            return match pod_state::lower_verdict(pod) {
                LowerVerdict::Unknown => self.held.hold(node.into(), uid, pod),
                _ => self.held.release(uid),
            };
        }
        if self.assumed.contains_key(uid) {
            return;
        }
        let bound_to = pod_state::node(pod).filter(|_| pod_state::may_be_unseen_by_node(pod));
        let nominated = || pod_state::nominated_node(pod).filter(|_| pod_state::is_ungated_by_us(pod));
        match bound_to.or_else(nominated).filter(|_| !is_terminal(pod)) {
            Some(node) => self.held.hold_for_some_time(now, node, uid, pod),
            None => self.held.release(uid),
        }
    }
}

/// The pod as if it were bound.
fn bound(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    remove_machine_terms(&mut pod);
    pod
}

/// A cause about a single node, for which the number of nodes says nothing.
fn plain(cause: &Cause) -> String {
    cause.text.clone()
}

/// Whether conversion has left a pod as it was written, so that it may go to a node that is a machine.
pub(crate) fn may_be_local(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.iter().flatten();
    let moved = [names::LOWER_NODES, names::LOWER, names::LOWER_SPREAD, names::CLUSTER_SELECTOR];
    let was_moved = annotations.into_iter().any(|(key, _)| moved.contains(&key.as_str()));
    let terms = pod.spec.iter().filter_map(|spec| {
        let affinity = spec.affinity.as_ref()?.pod_anti_affinity.as_ref()?;
        affinity.required_during_scheduling_ignored_during_execution.as_ref()
    });
    !was_moved && !terms.flatten().any(|term| term.topology_key == names::MACHINE)
}
