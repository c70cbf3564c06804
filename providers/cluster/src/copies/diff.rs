//! Desired and observed copies, and the patch between them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Kind;
use crate::names;

/// Identifies a copy in the lower cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyKey {
    /// The kind of the object.
    pub kind: Kind,
    /// The lower namespace.
    pub namespace: String,
    /// The name, which is the same as that of the upper object.
    pub name: String,
}

/// Identifies the upper object of a copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpperRef {
    /// The upper namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The desired state of a copy.
#[derive(Clone, PartialEq, Eq)]
pub struct DesiredCopy {
    /// The whole object as JSON, for creation.
    pub body: String,
    /// Labels that the copy must have.
    pub labels: BTreeMap<String, String>,
    /// Annotations that the copy must have.
    pub annotations: BTreeMap<String, String>,
    /// The hash of the mutable content.
    pub content: String,
    /// The part that can never change; empty if there is no such part.
    pub fixed: String,
}

/// The observed state of a lower object.
#[derive(Clone, PartialEq, Eq)]
pub struct ObservedCopy {
    /// The UID.
    pub uid: String,
    /// The resource version.
    pub version: u64,
    /// The upper object that it is a copy of, if it belongs to our upper cluster.
    pub source: Option<UpperRef>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
    /// The hash of the mutable content.
    pub content: String,
    /// The part that can never change.
    pub fixed: String,
    /// Whether the content is marked as immutable.
    pub immutable: bool,
    /// Whether a deletion timestamp is set.
    pub deleting: bool,
    /// The UIDs of the owner ConfigMaps.
    pub owners: Vec<String>,
}

/// The difference between an observed and a desired copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// No difference.
    None,
    /// The object can be patched.
    Change,
    /// The object has to be deleted and created again.
    Replace,
}

/// The keys of labels and annotations that were copied, so that keys deleted in the upper cluster can be told from those that others
/// added.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct AppliedKeys {
    labels: BTreeSet<String>,
    annotations: BTreeSet<String>,
}

/// The value of the annotation that records the copied keys.
pub(super) fn applied_keys(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> String {
    let keys = |all: &BTreeMap<String, String>| all.keys().cloned().collect();
    let applied_keys = AppliedKeys { labels: keys(labels), annotations: keys(annotations) };
    serde_json::to_string(&applied_keys).expect("invariant: sets of texts can be written")
}

// === impl ObservedCopy ===

impl ObservedCopy {
    /// Compares this with the desired state.
    pub fn compare(&self, desired: &DesiredCopy) -> Difference {
        let differs = self.content != desired.content;
        let fixed = |one: &str, other: &str| !one.is_empty() && !other.is_empty() && one != other;
        if fixed(&self.fixed, &desired.fixed) || (self.immutable && differs) {
            return Difference::Replace;
        }
        let has = |has: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
            wanted.iter().all(|(key, value)| has.get(key) == Some(value))
        };
        if differs || !has(&self.labels, &desired.labels) || !has(&self.annotations, &desired.annotations) {
            return Difference::Change;
        }
        Difference::None
    }

    /// The JSON patch to the desired state. It fails with a conflict if the object was replaced or changed in the meantime.
    pub fn patch(&self, kind: Kind, desired: &DesiredCopy) -> Value {
        let mut patch = vec![
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": self.version.to_string()}),
        ];
        let before: AppliedKeys = self
            .annotations
            .get(names::APPLIED)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        for (name, has, wanted, before) in [
            ("labels", &self.labels, &desired.labels, &before.labels),
            ("annotations", &self.annotations, &desired.annotations, &before.annotations),
        ] {
            let path = |key: &str| format!("/metadata/{name}/{}", escaped(key));
            for (key, value) in wanted.iter().filter(|(key, value)| has.get(*key) != Some(*value)) {
                patch.push(json!({"op": "add", "path": path(key), "value": value}));
            }
            for key in before.iter().filter(|key| has.contains_key(*key) && !wanted.contains_key(*key)) {
                patch.push(json!({"op": "remove", "path": path(key)}));
            }
        }
        if self.content != desired.content {
            let body: Value = serde_json::from_str(&desired.body).unwrap_or_default();
            for path in kind.content() {
                match body.pointer(path) {
                    // The lower cluster chose a value that the upper claim leaves open.
                    None if kind == Kind::Claim => {}
                    value => patch.push(json!({"op": "add", "path": path, "value": value})),
                }
            }
        }
        Value::Array(patch)
    }
}

/// Escapes a key for a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl std::fmt::Display for CopyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Omits the body, which may contain a secret.
impl std::fmt::Debug for DesiredCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DesiredCopy").field("content", &self.content).finish_non_exhaustive()
    }
}

/// Omits the annotations: `kubectl apply` stores whole objects there, including Secrets.
impl std::fmt::Debug for ObservedCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { uid, version, source, content, deleting, .. } = self;
        f.debug_struct("ObservedCopy")
            .field("uid", uid)
            .field("version", version)
            .field("source", source)
            .field("content", content)
            .field("deleting", deleting)
            .finish_non_exhaustive()
    }
}
