//! One node made of many.
//!
//! Everything is reckoned from what is there now, never from what changed: nothing that was missed can be wrong for ever. Pods of this
//! virtual node are not taken off, because the upper scheduler does that itself; tensile-kube took them off as well after every restart.

mod quantities;
mod template;

use std::{
    cmp::{self, Reverse},
    collections::BTreeMap,
};

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use vk_provider::{
    Quantity,
    requests::{self, ResourceList},
    taint::tolerates,
};

use crate::names::{Owner, label};

pub use self::template::{NODES_AVAILABLE, describe};

/// The resource of which every pod takes one.
const PODS: &str = "pods";
/// Told also when there is nothing of them: a node without them would look as if nobody had looked.
const ALWAYS: [&str; 3] = ["cpu", "memory", PODS];
/// How many volumes can be attached is of one machine, and the sum of it would be a promise that no machine can keep.
const ATTACHABLE: &str = "attachable-volumes-";
const HUGE_PAGES: &str = "hugepages-";
const OS: &str = "kubernetes.io/os";
const OS_OLD: &str = "beta.kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
const ARCH_OLD: &str = "beta.kubernetes.io/arch";

/// Labels that a virtual node has from its lower ones. Others attract what is meant for real nodes (Admiralty 114).
const SHARED_LABELS: [&str; 10] = [
    OS,
    OS_OLD,
    ARCH,
    ARCH_OLD,
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

/// Which lower nodes a virtual node stands for, and how much of them it offers.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeShare {
    /// The labels that lower nodes must have.
    pub selector: BTreeMap<String, String>,
    /// Whether nodes count that are virtual themselves.
    pub virtual_nodes: bool,
    /// How much of the nodes is offered, in percent.
    pub percent: u8,
    /// The most that is offered.
    pub cap: BTreeMap<String, Quantity>,
    /// What lower pods tolerate of the nodes.
    pub tolerations: Vec<Toleration>,
}

/// What a virtual node has of its lower nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VirtualResources {
    /// What there is.
    pub capacity: ResourceList,
    /// What of it is not taken by pods of others.
    pub allocatable: ResourceList,
    /// Labels on which the nodes agree.
    pub labels: BTreeMap<String, String>,
    /// How many nodes there are.
    pub nodes: usize,
    /// The nodes cannot be seen: what is offered is what is configured.
    pub unseen: bool,
    /// The most that is free on one of them, of each resource.
    pub largest_free: ResourceList,
    /// What most of them run on.
    pub operating_system: Option<String>,
    /// What most of them are built of.
    pub architecture: Option<String>,
}

/// What a lower pod takes, and of whom: all that has to be remembered of pods of others.
#[derive(Clone, Debug, PartialEq)]
pub struct PodRequests {
    /// The lower node that it is bound to.
    pub node: Option<String>,
    /// What it requests.
    pub requests: ResourceList,
    /// Whether it is of this virtual node. Pods of other virtual nodes of the same upper cluster are not.
    pub ours: bool,
    /// Whether it has ended, and takes nothing any more.
    pub terminal: bool,
}

// === impl NodeShare ===

impl Default for NodeShare {
    /// All of every node that is not virtual.
    fn default() -> Self {
        Self {
            selector: BTreeMap::new(),
            virtual_nodes: false,
            percent: 100,
            cap: BTreeMap::new(),
            tolerations: Vec::new(),
        }
    }
}

// === impl VirtualResources ===

impl VirtualResources {
    /// What is configured, where the lower nodes cannot be seen.
    pub(crate) fn configured(cap: &ResourceList) -> Self {
        let mut all: ResourceList =
            ALWAYS.iter().map(|name| ((*name).to_owned(), Quantity::units(0))).collect();
        all.extend(cap.iter().map(|(name, amount)| (name.clone(), *amount)));
        Self {
            capacity: all.clone(),
            allocatable: all.clone(),
            largest_free: all,
            unseen: true,
            ..Self::default()
        }
    }

    /// Whether no pod can be put anywhere, whatever it requests.
    pub fn offers_nothing(&self) -> bool {
        let has = |name: &str| self.allocatable.get(name).is_some_and(|amount| *amount > Quantity::units(0));
        (self.nodes == 0 && !self.unseen) || !has(PODS) || !(has("cpu") || has("memory"))
    }
}

// === impl PodRequests ===

impl PodRequests {
    /// What a lower pod claims.
    pub fn of(pod: &Pod, owner: &Owner) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            node: node.filter(|name| !name.is_empty()).map(str::to_owned),
            requests: requests::requests(pod),
            ours: owner.owns(&pod.metadata),
            terminal: matches!(phase, Some("Succeeded" | "Failed")),
        }
    }
}

