//! Snapshots of a cluster, to verify that nothing of others was changed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use vk_testing::{ControlPlane, kubectl};

use super::cluster_pair::ORIGIN;

/// Kinds that change without intervention.
const VOLATILE: [&str; 5] =
    ["events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes", "componentstatuses"];

/// All objects except for volatile ones, by kind, namespace and name.
#[derive(Debug)]
pub(super) struct ClusterSnapshot(BTreeMap<String, Value>);

impl ClusterSnapshot {
    /// Reads all namespaces, or one.
    pub(super) async fn of(cluster: &ControlPlane, namespace: Option<&str>) -> Self {
        let mut words = vec!["api-resources", "--verbs=list", "--output=name"];
        if namespace.is_some() {
            words.push("--namespaced=true");
        }
        let kinds = said(cluster, &words).await;
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !VOLATILE.contains(kind)).collect();
        let kinds = kinds.join(",");
        let mut words = vec!["get", kinds.as_str(), "--output=json"];
        match namespace {
            Some(namespace) => words.extend(["--namespace", namespace]),
            None => words.push("--all-namespaces"),
        }
        let list: Value = serde_json::from_str(&said(cluster, &words).await).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        Self(items.map(|item| (key(item), settled(item))).collect())
    }

    /// The objects that no virtual node created.
    fn foreign(&self) -> BTreeMap<&str, &Value> {
        let ours = |object: &Value| object["metadata"]["labels"].get(ORIGIN).is_some();
        self.0
            .iter()
            .filter(|(_, object)| !ours(object))
            .map(|(key, object)| (key.as_str(), object))
            .collect()
    }

    /// Asserts that no foreign object was changed or deleted, and that nothing was added except for the defaults of new namespaces.
    #[track_caller]
    pub(super) fn assert_same_for_others(&self, later: &Self) {
        let (before, after) = (self.foreign(), later.foreign());
        let mut wrong = Vec::new();
        for (key, object) in &before {
            match after.get(key) {
                None => wrong.push(format!("{key} is gone")),
                Some(now) if now != object => wrong.push(format!("{key} was\n{object}\nand is\n{now}")),
                Some(_) => {}
            }
        }
        let furnishing = |key: &str| {
            key.starts_with("ConfigMap/") && key.ends_with("/kube-root-ca.crt")
                || key.starts_with("ServiceAccount/") && key.ends_with("/default")
        };
        for key in after.keys().filter(|key| !before.contains_key(*key) && !furnishing(key)) {
            wrong.push(format!("{key} has come, and says nothing of where it comes from"));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The pods, by name and UID.
    pub(super) fn pods(&self) -> BTreeSet<(String, String)> {
        let pods = self.0.iter().filter(|(key, _)| key.starts_with("Pod/"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        pods.map(|(key, pod)| (key.clone(), text(&pod["metadata"]["uid"]))).collect()
    }
}

async fn said(cluster: &ControlPlane, words: &[&str]) -> String {
    let output = kubectl(cluster, words).await.unwrap();
    assert!(output.success(), "kubectl {words:?}: {output:?}");
    output.stdout
}

fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let metadata = &object["metadata"];
    format!("{}/{}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
}

/// Removes what kubelets and controllers write.
fn settled(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(all) = object.as_object_mut() {
        all.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        // Also changes with the status.
        metadata.remove("resourceVersion");
    }
    object
}
