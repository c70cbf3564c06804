//! The parts of a Node that placement keeps.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use vk_provider::placement::declares_fit;

/// The label by which the snapshot tells nodes that can be asked from others: its value is the name of the node. No label of a user can
/// have this key.
pub(super) const POOL_KEY: &str = "";
/// Annotations of other people change often, and say nothing about the room on a node.
const OUR_ANNOTATIONS: &str = "virtual-kubelet.io/";

/// Removes what changes without meaning anything for placement, such as the time of the last heartbeat.
pub(crate) fn trim_node(node: &mut Node) {
    let metadata = &mut node.metadata;
    metadata.managed_fields = None;
    metadata.resource_version = None;
    metadata.generation = None;
    metadata.owner_references = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| key.contains(OUR_ANNOTATIONS));
    }
    let Some(status) = &mut node.status else { return };
    status.images = None;
    status.node_info = None;
    status.volumes_attached = None;
    status.volumes_in_use = None;
    status.capacity = None;
    for condition in status.conditions.iter_mut().flatten() {
        *condition = NodeCondition {
            type_: std::mem::take(&mut condition.type_),
            status: std::mem::take(&mut condition.status),
            ..NodeCondition::default()
        };
    }
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ == "Ready");
    }
}

/// The node with the label of its pool, if it has a pool of its own.
pub(super) fn in_pool(node: &Node) -> Cow<'_, Node> {
    if !declares_fit(node) {
        return Cow::Borrowed(node);
    }
    let mut node = node.clone();
    let name = node.metadata.name.clone().unwrap_or_default();
    node.metadata.labels.get_or_insert_with(BTreeMap::new).insert(POOL_KEY.to_owned(), name);
    Cow::Owned(node)
}
