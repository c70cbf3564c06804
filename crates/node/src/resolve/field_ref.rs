//! `fieldRef`: a field of the pod as text.
//!
//! Variables support more fields than files, such as addresses that are only known when a container starts. The supported
//! paths and the error messages are those of the kubelet.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _, net::IpAddr};

use k8s_openapi::api::core::v1::{ObjectFieldSelector, Pod};
use vk_provider::{
    Error, Result,
    resolve::{Facts, NodeFacts},
};

/// The value for an environment variable; `None` for an address that is not known yet.
pub(super) fn variable(
    field: &ObjectFieldSelector,
    pod: &Pod,
    facts: &Facts,
    node: &NodeFacts,
) -> Result<Option<String>> {
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    let value = match variable_path(field)? {
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" => return Ok(host_ips(facts, node).into_iter().next()),
        "status.hostIPs" => return Ok(joined(&host_ips(facts, node))),
        "status.podIP" => return Ok(pod_ips(pod, facts, node).into_iter().next()),
        "status.podIPs" => return Ok(joined(&pod_ips(pod, facts, node))),
        path => metadata(path, pod),
    };
    value.map(Some)
}

fn joined(ips: &[String]) -> Option<String> {
    (!ips.is_empty()).then(|| ips.join(","))
}

/// The value for a downward API file.
pub(super) fn file(field: &ObjectFieldSelector, pod: &Pod) -> Result<String> {
    metadata(&field.field_path, pod)
}

/// The path under its current name, if variables support it.
fn variable_path(field: &ObjectFieldSelector) -> Result<&str> {
    // The API server deerrors it to `v1`.
    let version = field.api_version.as_deref().unwrap_or("v1");
    if version != "v1" {
        return Err(Error::invalid(format!("unsupported pod version: {version}")));
    }
    let path = field.field_path.as_str();
    if let Some((whole, _)) = subscripted(path) {
        return match whole {
            "metadata.annotations" | "metadata.labels" => Ok(path),
            _ => Err(Error::invalid(format!("field label does not support subscript: {path}"))),
        };
    }
    match path {
        "metadata.annotations"
        | "metadata.labels"
        | "metadata.name"
        | "metadata.namespace"
        | "metadata.uid"
        | "spec.nodeName"
        | "spec.restartPolicy"
        | "spec.serviceAccountName"
        | "spec.schedulerName"
        | "status.phase"
        | "status.hostIP"
        | "status.hostIPs"
        | "status.podIP"
        | "status.podIPs" => Ok(path),
        "spec.host" => Ok("spec.nodeName"),
        _ => Err(Error::invalid(format!("field label not supported: {path}"))),
    }
}

/// A metadata field of the pod. Like in the kubelet, `spec.restartPolicy` and similar paths pass validation but have no
/// value.
fn metadata(path: &str, pod: &Pod) -> Result<String> {
    let metadata = &pod.metadata;
    if let Some((whole, key)) = subscripted(path) {
        let (map, checked) = match whole {
            // The prefix of an annotation key may have upper-case letters.
            "metadata.annotations" => (&metadata.annotations, Cow::Owned(key.to_lowercase())),
            "metadata.labels" => (&metadata.labels, Cow::Borrowed(key)),
            _ => return Err(Error::invalid(format!("fieldPath {path:?} does not support subscript"))),
        };
        let errors = key_errors(&checked);
        if !errors.is_empty() {
            return Err(Error::invalid(format!("invalid key subscript in {path}: {}", errors.join(";"))));
        }
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let text = |value: &Option<String>| Ok(value.clone().unwrap_or_default());
    match path {
        "metadata.annotations" => Ok(lines(metadata.annotations.as_ref())),
        "metadata.labels" => Ok(lines(metadata.labels.as_ref())),
        "metadata.name" => text(&metadata.name),
        "metadata.namespace" => text(&metadata.namespace),
        "metadata.uid" => text(&metadata.uid),
        _ => Err(Error::invalid(format!("unsupported fieldPath: {path}"))),
    }
}

/// Splits `metadata.labels['KEY']` into path and key.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (whole, key) = path.strip_suffix("']")?.split_once("['")?;
    (!whole.is_empty()).then_some((whole, key))
}

