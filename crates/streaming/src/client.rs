//! The client's side: what a container runtime or another kubelet serves, as a provider's session.

mod exec;
mod forward;
mod handshake;
mod task;

use http::Method;
use vk_provider::{
    Result,
    ability::{ExecOptions, Session},
};

pub(crate) use self::handshake::{Switched, connect, switch, uri};
pub use self::{
    exec::{exec_over, exec_upgraded},
    forward::{Forwarder, forward_over, forward_upgraded},
    handshake::Offer,
};
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

/// Connects to an address that serves port-forwarding, by SPDY.
pub async fn forward(url: &str, limits: &Limits) -> Result<Forwarder> {
    let uri = handshake::uri(url)?;
    let io = handshake::connect(&uri, limits).await?;
    forward_over(io, handshake::request(Method::POST, &uri)?, ForwardProtocol::Spdy, &[], limits).await
}
