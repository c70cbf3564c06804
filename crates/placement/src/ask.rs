//! Asks nodes whether pods fit.
//!
//! A node in this process is asked directly. Other nodes are asked at the address in their Node object, and only if their server has the key
//! that the Node object names. They see our client certificate, or get a token: our own stays here, and nodes get one of a ServiceAccount that is
//! good for questions only. Of pods they get what decides whether they fit.

mod answer;
mod endpoint;
mod error;
mod node_token;
mod pinned_key;
mod query_text;
mod service_account;
mod transport;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use http::{Request, StatusCode, header};
use k8s_openapi::api::core::v1::Node;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use vk_kube::{Client, Credentials};
use vk_provider::{
    Provider,
    ability::Verdict,
    placement::{FIT_PATH, FitAnswer, FitQuery},
};

use self::{
    endpoint::Endpoint,
    node_token::{NodeAuthorization, NodeTokens},
    query_text::{QueryBody, QueryText, QueryTexts},
    transport::NodeTransport,
};

pub use self::error::AskError;
use crate::{names::KUBE_SYSTEM, query_pod::disclosed_query};

/// Connections to a node that was not asked for this long are closed.
const IDLE: Duration = Duration::from_mins(5);

/// Limits of a question to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskLimits {
    /// Time to connect, including TLS.
    pub connect: Duration,
    /// Time until the answer is complete, including the time to connect and to get a token.
    pub answer: Duration,
    /// Time until the API server has issued a token for nodes.
    pub token: Duration,
    /// Size of an answer in bytes. One that is not for a person has less, depending on the question.
    pub answer_bytes: usize,
}

/// Asks nodes whether pods fit. Clones share connections.
#[derive(Clone)]
pub struct FitClient(Arc<Inner>);

struct Inner {
    client: Client,
    limits: AskLimits,
    tokens: Arc<NodeTokens>,
    texts: QueryTexts,
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
        let two_seconds = Duration::from_secs(2);
        Self {
            connect: two_seconds,
            answer: Duration::from_secs(5),
            token: two_seconds,
            answer_bytes: 4 << 20,
        }
    }
}

// === impl FitClient ===

impl FitClient {
    /// Asks with the credentials of this client, where placement is in `kube-system`.
    pub fn new(client: Client, limits: AskLimits) -> Self {
        Self::for_namespace(client, limits, KUBE_SYSTEM)
    }

    /// Asks with the credentials of this client. If these are a token of a person, nodes get one of the ServiceAccount of placement in this
    /// namespace instead.
    pub fn for_namespace(client: Client, limits: AskLimits, namespace: &str) -> Self {
        let tokens = Arc::new(NodeTokens::new(&client, limits.token, namespace));
        let (local, connections, texts) = (RwLock::default(), Mutex::default(), QueryTexts::new());
        Self(Arc::new(Inner { client, limits, tokens, texts, local, connections }))
    }

    /// The client with whose credentials nodes are asked.
    pub(crate) fn api_client(&self) -> &Client {
        &self.0.client
    }

    /// Asks this node directly from now on: it runs in this process.
    pub fn add_local(&self, node: &str, provider: Arc<dyn Provider>) {
        self.0.local.write().insert(node.to_owned(), provider);
    }

    /// Asks this node by its address again.
    pub fn remove_local(&self, node: &str) {
        self.0.local.write().remove(node);
    }

    /// Asks a node. The answer has a verdict for each pod of the query. A query that is too long is not sent: its pods are refused.
    pub async fn ask(&self, node: &Node, query: &FitQuery) -> Result<FitAnswer, AskError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let local = self.0.local.read().get(name).cloned();
        let answer = match local {
            // Also in this process, so that the answers are the same.
            Some(provider) => ask_directly(provider.as_ref(), &disclosed_query(query))?,
            None => self.ask_server(name, Endpoint::of(node)?, query).await?,
        };
        let (verdicts, pods) = (answer.verdicts.len(), query.pods.len());
        if verdicts != pods {
            return Err(AskError::Invalid(format!("{verdicts} verdicts for {pods} pods")));
        }
        Ok(if query.explain { answer } else { answer::cut(answer) })
    }

    async fn ask_server(
        &self,
        name: &str,
        endpoint: Endpoint,
        query: &FitQuery,
    ) -> Result<FitAnswer, AskError> {
        // Not within the time limit: that other questions are large is no failure of the node.
        let text = match self.0.texts.serialize(query).await {
            Ok(text) => text,
            Err(limit) => {
                // Not a failure of the node either, which would be paused for others, too.
                let why = format!("the query about the pods has more than {limit}");
                return Ok(FitAnswer {
                    verdicts: vec![Verdict::refused(why, true); query.pods.len()],
                    best_nodes: None,
                });
            }
        };
        let limits = self.0.limits;
        let max_bytes = limits.answer_bytes.min(answer::max_bytes(query));
        let asking = async {
            let credentials = self.0.client.credentials();
            let authorization = self.0.tokens.authorization(&credentials).await?;
            let transport = self.transport(name, &endpoint, credentials)?;
            let send = async |authorization: Option<&NodeAuthorization>| {
                let request = request(&endpoint, authorization, &text)?;
                transport.clone().send(request, endpoint.address, max_bytes).await
            };
            let answer = send(authorization.as_ref()).await;
            if let Err(AskError::Forbidden { code: StatusCode::UNAUTHORIZED, .. }) = &answer
                && let Some(rejected) = &authorization
                && let Some(replacement) = self.0.tokens.replacement(rejected).await
            {
                return send(Some(&replacement)).await;
            }
            answer
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

fn request(
    endpoint: &Endpoint,
    authorization: Option<&NodeAuthorization>,
    text: &QueryText,
) -> Result<Request<QueryBody>, AskError> {
    let mut request = Request::post(format!("https://{}{FIT_PATH}", endpoint.address))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, text.len());
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, &authorization.value);
    }
    request.body(text.body()).map_err(|error| AskError::Invalid(error.to_string()))
}

fn ask_directly(provider: &dyn Provider, query: &FitQuery) -> Result<FitAnswer, AskError> {
    let fit = provider.fit().ok_or(AskError::NotOffered)?;
    Ok(query.evaluate(fit))
}

#[cfg(test)]
pub(crate) mod tests;
