//! Commands and attachments.

use async_trait::async_trait;
use vk_provider::{
    ContainerRef, Result,
    ability::{Attach, AttachOptions, Exec, ExecOptions, Started},
};
use vk_streaming::{
    client,
    exec::{Protocol, Version},
};

use super::PodStreams;

/// Says the end of input.
const V5: (&str, Protocol) = ("v5.channel.k8s.io", Protocol::WebSocket(Version::V5));
/// Does not, over WebSocket.
const V4: (&str, Protocol) = ("v4.channel.k8s.io", Protocol::WebSocket(Version::V4));
/// Does.
const SPDY: (&str, Protocol) = ("v4.channel.k8s.io", Protocol::Spdy(Version::V4));

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
        // A process that waits for the end of its input would wait for ever, if that cannot be said. On a terminal the end
        // is a letter.
        let websocket = if options.stdin && !options.tty { &[V5][..] } else { &[V5, V4] };
        let resource = if part == "exec" { "pods/exec" } else { "pods/attach" };
        let agreed = self.agree(resource, &address, websocket, &[SPDY]).await;
        let (protocol, io) = agreed.map_err(|error| error.into_provider_error(doing))?;
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
        // A terminal has one output.
        ("stderr", options.stderr && !options.tty),
        ("tty", options.tty),
    ];
    query.extend(flags.into_iter().filter(|(_, on)| *on).map(|(key, _)| (key, "true")));
    query
}
