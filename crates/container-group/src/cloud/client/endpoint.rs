//! The address of an API.

use std::{fmt, net::IpAddr};

use http::Uri;

/// The address of an API: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    is_tls: bool,
    /// Brackets included, if it is an IPv6 address.
    host: String,
    /// `None` is the default port of the scheme.
    port: Option<u16>,
}

/// Where HTTP without TLS is allowed. Requests carry signatures, files and environment variables of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainHttp {
    /// Only to this host.
    Loopback,
    /// Everywhere: the user asked for it, or the service has nothing else.
    Anywhere,
}

/// The endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// It is no URL of a server.
    #[error("endpoint {0:?} is not https://HOST or https://HOST:PORT")]
    Malformed(String),
    /// It has no TLS, and is not on this host.
    #[error("endpoint {0:?} does not use TLS: write https://, because requests contain secrets of pods")]
    Plain(String),
}

// === impl Endpoint ===

impl Endpoint {
    /// Parses `https://HOST[:PORT][/]`. A mere host name gets https.
    pub fn parse(text: &str, plain: PlainHttp) -> Result<Self, InvalidEndpoint> {
        // The text may contain a password, as in https://user:password@host.
        let shown = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let malformed = || InvalidEndpoint::Malformed(shown.to_owned());
        let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let uri: Uri = url.parse().map_err(|_| malformed())?;
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(malformed)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.host().is_empty() {
            return Err(malformed());
        }
        if !authority.as_str()[authority.host().len()..].is_empty() && authority.port_u16().is_none() {
            return Err(malformed());
        }
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(malformed()),
        };
        let default_port = if is_tls { 443 } else { 80 };
        let port = authority.port_u16().filter(|port| *port != default_port);
        let endpoint = Self { is_tls, host: authority.host().to_ascii_lowercase(), port };
        if !is_tls && plain == PlainHttp::Loopback && !endpoint.is_loopback() {
            return Err(InvalidEndpoint::Plain(shown.to_owned()));
        }
        Ok(endpoint)
    }

    /// The host without the port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// What the header `Host` says, and what is signed.
    pub fn host_header(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }

    fn is_loopback(&self) -> bool {
        let address = self.host.trim_matches(['[', ']']);
        self.host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// As a URL, without a slash at the end.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "https" } else { "http" }, self.host_header())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, InvalidEndpoint> {
        Endpoint::parse(text, PlainHttp::Loopback).map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn an_endpoint_is_scheme_host_and_port() {
        for (text, expected) in [
            ("https://eci.cn-hangzhou.aliyuncs.com", "https://eci.cn-hangzhou.aliyuncs.com"),
            ("https://ECI.example.com:443/", "https://eci.example.com"),
            ("eci.example.com", "https://eci.example.com"),
            ("eci.example.com:8443", "https://eci.example.com:8443"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://localhost", "http://localhost"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn only_loopback_may_do_without_tls_unless_the_user_allows_it() {
        for text in ["http://eci.example.com", "http://10.0.0.1:80", "http://localhost.example.com"] {
            assert_eq!(parse(text), Err(InvalidEndpoint::Plain(text.to_owned())), "{text}");
            assert!(Endpoint::parse(text, PlainHttp::Anywhere).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for text in
            ["", "https://", "ftp://a", "https://a/path", "https://a/?q", "https://a b", "https://a:port"]
        {
            assert!(matches!(parse(text), Err(InvalidEndpoint::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn a_password_in_an_endpoint_is_not_repeated() {
        let error = parse("https://user:s3cr3t@host").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error}");
    }
}
