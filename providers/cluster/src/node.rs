//! Aggregates the lower nodes into one virtual node.
//!
//! Everything is computed from the current state, never from differences, so that a missed event cannot cause a lasting error. Pods of the
//! virtual node itself are not subtracted, because the upper scheduler does that. tensile-kube subtracted them twice after every restart.

mod quantities;
mod template;

use std::{
    cmp::{self, Reverse},
    collections::BTreeMap,
};

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use vk_fit::NodeUsage;
use vk_provider::{
    Quantity,
    node_selector::LabelLookup,
    requests::{self, ResourceList},
    taint::tolerates,
};

use crate::names::label;

pub(crate) use self::template::NO_ELIGIBLE_NODES;
use self::template::PROVIDER;
pub use self::template::{NODES_AVAILABLE, describe};

/// The resource that counts pods.
const PODS: &str = "pods";
/// Resources that are always reported, also when they are 0. A node without them would look uninitialised.
const ALWAYS_REPORTED: [&str; 3] = ["cpu", "memory", PODS];
/// The number of attachable volumes is a limit of one machine. A sum would promise more than any machine can do.
const ATTACHABLE: &str = "attachable-volumes-";
const HUGE_PAGES: &str = "hugepages-";
/// The providers of virtual-kubelet whose nodes are real machines.
const MACHINE_PROVIDERS: [&str; 2] = ["local", "cri"];
const OS: &str = "kubernetes.io/os";
const OS_OLD: &str = "beta.kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
const ARCH_OLD: &str = "beta.kubernetes.io/arch";

/// Labels that the virtual node takes from its lower nodes. Other labels attract pods that are meant for real nodes (Admiralty 114).
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
    /// Whether lower nodes that are virtual themselves count.
    pub virtual_nodes: bool,
    /// The percentage of the lower resources that is offered.
    pub percent: u8,
    /// The maximum that is offered.
    pub cap: BTreeMap<String, Quantity>,
    /// The tolerations of lower pods.
    pub tolerations: Vec<Toleration>,
}

/// The resources of a virtual node, aggregated from its lower nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VirtualResources {
    /// The total.
    pub capacity: ResourceList,
    /// The total minus the requests of other pods.
    pub allocatable: ResourceList,
    /// Labels that all nodes share.
    pub labels: BTreeMap<String, String>,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of nodes that do not count, by reason.
    pub excluded: BTreeMap<Exclusion, usize>,
    /// The nodes cannot be read, so the configured resources are offered.
    pub unseen: bool,
    /// For each resource, the largest free amount on a single node.
    pub largest_free: ResourceList,
    /// The most common operating system.
    pub operating_system: Option<String>,
    /// The most common architecture.
    pub architecture: Option<String>,
}

/// Why a lower node does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// The selector of the virtual node does not match it.
    Selector,
    /// It is virtual itself.
    Virtual,
    /// It is cordoned.
    Cordoned,
    /// It is not Ready.
    NotReady,
    /// It has a taint that pods do not tolerate.
    Taint,
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

impl NodeShare {
    /// Whether the virtual node stands for lower nodes with these labels.
    pub(crate) fn includes(&self, labels: LabelLookup<'_>) -> bool {
        self.selects(labels) && (self.virtual_nodes || !is_virtual(labels))
    }

    fn selects(&self, labels: LabelLookup<'_>) -> bool {
        self.selector.iter().all(|(key, value)| labels(key) == Some(value.as_str()))
    }
}

// === impl VirtualResources ===

impl VirtualResources {
    /// The configured resources, for lower nodes that cannot be read.
    pub(crate) fn configured(cap: &ResourceList) -> Self {
        let mut all: ResourceList =
            ALWAYS_REPORTED.iter().map(|name| ((*name).to_owned(), Quantity::units(0))).collect();
        all.extend(cap.iter().map(|(name, amount)| (name.clone(), *amount)));
        Self {
            capacity: all.clone(),
            allocatable: all.clone(),
            largest_free: all,
            unseen: true,
            ..Self::default()
        }
    }

