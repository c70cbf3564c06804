//! Groups of pods: they go to one node together, or not at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;

use crate::{choose::LOCAL, cluster_state::ClusterState, held_pods::MAX_HELD, names, pod_state};

/// Pods of one group: as many as a query can name.
const MAX_SIZE: usize = MAX_HELD;
/// Sizes that a message names.
const NAMED: usize = 5;
/// The length of what a message repeats of an annotation.
const VALUE_CHARS: usize = 40;

/// The groups, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct PodGroups {
    groups: BTreeMap<Arc<str>, PodGroup>,
    /// The group of each pod that has a node.
    placed: BTreeMap<Arc<str>, Arc<str>>,
    /// The pods that have succeeded by group, with their controllers. They need no node any more.
    succeeded: BTreeMap<String, BTreeMap<Arc<str>, Option<String>>>,
    /// Groups of which something has changed.
    changed: BTreeSet<Arc<str>>,
}

/// The pods of a group.
#[derive(Debug, Default)]
pub(super) struct PodGroup {
    /// Those that wait, or are on their way to a node.
    pub(super) tracked: BTreeSet<Arc<str>>,
    /// The nodes of those that have one, or will have one because their gate was removed for it.
    placed: BTreeMap<Arc<str>, Arc<str>>,
    /// How many pods there were, and since when.
    seen: (usize, Duration),
}

/// Where the pods of a group are that have a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GroupPlace {
    /// None has one.
    None,
    /// On this node, or on machines of the upper cluster ([`LOCAL`]).
    On(Arc<str>),
    /// On several nodes.
    Split(Vec<Arc<str>>),
}

// === impl PodGroups ===

impl PodGroups {
    pub(super) fn get(&self, key: &str) -> Option<&PodGroup> {
        self.groups.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut PodGroup> {
        self.groups.get_mut(key)
    }

    /// Something has changed that may let the group go on.
    pub(super) fn touch(&mut self, key: &Arc<str>) {
        self.changed.insert(Arc::clone(key));
    }

    /// The groups of which something has changed.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// A pod of the group waits, or is on its way to a node. Returns the key of the group.
    pub(super) fn track(&mut self, key: &str, uid: &Arc<str>) -> Arc<str> {
        let known = self.groups.get_key_value(key).map(|(key, _)| Arc::clone(key));
        let key = known.unwrap_or_else(|| key.into());
        self.groups.entry(Arc::clone(&key)).or_default().tracked.insert(Arc::clone(uid));
        self.touch(&key);
        key
    }

    /// A pod of the group does not wait any more.
    pub(super) fn untrack(&mut self, key: &Arc<str>, uid: &str) {
        if let Some(group) = self.groups.get_mut(key) {
            group.tracked.remove(uid);
            self.touch(key);
            self.remove_if_empty(key);
        }
    }

    /// A pod was seen: it may have a node.
    pub(super) fn observe(&mut self, uid: &Arc<str>, pod: &Pod) {
        let place = pod_state::placed_node(pod);
        match place.and_then(|node| Some((pod_state::group(pod)?, node))) {
            Some((key, node)) => self.place(&key, uid, node),
            None => self.unplace(uid),
        }
    }

    /// A pod of the group has this node from now on.
    pub(super) fn place(&mut self, key: &str, uid: &Arc<str>, node: &str) {
        let known = self.groups.get(key).and_then(|group| group.placed.get(uid));
        if known.is_some_and(|known| **known == *node) {
            return;
        }
        self.unplace(uid);
        let known = self.groups.get_key_value(key).map(|(key, _)| Arc::clone(key));
        let key = known.unwrap_or_else(|| key.into());
        self.groups.entry(Arc::clone(&key)).or_default().placed.insert(Arc::clone(uid), node.into());
        self.placed.insert(Arc::clone(uid), Arc::clone(&key));
        self.touch(&key);
    }

    /// A pod is gone, or leaves its node.
    pub(super) fn unplace(&mut self, uid: &str) {
        let Some(key) = self.placed.remove(uid) else { return };
        if let Some(group) = self.groups.get_mut(&key) {
            group.placed.remove(uid);
        }
        self.touch(&key);
        self.remove_if_empty(&key);
    }

    /// A pod has succeeded.
    pub(super) fn succeed(&mut self, pod: &Pod) {
        let (Some(key), Some(uid)) = (pod_state::group(pod), pod.metadata.uid.as_deref()) else { return };
        let controller = pod_state::controller(pod).map(|owner| owner.uid.clone());
        if let Some((key, _)) = self.groups.get_key_value(&*key) {
            self.changed.insert(Arc::clone(key));
        }
        self.succeeded.entry(key).or_default().insert(uid.into(), controller);
    }

    /// Pods that had succeeded do not exist any more.
    pub(super) fn forget_succeeded(&mut self, is_gone: impl Fn(&str) -> bool) {
        self.succeeded.retain(|_, pods| {
            pods.retain(|uid, _| !is_gone(uid));
            !pods.is_empty()
        });
    }

    /// How many pods of a group have succeeded. Those of other controllers belong to an earlier run of it.
    pub(super) fn succeeded(&self, key: &str, controllers: &BTreeSet<Option<&str>>) -> usize {
        let pods = self.succeeded.get(key).into_iter().flat_map(BTreeMap::values);
        pods.filter(|controller| controllers.contains(&controller.as_deref())).count()
    }

    /// The pods that have a node.
    pub(super) fn placed(&self) -> Vec<Arc<str>> {
        self.placed.keys().cloned().collect()
    }

    fn remove_if_empty(&mut self, key: &str) {
        if self.groups.get(key).is_some_and(|group| group.tracked.is_empty() && group.placed.is_empty()) {
            self.groups.remove(key);
        }
    }
}

// === impl PodGroup ===

impl PodGroup {
    /// How many pods have a node.
    pub(super) fn placed(&self) -> usize {
        self.placed.len()
    }

