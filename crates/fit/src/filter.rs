//! The filters of kube-scheduler, for one pod and all nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, Taint};
use vk_provider::{
    ability::Cause,
    node_selector::{self, LabelLookup},
    requests::ResourceList,
    taint::tolerates,
};

use crate::{
    node_info::{LabelCache, NodeInfo, NodeSets, NodeState, Usage},
    pod_info::{Requirements, Shape},
    resource::{CPU, MEMORY, PODS, QueryNames, Resource, ResourceId, ResourceNames},
    volume::VolumeInfo,
};

/// The taint of a cordoned node. Pods that tolerate it may run there.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The unit of [`Available::fullness`].
pub(crate) const MILLION: u32 = 1_000_000;

/// The nodes that a query is about, by their labels.
pub(crate) type Eligible<'a> = Option<&'a (dyn Fn(LabelLookup<'_>) -> bool + 'a)>;

/// Checks nodes for one pod. Whatever depends only on labels or taints is checked once for each set of them.
pub(crate) struct Filter<'a> {
    sets: &'a NodeSets,
    requirements: &'a Requirements,
    volumes: Vec<&'a VolumeInfo>,
    eligible: Eligible<'a>,
    tolerates_unschedulable: bool,
    is_eligible: LabelCache,
    is_selected: LabelCache,
    has_volumes: LabelCache,
    /// Whether the answers for labels also depend on the name of the node.
    selects_by_name: bool,
    volumes_by_name: bool,
    /// By set of taints: whether all are tolerated.
    tolerated: Vec<Option<bool>>,
}

/// A node that can take the pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Available {
    /// How many pods like it the node can take.
    pub(crate) room: u64,
    /// How full the node is with the pod: the share of its scarcest resource, in millionths.
    pub(crate) fullness: u32,
}

/// Why a node cannot take the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NotReady,
    Cordoned,
    /// With the set of taints.
    Taint(u32),
    Affinity,
    Volume,
    Port,
    /// With the first resource that is not sufficient, and whether the node would be too small without any pods.
    Resource(ResourceId, bool),
}

/// The number of nodes by cause.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    not_ready: u32,
    cordoned: u32,
    taints: BTreeMap<u32, u32>,
    affinity: u32,
    volume: u32,
    port: u32,
    resources: BTreeMap<ResourceId, u32>,
    /// Whether the pod would fit on one of these nodes if other pods were gone.
    pub(crate) may_pass: bool,
}

// === impl Filter ===

impl<'a> Filter<'a> {
    pub(crate) fn new(
        sets: &'a NodeSets,
        requirements: &'a Requirements,
        volumes: Vec<&'a VolumeInfo>,
        eligible: Eligible<'a>,
    ) -> Self {
        let cordon =
            Taint { key: UNSCHEDULABLE.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        Self {
            tolerates_unschedulable: requirements.tolerations.iter().any(|one| tolerates(one, &cordon)),
            is_eligible: LabelCache::new(sets),
            is_selected: LabelCache::new(sets),
            has_volumes: LabelCache::new(sets),
            selects_by_name: requirements.node_affinity.as_ref().is_some_and(has_match_fields),
            volumes_by_name: volumes.iter().any(|volume| volume.names_nodes()),
            tolerated: vec![None; sets.taints.bound()],
            sets,
            requirements,
            volumes,
            eligible,
        }
    }

    /// Whether a node can take the pod; `None` if the query is not about this node.
    pub(crate) fn check(&mut self, node: &NodeInfo, usage: &Usage) -> Option<Result<Available, Failure>> {
        let state = node.state.as_ref()?;
        if let Some(eligible) = self.eligible
            && !state.check_labels(self.sets, &mut self.is_eligible, eligible)
        {
            return None;
        }
        Some(self.check_eligible(&node.name, state, usage))
    }

    fn check_eligible(&mut self, name: &str, state: &NodeState, usage: &Usage) -> Result<Available, Failure> {
        if !state.ready {
            return Err(Failure::NotReady);
        }
        if state.unschedulable && !self.tolerates_unschedulable {
            return Err(Failure::Cordoned);
        }
        if !self.tolerates(state.taints) {
            return Err(Failure::Taint(state.taints));
        }
        if !self.selects(name, state) {
            return Err(Failure::Affinity);
        }
        if !self.volumes.is_empty() && !self.can_use_volumes(name, state) {
            return Err(Failure::Volume);
        }
        available(&self.requirements.shape, state, usage)
    }

    fn tolerates(&mut self, taints: u32) -> bool {
        let (sets, tolerations) = (self.sets, &self.requirements.tolerations);
        *self.tolerated[taints as usize]
            .get_or_insert_with(|| untolerated(sets, taints, tolerations).is_none())
    }

    fn selects(&mut self, name: &str, state: &NodeState) -> bool {
        let Requirements { node_selector, node_affinity, .. } = self.requirements;
        if node_selector.is_empty() && node_affinity.is_none() {
            return true;
        }
        let check = |labels: LabelLookup<'_>| {
            node_selector::selects(Some(node_selector), node_affinity.as_ref(), labels, name)
        };
        if self.selects_by_name {
            return check(&|key: &str| state.label(self.sets, key));
        }
        state.check_labels(self.sets, &mut self.is_selected, check)
    }

    fn can_use_volumes(&mut self, name: &str, state: &NodeState) -> bool {
        let volumes = &self.volumes;
        let check = |labels: LabelLookup<'_>| volumes.iter().all(|volume| volume.is_usable_on(labels, name));
        if self.volumes_by_name {
            return check(&|key: &str| state.label(self.sets, key));
        }
        state.check_labels(self.sets, &mut self.has_volumes, check)
    }
}

