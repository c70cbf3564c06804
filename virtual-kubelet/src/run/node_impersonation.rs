//! Impersonation of nodes.
//!
//! A process with many nodes would need permission to read every Secret of the cluster, to patch every Node and to delete every pod. When
//! it impersonates the node that it acts for, the API server's node authorizer limits it to what that node's pods refer to, and
//! NodeRestriction to that Node and its pods.

use std::{collections::BTreeSet, time::Duration};

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
    Registry,
    cli::Failure,
    config::{self, EffectiveConfig, ImpersonateNodes, OnShutdown, Problem},
};

/// Number of concurrent access checks.
const CONCURRENT_CHECKS: usize = 16;

/// Whether nodes are impersonated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeImpersonation {
    /// The process acts with its own identity.
    Off,
    /// It reads what pods refer to as their node, also for nodes that a backend adds later, and writes with its own identity.
    Reads,
    /// It also writes as the node: Nodes, leases, statuses of pods and events, and removes pods.
    ReadsAndWrites,
}

// === impl NodeImpersonation ===

impl NodeImpersonation {
    /// Decides from the configuration and the permissions of the process.
    pub(super) async fn choose(
        config: &EffectiveConfig,
        registry: &Registry,
        client: &Client,
        identity: &Identity,
    ) -> Result<Self, Failure> {
        if config.impersonate_nodes == ImpersonateNodes::Off {
            return Ok(Self::Off);
        }
        if let Some(own) = identity.node() {
            if config.impersonate_nodes == ImpersonateNodes::On {
                let message = format!("the credentials are already those of node {own}: use `auto` or `off`");
                return Err(Failure::Configuration(vec![Problem::new("impersonateNodes", message)]));
            }
            return Ok(Self::Off);
        }
        let nodes = node_names(config, registry);
        let denied = check_access(client, &nodes, config.startup_timeout).await?;
        match (denied.first(), config.impersonate_nodes) {
            (Some(missing), ImpersonateNodes::On) => {
                let message = format!(
                    "{} may not impersonate node {missing}: see deploy/rbac-impersonate.yaml, or use `auto`",
                    identity.user
                );
                Err(Failure::Configuration(vec![Problem::new("impersonateNodes", message)]))
            }
            (Some(missing), _) => {
                let user = &identity.user;
                info!(
                    user,
                    nodes = nodes.len(),
                    denied = denied.len(),
                    node = missing,
                    "not permitted to impersonate all nodes; reading ConfigMaps and Secrets as this user"
                );
                Ok(Self::Off)
            }
            (None, choice) => {
                info!(user = identity.user, "reading ConfigMaps and Secrets by impersonating the nodes");
                // A node may not delete its Node.
                if config.shutdown.node == OnShutdown::Delete {
                    return Ok(Self::Reads);
                }
                if choice == ImpersonateNodes::Auto && may_write(client).await? {
                    return Ok(Self::Reads);
                }
                info!(user = identity.user, "writing Nodes and pods by impersonating the nodes");
                Ok(Self::ReadsAndWrites)
            }
        }
    }

    /// The client that acts for a node: the same connection, impersonating the node if permitted.
    pub(super) fn client_for(self, client: &Client, node: &str) -> Client {
        match self {
            Self::Off => client.clone(),
            Self::Reads | Self::ReadsAndWrites => client.impersonating(node),
        }
    }
}

/// Whether the process may write all Nodes itself. A node may not set every label and taint, so that is used where it is granted.
async fn may_write(client: &Client) -> Result<bool, Failure> {
    let check =
        AccessCheck { verb: "patch".to_owned(), resource: "nodes".to_owned(), ..AccessCheck::default() };
    check.allowed(client).await.map_err(|error| {
        anyhow::anyhow!(
            "check whether Nodes may be written: {error} (or set impersonateNodes to `on` or `off`)"
        )
        .into()
    })
}

/// The names of all nodes, also of those that backends name themselves.
fn node_names(config: &EffectiveConfig, registry: &Registry) -> BTreeSet<String> {
    let names = |node: &config::Node| match registry.get(&node.provider) {
        Some(factory) => factory.node_names(&node.provider_config, &node.name),
        None => vec![node.name.clone()],
    };
    config.nodes.iter().flat_map(names).collect()
}

/// The nodes that may not be impersonated. Retries until the time limit while the API server does not answer.
async fn check_access(
    client: &Client,
    nodes: &BTreeSet<String>,
    limit: Option<Duration>,
) -> Result<Vec<String>, Failure> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    loop {
        let error = match check_access_once(client, nodes).await {
            Ok(denied) => return Ok(denied),
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

async fn check_access_once(client: &Client, nodes: &BTreeSet<String>) -> Result<Vec<String>, Error> {
    // First what applies to all nodes, because there may be a thousand.
    for group in access::NODE_GROUPS {
        if !AccessCheck::impersonate("groups", group).allowed(client).await? {
            return Ok(nodes.iter().cloned().collect());
        }
    }
    if AccessCheck::impersonate("users", "").allowed(client).await? {
        return Ok(Vec::new());
    }
    let asked = stream::iter(nodes).map(async |node| {
        let check = AccessCheck::impersonate("users", format!("system:node:{node}"));
        Ok::<_, Error>((!check.allowed(client).await?).then(|| node.clone()))
    });
    let denied: Vec<Option<String>> = asked.buffered(CONCURRENT_CHECKS).try_collect().await?;
    Ok(denied.into_iter().flatten().collect())
}
