//! What a request asks to be upgraded to. Pure: headers in, decision out.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::refusal::Refusal;

/// Where SPDY clients say which protocols they know, and the server which one it took.
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Where a server says which it would have taken.
pub(crate) const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
/// The value of `Upgrade` for SPDY.
pub(crate) const SPDY: &str = "SPDY/3.1";

/// The kind of upgrade that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Spdy,
    WebSocket,
}

/// Finds out which kind of upgrade a request wants.
pub(crate) fn carrier(parts: &Parts) -> Result<Carrier, Refusal> {
    if !values(&parts.headers, &header::CONNECTION).any(|value| value.eq_ignore_ascii_case("upgrade")) {
        return Err(Refusal::bad_request("Upgrade request required"));
    }
    let mut wanted = values(&parts.headers, &header::UPGRADE);
    let carrier = wanted.find_map(|value| match value {
        _ if value.eq_ignore_ascii_case("websocket") => Some(Carrier::WebSocket),
        _ if value.eq_ignore_ascii_case(SPDY) => Some(Carrier::Spdy),
        _ => None,
    });
    carrier.ok_or_else(|| {
        Refusal::bad_request(format!(
            "unable to upgrade: the Upgrade header names neither {SPDY} nor websocket; other protocols are not served here"
        ))
    })
}

/// The first of the client's SPDY protocols that the server knows. Errors as a kubelet's.
pub(crate) fn spdy<P: Copy>(parts: &Parts, known: &[(&'static str, P)]) -> Result<P, Refusal> {
    if !parts.headers.contains_key(STREAM_PROTOCOL) {
        return Err(Refusal::bad_request(format!(
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
            parts.headers.keys_len()
        )));
    }
    let offered: Vec<_> = values(&parts.headers, &STREAM_PROTOCOL).collect();
    if offered.is_empty() {
        return Err(Refusal::bad_request(
            "unable to upgrade: header X-Stream-Protocol-Version names no protocol",
        ));
    }
    first(&offered, known).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let body = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {names:?}"
        );
        let mut refusal = Refusal::new(StatusCode::FORBIDDEN, body);
        for name in names {
            refusal.headers.append(ACCEPTED, HeaderValue::from_static(name));
        }
        refusal
    })
}

/// A WebSocket handshake that was agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed<P> {
    pub(crate) protocol: P,
    /// The name to answer with; `None` when the client offered none.
    pub(crate) name: Option<&'static str>,
    pub(crate) accept: HeaderValue,
}

/// Checks a WebSocket handshake and chooses a protocol: one of `preferred` wherever it stands in the client's list, else the
/// client's first that is known. A client that offers none gets `unnamed`.
pub(crate) fn websocket<P: Copy>(
    parts: &Parts,
    preferred: &[(&'static str, P)],
    known: &[(&'static str, P)],
    unnamed: P,
) -> Result<Agreed<P>, Refusal> {
    if parts.method != Method::GET {
        let mut refusal =
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket handshake is a GET request");
        refusal.headers.insert(header::ALLOW, HeaderValue::from_static("GET"));
        return Err(refusal);
    }
    if parts.headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let mut refusal = Refusal::bad_request("unable to upgrade: Sec-WebSocket-Version must be 13");
        refusal.headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(refusal);
    }
    let key = parts.headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| Refusal::bad_request("unable to upgrade: Sec-WebSocket-Key is missing"))?;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| Refusal::bad_request("unable to upgrade: Sec-WebSocket-Key is not usable"))?;

    let offered: Vec<_> = values(&parts.headers, &header::SEC_WEBSOCKET_PROTOCOL).collect();
    if offered.is_empty() {
        return Ok(Agreed { protocol: unnamed, name: None, accept });
    }
    let named = |list: &[(&'static str, P)]| {
        let pairs: Vec<_> = list.iter().map(|(name, protocol)| (*name, (*name, *protocol))).collect();
        first(&offered, &pairs)
    };
    if let Some((name, protocol)) = named(preferred).or_else(|| named(known)) {
        return Ok(Agreed { protocol, name: Some(name), accept });
    }
    let names: Vec<_> = preferred.iter().chain(known).map(|(name, _)| *name).collect();
    let body = format!("unable to upgrade: client offers {offered:?}, server accepts {names:?}");
    Err(Refusal::new(StatusCode::FORBIDDEN, body))
}

/// The answer that switches to SPDY.
pub(crate) fn switch_to_spdy(protocol: &'static str) -> Response<()> {
    let mut response = switching(SPDY);
    response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    response
}

/// The answer that switches to WebSocket.
pub(crate) fn switch_to_websocket<P>(agreed: &Agreed<P>) -> Response<()> {
    let mut response = switching("websocket");
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, agreed.accept.clone());
    if let Some(name) = agreed.name {
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

/// The values of a header, also those in lists with commas; empty ones do not count.
pub(crate) fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lists = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).filter(|value| !value.is_empty())
}

fn first<P: Copy>(offered: &[&str], known: &[(&'static str, P)]) -> Option<P> {
    offered
        .iter()
        .find_map(|offer| known.iter().find(|(name, _)| name == offer).map(|(_, protocol)| *protocol))
}
