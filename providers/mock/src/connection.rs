//! The connection of a mock to the host of its pods, in this process or behind a socket.

use std::time::Duration;

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;
use vk_provider::{Error, PodChange, PodRef, Result};

use crate::{
    pod_host::PodHost,
    remote_host::RemoteHost,
    simulator::{ListedPod, Reply, Request},
};

#[derive(Debug)]
pub(crate) enum HostConnection {
    Local(PodHost),
    Remote(RemoteHost),
}

// === impl HostConnection ===

impl HostConnection {
    pub(crate) async fn call(&self, request: Request) -> Result<Reply> {
        match self {
            Self::Local(host) => host.apply(request),
            Self::Remote(remote) => remote.call(request).await,
        }
    }

    pub(crate) async fn status(&self, pod: &PodRef) -> Result<PodStatus> {
        match self.call(Request::Status(pod.clone())).await? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(crate) async fn list(&self, node: &str) -> Result<Vec<ListedPod>> {
        match self.call(Request::List { node: node.into() }).await? {
            Reply::Pods(pods) => Ok(pods),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(crate) fn changes(&self, node: &str) -> BoxStream<'static, PodChange> {
        match self {
            Self::Local(host) => host.changes(node),
            Self::Remote(remote) => remote.changes(),
        }
    }

    /// The state of the connection to another process, if there is one.
    pub(crate) fn connected(&self) -> Option<watch::Receiver<bool>> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote.connected()),
        }
    }

    /// Waits until the other process is connected, if there is one.
    pub(crate) async fn wait(&self, limit: Duration) -> Result<()> {
        let Self::Remote(remote) = self else { return Ok(()) };
        let mut connected = remote.connected();
        let there = tokio::time::timeout(limit, connected.wait_for(|connected| *connected)).await;
        match there {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::unavailable(format!(
                "connect to backend {}: no answer",
                remote.socket().display()
            ))),
        }
    }
}

pub(crate) fn unexpected_reply(reply: &Reply) -> Error {
    Error::internal(format!("unexpected reply of the mock's backend: {reply:?}"))
}