/// Makes one node of the eligible ones among many. Neither order matters, and no amount is ever less than nothing.
pub fn aggregate<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    pods: impl IntoIterator<Item = &'a PodRequests>,
    share: &NodeShare,
) -> VirtualResources {
    let members: Vec<&Node> = nodes.into_iter().filter(|node| is_eligible(node, share)).collect();
    let mut total: ResourceList =
        ALWAYS.iter().map(|name| ((*name).to_owned(), Quantity::units(0))).collect();
    let mut free: BTreeMap<&str, ResourceList> = BTreeMap::new();
    for node in &members {
        let has = offered(node);
        requests::add(&mut total, &has);
        free.insert(node.metadata.name.as_deref().unwrap_or_default(), has);
    }
    one_huge_page(&mut total);
    let foreign = place(pods, &mut free);
    let nothing = Quantity::units(0);
    let (mut capacity, mut allocatable) = (ResourceList::new(), ResourceList::new());
    for (name, amount) in &total {
        let part = quantities::percent(name, *amount, share.percent);
        let taken = foreign.get(name).copied().unwrap_or(nothing);
        let cap = |amount: Quantity| {
            let amount = share.cap.get(name).map_or(amount, |cap| cmp::min(*cap, amount));
            quantities::whole(name, cmp::max(amount, nothing))
        };
        capacity.insert(name.clone(), cap(part));
        allocatable.insert(name.clone(), cap(part - taken));
    }
    let mut largest_free = ResourceList::new();
    for (name, left) in free.into_values().flatten().filter(|(name, _)| total.contains_key(name)) {
        let left = quantities::whole(&name, left);
        let most = largest_free.entry(name).or_insert(left);
        *most = cmp::max(*most, left);
    }
    VirtualResources {
        capacity,
        allocatable,
        labels: agreed(&members),
        nodes: members.len(),
        unseen: false,
        largest_free,
        operating_system: most_common(&members, |node| fact(node, OS)),
        architecture: most_common(&members, |node| fact(node, ARCH)),
    }
}

/// Whether a lower node can take pods of the virtual node: it is selected, Ready and not cordoned, it is a real one unless virtual ones are
/// wanted, and the pods tolerate its taints.
pub fn is_eligible(node: &Node, share: &NodeShare) -> bool {
    let selected =
        || share.selector.iter().all(|(key, value)| label(&node.metadata, key) == Some(value.as_str()));
    let is_virtual = || label(&node.metadata, "type") == Some("virtual-kubelet");
    is_ready(node)
        && !is_cordoned(node)
        && selected()
        && (share.virtual_nodes || !is_virtual())
        && untolerated(node, &share.tolerations).is_none()
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// A taint that keeps pods away. One that only discourages does not.
fn untolerated<'a>(node: &'a Node, tolerations: &[Toleration]) -> Option<&'a Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut hard = taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// What a node has for pods: what it keeps for itself was never on offer, so this is not its capacity.
fn offered(node: &Node) -> ResourceList {
    let mut all = requests::amounts(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
    all.retain(|name, amount| !name.starts_with(ATTACHABLE) && !amount.is_negative());
    all
}

/// Takes what pods have off what is free on their nodes, and tells what pods of others have together.
fn place<'a>(
    pods: impl IntoIterator<Item = &'a PodRequests>,
    free: &mut BTreeMap<&str, ResourceList>,
) -> ResourceList {
    let nothing = Quantity::units(0);
    let mut foreign = ResourceList::new();
    for claim in pods.into_iter().filter(|claim| !claim.terminal) {
        let Some(free) = claim.node.as_deref().and_then(|node| free.get_mut(node)) else { continue };
        let requests = claim.requests.iter().map(|(name, amount)| (name.as_str(), *amount));
        let requests = requests.filter(|(name, amount)| *name != PODS && !amount.is_negative());
        for (name, amount) in requests.chain([(PODS, Quantity::units(1))]) {
            if let Some(left) = free.get_mut(name) {
                *left = cmp::max(*left - amount, nothing);
            }
            if claim.ours {
                continue;
            }
            match foreign.get_mut(name) {
                Some(taken) => *taken = *taken + amount,
                None => drop(foreign.insert(name.to_owned(), amount)),
            }
        }
    }
    foreign
}

/// Pages of several sizes are not offered: an upper cluster may not take a node that has them, and then there is no node at all.
fn one_huge_page(total: &mut ResourceList) {
    let is_some =
        |name: &str, amount: &Quantity| name.starts_with(HUGE_PAGES) && *amount > Quantity::units(0);
    let sizes = total.iter().filter(|(name, amount)| is_some(name, amount)).count();
    total.retain(|name, amount| !name.starts_with(HUGE_PAGES) || (sizes == 1 && is_some(name, amount)));
}

/// The labels that all nodes have with the same value.
fn agreed(members: &[&Node]) -> BTreeMap<String, String> {
    let Some((first, others)) = members.split_first() else { return BTreeMap::new() };
    let shared = |key: &&str| {
        let value = label(&first.metadata, key).filter(|value| is_label_value(value))?;
        let agree = others.iter().all(|other| label(&other.metadata, key) == Some(value));
        agree.then(|| ((*key).to_owned(), value.to_owned()))
    };
    SHARED_LABELS.iter().filter_map(shared).collect()
}

/// What comes from another cluster is looked at: the upper API server would refuse the whole node for one bad label.
pub(crate) fn is_label_value(value: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && ends(value.chars().next())
        && ends(value.chars().next_back())
        && value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// What a node says of its system, or its label where it says nothing.
fn fact<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let said = info.map(|info| if key == OS { &info.operating_system } else { &info.architecture });
    said.map(String::as_str).or_else(|| label(&node.metadata, key)).filter(|value| !value.is_empty())
}

/// What most nodes have; of those that as many have, the first by name.
fn most_common<'a>(members: &[&'a Node], fact: impl Fn(&'a Node) -> Option<&'a str>) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in members.iter().filter_map(|node| fact(node)) {
        *counts.entry(value).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(value, count)| (*count, Reverse(*value)))?;
    Some(most.0.to_owned())
}

#[cfg(test)]
mod tests;
