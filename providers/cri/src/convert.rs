//! Between the engine's types and the wire's.

mod container;
mod image;
mod runtime;
mod sandbox;
mod security;
mod usage;

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

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

/// Nanoseconds since 1970.
fn time(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The pod that an object belongs to, as its labels say.
fn labelled(labels: &BTreeMap<String, String>) -> Option<PodRef> {
    let get = |name: &str| labels.get(name).filter(|value| !value.is_empty()).map(String::as_str);
    Some(PodRef::new(get(label::POD_NAMESPACE)?, get(label::POD_NAME)?, get(label::POD_UID)?))
}

/// The same of a sandbox that somebody made without labels.
fn owner(labels: &BTreeMap<String, String>, metadata: Option<&proto::PodSandboxMetadata>) -> Option<PodRef> {
    labelled(labels).or_else(|| {
        metadata.map(|known| PodRef::new(known.namespace.as_str(), known.name.as_str(), known.uid.as_str()))
    })
}

/// A duration in Go's notation.
pub(crate) fn duration(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if seconds == 0 && nanos > 0 {
        let (unit, whole, digits) = match nanos {
            1_000_000.. => ("ms", nanos / 1_000_000, format!("{:06}", nanos % 1_000_000)),
            1_000.. => ("µs", nanos / 1_000, format!("{:03}", nanos % 1_000)),
            _ => ("ns", nanos, String::new()),
        };
        return format!("{whole}{}{unit}", fraction(&digits));
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = format!("{}{}s", seconds % 60, fraction(&format!("{nanos:09}")));
    match (hours, minutes) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

fn fraction(digits: &str) -> String {
    match digits.trim_end_matches('0') {
        "" => String::new(),
        digits => format!(".{digits}"),
    }
}

/// A text in quotes as Go writes it with `%q`.
pub(crate) fn quoted(text: &str) -> String {
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
    fn durations_and_quotes_are_gos() {
        for (millis, text) in
            [(1000, "1s"), (61_500, "1m1.5s"), (3_600_000, "1h0m0s"), (0, "0s"), (250, "250ms")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration(Duration::from_micros(1500)), "1.5ms");
        assert_eq!(quoted("sh -c \"a\nb\""), r#""sh -c \"a\nb\"""#);
    }

    #[test]
    fn an_object_belongs_to_the_pod_of_its_labels_and_else_to_the_one_of_its_name() {
        let metadata = proto::PodSandboxMetadata {
            name: "n".into(),
            namespace: "ns".into(),
            uid: "u".into(),
            attempt: 3,
        };
        let labels = [(label::POD_NAME, "a"), (label::POD_NAMESPACE, "b"), (label::POD_UID, "c")];
        let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(owner(&labels, Some(&metadata)), Some(PodRef::new("b", "a", "c")));
        assert_eq!(owner(&BTreeMap::new(), Some(&metadata)), Some(PodRef::new("ns", "n", "u")));
        assert_eq!(labelled(&BTreeMap::new()), None);
    }
}