    /// Where the pods are that have a node.
    pub(super) fn place(&self, cluster: &ClusterState) -> GroupPlace {
        let is_local = |node: &str| cluster.node(node).is_some() && cluster.virtual_node(node).is_none();
        let place = |node: &Arc<str>| if is_local(node) { LOCAL.into() } else { Arc::clone(node) };
        let mut places: BTreeSet<Arc<str>> = self.placed.values().map(place).collect();
        match places.len() {
            0 | 1 => places.pop_first().map_or(GroupPlace::None, GroupPlace::On),
            _ => GroupPlace::Split(places.into_iter().collect()),
        }
    }

    /// Since when there are so many pods.
    pub(super) fn since(&mut self, now: Duration, pods: usize) -> Duration {
        if self.seen.0 != pods {
            self.seen = (pods, now);
        }
        self.seen.1
    }
}

/// The name of a group, for messages.
pub(super) fn name_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

/// How many pods a group has, as its pods say, or what is wrong with that and what to do.
pub(super) fn size<'a>(key: &str, pods: impl Iterator<Item = &'a Pod>) -> Result<usize, String> {
    let (group, annotation) = (name_of(key), names::GROUP_SIZE);
    if group.is_empty() {
        return Err(format!(
            "the label {} is missing or empty: set it to the name of the group, or remove the annotation {annotation}",
            names::GROUP
        ));
    }
    let mut sizes = BTreeSet::new();
    for pod in pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let expected = format!("set it to the number of pods in the group, from 1 to {MAX_SIZE}");
        let Some(text) = pod_state::group_size(pod) else {
            return Err(format!("pod {name} of group {group} has no annotation {annotation}: {expected}"));
        };
        let Some(size) = text.parse().ok().filter(|size| (1..=MAX_SIZE).contains(size)) else {
            let text: String = text.chars().take(VALUE_CHARS).collect();
            return Err(format!(
                "pod {name} of group {group} has the annotation {annotation}: {text:?}: {expected}"
            ));
        };
        sizes.insert(size);
    }
    match sizes.pop_first() {
        Some(size) if sizes.is_empty() => Ok(size),
        first => {
            let all = first.into_iter().chain(sizes).take(NAMED).map(|size| size.to_string());
            let all = all.collect::<Vec<_>>().join(", ");
            Err(format!(
                "pods of group {group} do not agree on the annotation {annotation} ({all}): give all of them the same"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, size: Option<&str>) -> Pod {
        let annotations = size.map(|size| json!({names::GROUP_SIZE: size}));
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    #[test]
    fn the_size_of_a_group_is_what_all_its_pods_say() {
        let size = |sizes: &[Option<&str>]| {
            let pods: Vec<_> =
                (0..).zip(sizes).map(|(index, size)| pod(&format!("p{index}"), *size)).collect();
            super::size("team/train", pods.iter())
        };
        assert_eq!(size(&[Some("3"), Some("3")]), Ok(3));
        assert_eq!((size(&[Some("1")]), size(&[Some("500")])), (Ok(1), Ok(500)));
        let expected = "set it to the number of pods in the group, from 1 to 500";
        for bad in ["0", "-1", "501", "three", "", "3.0"] {
            let said = size(&[Some("3"), Some(bad)]).unwrap_err();
            assert_eq!(
                said,
                format!(
                    "pod p1 of group train has the annotation {}: {bad:?}: {expected}",
                    names::GROUP_SIZE
                )
            );
        }
        let missing = size(&[None]).unwrap_err();
        assert_eq!(
            missing,
            format!("pod p0 of group train has no annotation {}: {expected}", names::GROUP_SIZE)
        );
        let differ = size(&[Some("4"), Some("3")]).unwrap_err();
        assert!(differ.contains("do not agree") && differ.contains("(3, 4)"), "{differ}");
        let nameless = super::size("team/", [pod("p", Some("3"))].iter()).unwrap_err();
        assert!(nameless.contains("set it to the name of the group"), "{nameless}");
    }

    #[test]
    fn a_group_without_pods_leaves_nothing() {
        let mut groups = PodGroups::default();
        let (uid, other): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let key = groups.track("team/train", &uid);
        groups.place(&key, &uid, "vk");
        groups.place(&key, &other, "vk");
        groups.untrack(&key, &uid);
        assert_eq!(groups.get(&key).map(PodGroup::placed), Some(2));
        groups.unplace(&uid);
        groups.unplace(&other);
        assert!(groups.get(&key).is_none() && groups.placed().is_empty());
        assert_eq!(groups.take_changed(), BTreeSet::from([key]));
    }
}
