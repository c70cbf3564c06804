//! The way from a mock to its pods: a host in this process, or one behind a socket.

use std::time::Duration;

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;
use vk_provider::{Error, PodChange, PodRef, Result};

use crate::{
    host::Host,
    remote::Remote,
    world::{Listed, Reply, Request},
};

#[derive(Debug)]
pub(crate) enum Link {
    Here(Host),
    There(Remote),
}

// === impl Link ===

impl Link {
    pub(crate) async fn call(&self, request: Request) -> Result<Reply> {
        match self {
            Self::Here(host) => host.apply(request),
            Self::There(remote) => remote.call(request).await,
        }
    }

    pub(crate) async fn status(&self, pod: &PodRef) -> Result<PodStatus> {
        match self.call(Request::Status(pod.clone())).await? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn list(&self, node: &str) -> Result<Vec<Listed>> {
        match self.call(Request::List { node: node.into() }).await? {
            Reply::Pods(pods) => Ok(pods),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn changes(&self, node: &str) -> BoxStream<'static, PodChange> {
        match self {
            Self::Here(host) => host.changes(node),
            Self::There(remote) => remote.changes(),
        }
    }

    /// Comings and goings of the other process, if there is one.
    pub(crate) fn connected(&self) -> Option<watch::Receiver<bool>> {
        match self {
            Self::Here(_) => None,
            Self::There(remote) => Some(remote.connected()),
        }
    }

    /// Waits until the other process is there, if there is one.
    pub(crate) async fn wait(&self, limit: Duration) -> Result<()> {
        let Self::There(remote) = self else { return Ok(()) };
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

pub(crate) fn unexpected(reply: &Reply) -> Error {
    Error::internal(format!("the mock's backend gave the answer to another question: {reply:?}"))
}
