//! Asks nodes whether pods fit.
//!
//! A node in this process is asked directly. Other nodes are asked at the address in their Node object, with our own credentials, and only if
//! their server has the key that the Node object names: a token that another server got could be used against the API server.

mod endpoint;
mod error;
mod pinned_key;
mod transport;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::Full;
use k8s_openapi::api::core::v1::Node;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use vk_kube::{Client, Credentials};
use vk_provider::{
    Provider,
    placement::{FIT_PATH, FitAnswer, FitQuery, MAX_QUERY_BYTES},
};

use self::{endpoint::Endpoint, transport::NodeTransport};

pub use self::error::AskError;

/// Connections to a node that was not asked for this long are closed.
const IDLE: Duration = Duration::from_mins(5);

/// Limits of a question to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskLimits {
    /// Time to connect, including TLS.
    pub connect: Duration,
    /// Time until the answer is complete, including the time to connect.
    pub answer: Duration,
    /// Size of an answer in bytes.
    pub answer_bytes: usize,
}

/// Asks nodes whether pods fit. Clones share connections.
#[derive(Clone)]
pub struct FitClient(Arc<Inner>);

struct Inner {
    client: Client,
    limits: AskLimits,
    /// Nodes of this process, by name.
    local: RwLock<HashMap<String, Arc<dyn Provider>>>,
    /// Connections to other nodes, by name.
    connections: Mutex<HashMap<String, NodeConnection>>,
}

/// Connections to one node, with these credentials.
struct NodeConnection {
    endpoint: Endpoint,
    credentials: Credentials,
    transport: NodeTransport,
    last_used: Instant,
}

// === impl AskLimits ===

impl Default for AskLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), answer: Duration::from_secs(5), answer_bytes: 4 << 20 }
    }
}

// === impl FitClient ===

impl FitClient {
    /// Asks with the credentials of this client.
    pub fn new(client: Client, limits: AskLimits) -> Self {
        Self(Arc::new(Inner { client, limits, local: RwLock::default(), connections: Mutex::default() }))
    }

    /// Asks this node directly from now on: it runs in this process.
    pub fn add_local(&self, node: &str, provider: Arc<dyn Provider>) {
        self.0.local.write().insert(node.to_owned(), provider);
    }

    /// Asks this node by its address again.
    pub fn remove_local(&self, node: &str) {
        self.0.local.write().remove(node);
    }

    /// Asks a node. The answer has a verdict for each pod of the query.
    pub async fn ask(&self, node: &Node, query: &FitQuery) -> Result<FitAnswer, AskError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let local = self.0.local.read().get(name).cloned();
        let answer = match local {
            Some(provider) => ask_directly(provider.as_ref(), query)?,
            None => self.ask_server(name, Endpoint::of(node)?, query).await?,
        };
        let (verdicts, pods) = (answer.verdicts.len(), query.pods.len());
        if verdicts != pods {
            return Err(AskError::Invalid(format!("{verdicts} verdicts for {pods} pods")));
        }
        Ok(answer)
    }

    async fn ask_server(
        &self,
        name: &str,
        endpoint: Endpoint,
        query: &FitQuery,
    ) -> Result<FitAnswer, AskError> {
        let body = serde_json::to_vec(query).map_err(|error| AskError::Invalid(error.to_string()))?;
        if body.len() > MAX_QUERY_BYTES {
            return Err(AskError::TooLong { bytes: body.len() });
        }
        let limits = self.0.limits;
        let asking = async {
            let credentials = self.0.client.credentials();
            let mut request = Request::post(format!("https://{}{FIT_PATH}", endpoint.address))
                .header(header::CONTENT_TYPE, "application/json");
            if let Some(authorization) = credentials.authorization().await? {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let request = request
                .body(Full::new(Bytes::from(body)))
                .map_err(|error| AskError::Invalid(error.to_string()))?;
            self.transport(name, &endpoint, credentials)?.send(request, endpoint.address).await
        };
        let answer = tokio::time::timeout(limits.answer, asking)
            .await
            .unwrap_or(Err(AskError::Timeout { address: endpoint.address, limit: limits.answer }));
        if answer.as_ref().is_err_and(AskError::is_broken_connection) {
            // The next question must not wait on a dead connection, too.
            self.0.connections.lock().remove(name);
        }
        answer
    }

    /// The connections to a node. They are replaced if its address, its key or our credentials have changed.
    fn transport(
        &self,
        name: &str,
        endpoint: &Endpoint,
        credentials: Credentials,
    ) -> Result<NodeTransport, AskError> {
        let now = Instant::now();
        if let Some(known) = self.0.connections.lock().get_mut(name)
            && known.endpoint == *endpoint
            && known.credentials.is(&credentials)
        {
            known.last_used = now;
            return Ok(known.transport.clone());
        }
        let transport = NodeTransport::new(endpoint, credentials.certificate()?, &self.0.limits)?;
        let mut connections = self.0.connections.lock();
        connections.retain(|_, known| now.duration_since(known.last_used) < IDLE);
        let connection = NodeConnection {
            endpoint: endpoint.clone(),
            credentials,
            transport: transport.clone(),
            last_used: now,
        };
        connections.insert(name.to_owned(), connection);
        Ok(transport)
    }
}

impl fmt::Debug for FitClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FitClient").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

fn ask_directly(provider: &dyn Provider, query: &FitQuery) -> Result<FitAnswer, AskError> {
    let fit = provider.fit().ok_or(AskError::NotOffered)?;
    Ok(query.evaluate(fit))
}

#[cfg(test)]
mod tests;
