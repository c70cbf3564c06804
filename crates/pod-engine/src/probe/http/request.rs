//! The HTTP request of a probe or hook.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, CONNECTION, HOST, REFERER, USER_AGENT},
};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};

use super::{super::connection, url::Url};

/// The kubelet version in the user agent.
const VERSION: &str = "1.36";

/// The HTTP request of a probe or hook.
#[derive(Clone, Debug)]
pub(crate) struct HttpGet {
    pub(super) url: Url,
    /// The `Host` header, if it differs from the URL's host.
    pub(super) host: Option<HeaderValue>,
    pub(super) headers: HeaderMap,
    /// Why it cannot be sent. Reported when it is sent, as in a kubelet, where it is a failure of the probe.
    pub(super) invalid: Option<String>,
    /// Whether it is connected: the message of a timeout depends on it.
    pub(super) connected: bool,
}

// === impl Get ===

impl HttpGet {
    /// The request of a probe or hook. The purpose is part of the user agent.
    pub(crate) fn new(
        action: &HTTPGetAction,
        container: &Container,
        host: &str,
        purpose: &str,
    ) -> Result<Self, String> {
        let port = connection::port(&action.port, container)?;
        let scheme = action.scheme.as_deref().filter(|scheme| !scheme.is_empty()).unwrap_or("http");
        let url =
            Url::new(&scheme.to_ascii_lowercase(), host, port, action.path.as_deref().unwrap_or_default());
        let mut headers = HeaderMap::new();
        let mut invalid = None;
        for header in action.http_headers.iter().flatten() {
            match (
                HeaderName::from_bytes(header.name.as_bytes()),
                HeaderValue::from_bytes(header.value.as_bytes()),
            ) {
                (Ok(name), Ok(value)) => _ = headers.append(name, value),
                (Err(_), _) => {
                    invalid = Some(format!("net/http: invalid header field name {:?}", header.name));
                }
                (_, Err(_)) => {
                    invalid = Some(format!("net/http: invalid header field value for {:?}", header.name));
                }
            }
        }
        let host = headers.remove(HOST).filter(|host| !host.is_empty());
        if !headers.contains_key(USER_AGENT) {
            let agent = HeaderValue::try_from(format!("kube-{purpose}/{VERSION}"));
            headers.insert(USER_AGENT, agent.map_err(|error| error.to_string())?);
        }
        match headers.get(ACCEPT).map(HeaderValue::is_empty) {
            None => _ = headers.insert(ACCEPT, HeaderValue::from_static("*/*")),
            // An empty header is omitted.
            Some(true) => _ = headers.remove(ACCEPT),
            Some(false) => {}
        }
        Ok(Self { url, host, headers, invalid, connected: false })
    }

    /// The host and port.
    pub(crate) fn authority(&self) -> String {
        self.url.authority()
    }

    /// The same request without TLS and without credentials.
    pub(crate) fn without_tls(&self) -> Self {
        let mut plain = self.clone();
        "http".clone_into(&mut plain.url.scheme);
        plain.headers.remove(http::header::AUTHORIZATION);
        plain
    }

    /// All headers in the order of a kubelet.
    pub(super) fn in_order(&self) -> HeaderMap {
        let mut ordered = HeaderMap::new();
        let host = self.host.clone().or_else(|| HeaderValue::try_from(self.url.authority()).ok());
        ordered.extend(host.map(|host| (HOST, host)));
        let mut names: Vec<&HeaderName> = self.headers.keys().collect();
        names.sort_by_key(|name| (*name != USER_AGENT, name.as_str()));
        for name in names {
            for value in self.headers.get_all(name) {
                ordered.append(name, value.clone());
            }
        }
        ordered.append(CONNECTION, HeaderValue::from_static("close"));
        ordered
    }

    /// Follows a redirect.
    pub(super) fn redirect(&mut self, next: Url, relative: bool) {
        if !relative {
            self.host = None;
        }
        if !(self.url.scheme == "https" && next.scheme == "http")
            && let Ok(from) = HeaderValue::try_from(self.url.to_string())
        {
            self.headers.insert(REFERER, from);
        }
        self.url = next;
    }
}
