//! Converts between the engine's types and those of the interface.

mod container;
mod image;
mod runtime;
mod sandbox;
mod security;
mod usage;

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;
use vk_pod_engine::snapshot::label;
use vk_provider::PodRef;

pub(crate) use self::{
    container::{container, container_config},
    image::{auth, image, image_names},
    runtime::runtime,
    sandbox::{listing, sandbox, sandbox_config},
    usage::{container_stats, fs, pod_stats},
};
use crate::proto;

/// A timestamp from nanoseconds since 1970.
fn time(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The pod of an object, from its labels.
fn pod_from_labels(labels: &BTreeMap<String, String>) -> Option<PodRef> {
    let get = |name: &str| labels.get(name).filter(|value| !value.is_empty()).map(String::as_str);
    Some(PodRef::new(get(label::POD_NAMESPACE)?, get(label::POD_NAME)?, get(label::POD_UID)?))
}

/// The pod of a sandbox, from its labels, or from its metadata if another client created it without labels.
fn pod_of(labels: &BTreeMap<String, String>, metadata: Option<&proto::PodSandboxMetadata>) -> Option<PodRef> {
    pod_from_labels(labels).or_else(|| {
        metadata.map(|meta| PodRef::new(meta.namespace.as_str(), meta.name.as_str(), meta.uid.as_str()))
    })
}

/// Quotes a text like `%q` in Go.
pub(crate) fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            other if (other as u32) < 0x20 || other as u32 == 0x7f => {
                // Writing to a string cannot fail.
                let _ = write!(quoted, "\\x{:02x}", other as u32);
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_in_go() {
        assert_eq!(go_quoted("sh -c \"a\nb\""), r#""sh -c \"a\nb\"""#);
    }

    #[test]
    fn a_pod_is_found_by_labels_or_else_by_metadata() {
        let metadata = proto::PodSandboxMetadata {
            name: "n".into(),
            namespace: "ns".into(),
            uid: "u".into(),
            attempt: 3,
        };
        let labels = [(label::POD_NAME, "a"), (label::POD_NAMESPACE, "b"), (label::POD_UID, "c")];
        let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(pod_of(&labels, Some(&metadata)), Some(PodRef::new("b", "a", "c")));
        assert_eq!(pod_of(&BTreeMap::new(), Some(&metadata)), Some(PodRef::new("ns", "n", "u")));
        assert_eq!(pod_from_labels(&BTreeMap::new()), None);
    }
}
