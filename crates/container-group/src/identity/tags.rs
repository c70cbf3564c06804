//! The tags that say whose group it is.

use std::collections::BTreeMap;

use vk_provider::PodRef;

use crate::backend::{Owner, TagLimits};

/// What the keys of our tags begin with.
pub const RESERVED_PREFIX: &str = "vk-";

const CLUSTER: &str = "vk-cluster";
const NODE: &str = "vk-node";
const NAMESPACE: &str = "vk-namespace";
const NAME: &str = "vk-name";
const UID: &str = "vk-uid";
const ATTEMPT: &str = "vk-attempt";
const SPEC: &str = "vk-spec";
const LAYOUT: &str = "vk-layout";

/// The version of this layout.
const LAYOUT_VERSION: &str = "1";
/// The longest name of a node or pod, in characters.
const LONGEST_NAME: usize = 253;

/// The tags of a group of this owner. A value that is too long for one tag continues in `KEY-2`, `KEY-3`.
pub(super) fn write_tags(owner: &Owner, limits: &TagLimits) -> Vec<(String, String)> {
    let attempt = owner.attempt.to_string();
    let values = [
        (CLUSTER, &*owner.cluster),
        (NODE, &*owner.node),
        (NAMESPACE, &*owner.pod.namespace),
        (NAME, &*owner.pod.name),
        (UID, &*owner.pod.uid),
        (ATTEMPT, &attempt),
        (SPEC, owner.spec_hash.as_deref().unwrap_or_default()),
        (LAYOUT, LAYOUT_VERSION),
    ];
    let mut tags = Vec::new();
    for (key, value) in values {
        let letters: Vec<char> = value.chars().collect();
        for (at, part) in letters.chunks(limits.value.max(1)).enumerate() {
            let key = if at == 0 { key.to_owned() } else { format!("{key}-{}", at + 1) };
            tags.push((key, part.iter().collect()));
        }
    }
    tags
}

/// The tags that the groups of a node have, or those of all nodes of a cluster: for clouds that list groups by their tags. Long values are
/// cut, so that groups of others may be among them.
pub fn scope_tags(cluster: &str, node: Option<&str>, limits: &TagLimits) -> Vec<(&'static str, String)> {
    let cut = |value: &str| value.chars().take(limits.value).collect();
    let node = node.map(|node| (NODE, cut(node)));
    [(CLUSTER, cut(cluster))].into_iter().chain(node).collect()
}

/// The largest number of tags that an owner can have.
pub(super) fn most_tags(limits: &TagLimits) -> usize {
    let long = LONGEST_NAME.div_ceil(limits.value.max(1));
    // Cluster, namespace, UID, attempt, hash and layout are short; the names of node and pod may not be.
    6 + 2 * long
}

/// The owner in the tags of a group; `None` if it is not ours, or was written by a version whose layout is not known.
pub fn read_tags<'a>(tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Owner> {
    let tags: BTreeMap<&str, &str> = tags.into_iter().collect();
    let value = |key: &str| {
        let mut value = (*tags.get(key)?).to_owned();
        let more = (2..).map_while(|part: u32| tags.get(&*format!("{key}-{part}")));
        value.extend(more.copied());
        Some(value)
    };
    if value(LAYOUT)? != LAYOUT_VERSION {
        return None;
    }
    Some(Owner {
        cluster: value(CLUSTER)?.into(),
        node: value(NODE)?.into(),
        pod: PodRef::new(value(NAMESPACE)?, value(NAME)?, value(UID)?),
        attempt: value(ATTEMPT)?.parse().ok().filter(|attempt| *attempt > 0)?,
        spec_hash: value(SPEC).filter(|hash| !hash.is_empty()),
    })
}