/// Checks what other pods leave of a node: host ports and resources.
pub(crate) fn available(shape: &Shape, state: &NodeState, usage: &Usage) -> Result<Available, Failure> {
    if shape.ports.iter().any(|port| usage.has_port(port)) {
        return Err(Failure::Port);
    }
    let (mut room, mut fullness, mut insufficient) = (u64::MAX, 0, None);
    for (id, requested) in shape.requests.amounts() {
        let (allocatable, used) = (state.allocatable.get(id), usage.requested.get(id));
        let free = free(allocatable, used);
        if requested > free {
            let (_, too_small) = insufficient.get_or_insert((id, false));
            *too_small |= requested > allocatable;
            if *too_small {
                // Nothing changes that any more. A pod may request thousands of resources.
                break;
            }
            continue;
        }
        room = room.min(u64::try_from(free / requested).unwrap_or(0));
        fullness = fullness.max(share(allocatable - free + requested, allocatable));
    }
    if let Some((id, too_small)) = insufficient {
        return Err(Failure::Resource(id, too_small));
    }
    for id in [CPU, MEMORY] {
        let allocatable = state.allocatable.get(id);
        fullness = fullness.max(share(allocatable - free(allocatable, usage.requested.get(id)), allocatable));
    }
    if !shape.ports.is_empty() {
        room = 1;
    }
    Ok(Available { room, fullness })
}

/// Whether a node affinity selects nodes by name.
pub(crate) fn has_match_fields(selector: &NodeSelector) -> bool {
    let terms = &selector.node_selector_terms;
    terms.iter().any(|term| term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty()))
}

fn untolerated<'a>(
    sets: &'a NodeSets,
    taints: u32,
    tolerations: &[k8s_openapi::api::core::v1::Toleration],
) -> Option<&'a str> {
    sets.taints.get(taints).untolerated(|taint| tolerations.iter().any(|one| tolerates(one, taint)))
}

/// What is left of a resource.
pub(crate) fn free(allocatable: i64, used: i128) -> i64 {
    i64::try_from((i128::from(allocatable) - used).max(0)).unwrap_or(allocatable)
}

/// What is left of all resources of a node.
pub(crate) fn free_resources(allocatable: &Resource, usage: &Usage, names: &ResourceNames) -> ResourceList {
    let left = |(id, amount)| names.to_amount(id, free(amount, usage.requested.get(id)));
    allocatable.amounts().map(left).collect()
}

/// The largest part of a request for which a node has no room, in millionths.
pub(crate) fn lacking(shape: &Shape, state: &NodeState, usage: &Usage) -> u32 {
    let part = |(id, requested): (_, i64)| {
        let free = free(state.allocatable.get(id), usage.requested.get(id));
        share((requested - free).max(0), requested)
    };
    shape.requests.amounts().map(part).max().unwrap_or(0)
}

/// `used / of` in millionths, at most 1.
fn share(used: i64, of: i64) -> u32 {
    if of <= 0 || used >= of {
        return if used > 0 { MILLION } else { 0 };
    }
    // The product has to fit into 63 bits; the shift loses nothing that would be seen.
    let shift = (64 - of.leading_zeros()).saturating_sub(43);
    let millionths = (used.max(0) >> shift) * i64::from(MILLION) / (of >> shift);
    u32::try_from(millionths).unwrap_or(MILLION)
}

// === impl Failures ===

impl Failures {
    pub(crate) fn count(&mut self, failure: Failure) {
        match failure {
            Failure::NotReady => self.not_ready += 1,
            Failure::Cordoned => self.cordoned += 1,
            Failure::Taint(taints) => *self.taints.entry(taints).or_default() += 1,
            Failure::Affinity => self.affinity += 1,
            Failure::Volume => self.volume += 1,
            Failure::Port => {
                self.may_pass = true;
                self.port += 1;
            }
            Failure::Resource(id, too_small) => {
                self.may_pass |= !too_small;
                *self.resources.entry(id).or_default() += 1;
            }
        }
    }

    /// The causes, the one with the most nodes first.
    pub(crate) fn causes(
        &self,
        sets: &NodeSets,
        requirements: &Requirements,
        names: &QueryNames<'_>,
    ) -> Vec<Cause> {
        let mut nodes: BTreeMap<String, u32> = BTreeMap::new();
        let fixed = [
            (self.not_ready, "not ready"),
            (self.cordoned, "cordoned"),
            (self.affinity, "node affinity or selector"),
            (self.volume, "volume node affinity"),
            (self.port, "host port in use"),
        ];
        for (count, text) in fixed {
            nodes.insert(text.to_owned(), count);
        }
        for (taints, count) in &self.taints {
            let key = untolerated(sets, *taints, &requirements.tolerations).unwrap_or_default();
            *nodes.entry(format!("taint {key}")).or_default() += count;
        }
        for (id, count) in &self.resources {
            let text = match *id {
                PODS => "too many pods".to_owned(),
                id => format!("insufficient {}", names.name(id)),
            };
            *nodes.entry(text).or_default() += count;
        }
        let mut causes: Vec<Cause> = nodes
            .into_iter()
            .filter(|(_, nodes)| *nodes > 0)
            .map(|(text, nodes)| Cause { text, nodes })
            .collect();
        causes.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.text.cmp(&b.text)));
        causes
    }
}

#[cfg(test)]
mod tests;
