//! As whom the process reads what pods refer to.
//!
//! A process with many nodes would need the right to read every Secret of the cluster. As the node that a pod is bound to it
//! gets what that node's pods refer to, and the API server sees to it.

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

/// How many nodes are asked about at a time.
const AT_ONCE: usize = 16;

/// As whom the nodes of this process read. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// As the process.
    Process,
    /// As the node, whichever it is.
    Nodes,
    /// As the node, for these; as the process for others.
    Some(Arc<BTreeSet<String>>),
}

// === impl Readers ===

impl Readers {
    /// Decides by the configuration, and by what the API server allows.
    pub(super) async fn choose(
        config: &EffectiveConfig,
        client: &Client,
        identity: &Identity,
    ) -> Result<Self, Failure> {
        let nodes: BTreeSet<String> = config.nodes.iter().map(|node| node.name.clone()).collect();
        if config.impersonate_nodes == ImpersonateNodes::Off {
            return Ok(Self::Process);
        }
        if let Some(own) = identity.node() {
            if config.impersonate_nodes == ImpersonateNodes::On {
                let message = format!("the credentials are those of node {own} already: use `auto` or `off`");
                return Err(Failure::Configuration(vec![Problem::new("impersonateNodes", message)]));
            }
            return Ok(Self::Process);
        }
        let allowed = ask(client, &nodes, config.startup_timeout).await?;
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
                    "may not impersonate all of the nodes: what pods refer to is read as this user"
                );
                Ok(Self::Process)
            }
            _ => {
                info!(user = identity.user, "what pods refer to is read as the nodes that they are bound to");
                Ok(allowed)
            }
        }
    }

    /// The client through which a node reads: the same connection, in the node's name.
    pub(super) fn of(&self, client: &Client, node: &str) -> Client {
        let as_node = match self {
            Self::Process => false,
            Self::Nodes => true,
            Self::Some(nodes) => nodes.contains(node),
        };
        if as_node { client.impersonating(node) } else { client.clone() }
    }
}

/// Which nodes may be impersonated. Asks again while the API server does not answer, but not for ever.
async fn ask(client: &Client, nodes: &BTreeSet<String>, limit: Option<Duration>) -> Result<Readers, Failure> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    loop {
        let error = match ask_once(client, nodes).await {
            Ok(readers) => return Ok(readers),
            Err(error) => error,
        };
        let wait = backoff.next(error.retry_after, &mut rng);
        if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
            let hint = "or set impersonateNodes to `off`";
            return Err(anyhow::anyhow!(
                "cannot find out whether nodes may be impersonated: {error} (give it more time with --startup-timeout, {hint})"
            )
            .into());
        }
        warn!(%error, "cannot find out whether nodes may be impersonated: trying again");
        tokio::time::sleep(wait).await;
    }
}

async fn ask_once(client: &Client, nodes: &BTreeSet<String>) -> Result<Readers, Error> {
    // First what is the same for all, as there may be a thousand of them.
    for group in access::NODE_GROUPS {
        if !AccessCheck::impersonate("groups", group).allowed(client).await? {
            return Ok(Readers::Some(Arc::default()));
        }
    }
    if AccessCheck::impersonate("users", "").allowed(client).await? {
        return Ok(Readers::Nodes);
    }
    let asked = stream::iter(nodes).map(async |node| {
        let deed = AccessCheck::impersonate("users", format!("system:node:{node}"));
        Ok::<_, Error>(deed.allowed(client).await?.then(|| node.clone()))
    });
    let allowed: Vec<Option<String>> = asked.buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(Readers::Some(Arc::new(allowed.into_iter().flatten().collect())))
}
