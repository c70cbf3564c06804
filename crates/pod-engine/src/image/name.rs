//! Image names, parsed as by `distribution/reference`, which kubelet and containerd use.
//!
//! Not `oci-client`'s `Reference`: it has other error texts, and it expands short names, which is the runtime's decision.

/// A parsed image name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageName<'a> {
    /// The name without tag and digest.
    pub bare: &'a str,
    /// The tag, if any.
    pub tag: Option<&'a str>,
    /// The digest, if any.
    pub digest: Option<&'a str>,
}

/// Adds the tag `latest` to a name without tag and digest. Short names are not expanded: their registry is the runtime's decision.
///
/// # Errors
///
/// The kubelet's error for an invalid name.
pub fn normalize(image: &str) -> Result<String, String> {
    let name = parse(image).map_err(|why| format!("couldn't parse image name {image:?}: {why}"))?;
    Ok(if name.tag.is_none() && name.digest.is_none() { format!("{image}:latest") } else { image.to_owned() })
}

/// A key that is equal for all names of an image: the hash if there is one, else the full name with registry and tag. Different images may
/// have the same key, so an image may be kept needlessly but is never removed while in use.
pub(super) fn key(image: &str) -> String {
    let hash = image.rsplit_once('@').map_or(image, |(_, digest)| digest);
    let hash = hash.strip_prefix("sha256:").unwrap_or(hash);
    if image.contains('@') || image.starts_with("sha256:") || (hash.len() == 64 && is_hex(hash)) {
        return hash.to_owned();
    }
    let Ok(name) = parse(image) else { return image.to_owned() };
    let (domain, path) = split_domain(name.bare);
    let library = if domain == DOCKER && !path.contains('/') { "library/" } else { "" };
    format!("{domain}/{library}{path}:{}", name.tag.unwrap_or("latest"))
}

/// The registry of an image, if the runtime expands short names as Docker does.
pub(super) fn registry(image: &str) -> &str {
    split_domain(image).0
}

pub(super) fn parse(image: &str) -> Result<ImageName<'_>, String> {
    if image.len() == 64 && is_hex(image) {
        return Err(format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or_default();
    if remote.chars().any(char::is_uppercase) {
        // The message contains the implied prefix of a short name.
        let prefix = if domain == DOCKER && !remainder.contains('/') { "library/" } else { "" };
        return Err(format!(
            "invalid reference format: repository name ({prefix}{remote}) must be lowercase"
        ));
    }
    let Some(name) = split(image) else {
        let lower = image.to_lowercase();
        let wrong = if split(&lower).is_some() {
            "repository name must be lowercase"
        } else {
            "invalid reference format"
        };
        return Err(wrong.to_owned());
    };
    if split_domain(name.bare).1.len() > 255 {
        return Err("repository name must not be more than 255 characters".to_owned());
    }
    name.digest.map_or(Ok(()), check_digest)?;
    Ok(name)
}

/// Splits a name; `None` if a part is invalid.
fn split(image: &str) -> Option<ImageName<'_>> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    // A colon before a slash separates a port.
    let (bare, tag) = match name.rsplit_once(':') {
        Some((bare, tag)) if !tag.contains('/') => (bare, Some(tag)),
        _ => (name, None),
    };
    let (domain, path) = split_domain(bare);
    let valid = (is_domain(domain) && is_path(path)) || is_path(bare);
    (valid && tag.is_none_or(is_tag) && digest.is_none_or(is_digest)).then_some(ImageName {
        bare,
        tag,
        digest,
    })
}

const DOCKER: &str = "docker.io";
const LEGACY_DOCKER: &str = "index.docker.io";

/// Splits off the registry. The first component is a registry only if it contains a dot, a colon or an upper-case letter, or is `localhost`.
fn split_domain(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((LEGACY_DOCKER, rest)) => (DOCKER, rest),
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        _ => (DOCKER, name),
    }
}

fn is_domain(domain: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(rest) = domain.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        let valid =
            !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
        return valid && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = domain.split_once(':').map_or((domain, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().next_back()];
        ends.into_iter().all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_path(path: &str) -> bool {
    path.split('/').all(is_component)
}

/// Groups of letters and digits, separated by one dot, one or two underscores, or any number of dashes.
fn is_component(component: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if !component.bytes().next().is_some_and(plain) || !component.bytes().next_back().is_some_and(plain) {
        return false;
    }
    let between = component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    between
        .filter(|separator| !separator.is_empty())
        .all(|separator| [".", "_", "__"].contains(&separator) || separator.bytes().all(|byte| byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || b".-".contains(&byte))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, encoded)) = digest.split_once(':') else { return false };
    let part = |part: &str| {
        part.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(part)
        && encoded.len() >= 32
        && encoded.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn check_digest(digest: &str) -> Result<(), String> {
    let (algorithm, encoded) = digest.split_once(':').unwrap_or_default();
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        other if other.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            return Err("invalid checksum digest format".to_owned());
        }
        _ => return Err("unsupported digest algorithm".to_owned()),
    };
    if encoded.len() != length {
        return Err("invalid checksum digest length".to_owned());
    }
    if !is_hex(encoded) {
        return Err("invalid checksum digest format".to_owned());
    }
    Ok(())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests;
