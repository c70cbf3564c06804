//! Negotiates upgrades: headers in, decision out.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::rejected_upgrade::RejectedUpgrade;

/// Names the protocols of a SPDY client, and in the response the selected one.
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Names the supported protocols in an error response.
pub(crate) const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");
/// The value of `Upgrade` for SPDY.
pub(crate) const SPDY: &str = "SPDY/3.1";

/// The requested kind of upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpgradeKind {
    Spdy,
    WebSocket,
}

/// Determines the requested kind of upgrade.
pub(crate) fn upgrade_kind(parts: &Parts) -> Result<UpgradeKind, RejectedUpgrade> {
    if !header_values(&parts.headers, &header::CONNECTION).any(|value| value.eq_ignore_ascii_case("upgrade"))
    {
        return Err(RejectedUpgrade::bad_request("Upgrade request required"));
    }
    let mut upgrades = header_values(&parts.headers, &header::UPGRADE);
    let kind = upgrades.find_map(|value| match value {
        _ if value.eq_ignore_ascii_case("websocket") => Some(UpgradeKind::WebSocket),
        _ if value.eq_ignore_ascii_case(SPDY) => Some(UpgradeKind::Spdy),
        _ => None,
    });
    kind.ok_or_else(|| {
        RejectedUpgrade::bad_request(format!(
            "unable to upgrade: the Upgrade header names neither {SPDY} nor websocket; other protocols are not served here"
        ))
    })
}

/// Selects the client's first SPDY protocol that is supported. The errors are the kubelet's.
pub(crate) fn select_spdy<P: Copy>(
    parts: &Parts,
    supported: &[(&'static str, P)],
) -> Result<P, RejectedUpgrade> {
    if !parts.headers.contains_key(STREAM_PROTOCOL) {
        return Err(RejectedUpgrade::bad_request(format!(
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
            parts.headers.keys_len()
        )));
    }
    let offered: Vec<_> = header_values(&parts.headers, &STREAM_PROTOCOL).collect();
    if offered.is_empty() {
        return Err(RejectedUpgrade::bad_request(
            "unable to upgrade: header X-Stream-Protocol-Version names no protocol",
        ));
    }
    first_supported(&offered, supported).ok_or_else(|| {
        let names: Vec<_> = supported.iter().map(|(name, _)| *name).collect();
        let body = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {names:?}"
        );
        let mut rejected = RejectedUpgrade::new(StatusCode::FORBIDDEN, body);
        for name in names {
            rejected.headers.append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(name));
        }
        rejected
    })
}

/// An accepted WebSocket handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedHandshake<P> {
    pub(crate) protocol: P,
    /// The protocol name in the response; `None` if the client offered none.
    pub(crate) name: Option<&'static str>,
    pub(crate) accept: HeaderValue,
}

/// Validates a WebSocket handshake and selects a protocol: one of `preferred` wherever it is in the client's list, else the client's
/// first that is supported. A client that offers none gets `default_protocol`.
pub(crate) fn accept_websocket<P: Copy>(
    parts: &Parts,
    preferred: &[(&'static str, P)],
    supported: &[(&'static str, P)],
    default_protocol: P,
) -> Result<AcceptedHandshake<P>, RejectedUpgrade> {
    if parts.method != Method::GET {
        let mut rejected =
            RejectedUpgrade::new(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket handshake is a GET request");
        rejected.headers.insert(header::ALLOW, HeaderValue::from_static("GET"));
        return Err(rejected);
    }
    if parts.headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let mut rejected =
            RejectedUpgrade::bad_request("unable to upgrade: Sec-WebSocket-Version must be 13");
        rejected.headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(rejected);
    }
    let key = parts.headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty());
    let key =
        key.ok_or_else(|| RejectedUpgrade::bad_request("unable to upgrade: Sec-WebSocket-Key is missing"))?;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| RejectedUpgrade::bad_request("unable to upgrade: Sec-WebSocket-Key is not usable"))?;

    let offered: Vec<_> = header_values(&parts.headers, &header::SEC_WEBSOCKET_PROTOCOL).collect();
    if offered.is_empty() {
        return Ok(AcceptedHandshake { protocol: default_protocol, name: None, accept });
    }
    let named = |list: &[(&'static str, P)]| {
        let pairs: Vec<_> = list.iter().map(|(name, protocol)| (*name, (*name, *protocol))).collect();
        first_supported(&offered, &pairs)
    };
    if let Some((name, protocol)) = named(preferred).or_else(|| named(supported)) {
        return Ok(AcceptedHandshake { protocol, name: Some(name), accept });
    }
    let names: Vec<_> = preferred.iter().chain(supported).map(|(name, _)| *name).collect();
    let body = format!("unable to upgrade: client offers {offered:?}, server accepts {names:?}");
    Err(RejectedUpgrade::new(StatusCode::FORBIDDEN, body))
}

/// The response that switches to SPDY.
pub(crate) fn spdy_response(protocol: &'static str) -> Response<()> {
    let mut response = switching(SPDY);
    response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    response
}

/// The response that switches to WebSocket.
pub(crate) fn websocket_response<P>(accepted: &AcceptedHandshake<P>) -> Response<()> {
    let mut response = switching("websocket");
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accepted.accept.clone());
    if let Some(name) = accepted.name {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
    }
    response
}

fn switching(protocol: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
    response
}

/// The values of a header, also in comma-separated lists; empty ones are skipped.
pub(crate) fn header_values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lists = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).filter(|value| !value.is_empty())
}

fn first_supported<P: Copy>(offered: &[&str], supported: &[(&'static str, P)]) -> Option<P> {
    offered
        .iter()
        .find_map(|offer| supported.iter().find(|(name, _)| name == offer).map(|(_, protocol)| *protocol))
}
