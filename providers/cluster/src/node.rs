//! One node made of many.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, Toleration};
use vk_provider::{Quantity, requests::Amounts};

use crate::names::Owner;

/// Which lower nodes a virtual node stands for, and how much of them it offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
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
pub struct Sum {
    /// What there is.
    pub capacity: Amounts,
    /// What of it is not taken by pods of others.
    pub allocatable: Amounts,
    /// Labels on which the nodes agree.
    pub labels: BTreeMap<String, String>,
    /// How many nodes there are.
    pub nodes: usize,
    /// The most that is free on one of them, of each resource.
    pub largest_free: Amounts,
    /// What most of them run on.
    pub operating_system: Option<String>,
    /// What most of them are built of.
    pub architecture: Option<String>,
}
