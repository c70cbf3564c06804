//! The objects that our lower pods refer to.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::Pod;

use super::ObjectKey;
use crate::{
    copies::{Kind, diff::CopyKey, referenced_objects},
    dependencies::dependencies,
    status::has_ended,
};

/// How a pod uses an object that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectUse {
    /// It can run without the object.
    Optional,
    /// It cannot.
    Required,
}

/// The pods that refer to each object. Pods that have ended do not count.
#[derive(Debug, Default)]
pub(super) struct References {
    by_pod: HashMap<ObjectKey, Vec<CopyKey>>,
    users: HashMap<CopyKey, BTreeMap<ObjectKey, ObjectUse>>,
}

/// What a whole pod refers to; nothing if it has ended.
pub(super) fn object_uses(pod: &Pod) -> Vec<(Kind, String, ObjectUse)> {
    if has_ended(pod) {
        return Vec::new();
    }
    let all = dependencies(pod);
    let by = |kind, name: &str| {
        if all.is_optional(kind, name) { ObjectUse::Optional } else { ObjectUse::Required }
    };
    referenced_objects(&all).map(|(kind, name)| (kind, name.to_owned(), by(kind, name))).collect()
}

// === impl References ===

impl References {
    /// Records what a whole pod refers to: the mirror keeps only a part of it.
    pub(super) fn set(&mut self, pod_key: &ObjectKey, pod: &Pod) {
        self.remove(pod_key);
        let mut keys = Vec::new();
        for (kind, name, by) in object_uses(pod) {
            let key = CopyKey { kind, namespace: pod_key.0.clone(), name };
            self.users.entry(key.clone()).or_default().insert(pod_key.clone(), by);
            keys.push(key);
        }
        if !keys.is_empty() {
            self.by_pod.insert(pod_key.clone(), keys);
        }
    }

    pub(super) fn remove(&mut self, pod_key: &ObjectKey) {
        for key in self.by_pod.remove(pod_key).unwrap_or_default() {
            if let Some(users) = self.users.get_mut(&key) {
                users.remove(pod_key);
                if users.is_empty() {
                    self.users.remove(&key);
                }
            }
        }
    }

    /// Whether a pod uses an object, at least like this.
    pub(super) fn is_used(&self, key: &CopyKey, by: ObjectUse) -> bool {
        self.users.get(key).is_some_and(|users| users.values().any(|found| *found >= by))
    }

    /// The pods that refer to an object.
    pub(super) fn users(&self, key: &CopyKey) -> impl Iterator<Item = &ObjectKey> {
        self.users.get(key).into_iter().flat_map(BTreeMap::keys)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(map: &str, phase: &str) -> Pod {
        let volumes = json!([{"name": "v", "configMap": {"name": map}}]);
        serde_json::from_value(
            json!({"spec": {"containers": [], "volumes": volumes}, "status": {"phase": phase}}),
        )
        .unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ("web".to_owned(), name.to_owned())
    }

    fn map(name: &str) -> CopyKey {
        CopyKey { kind: Kind::ConfigMap, namespace: "web".to_owned(), name: name.to_owned() }
    }

    fn refers(references: &References, name: &str) -> bool {
        references.is_used(&map(name), ObjectUse::Optional)
    }

    #[test]
    fn an_object_is_referenced_as_long_as_a_pod_that_has_not_ended_refers_to_it() {
        let mut references = References::default();
        references.set(&key("a"), &pod("m", "Running"));
        references.set(&key("b"), &pod("m", "Pending"));
        references.set(&key("b"), &pod("m", "Running"));
        assert!(refers(&references, "m") && !refers(&references, "n"));
        references.remove(&key("a"));
        assert!(refers(&references, "m"), "b still does");
        references.set(&key("b"), &pod("m", "Succeeded"));
        assert!(!refers(&references, "m"));
        references.remove(&key("b"));
        assert!(references.by_pod.is_empty() && references.users.is_empty());
    }

    #[test]
    fn the_pods_that_refer_to_an_object_are_found_without_a_search() {
        let mut references = References::default();
        for name in ["a", "b", "c"] {
            references.set(&key(name), &pod(if name == "c" { "n" } else { "m" }, "Running"));
        }
        assert_eq!(references.users(&map("m")).collect::<Vec<_>>(), [&key("a"), &key("b")]);
        assert_eq!(references.users(&map("of-a-stranger")).count(), 0);
    }

    #[test]
    fn a_pod_that_can_run_without_an_object_does_not_require_it() {
        let optional = json!([{"name": "v", "configMap": {"name": "m", "optional": true}}]);
        let optional =
            serde_json::from_value(json!({"spec": {"containers": [], "volumes": optional}})).unwrap();
        let mut references = References::default();
        references.set(&key("a"), &optional);
        assert!(references.is_used(&map("m"), ObjectUse::Optional));
        assert!(!references.is_used(&map("m"), ObjectUse::Required));
        references.set(&key("b"), &pod("m", "Running"));
        assert!(references.is_used(&map("m"), ObjectUse::Required));
    }
}
