//! The client's side: what a container runtime or another kubelet serves, as a provider's session.

mod exec;
mod forward;
mod handshake;
mod task;

use http::{Method, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use vk_provider::{
    Result,
    ability::{ExecOptions, Session},
};

pub use self::forward::Forwarder;
pub(crate) use self::handshake::{Switched, connect, switch, uri};
use crate::{
    exec::{Protocol, Version},
    forward::Protocol as ForwardProtocol,
    limits::Limits,
};

/// Runs or attaches to a process through an address that serves it: a container runtime's, which knows what to run. By
/// SPDY, where the end of input can be said.
pub async fn exec(url: &str, options: &ExecOptions, limits: &Limits) -> Result<Session> {
    let uri = handshake::uri(url)?;
    let io = handshake::connect(&uri, limits).await?;
    let protocols = [Version::V4, Version::V3, Version::V2, Version::V1].map(Protocol::Spdy);
    exec_over(io, handshake::request(Method::POST, &uri)?, &protocols, options, limits).await
}

/// The same over a connection that stands already, in the first of these protocols that the server knows. They must be
/// all SPDY or all WebSocket: one handshake asks for one of the two. The request has the method (`GET` for WebSocket), the
/// address with its query, `Host`, and what else the server wants to see; the headers of the upgrade are put in here.
pub async fn exec_over<IO>(
    io: IO,
    request: Request<()>,
    protocols: &[Protocol],
    options: &ExecOptions,
    limits: &Limits,
) -> Result<Session>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    exec::start(io, request, protocols, options, limits).await
}

/// Connects to an address that serves port-forwarding, by SPDY.
pub async fn forward(url: &str, limits: &Limits) -> Result<Forwarder> {
    let uri = handshake::uri(url)?;
    let io = handshake::connect(&uri, limits).await?;
    forward_over(io, handshake::request(Method::POST, &uri)?, ForwardProtocol::Spdy, &[], limits).await
}

/// The same over a connection that stands already. `ports` are those of the request's query, for the protocols in which
/// they stand there.
pub async fn forward_over<IO>(
    io: IO,
    request: Request<()>,
    protocol: ForwardProtocol,
    ports: &[u16],
    limits: &Limits,
) -> Result<Forwarder>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    forward::start(io, request, protocol, ports, limits).await
}
