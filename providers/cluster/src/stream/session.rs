//! Exec, attach and port-forward sessions.

use async_trait::async_trait;
use vk_provider::{
    ContainerRef, PodRef, Result,
    ability::{Attach, AttachOptions, Exec, ExecOptions, Forward, PortForward, Started},
};
use vk_streaming::{
    client,
    exec::{Protocol, ProtocolVersion},
    forward,
};

use super::PodStreams;

/// Can signal the end of stdin.
const V5: (&str, Protocol) = ("v5.channel.k8s.io", Protocol::WebSocket(ProtocolVersion::V5));
/// Cannot signal the end of stdin over WebSocket.
const V4: (&str, Protocol) = ("v4.channel.k8s.io", Protocol::WebSocket(ProtocolVersion::V4));
/// Can signal the end of stdin.
const SPDY: (&str, Protocol) = ("v4.channel.k8s.io", Protocol::Spdy(ProtocolVersion::V4));

/// SPDY over WebSocket, the only WebSocket protocol that can close one direction alone.
const FORWARD_TUNNEL: (&str, forward::Protocol) = ("SPDY/3.1+portforward.k8s.io", forward::Protocol::Tunnel);
const FORWARD_SPDY: (&str, forward::Protocol) = ("portforward.k8s.io", forward::Protocol::Spdy);

#[async_trait]
impl Exec for PodStreams {
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started> {
        self.session(&format!("run a command in {container}"), "exec", container, command, *options).await
    }
}

#[async_trait]
impl Attach for PodStreams {
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started> {
        self.session(&format!("attach to {container}"), "attach", container, &[], *options).await
    }
}

#[async_trait]
impl PortForward for PodStreams {
    /// If nothing listens on the port, the first read fails: the lower API server reports it only after the connection is established.
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward> {
        let doing = format!("forward port {port} of pod {pod}");
        let address = self.address(pod, "portforward", &[])?;
        let negotiated =
            self.negotiate("pods/portforward", &address, &[FORWARD_TUNNEL], &[FORWARD_SPDY]).await;
        let (protocol, io) = negotiated.map_err(|error| error.into_provider_error(&doing))?;
        let forwarder = client::forward_upgraded(io, protocol, &[port], &self.limits).await;
        Ok(Forward::Stream(forwarder.open(port).await?))
    }
}

impl PodStreams {
    async fn session(
        &self,
        doing: &str,
        part: &'static str,
        container: &ContainerRef,
        command: &[String],
        options: ExecOptions,
    ) -> Result<Started> {
        self.pods.check_running(container)?;
        let address = self.address(&container.pod, part, &query(&container.container, command, options))?;
        // Without a signal for the end of stdin, the process would wait for ever. With a TTY, the end is a control character.
        let websocket = if options.stdin && !options.tty { &[V5][..] } else { &[V5, V4] };
        let resource = if part == "exec" { "pods/exec" } else { "pods/attach" };
        let negotiated = self.negotiate(resource, &address, websocket, &[SPDY]).await;
        let (protocol, io) = negotiated.map_err(|error| error.into_provider_error(doing))?;
        Ok(Started::Session(client::exec_upgraded(io, protocol, &options, &self.limits).await?))
    }
}

fn query<'a>(
    container: &'a str,
    command: &'a [String],
    options: ExecOptions,
) -> Vec<(&'static str, &'a str)> {
    let mut query = vec![("container", container)];
    query.extend(command.iter().map(|word| ("command", word.as_str())));
    let flags = [
        ("stdin", options.stdin),
        ("stdout", options.stdout),
        // A TTY has a single output stream.
        ("stderr", options.stderr && !options.tty),
        ("tty", options.tty),
    ];
    query.extend(flags.into_iter().filter(|(_, on)| *on).map(|(key, _)| (key, "true")));
    query
}