    /// How many nodes were left out and why, for people; `None` if all count.
    pub fn exclusions(&self) -> Option<String> {
        let one = |(exclusion, count): (&Exclusion, &usize)| match exclusion {
            Exclusion::Selector => format!("{count} not matched by `nodeSelector`"),
            Exclusion::Virtual => format!("{count} virtual (`virtualNodes: true` includes them)"),
            Exclusion::Cordoned => format!("{count} cordoned"),
            Exclusion::NotReady => format!("{count} not Ready"),
            Exclusion::Taint => format!("{count} with a taint that pods do not tolerate (see `tolerations`)"),
        };
        let all: Vec<String> = self.excluded.iter().map(one).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Why no lower node counts; `None` if one does, or if they cannot be read.
    pub fn why_no_nodes(&self) -> Option<String> {
        (self.nodes == 0 && !self.unseen).then(|| match self.exclusions() {
            Some(exclusions) => format!("no lower node can take pods; left out: {exclusions}"),
            None => "the lower cluster has no nodes".to_owned(),
        })
    }

    /// Whether no pod fits anywhere, whatever it requests.
    pub fn offers_nothing(&self) -> bool {
        let has = |name: &str| self.allocatable.get(name).is_some_and(|amount| *amount > Quantity::units(0));
        (self.nodes == 0 && !self.unseen) || !has(PODS) || !(has("cpu") || has("memory"))
    }
}

/// Aggregates the eligible nodes. The result does not depend on the order of the inputs, and no amount is negative.
pub fn aggregate<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    usage: &BTreeMap<&str, NodeUsage>,
    share: &NodeShare,
) -> VirtualResources {
    let mut excluded = BTreeMap::new();
    let mut members: Vec<&Node> = Vec::new();
    for node in nodes {
        match exclusion(node, share) {
            None => members.push(node),
            Some(exclusion) => *excluded.entry(exclusion).or_default() += 1,
        }
    }
    let mut total: ResourceList =
        ALWAYS_REPORTED.iter().map(|name| ((*name).to_owned(), Quantity::units(0))).collect();
    let (mut free, mut foreign, nothing) = (Vec::new(), ResourceList::new(), Quantity::units(0));
    for node in &members {
        let mut left = allocatable_of(node);
        requests::add(&mut total, &left);
        if let Some(usage) = usage.get(node.metadata.name.as_deref().unwrap_or_default()) {
            requests::add(&mut foreign, &usage.others);
            for (name, amount) in usage.own.iter().chain(&usage.others) {
                if let Some(left) = left.get_mut(name) {
                    *left = cmp::max(*left - *amount, nothing);
                }
            }
        }
        free.push(left);
    }
    keep_single_huge_page_size(&mut total);
    let (mut capacity, mut allocatable) = (ResourceList::new(), ResourceList::new());
    for (name, amount) in &total {
        let part = quantities::percent(name, *amount, share.percent);
        let taken = foreign.get(name).copied().unwrap_or(nothing);
        let cap = |amount: Quantity| {
            let amount = share.cap.get(name).map_or(amount, |cap| cmp::min(*cap, amount));
            quantities::round_down(name, cmp::max(amount, nothing))
        };
        capacity.insert(name.clone(), cap(part));
        allocatable.insert(name.clone(), cap(part - taken));
    }
    let mut largest_free = ResourceList::new();
    for (name, left) in free.into_iter().flatten().filter(|(name, _)| total.contains_key(name)) {
        let left = quantities::round_down(&name, left);
        let most = largest_free.entry(name).or_insert(left);
        *most = cmp::max(*most, left);
    }
    VirtualResources {
        capacity,
        allocatable,
        labels: shared_labels(&members),
        nodes: members.len(),
        excluded,
        unseen: false,
        largest_free,
        operating_system: most_common(&members, |node| system_info(node, OS)),
        architecture: most_common(&members, |node| system_info(node, ARCH)),
    }
}

/// Why a lower node cannot run pods of the virtual node; `None` if it can.
pub fn exclusion(node: &Node, share: &NodeShare) -> Option<Exclusion> {
    let labels = |key: &str| label(&node.metadata, key);
    if !share.selects(&labels) {
        Some(Exclusion::Selector)
    } else if !share.virtual_nodes && is_virtual(&labels) {
        Some(Exclusion::Virtual)
    } else if is_cordoned(node) {
        Some(Exclusion::Cordoned)
    } else if !is_ready(node) {
        Some(Exclusion::NotReady)
    } else {
        untolerated(node, &share.tolerations).map(|_| Exclusion::Taint)
    }
}

/// Whether there is no machine behind a node with these labels.
fn is_virtual(labels: LabelLookup<'_>) -> bool {
    labels("type") == Some("virtual-kubelet")
        && labels(PROVIDER).is_none_or(|provider| !MACHINE_PROVIDERS.contains(&provider))
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// The first hard taint that is not tolerated. `PreferNoSchedule` does not count.
fn untolerated<'a>(node: &'a Node, tolerations: &[Toleration]) -> Option<&'a Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut hard = taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// What a node offers to pods: its allocatable resources without those that cannot be aggregated.
fn allocatable_of(node: &Node) -> ResourceList {
    let mut all = requests::amounts(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
    all.retain(|name, amount| !name.starts_with(ATTACHABLE) && !amount.is_negative());
    all
}

/// Drops huge pages of several sizes: some API servers reject a node that has more than one size.
fn keep_single_huge_page_size(total: &mut ResourceList) {
    let is_some =
        |name: &str, amount: &Quantity| name.starts_with(HUGE_PAGES) && *amount > Quantity::units(0);
    let sizes = total.iter().filter(|(name, amount)| is_some(name, amount)).count();
    total.retain(|name, amount| !name.starts_with(HUGE_PAGES) || (sizes == 1 && is_some(name, amount)));
}

/// The labels that all nodes have with the same value.
fn shared_labels(members: &[&Node]) -> BTreeMap<String, String> {
    let Some((first, others)) = members.split_first() else { return BTreeMap::new() };
    let shared = |key: &&str| {
        let value = label(&first.metadata, key).filter(|value| is_label_value(value))?;
        let agree = others.iter().all(|other| label(&other.metadata, key) == Some(value));
        agree.then(|| ((*key).to_owned(), value.to_owned()))
    };
    SHARED_LABELS.iter().filter_map(shared).collect()
}

/// Validates values from another cluster: the upper API server would reject the whole node for one bad label.
pub(crate) fn is_label_value(value: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && ends(value.chars().next())
        && ends(value.chars().next_back())
        && value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// What a node reports about its system, or else its label.
fn system_info<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let said = info.map(|info| if key == OS { &info.operating_system } else { &info.architecture });
    said.map(String::as_str).or_else(|| label(&node.metadata, key)).filter(|value| !value.is_empty())
}

/// The most common value, or the first of several in alphabetical order.
fn most_common<'a>(
    members: &[&'a Node],
    system_info: impl Fn(&'a Node) -> Option<&'a str>,
) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in members.iter().filter_map(|node| system_info(node)) {
        *counts.entry(value).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(value, count)| (*count, Reverse(*value)))?;
    Some(most.0.to_owned())
}

#[cfg(test)]
mod tests;