/// Formats a map as sorted lines `key="value"`.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let mut lines = String::new();
    for (key, value) in map.into_iter().flatten() {
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(key);
        lines.push('=');
        quote(&mut lines, value);
    }
    lines
}

/// Quotes a text like Go's `%q`, which readers of these files expect.
fn quote(into: &mut String, text: &str) {
    into.push('"');
    for character in text.chars() {
        match character {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\x07' => into.push_str("\\a"),
            '\x08' => into.push_str("\\b"),
            '\x0c' => into.push_str("\\f"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            '\x0b' => into.push_str("\\v"),
            _ if printable(character) => into.push(character),
            _ => {
                let code = u32::from(character);
                // Written to a string: cannot fail.
                let _ = match code {
                    ..0x80 => write!(into, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(into, "\\u{code:04x}"),
                    _ => write!(into, "\\U{code:08x}"),
                };
            }
        }
    }
    into.push('"');
}

/// Whether Go considers the character printable: letters, marks, numbers, punctuation, symbols and the ASCII space.
fn printable(character: char) -> bool {
    if character.is_ascii() {
        return character == ' ' || character.is_ascii_graphic();
    }
    // The standard library has this table for its debug output, which prints a mark that follows a letter. It equals Go's,
    // except for characters of Unicode 15.1 and later, which Go 1.26 does not know yet and escapes.
    let mut escaped = [b'a', 0, 0, 0, 0];
    let length = character.encode_utf8(&mut escaped[1..]).len();
    std::str::from_utf8(&escaped[..=length]).is_ok_and(|text| text.escape_debug().eq(text.chars()))
}

/// Host addresses: the first, and the first of the other family.
fn host_ips(facts: &Facts, node: &NodeFacts) -> Vec<String> {
    let known = if facts.host_ips.is_empty() { &node.ips } else { &facts.host_ips };
    one_of_each_family(known, known.first())
}

/// Pod addresses: one of the node's family, then one of the other. With host network they are the host's.
fn pod_ips(pod: &Pod, facts: &Facts, node: &NodeFacts) -> Vec<String> {
    let host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if facts.pod_ips.is_empty() && host_network {
        return host_ips(facts, node);
    }
    one_of_each_family(&facts.pod_ips, node.ips.first())
}

/// At most two addresses, the first of the same family as `like` (default IPv4).
fn one_of_each_family(ips: &[IpAddr], like: Option<&IpAddr>) -> Vec<String> {
    // An IPv4-mapped IPv6 address counts as IPv4.
    let ips: Vec<IpAddr> = ips.iter().map(IpAddr::to_canonical).collect();
    let first_is_v4 = like.is_none_or(|ip| ip.to_canonical().is_ipv4());
    let families = [first_is_v4, !first_is_v4];
    let one = |v4: bool| ips.iter().find(|ip| ip.is_ipv4() == v4);
    families.into_iter().filter_map(one).map(IpAddr::to_string).collect()
}

/// Validation errors of a label key, with the API server's messages.
fn key_errors(key: &str) -> Vec<String> {
    const CHARACTERS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut errors = Vec::new();
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {CHARACTERS} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                errors.push("prefix part must be no more than 253 characters".to_owned());
            }
            let label = |label: &str| {
                enclosed(label, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-")
            };
            if !prefix.split('.').all(label) {
                errors.push(
                    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                     or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                     validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                        .to_owned(),
                );
            }
        }
        None => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 characters".to_owned());
    }
    if !enclosed(name, |byte| byte.is_ascii_alphanumeric(), b"-_.") {
        errors.push(format!("name part {CHARACTERS}"));
    }
    errors
}

/// Whether a name starts and ends with `outer` bytes and only has `outer` or `inner` bytes between.
fn enclosed(name: &str, outer: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let ends = [name.bytes().next(), name.bytes().next_back()];
    ends.into_iter().all(|end| end.is_some_and(&outer))
        && name.bytes().all(|byte| outer(byte) || inner.contains(&byte))
}

#[cfg(test)]
mod tests;
