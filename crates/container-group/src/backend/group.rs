//! Groups, their owners, and the account that they are in.

use std::{fmt, sync::Arc};

use vk_provider::{PodRef, Quantity};

/// A group in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupRef {
    /// The cloud's id. The same as the name with [`Naming::Chosen`](super::Naming::Chosen).
    pub id: Arc<str>,
    /// The name that the engine gave it.
    pub name: Arc<str>,
}

/// Whose group it is: what the engine writes into a group when it creates it, and reads back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cluster.
    pub cluster: Arc<str>,
    /// The virtual node.
    pub node: Arc<str>,
    /// The pod.
    pub pod: PodRef,
    /// The attempt for this pod, from 1: another request for the same pod is another attempt.
    pub attempt: u32,
    /// The hash of the pod's spec, if the group has one.
    pub spec_hash: Option<String>,
}

/// Which groups [`GroupBackend::observe`](super::GroupBackend::observe) returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The groups of this cluster.
    pub cluster: Arc<str>,
    /// Of this virtual node; `None` for all nodes of the cluster.
    pub node: Option<Arc<str>>,
    /// With this name; `None` for all. A backend that cannot filter by name returns more.
    pub name: Option<Arc<str>>,
}

/// What became of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The cloud has accepted it; the group goes on for some time.
    Accepted,
    /// The group is gone.
    Gone,
}

/// The result of [`GroupBackend::probe`](super::GroupBackend::probe).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Usage and limits of the account, by resource name as on a node (`cpu`, `memory`, `pods`, ...).
    pub quota: Vec<Usage>,
}

/// Usage of one resource of the account.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// The resource, as on a node.
    pub resource: String,
    /// How much is used, by everyone in the account.
    pub used: Quantity,
    /// How much can be used; `None` without a limit.
    pub limit: Option<Quantity>,
}

// === impl GroupRef ===

impl GroupRef {
    /// A group by id and name.
    pub fn new(id: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), name: name.into() }
    }
}

impl fmt::Display for GroupRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if self.id == self.name { Ok(()) } else { write!(f, " ({})", self.name) }
    }
}

// === impl Scope ===

impl Scope {
    /// The groups of one node.
    pub fn of_node(cluster: impl Into<Arc<str>>, node: impl Into<Arc<str>>) -> Self {
        Self { cluster: cluster.into(), node: Some(node.into()), name: None }
    }

    /// The groups in this scope with a name.
    #[must_use]
    pub fn named(&self, name: impl Into<Arc<str>>) -> Self {
        Self { name: Some(name.into()), ..self.clone() }
    }

    /// Whether a group of this owner is in the scope, its name aside.
    pub fn contains(&self, owner: &Owner) -> bool {
        owner.cluster == self.cluster && self.node.as_ref().is_none_or(|node| *node == owner.node)
    }
}
