//! Logs, commands, attachments and connections of lower pods, through the lower API server: nothing else has to be reached
//! from here, and the networks of the two clusters need not know of each other.

mod forward;
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
use vk_streaming::{Limits, client::Offer};

/// Tells where the lower pods are.
pub trait PodLocator: Send + Sync {
    /// The namespace and the name of the lower pod of an upper one. `NotFound` if there is none.
    fn locate(&self, pod: &PodRef) -> Result<(String, String)>;

    /// Whether a container runs, as far as it is known. `Unavailable` if it does not: the lower API server would agree to a session with it,
    /// and only then say so.
    fn check_running(&self, _container: &ContainerRef) -> Result<()> {
        Ok(())
    }
}

/// The abilities that need a way into a lower pod: [`Logs`](vk_provider::ability::Logs), [`Exec`](vk_provider::ability::Exec),
/// [`Attach`](vk_provider::ability::Attach) and [`PortForward`](vk_provider::ability::PortForward).
#[derive(Clone)]
pub struct PodStreams {
    client: Client,
    pods: Arc<dyn PodLocator>,
    limits: Limits,
}

/// A connection that both sides agreed on, and in what.
type Agreed<P> = (P, Upgraded);

impl PodStreams {
    /// With a client of the lower cluster.
    pub fn new(client: Client, pods: Arc<dyn PodLocator>) -> Self {
        Self { client, pods, limits: Limits::default() }
    }

    /// The address of a part of a lower pod.
    fn address(&self, pod: &PodRef, part: &str, query: &[(&str, &str)]) -> Result<String> {
        let (namespace, name) = self.pods.locate(pod)?;
        let query = Serializer::new(String::new()).extend_pairs(query).finish();
        let mark = if query.is_empty() { "" } else { "?" };
        Ok(format!("/api/v1/namespaces/{namespace}/pods/{name}/{part}{mark}{query}"))
    }

    /// Asks for one of these protocols over WebSocket; where that is not served, or not to us, for those over SPDY. kubectl
    /// does the same: API servers before 1.30 do not know the first, and a role may allow `create` without `get`.
    async fn agree<P: Copy>(
        &self,
        part: &'static str,
        address: &str,
        websocket: &[(&'static str, P)],
        spdy: &[(&'static str, P)],
    ) -> Result<Agreed<P>, ConnectError> {
        let offer = Offer::websocket(&names(websocket));
        let first = match self.ask(part, Method::GET, address, &offer, websocket).await {
            Err(ConnectError::UpgradeError(refused)) if asks_otherwise(&refused) => refused,
            answer => return answer,
        };
        let offer = Offer::spdy(&names(spdy));
        match self.ask(part, Method::POST, address, &offer, spdy).await {
            // What the API server says counts more than what somebody between us does.
            Err(ConnectError::UpgradeError(second)) if first.is_status && !second.is_status => {
                Err(ConnectError::UpgradeError(first))
            }
            answer => answer,
        }
    }

    async fn ask<P: Copy>(
        &self,
        part: &'static str,
        method: Method,
        address: &str,
        offer: &Offer,
        known: &[(&'static str, P)],
    ) -> Result<Agreed<P>, ConnectError> {
        let request = Request::builder().method(method).uri(address).body(());
        let mut request = request.map_err(|error| {
            ConnectError::Other(Error::invalid(format!("make a request for {part}")).caused_by(error))
        })?;
        offer.ask(request.headers_mut()).map_err(ConnectError::Other)?;
        let (answer, io) = self.client.upgrade(part, request).await.map_err(ConnectError::UpgradeError)?;
        let taken = offer.taken(&answer.headers).map_err(ConnectError::Other)?;
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
    /// The server's word.
    UpgradeError(UpgradeError),
    /// Ours.
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

/// Whether the same may be answered otherwise when it is asked for in the other way. Nothing that may have begun is begun
/// twice.
fn asks_otherwise(refused: &UpgradeError) -> bool {
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
