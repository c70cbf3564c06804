//! Impersonation of nodes for reading ConfigMaps, Secrets and other objects that pods refer to.
//!
//! A process with many nodes would need permission to read every Secret of the cluster. When it impersonates the node of a
//! pod, the API server's node authorizer limits it to what that node's pods refer to.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tracing::{info, warn};
use vk_kube::{
    Client, Error, Identity,
    access::{self, AccessCheck},
};
use vk_supervisor::Backoff;

use crate::{
    cli::Failure,
    config::{EffectiveConfig, ImpersonateNodes, Problem},
};

/// Number of concurrent access checks.
const CONCURRENT_CHECKS: usize = 16;

/// Which nodes are impersonated. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeImpersonation {
    /// None: the process reads with its own identity.
    None,
    /// All nodes.
    All,
    /// Only these nodes.
    Some(Arc<BTreeSet<String>>),
}

// === impl NodeImpersonation ===

impl NodeImpersonation {
    /// Decides from the configuration and the permissions of the process.
    pub(super) async fn choose(
        config: &EffectiveConfig,
        client: &Client,
        identity: &Identity,
    ) -> Result<Self, Failure> {
        let nodes: BTreeSet<String> = config.nodes.iter().map(|node| node.name.clone()).collect();
        if config.impersonate_nodes == ImpersonateNodes::Off {
            return Ok(Self::None);
        }
        if let Some(own) = identity.node() {
            if config.impersonate_nodes == ImpersonateNodes::On {
                let message = format!("the credentials are already those of node {own}: use `auto` or `off`");
                return Err(Failure::Configuration(vec![Problem::new("impersonateNodes", message)]));
            }
            return Ok(Self::None);
        }
        let allowed = check_access(client, &nodes, config.startup_timeout).await?;
        match (&allowed, config.impersonate_nodes) {
            (Self::Some(some), ImpersonateNodes::On) if some.len() < nodes.len() => {
                let missing = nodes.difference(some).next().cloned().unwrap_or_default();
                let message = format!(
                    "{} may not impersonate node {missing}: see deploy/rbac-impersonate.yaml, or use `auto`",
                    identity.user
                );
                Err(Failure::Configuration(vec![Problem::new("impersonateNodes", message)]))
            }
            (Self::Some(some), _) if some.len() < nodes.len() => {
                let user = &identity.user;
                info!(
                    user,
                    nodes = nodes.len(),
                    impersonated = some.len(),
                    "not permitted to impersonate all nodes; reading ConfigMaps and Secrets as this user"
                );
                Ok(Self::None)
            }
            _ => {
                info!(user = identity.user, "reading ConfigMaps and Secrets by impersonating the nodes");
                Ok(allowed)
            }
        }
    }

    /// The client that reads for a node: the same connection, impersonating the node if permitted.
    pub(super) fn client_for(&self, client: &Client, node: &str) -> Client {
        let as_node = match self {
            Self::None => false,
            Self::All => true,
            Self::Some(nodes) => nodes.contains(node),
        };
        if as_node { client.impersonating(node) } else { client.clone() }
    }
}

/// Checks which nodes may be impersonated. Retries until the time limit while the API server does not answer.
async fn check_access(
    client: &Client,
    nodes: &BTreeSet<String>,
    limit: Option<Duration>,
) -> Result<NodeImpersonation, Failure> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    loop {
        let error = match check_access_once(client, nodes).await {
            Ok(impersonation) => return Ok(impersonation),
            Err(error) => error,
        };
        let wait = backoff.next(error.retry_after, &mut rng);
        if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
            let hint = "or set impersonateNodes to `off`";
            return Err(anyhow::anyhow!(
                "check whether nodes may be impersonated: {error} (increase --startup-timeout, {hint})"
            )
            .into());
        }
        warn!(%error, "cannot check whether nodes may be impersonated; retrying");
        tokio::time::sleep(wait).await;
    }
}

async fn check_access_once(client: &Client, nodes: &BTreeSet<String>) -> Result<NodeImpersonation, Error> {
    // First what applies to all nodes, because there may be a thousand.
    for group in access::NODE_GROUPS {
        if !AccessCheck::impersonate("groups", group).allowed(client).await? {
            return Ok(NodeImpersonation::Some(Arc::default()));
        }
    }
    if AccessCheck::impersonate("users", "").allowed(client).await? {
        return Ok(NodeImpersonation::All);
    }
    let asked = stream::iter(nodes).map(async |node| {
        let check = AccessCheck::impersonate("users", format!("system:node:{node}"));
        Ok::<_, Error>(check.allowed(client).await?.then(|| node.clone()))
    });
    let allowed: Vec<Option<String>> = asked.buffer_unordered(CONCURRENT_CHECKS).try_collect().await?;
    Ok(NodeImpersonation::Some(Arc::new(allowed.into_iter().flatten().collect())))
}
