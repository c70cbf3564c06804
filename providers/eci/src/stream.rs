//! Commands in containers, over a WebSocket.

mod frame;
#[cfg(test)]
mod tests;

use http::Uri;
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        client::IntoClientRequest as _,
        protocol::{Role, WebSocketConfig},
    },
};
use vk_container_group::{
    backend::{CallError, CallResult},
    cloud::{Client, Endpoint, client::PlainHttp},
};
use vk_provider::{
    ability::{BoxDuplex, ExecOptions, Session},
    error::Kind,
};
use vk_streaming::{
    client,
    exec::{Protocol, ProtocolVersion},
    limits::SessionLimits,
};
use vk_supervisor::{Supervisor, task};

const OPERATION: &str = "connect to the command";
/// Bytes between the two ends of the translation.
const BUFFER: usize = 64 << 10;

/// Continues a command at the URL that the service has given. The URL grants access: it is in no error and no log.
pub(crate) async fn session(
    client: &Client,
    url: &str,
    options: &ExecOptions,
    supervisor: &Supervisor,
) -> CallResult<Session> {
    let (endpoint, uri) = address(url).ok_or_else(|| {
        CallError::unavailable(format!("{OPERATION}: the service has given no URL of a WebSocket"))
    })?;
    let limits = SessionLimits::default();
    let io = client.connect(&endpoint, OPERATION).await?;
    let remote = tokio::time::timeout(limits.creation, handshake(io, uri, &limits))
        .await
        .map_err(|_| CallError::unavailable(format!("{OPERATION}: {endpoint} did not answer in time")))??;
    // The client of the streaming protocols speaks as Kubernetes does, and the other end of this pipe as the service does.
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let local = WebSocketStream::from_raw_socket(theirs, Role::Server, Some(config(&limits))).await;
    let stopping = supervisor.clone();
    supervisor.spawn("command in a container".to_owned(), task::Kind::Work, async move {
        tokio::select! {
            () = frame::translate(remote, local) => {}
            () = stopping.stopping() => {}
        }
    });
    let protocol = Protocol::WebSocket(ProtocolVersion::V5);
    client::exec_upgraded(ours, protocol, options, &limits).await.map_err(|error| {
        let text = format!("{OPERATION}: {}", error.report());
        match error.kind() {
            Kind::Invalid => CallError::new(vk_container_group::backend::Class::Invalid, text),
            _ => CallError::unavailable(text),
        }
    })
}

/// Host and request of a URL such as `wss://HOST/exec/?s=...`.
fn address(url: &str) -> Option<(Endpoint, Uri)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = match uri.scheme_str()? {
        "wss" | "https" => "https",
        "ws" | "http" => "http",
        _ => return None,
    };
    let server = format!("{scheme}://{}", uri.authority()?);
    Some((Endpoint::parse(&server, PlainHttp::Loopback).ok()?, uri))
}

/// Upgrades a connection. No sub-protocol is offered: the service has none.
async fn handshake(
    io: BoxDuplex,
    uri: Uri,
    limits: &SessionLimits,
) -> CallResult<WebSocketStream<BoxDuplex>> {
    let failed = |why: String| CallError::unavailable(format!("{OPERATION}: {why}"));
    let scheme = if matches!(uri.scheme_str(), Some("wss" | "https")) { "wss" } else { "ws" };
    let mut parts = uri.into_parts();
    parts.scheme = scheme.parse().ok();
    let uri = Uri::from_parts(parts).map_err(|_| failed("the URL cannot be used".to_owned()))?;
    let request = uri.into_client_request().map_err(|_| failed("the URL cannot be used".to_owned()))?;
    match client_async_with_config(request, io, Some(config(limits))).await {
        Ok((socket, _)) => Ok(socket),
        Err(error) => Err(failed(explain(&error))),
    }
}

/// Why there is no WebSocket, without what the server says: it may repeat the URL.
fn explain(error: &tokio_tungstenite::tungstenite::Error) -> String {
    use tokio_tungstenite::tungstenite::Error;
    match error {
        Error::Http(response) => format!("the service answered with status {}", response.status().as_u16()),
        Error::Io(error) => format!("the connection was lost: {error}"),
        Error::Protocol(error) => format!("the service does not speak WebSocket: {error}"),
        _ => "the service does not speak WebSocket".to_owned(),
    }
}

fn config(limits: &SessionLimits) -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(limits.max_message))
        .max_frame_size(Some(limits.max_message))
}
