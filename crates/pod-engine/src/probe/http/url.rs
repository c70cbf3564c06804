//! URLs of probes: built from a host, a port and a path, and resolved for redirects.
//!
//! Not the `url` crate: it normalizes as browsers do (drops default ports, adds a slash to an empty path, resolves dots, rewrites
//! backslashes), while events and `Host` headers must match Go's `net/url`.

use std::fmt;

use http::{Uri, uri::PathAndQuery};

/// A URL without user info and fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) scheme: String,
    /// The host without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether the port is explicit.
    has_port: bool,
    /// Path and query, escaped; may be empty.
    path: String,
}

// === impl Url ===

impl Url {
    /// The URL of a probe. The path may have a query; if it is a full URL, its scheme and host are ignored.
    pub(super) fn new(scheme: &str, host: &str, port: u16, path: &str) -> Self {
        if !is_parsable(path) {
            // It cannot be parsed: all of it is escaped.
            let path = rooted(&path.replace('%', "%25").replace('?', "%3F").replace('#', "%23"));
            return Self { scheme: scheme.to_owned(), host: host.to_owned(), port, has_port: true, path };
        }
        let path = without_fragment(path);
        let (_, rest) = split(path);
        let path = rest.authority.map_or(path, |_| rest.path);
        Self { scheme: scheme.to_owned(), host: host.to_owned(), port, has_port: true, path: rooted(path) }
    }

    /// Resolves a reference. Also returns whether it was relative.
    pub(super) fn join(&self, reference: &str) -> Result<(Self, bool), String> {
        let reference = without_fragment(reference);
        let (scheme, rest) = split(reference);
        let relative = scheme.is_none();
        let scheme = scheme.map_or_else(|| self.scheme.clone(), str::to_ascii_lowercase);
        if let Some(authority) = rest.authority {
            let (host, port) = host_and_port(authority)?;
            let has_port = port.is_some();
            let port = port.unwrap_or(if scheme == "https" { 443 } else { 80 });
            return Ok((Self { scheme, host, port, has_port, path: rooted(rest.path) }, relative));
        }
        if !relative {
            // An opaque URL such as `mailto:somebody`.
            return Ok((
                Self { scheme, host: String::new(), port: 0, has_port: false, path: rooted(rest.path) },
                false,
            ));
        }
        let (base, _) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let path = if rest.path.is_empty() {
            self.path.clone()
        } else if rest.path.starts_with('/') {
            without_dots(rest.path)
        } else if rest.path.starts_with('?') {
            format!("{base}{}", rest.path)
        } else {
            let directory = base.rfind('/').map_or("/", |slash| &base[..=slash]);
            without_dots(&format!("{directory}{}", rest.path))
        };
        Ok((Self { path: rooted(&path), ..self.clone() }, true))
    }

    /// Host and explicit port.
    pub(super) fn authority(&self) -> String {
        let whole = super::super::connection::authority(&self.host, self.port);
        if self.has_port {
            whole
        } else {
            whole.rsplit_once(':').map_or_else(|| whole.clone(), |(host, _)| host.to_owned())
        }
    }

    /// The request target of HTTP/1.1.
    pub(super) fn target(&self) -> Result<Uri, String> {
        self.path_and_query().map(Uri::from)
    }

    /// The absolute URI for HTTP/2, with another authority if one is given.
    pub(super) fn absolute(&self, host: Option<String>) -> Result<Uri, String> {
        Uri::builder()
            .scheme(self.scheme.as_str())
            .authority(host.unwrap_or_else(|| self.authority()))
            .path_and_query(self.path_and_query()?)
            .build()
            .map_err(|error| error.to_string())
    }

    fn path_and_query(&self) -> Result<PathAndQuery, String> {
        let whole = if self.path.starts_with('/') { self.path.clone() } else { format!("/{}", self.path) };
        PathAndQuery::try_from(whole).map_err(|error| format!("invalid path: {error}"))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path)
    }
}

struct Rest<'a> {
    authority: Option<&'a str>,
    path: &'a str,
}

/// Scheme, authority, and path with query.
fn split(text: &str) -> (Option<&str>, Rest<'_>) {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (Some(scheme), rest),
        _ => (None, text),
    };
    let rest = match rest.strip_prefix("//") {
        Some(rest) => {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            Rest { authority: Some(&rest[..end]), path: &rest[end..] }
        }
        None => Rest { authority: None, path: rest },
    };
    (scheme, rest)
}

