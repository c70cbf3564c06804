//! The client's side: connects to a streaming server of a container runtime or kubelet, and presents it as a provider's session.

mod exec;
mod forward;
mod handshake;
mod task;

use http::Method;
use vk_provider::{
    Result,
    ability::{ExecOptions, Session},
};

pub(crate) use self::handshake::{UpgradeResponse, connect, send_upgrade, uri};
pub use self::{
    exec::{exec_over, exec_upgraded},
    forward::{Forwarder, forward_over, forward_upgraded},
    handshake::ProtocolOffer,
};
use crate::{
    exec::{Protocol, ProtocolVersion},
    forward::Protocol as ForwardProtocol,
    limits::SessionLimits,
};

/// Runs or attaches to a process at the URL of a container runtime's streaming server, which knows what to run. Uses SPDY, which can
/// signal the end of input.
pub async fn exec(url: &str, options: &ExecOptions, limits: &SessionLimits) -> Result<Session> {
    let uri = handshake::uri(url)?;
    let io = handshake::connect(&uri, limits).await?;
    let protocols = [ProtocolVersion::V4, ProtocolVersion::V3, ProtocolVersion::V2, ProtocolVersion::V1]
        .map(Protocol::Spdy);
    exec_over(io, handshake::request(Method::POST, &uri)?, &protocols, options, limits).await
}

/// Connects to a port-forward URL, with SPDY.
pub async fn forward(url: &str, limits: &SessionLimits) -> Result<Forwarder> {
    let uri = handshake::uri(url)?;
    let io = handshake::connect(&uri, limits).await?;
    forward_over(io, handshake::request(Method::POST, &uri)?, ForwardProtocol::Spdy, &[], limits).await
}
