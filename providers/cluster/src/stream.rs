//! Logs, commands, attachments and connections of lower pods, through the lower API server: nothing else has to be reached
//! from here, and the networks of the two clusters need not know of each other.

mod fault;
mod forward;
mod logs;
mod session;

use std::{fmt, sync::Arc};

use form_urlencoded::Serializer;
use http::{Method, Request};
use vk_kube::{
    Client, Kind,
    raw::{UpgradeError, Upgraded},
};
use vk_provider::{ContainerRef, Error, PodRef, Result};
use vk_streaming::{SessionLimits, client::ProtocolOffer};

/// Tells where the lower pods are.
pub trait Locate: Send + Sync {
    /// The namespace and the name of the lower pod of an upper one. `NotFound` if there is none.
    fn locate(&self, pod: &PodRef) -> Result<(String, String)>;

    /// Whether a container runs, as far as it is known. `Unavailable` if it does not: the lower API server would agree to a session with it,
    /// and only then say so.
    fn runs(&self, _container: &ContainerRef) -> Result<()> {
        Ok(())
    }
}

/// The abilities that need a way into a lower pod: [`Logs`](vk_provider::ability::Logs), [`Exec`](vk_provider::ability::Exec),
/// [`Attach`](vk_provider::ability::Attach) and [`PortForward`](vk_provider::ability::PortForward).
#[derive(Clone)]
pub struct Streams {
    client: Client,
    pods: Arc<dyn Locate>,
    limits: SessionLimits,
}

/// A connection that both sides agreed on, and in what.
type Agreed<P> = (P, Upgraded);

impl Streams {
    /// With a client of the lower cluster.
    pub fn new(client: Client, pods: Arc<dyn Locate>) -> Self {
        Self { client, pods, limits: SessionLimits::default() }
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
    ) -> Result<Agreed<P>, Fault> {
        let offer = ProtocolOffer::websocket(&names(websocket));
        let first = match self.ask(part, Method::GET, address, &offer, websocket).await {
            Err(Fault::UpgradeError(refused)) if asks_otherwise(&refused) => refused,
            answer => return answer,
        };
        let offer = ProtocolOffer::spdy(&names(spdy));
        match self.ask(part, Method::POST, address, &offer, spdy).await {
            // What the API server says counts more than what somebody between us does.
            Err(Fault::UpgradeError(second)) if first.is_status && !second.is_status => {
                Err(Fault::UpgradeError(first))
            }
            answer => answer,
        }
    }

    async fn ask<P: Copy>(
        &self,
        part: &'static str,
        method: Method,
        address: &str,
        offer: &ProtocolOffer,
        known: &[(&'static str, P)],
    ) -> Result<Agreed<P>, Fault> {
        let request = Request::builder().method(method).uri(address).body(());
        let mut request = request.map_err(|error| {
            Fault::Other(Error::invalid(format!("make a request for {part}")).caused_by(error))
        })?;
        offer.add_headers(request.headers_mut()).map_err(Fault::Other)?;
        let (answer, io) = self.client.upgrade(part, request).await.map_err(Fault::UpgradeError)?;
        let taken = offer.selected(&answer.headers).map_err(Fault::Other)?;
        match known.iter().find(|(name, _)| *name == taken) {
            Some((_, protocol)) => Ok((*protocol, io)),
            None => Err(Fault::Other(Error::internal(format!(
                "choose a protocol for {part}: we offered {:?}, and the server took {taken:?}",
                names(known)
            )))),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
enum Fault {
    /// The server's word.
    UpgradeError(UpgradeError),
    /// Ours.
    Other(Error),
}

impl Fault {
    fn told(self, doing: &str) -> Error {
        match self {
            Self::UpgradeError(refused) => fault::of(doing, refused.error),
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

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("server", &self.client.server()).finish_non_exhaustive()
    }
}
