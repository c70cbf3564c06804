//! The objects that our lower pods refer to.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;

use super::ObjectKey;
use crate::{
    copies::{Kind, diff::CopyKey, referenced_objects},
    dependencies::dependencies,
    status::has_ended,
};

/// Counts the pods that refer to each object. Pods that have ended do not count.
#[derive(Debug, Default)]
pub(super) struct References {
    by_pod: HashMap<ObjectKey, Vec<CopyKey>>,
    users: HashMap<CopyKey, usize>,
}

// === impl References ===

impl References {
    /// Records what a whole pod refers to: the mirror keeps only a part of it.
    pub(super) fn set(&mut self, key: &ObjectKey, pod: &Pod) {
        self.remove(key);
        if has_ended(pod) {
            return;
        }
        let referenced = dependencies(pod);
        let copy_key =
            |(kind, name): (Kind, &str)| CopyKey { kind, namespace: key.0.clone(), name: name.to_owned() };
        let keys: Vec<CopyKey> = referenced_objects(&referenced).map(copy_key).collect();
        for key in &keys {
            *self.users.entry(key.clone()).or_default() += 1;
        }
        if !keys.is_empty() {
            self.by_pod.insert(key.clone(), keys);
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        for key in self.by_pod.remove(key).unwrap_or_default() {
            if let Some(users) = self.users.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&key);
                }
            }
        }
    }

    pub(super) fn contains(&self, key: &CopyKey) -> bool {
        self.users.contains_key(key)
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

    #[test]
    fn an_object_is_referenced_as_long_as_a_pod_that_has_not_ended_refers_to_it() {
        let mut references = References::default();
        references.set(&key("a"), &pod("m", "Running"));
        references.set(&key("b"), &pod("m", "Pending"));
        references.set(&key("b"), &pod("m", "Running"));
        assert!(references.contains(&map("m")) && !references.contains(&map("n")));
        references.remove(&key("a"));
        assert!(references.contains(&map("m")), "b still does");
        references.set(&key("b"), &pod("m", "Succeeded"));
        assert!(!references.contains(&map("m")));
        references.remove(&key("b"));
        assert!(references.by_pod.is_empty() && references.users.is_empty());
    }
}
