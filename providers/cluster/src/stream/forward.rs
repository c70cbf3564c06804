//! Connections to ports of lower pods.

use async_trait::async_trait;
use vk_provider::{
    PodRef, Result,
    ability::{Forward, PortForward},
};
use vk_streaming::{client, forward::Protocol};

use super::PodStreams;

/// SPDY within WebSocket: the one of the protocols over WebSocket in which a direction can end without the other.
const TUNNEL: (&str, Protocol) = ("SPDY/3.1+portforward.k8s.io", Protocol::Tunnel);
const SPDY: (&str, Protocol) = ("portforward.k8s.io", Protocol::Spdy);

#[async_trait]
impl PortForward for PodStreams {
    /// That nothing listens there is said below when the connection is there already, without a word when something does: it
    /// is an error of the first read.
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward> {
        let doing = format!("forward port {port} of pod {pod}");
        let address = self.address(pod, "portforward", &[])?;
        let agreed = self.agree("pods/portforward", &address, &[TUNNEL], &[SPDY]).await;
        let (protocol, io) = agreed.map_err(|error| error.into_provider_error(&doing))?;
        let forwarder = client::forward_upgraded(io, protocol, &[port], &self.limits).await;
        Ok(Forward::Stream(forwarder.open(port).await?))
    }
}
