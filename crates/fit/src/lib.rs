//! Whether pods fit on a snapshot of nodes, as kube-scheduler would decide.
//!
//! A [`Snapshot`] is kept current by the events of watches: nodes, pods, and where pods use claims also claims and volumes.
//! [`Snapshot::fit`] answers a [`Query`] from it: for each pod whether a node would take it, how many like it there is room for, or why not.
//! Where it has ResourceQuotas, they count, too, as in the API server. Everything here is pure: no I/O, no clock, no tasks.
//!
//! # What is evaluated
//!
//! The filters of kube-scheduler that depend on a pod, a node and the pods on it: cordon, taints, node selector and required node affinity,
//! resources, host ports, and the node affinity and topology labels of the volumes of bound claims. In addition a node must be Ready, which
//! kube-scheduler leaves to taints. `spec.nodeName` of the pod is ignored.
//!
//! # What is unknown
//!
//! Where another rule decides, the verdict is `Unknown`, with the rule as its reason, and never a guess:
//!
//! - rules that can only take nodes away leave a refusal as it is, and turn a fit into `Unknown`: required pod affinity and anti-affinity,
//!   also of other pods that select this one; hard topology spread; unbound claims and claims for a single pod; disks without a claim;
//!   resource claims (DRA); scheduling groups;
//! - rules that can only add nodes leave a fit as it is: an autoscaling cluster, extended resources of a DeviceClass;
//! - another scheduler may decide anything.
//!
//! Pods that wait for a node count as if they were on the one that they will probably get. Where some of them need what is not modelled, or
//! there are too many different ones, and the room would do only without them, the verdict is `Unknown`, too.
//!
//! Not considered: preemption, and the attach limits of CSI drivers.
//!
//! # Size
//!
//! Made for 10,000 nodes and 200,000 pods. Of a pod on a node 32 bytes are kept: its UID, its node, and its shape (what it uses there).
//! Shapes, label sets and taint sets are stored once. A query checks labels and taints once for each set of them, and then compares a few
//! whole numbers for each node.

mod anti_affinity;
mod evaluation;
mod filter;
mod interner;
mod node_info;
mod pod_info;
mod quota;
mod resource;
mod snapshot;
#[cfg(test)]
mod testing;
mod uid;
mod volume;

pub use self::{
    evaluation::Query,
    snapshot::{NodeUsage, Settings, Size, Snapshot},
    uid::Uid,
};
