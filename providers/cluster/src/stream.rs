//! Logs, exec, attach and port-forward for lower pods, through the lower API server. Nothing else has to be reachable, and the networks of
//! the two clusters need not be connected.

mod logs;
mod session;
mod stream_error;

use std::{fmt, sync::Arc};

use form_urlencoded::Serializer;
use http::{Method, Request};
use vk_kube::{
    Client, Kind,
    raw::{UpgradeError, Upgraded},
};
use vk_provider::{ContainerRef, Error, PodRef, Result};
use vk_streaming::{SessionLimits, client::ProtocolOffer};

/// Finds lower pods.
pub trait PodLocator: Send + Sync {
    /// The namespace and name of the lower pod of an upper pod. `NotFound` if there is none.
    fn locate(&self, pod: &PodRef) -> Result<(String, String)>;

    /// Fails with `Unavailable` if a container is known not to run. The lower API server would accept the session first and fail then.
    fn check_running(&self, _container: &ContainerRef) -> Result<()> {
        Ok(())
    }
}

/// Implements [`Logs`](vk_provider::ability::Logs), [`Exec`](vk_provider::ability::Exec), [`Attach`](vk_provider::ability::Attach) and
/// [`PortForward`](vk_provider::ability::PortForward) for lower pods.
#[derive(Clone)]
pub struct PodStreams {
    client: Client,
    pods: Arc<dyn PodLocator>,
    limits: SessionLimits,
}

/// An upgraded connection and its protocol.
type Negotiated<P> = (P, Upgraded);

impl PodStreams {
    /// Uses a client of the lower cluster.
    pub fn new(client: Client, pods: Arc<dyn PodLocator>) -> Self {
        Self { client, pods, limits: SessionLimits::default() }
    }

    /// The URL of a subresource of a lower pod.
    fn address(&self, pod: &PodRef, part: &str, query: &[(&str, &str)]) -> Result<String> {
        let (namespace, name) = self.pods.locate(pod)?;
        let query = Serializer::new(String::new()).extend_pairs(query).finish();
        let mark = if query.is_empty() { "" } else { "?" };
        Ok(format!("/api/v1/namespaces/{namespace}/pods/{name}/{part}{mark}{query}"))
    }

    /// Requests one of these protocols over WebSocket and falls back to SPDY if WebSocket is not supported or not permitted, as kubectl
    /// does. API servers before 1.30 only support SPDY, and a role may allow `create` without `get`.
    async fn negotiate<P: Copy>(
        &self,
        part: &'static str,
        address: &str,
        websocket: &[(&'static str, P)],
        spdy: &[(&'static str, P)],
    ) -> Result<Negotiated<P>, ConnectError> {
        let offer = ProtocolOffer::websocket(&names(websocket));
        let first = match self.request_upgrade(part, Method::GET, address, &offer, websocket).await {
            Err(ConnectError::UpgradeError(refused)) if may_fall_back(&refused) => refused,
            answer => return answer,
        };
        let offer = ProtocolOffer::spdy(&names(spdy));
        match self.request_upgrade(part, Method::POST, address, &offer, spdy).await {
            // An error of the API server says more than one of a proxy in between.
            Err(ConnectError::UpgradeError(second)) if first.is_status && !second.is_status => {
                Err(ConnectError::UpgradeError(first))
            }
            answer => answer,
        }
    }

    async fn request_upgrade<P: Copy>(
        &self,
        part: &'static str,
        method: Method,
        address: &str,
        offer: &ProtocolOffer,
        known: &[(&'static str, P)],
    ) -> Result<Negotiated<P>, ConnectError> {
        let request = Request::builder().method(method).uri(address).body(());
        let mut request = request.map_err(|error| {
            ConnectError::Other(Error::invalid(format!("make a request for {part}")).caused_by(error))
        })?;
        offer.add_headers(request.headers_mut()).map_err(ConnectError::Other)?;
        let (answer, io) = self.client.upgrade(part, request).await.map_err(ConnectError::UpgradeError)?;
        let taken = offer.selected(&answer.headers).map_err(ConnectError::Other)?;
        match known.iter().find(|(name, _)| *name == taken) {
            Some((_, protocol)) => Ok((*protocol, io)),
            None => Err(ConnectError::Other(Error::internal(format!(
                "choose a protocol for {part}: we offered {:?}, and the server took {taken:?}",
                names(known)
            )))),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
enum ConnectError {
    /// The server refused the upgrade.
    UpgradeError(UpgradeError),
    /// An error on our side.
    Other(Error),
}

impl ConnectError {
    fn into_provider_error(self, doing: &str) -> Error {
        match self {
            Self::UpgradeError(refused) => stream_error::to_provider_error(doing, refused.error),
            Self::Other(error) => Error::new(error.kind().clone(), doing.to_owned()).caused_by(error),
        }
    }
}

/// Whether the fallback may succeed. It is not tried if the first request may have started something.
fn may_fall_back(refused: &UpgradeError) -> bool {
    match refused.error.kind {
        Kind::Forbidden => true,
        Kind::Invalid => !refused.is_status,
        _ => false,
    }
}

fn names<P>(protocols: &[(&'static str, P)]) -> Vec<&'static str> {
    protocols.iter().map(|(name, _)| *name).collect()
}

impl fmt::Debug for PodStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodStreams").field("server", &self.client.server()).finish_non_exhaustive()
    }
}
