//! The tags of the Go provider for ECI, so that its groups can be adopted or shown.

use std::collections::BTreeMap;

use vk_provider::PodRef;

use crate::backend::Owner;

/// The tags that the groups of the Go provider for ECI have: those of a node, or of all nodes of a cluster.
pub fn eci_scope_tags<'a>(cluster: &'a str, node: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    [("ClusterName", cluster)].into_iter().chain(node.map(|node| ("NodeName", node))).collect()
}

/// The owner in the tags of a group that the Go provider for ECI created; `None` if the tags are not complete.
///
/// That provider names its groups `<namespace>-<name>`: only the UID in the tags says which pod it was.
pub fn read_eci_tags<'a>(tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Owner> {
    let tags: BTreeMap<&str, &str> = tags.into_iter().collect();
    let value = |key: &str| tags.get(key).copied().filter(|value| !value.is_empty());
    Some(Owner {
        cluster: value("ClusterName")?.into(),
        node: value("NodeName")?.into(),
        pod: PodRef::new(value("NameSpace")?, value("PodName")?, value("UID")?),
        attempt: 1,
        spec_hash: None,
    })
}
