//! `fieldRef`: a field of the pod as text.
//!
//! Containers may ask for more than volumes: what is known only when a container starts (addresses) is no file. Which
//! paths each may use, and the words of the refusal, are the kubelet's.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _, net::IpAddr};

use k8s_openapi::api::core::v1::{ObjectFieldSelector, Pod};
use vk_provider::{
    Error, Result,
    resolve::{Facts, NodeFacts},
};

/// The value for a variable of a container.
pub(super) fn variable(
    field: &ObjectFieldSelector,
    pod: &Pod,
    facts: &Facts,
    node: &NodeFacts,
) -> Result<String> {
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    match known(field)? {
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" => Ok(host_ips(facts, node)?[0].clone()),
        "status.hostIPs" => Ok(host_ips(facts, node)?.join(",")),
        "status.podIP" => Ok(pod_ips(pod, facts, node).into_iter().next().unwrap_or_default()),
        "status.podIPs" => Ok(pod_ips(pod, facts, node).join(",")),
        path => metadata(path, pod),
    }
}

/// The value for a file of a volume.
pub(super) fn file(field: &ObjectFieldSelector, pod: &Pod) -> Result<String> {
    metadata(&field.field_path, pod)
}

/// The path under its present name, when it is one that a variable may ask for.
fn known(field: &ObjectFieldSelector) -> Result<&str> {
    // The API server writes `v1` where nothing was said.
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

/// A field of the pod's metadata. `spec.restartPolicy` and its like are known by name and have no value, as in a kubelet.
fn metadata(path: &str, pod: &Pod) -> Result<String> {
    let metadata = &pod.metadata;
    if let Some((whole, key)) = subscripted(path) {
        let (map, checked) = match whole {
            // Keys of annotations may have upper case in the part before the slash.
            "metadata.annotations" => (&metadata.annotations, Cow::Owned(key.to_lowercase())),
            "metadata.labels" => (&metadata.labels, Cow::Borrowed(key)),
            _ => return Err(Error::invalid(format!("fieldPath {path:?} does not support subscript"))),
        };
        let faults = name_faults(&checked);
        if !faults.is_empty() {
            return Err(Error::invalid(format!("invalid key subscript in {path}: {}", faults.join(";"))));
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

/// `metadata.labels['KEY']` as path and key.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (whole, key) = path.strip_suffix("']")?.split_once("['")?;
    (!whole.is_empty()).then_some((whole, key))
}

/// A map as sorted lines `key="value"`.
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

/// Puts a text into quotes by Go's rules, which every reader of these files knows.
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

/// Letters, marks, numbers, punctuation, symbols and the plain space.
fn printable(character: char) -> bool {
    if character.is_ascii() {
        return character == ' ' || character.is_ascii_graphic();
    }
    // The standard library has this table for its own debug output, where a mark that follows a letter is shown. It is
    // Go's but for characters of Unicode 15.1 and later, which Go 1.26 does not know yet and escapes.
    let mut escaped = [b'a', 0, 0, 0, 0];
    let length = character.encode_utf8(&mut escaped[1..]).len();
    std::str::from_utf8(&escaped[..=length]).is_ok_and(|text| text.escape_debug().eq(text.chars()))
}

/// Addresses of the host: the first, and the first of the other family.
fn host_ips(facts: &Facts, node: &NodeFacts) -> Result<Vec<String>> {
    let known = if facts.host_ips.is_empty() { &node.ips } else { &facts.host_ips };
    let ips = one_of_each_family(known, known.first());
    if ips.is_empty() {
        return Err(Error::unavailable("host IP unknown; known addresses: []"));
    }
    Ok(ips)
}

/// Addresses of the pod: one of the node's family, then one of the other. On the host's network they are the host's.
fn pod_ips(pod: &Pod, facts: &Facts, node: &NodeFacts) -> Vec<String> {
    let host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if facts.pod_ips.is_empty() && host_network {
        return host_ips(facts, node).unwrap_or_default();
    }
    one_of_each_family(&facts.pod_ips, node.ips.first())
}

/// At most two addresses, the first of the family of `like` (IPv4 where nothing is known).
fn one_of_each_family(ips: &[IpAddr], like: Option<&IpAddr>) -> Vec<String> {
    // An IPv4 address in IPv6 clothes is an IPv4 address.
    let ips: Vec<IpAddr> = ips.iter().map(IpAddr::to_canonical).collect();
    let first_is_v4 = like.is_none_or(|ip| ip.to_canonical().is_ipv4());
    let families = [first_is_v4, !first_is_v4];
    let one = |v4: bool| ips.iter().find(|ip| ip.is_ipv4() == v4);
    families.into_iter().filter_map(one).map(IpAddr::to_string).collect()
}

/// What is wrong with the key of a label, in the API server's words.
fn name_faults(key: &str) -> Vec<String> {
    const CHARACTERS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut faults = Vec::new();
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
        Some("") => faults.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                faults.push("prefix part must be no more than 253 characters".to_owned());
            }
            let label = |label: &str| {
                enclosed(label, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-")
            };
            if !prefix.split('.').all(label) {
                faults.push(
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
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        faults.push("name part must be no more than 63 characters".to_owned());
    }
    if !enclosed(name, |byte| byte.is_ascii_alphanumeric(), b"-_.") {
        faults.push(format!("name part {CHARACTERS}"));
    }
    faults
}

/// Whether a name has `outer` bytes at both ends, and those or `inner` ones between.
fn enclosed(name: &str, outer: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let ends = [name.bytes().next(), name.bytes().next_back()];
    ends.into_iter().all(|end| end.is_some_and(&outer))
        && name.bytes().all(|byte| outer(byte) || inner.contains(&byte))
}

#[cfg(test)]
mod tests;
