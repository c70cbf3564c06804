//! Registry locations: of images, and of credential entries.

use vk_provider::{Error, Result};

/// A host with an optional port, and a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    host: String,
    port: String,
    path: String,
}

impl Location {
    /// Parses `HOST[:PORT][/PATH]`; `None` if Go's URL parser would reject it, because the kubelet then skips it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (authority, path) = split(text)?;
        let (host, port) = match authority.rsplit_once(':') {
            // An IPv6 address without a port keeps its brackets.
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (authority, ""),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = if authority == host { host } else { bare.unwrap_or(host) };
        Some(Self { host: host.to_owned(), port: port.to_owned(), path })
    }

    /// Whether credentials for this location apply to the target.
    pub(super) fn matches(&self, target: &Self) -> bool {
        let (own, wanted) = (self.host.split('.'), target.host.split('.'));
        self.port == target.port
            && target.path.starts_with(&self.path)
            && own.clone().count() == wanted.clone().count()
            && own.zip(wanted).all(|(own, wanted)| matches_pattern(own, wanted))
    }
}

/// Whether a name matches a pattern in which `*` matches anything.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    // A bracket can only be part of an IPv6 address here, which the kubelet does not match without a port either.
    if pattern.contains('[') {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last)
}

/// Key of an entry: its host and path, without scheme and protocol version.
pub(super) fn key(entry: &str) -> Option<String> {
    let location = entry.strip_prefix("https://").or_else(|| entry.strip_prefix("http://")).unwrap_or(entry);
    let (authority, path) = split(location)?;
    let path = if path.starts_with("/v2/") || path.starts_with("/v1/") { &path[3..] } else { &path };
    let path = if path == "/" { "" } else { path };
    Some(format!("{authority}{path}"))
}

/// Splits into authority and path by the rules of Go's `url.Parse` that matter for registries.
fn split(text: &str) -> Option<(&str, String)> {
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return None;
    }
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    unescape(fragment)?;
    let text = text.split_once('?').map_or(text, |(text, _)| text);
    let (authority, path) = match text.find('/') {
        Some(slash) => text.split_at(slash),
        None => (text, ""),
    };
    // User info is not part of the location.
    let (user, authority) = authority.rsplit_once('@').unwrap_or(("", authority));
    if !user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte)) {
        return None;
    }
    unescape(user)?;
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || byte >= 0x80 || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte);
    if !authority.bytes().all(allowed) {
        return None;
    }
    let behind = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']')?.1,
        None => authority.find(':').map_or("", |colon| &authority[colon..]),
    };
    let port = behind.strip_prefix(':').unwrap_or_default();
    let valid =
        (behind.is_empty() || behind.starts_with(':')) && port.bytes().all(|byte| byte.is_ascii_digit());
    valid.then_some(())?;
    Some((authority, unescape(path)?))
}

fn unescape(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first == b'%' {
            let (digits, more) = more.split_at_checked(2)?;
            rest = more;
            let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(*first);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The image's full repository name without tag and digest: `nginx` is `docker.io/library/nginx`.
pub(super) fn repository(image: &str) -> Result<String> {
    let refuse = |why: &str| Error::invalid(format!("couldn't parse image name {image:?}: {why}"));
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    let (domain, path) = match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || first != first.to_lowercase() =>
        {
            (first, rest)
        }
        _ => ("docker.io", name),
    };
    let domain = if domain == "index.docker.io" { "docker.io" } else { domain };
    if path != path.to_lowercase() {
        return Err(refuse("invalid reference format: repository name must be lowercase"));
    }
    let valid = |part: &str| {
        let ends = [part.bytes().next(), part.bytes().next_back()];
        ends.iter().all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !path.split('/').all(valid) {
        return Err(refuse("invalid reference format"));
    }
    Ok(match domain {
        "docker.io" if !path.contains('/') => format!("docker.io/library/{path}"),
        _ => format!("{domain}/{path}"),
    })
}

/// Whether an image is pulled from Docker's own registry.
pub(super) fn names_default_registry(repository: &str) -> bool {
    let Some((first, _)) = repository.split_once('/') else { return !repository.is_empty() };
    ["docker.io", "index.docker.io"].contains(&first) || (!first.is_empty() && !first.contains(['.', ':']))
}

#[cfg(test)]
mod tests;
