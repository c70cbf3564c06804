//! The changes of a conversion, and the patch that makes them.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation,
    jsonptr::{PointerBuf, Token},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};
use vk_provider::label_selector::Requirement;

use super::Conversion;
use crate::names;

/// What changes in a pod.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// For lower nodes.
    requirements: BTreeSet<String>,
    /// Topology keys of spread constraints that are hard in the lower cluster.
    spreads: BTreeSet<String>,
    annotations: BTreeMap<&'static str, String>,
    not_converted: Vec<&'static str>,
    /// In the spec.
    operations: Vec<PatchOperation>,
}

/// A JSON pointer.
pub(super) fn pointer<'a>(tokens: impl IntoIterator<Item: Into<Token<'a>>>) -> PointerBuf {
    PointerBuf::from_tokens(tokens)
}

// === impl Changes ===

impl Changes {
    /// Requires something of lower nodes.
    pub(super) fn require(&mut self, requirement: &Requirement) {
        self.requirements.insert(requirement.to_string());
    }

    /// Makes a spread constraint hard in the lower cluster.
    pub(super) fn spread(&mut self, entry: String) {
        self.spreads.insert(entry);
    }

    pub(super) fn annotate(&mut self, key: &'static str, value: String) {
        self.annotations.insert(key, value);
    }

    /// Reports that something stays as it is.
    pub(super) fn keep(&mut self, reason: &'static str) {
        self.not_converted.push(reason);
    }

    pub(super) fn replace(&mut self, path: PointerBuf, value: impl Serialize) {
        self.operations.push(PatchOperation::Replace(ReplaceOperation { path, value: json!(value) }));
    }

    pub(super) fn remove(&mut self, path: PointerBuf) {
        self.operations.push(PatchOperation::Remove(RemoveOperation { path }));
    }

    /// Appends elements to a list of the spec, which is created if necessary.
    pub(super) fn append<T: Serialize>(&mut self, list: &str, exists: bool, elements: &[T]) {
        if !exists && !elements.is_empty() {
            self.operations.push(add(pointer(["spec", list]), json!([])));
        }
        for element in elements {
            self.operations.push(add(pointer(["spec", list, "-"]), json!(element)));
        }
    }

    /// The conversion of a pod with this metadata.
    pub(super) fn into_conversion(mut self, pod: &ObjectMeta) -> Conversion {
        let before = |key: &str| pod.annotations.as_ref()?.get(key).map(String::as_str);
        let nodes = before(names::LOWER_NODES).unwrap_or_default();
        let present = requirements_of(nodes);
        let missing = self.requirements.iter().map(String::as_str).filter(|one| !present.contains(one));
        let nodes = joined(nodes, missing);
        self.annotations.insert(names::LOWER_NODES, nodes);

        let spreads = before(names::LOWER_SPREAD).unwrap_or_default();
        let present: Vec<&str> = spreads.split(',').map(str::trim).collect();
        let missing = self.spreads.iter().map(String::as_str).filter(|one| !present.contains(one));
        let spreads = joined(spreads, missing);
        self.annotations.insert(names::LOWER_SPREAD, spreads);
        self.annotations.insert(names::NOT_CONVERTED, self.not_converted.join("; "));

        let changed: Vec<_> = self
            .annotations
            .into_iter()
            .filter(|(key, value)| !value.is_empty() && before(key) != Some(value.as_str()))
            .collect();
        let mut operations = Vec::new();
        let path = ["metadata", "annotations"];
        if pod.annotations.is_none() && !changed.is_empty() {
            operations.push(add(pointer(path), json!({})));
        }
        for (key, value) in changed {
            let path = path.into_iter().chain([key]);
            operations.push(add(pointer(path), json!(value)));
        }
        operations.append(&mut self.operations);
        Conversion { patch: Patch(operations), not_converted: self.not_converted }
    }
}

fn add(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path, value })
}

/// Appends to a list that is separated by commas. What is there is not touched, because it is its author's.
fn joined<'a>(before: &'a str, more: impl Iterator<Item = &'a str>) -> String {
    let before = (!before.is_empty()).then_some(before);
    before.into_iter().chain(more).collect::<Vec<_>>().join(",")
}

/// Splits a selector at its commas, except those in parentheses. The policy does it by the regular expression `[^,(]+(\([^)]*\))?`, also for
/// text that is not a selector.
fn requirements_of(selector: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = selector.trim_start_matches([',', '(']);
    while !rest.is_empty() {
        let mut end = rest.find([',', '(']).unwrap_or(rest.len());
        if rest[end..].starts_with('(')
            && let Some(closed) = rest[end..].find(')')
        {
            end += closed + 1;
        }
        found.push(rest[..end].trim());
        rest = rest[end..].trim_start_matches([',', '(']);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_split_into_its_requirements() {
        for (text, expected) in [
            ("", &[][..]),
            ("disk=ssd", &["disk=ssd"]),
            ("disk=ssd,gpu in (a,b),!old", &["disk=ssd", "gpu in (a,b)", "!old"]),
            (" a , b in (c) ", &["a", "b in (c)", ""]),
            ("a in (b,c", &["a in", "b", "c"]),
        ] {
            assert_eq!(requirements_of(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_there_is_kept_as_it_is() {
        assert_eq!(joined("", ["a", "b"].into_iter()), "a,b");
        assert_eq!(joined("z , y", ["a"].into_iter()), "z , y,a");
        assert_eq!(joined("z", [].into_iter()), "z");
    }
}
