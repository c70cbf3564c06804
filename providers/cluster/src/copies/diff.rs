//! An upper object's copy: what it shall be, what there is, and what lies between.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Kind;
use crate::names;

/// Where a copy is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyKey {
    /// Of which kind it is.
    pub kind: Kind,
    /// The lower namespace.
    pub namespace: String,
    /// Its name, which is that of the upper object.
    pub name: String,
}

/// The upper object of a copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpperRef {
    /// The upper namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a copy shall be.
#[derive(Clone, PartialEq, Eq)]
pub struct DesiredCopy {
    /// The whole object as JSON, as it is created.
    pub body: String,
    /// Labels that it has, at least.
    pub labels: BTreeMap<String, String>,
    /// Annotations that it has, at least.
    pub annotations: BTreeMap<String, String>,
    /// The sum of what it contains.
    pub content: String,
    /// What of it can never change; empty if there is no such thing.
    pub fixed: String,
}

/// A lower object as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct ObservedCopy {
    /// Its UID.
    pub uid: String,
    /// Its version. Of two, the larger is the later one.
    pub version: u64,
    /// The upper object that it says it is a copy of, if it is of our upper cluster.
    pub source: Option<UpperRef>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The sum of what it contains.
    pub content: String,
    /// What of it can never change.
    pub fixed: String,
    /// Nothing that it contains changes any more.
    pub immutable: bool,
    /// It is on its way out.
    pub deleting: bool,
}

/// What lies between a copy and what it shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Nothing.
    None,
    /// What can be changed.
    Change,
    /// What cannot: another object has to take its key.
    Replace,
}

/// Which labels and annotations were written from above, so that those of others are notified from what is gone above.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct AppliedKeys {
    labels: BTreeSet<String>,
    annotations: BTreeSet<String>,
}

/// What an annotation of a copy remembers of what is written on it.
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
    /// What lies between this and what it shall be.
    pub fn against(&self, desired: &DesiredCopy) -> Difference {
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

    /// The JSON patch from this to what it shall be. It is refused as a conflict if the object is another one by now, or in another
    /// version.
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
                    // What a claim does not say was decided below.
                    None if kind == Kind::Claim => {}
                    value => patch.push(json!({"op": "add", "path": path, "value": value})),
                }
            }
        }
        Value::Array(patch)
    }
}

/// A key as a part of a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl std::fmt::Display for CopyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Without what it contains: that can be a secret.
impl std::fmt::Debug for DesiredCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DesiredCopy").field("content", &self.content).finish_non_exhaustive()
    }
}

/// Without its annotations: somebody may have applied_keys a secret.
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