fn host_and_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = if let Some(open) = place.strip_prefix('[') {
        let (host, after) = open.split_once(']').ok_or("missing ']' in host")?;
        (host, after.strip_prefix(':'))
    } else {
        place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port)))
    };
    let port = port
        .filter(|port| !port.is_empty())
        .map(|port| port.parse().map_err(|_| format!("invalid port \":{port}\" after host")));
    Ok((host.to_owned(), port.transpose()?))
}

/// Whether a path has no control characters and only valid escapes.
fn is_parsable(path: &str) -> bool {
    let path_alone = path.split(['?', '#']).next().unwrap_or_default();
    let is_escape =
        |after: &str| after.len() >= 2 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    !path.bytes().any(|byte| byte.is_ascii_control()) && path_alone.split('%').skip(1).all(is_escape)
}

fn without_fragment(text: &str) -> &str {
    text.split_once('#').map_or(text, |(before, _)| before)
}

/// The escaped path with a leading slash.
fn rooted(path: &str) -> String {
    use fmt::Write as _;
    let mut escaped = String::with_capacity(path.len() + 1);
    if !path.is_empty() && !path.starts_with(['/', '?']) {
        escaped.push('/');
    }
    for byte in path.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte) {
            escaped.push(byte.into());
        } else {
            // Writing into a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// A path without `.` and `..`.
fn without_dots(whole: &str) -> String {
    let (path, query) = whole.find('?').map_or((whole, ""), |at| whole.split_at(at));
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => _ = kept.pop(),
            _ => kept.push(segment),
        }
    }
    let directory = path.ends_with("/.") || path.ends_with("/..");
    format!("/{}{}{query}", kept.join("/"), if directory && !kept.is_empty() { "/" } else { "" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_path_gives_a_valid_target_and_any_reference_that_resolves_too(
            path in any::<String>(), reference in any::<String>(),
        ) {
            let url = Url::new("http", "pod", 80, &path);
            prop_assert!(url.target().is_ok(), "{url}");
            if let Ok((next, _)) = url.join(&reference) {
                prop_assert!(next.target().is_ok(), "{next}");
            }
        }
    }

    #[test]
    fn a_url_is_written_as_the_kubelet_writes_it() {
        let cases = [
            ("http", "localhost", "", "http://localhost:93", "/"),
            ("https", "localhost", "/path", "https://localhost:93/path", "/path"),
            ("http", "localhost", "?foo", "http://localhost:93?foo", "/?foo"),
            ("https", "fd00::1", "/path?bar", "https://[fd00::1]:93/path?bar", "/path?bar"),
            ("http", "localhost", "path", "http://localhost:93/path", "/path"),
            ("http", "localhost", "/a b#c", "http://localhost:93/a%20b", "/a%20b"),
            ("http", "localhost", "/%zz?a", "http://localhost:93/%25zz%3Fa", "/%25zz%3Fa"),
            ("http", "localhost", "/%20", "http://localhost:93/%20", "/%20"),
            ("http", "localhost", "http://elsewhere/path", "http://localhost:93/path", "/path"),
            (
                "http",
                "localhost",
                "/to?next=http://elsewhere/",
                "http://localhost:93/to?next=http://elsewhere/",
                "/to?next=http://elsewhere/",
            ),
        ];
        for (scheme, host, path, wanted, target) in cases {
            let url = Url::new(scheme, host, 93, path);
            assert_eq!(url.to_string(), wanted, "{path}");
            assert_eq!(url.target().unwrap().to_string(), target, "{path}");
        }
    }

    #[test]
    fn a_reference_is_resolved_against_its_url() {
        let here = Url::new("http", "pod", 8080, "/a/b?x=1");
        let cases = [
            ("/c", "http://pod:8080/c", true),
            ("c", "http://pod:8080/a/c", true),
            ("../c?d", "http://pod:8080/c?d", true),
            ("./", "http://pod:8080/a/", true),
            ("?y", "http://pod:8080/a/b?y", true),
            ("", "http://pod:8080/a/b?x=1", true),
            ("//other/c", "http://other/c", true),
            ("https://pod/c", "https://pod/c", false),
            ("HTTPS://user:word@pod:9/c#d", "https://pod:9/c", false),
            ("http://[fd00::1]:9", "http://[fd00::1]:9", false),
        ];
        for (reference, wanted, relative) in cases {
            let (url, was_relative) = here.join(reference).unwrap();
            assert_eq!((url.to_string().as_str(), was_relative), (wanted, relative), "{reference}");
        }
        assert_eq!(here.join("https://pod/").unwrap().0.port, 443);
        assert!(here.join("http://pod:x/").is_err());
        assert_eq!(here.join("mailto:somebody").unwrap().0.host, "");
    }
}
