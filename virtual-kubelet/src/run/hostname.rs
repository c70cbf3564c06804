//! The `Hostname` address of nodes. API servers with default flags try it before all others, so a name that they cannot resolve
//! breaks logs and exec.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::sync::Semaphore;
use tracing::debug;

/// Time limit for the names of all nodes that start together. Nodes do not wait longer for a broken DNS server.
const LOOKUP_LIMIT: Duration = Duration::from_secs(2);
/// Each lookup blocks a thread.
const CONCURRENT_LOOKUPS: usize = 16;

/// The host name of a node, once it is known; `None` for no `Hostname` address.
pub(super) type Hostname = Shared<BoxFuture<'static, Option<String>>>;

/// Finds the host names of nodes. Clones share a limit.
#[derive(Clone, Debug)]
pub(super) struct HostnameResolver {
    lookups: Arc<Semaphore>,
}

// === impl HostnameResolver ===

impl HostnameResolver {
    pub(super) fn new() -> Self {
        Self { lookups: Arc::new(Semaphore::new(CONCURRENT_LOOKUPS)) }
    }

    /// The configured host name; otherwise the node's name, if DNS has one of the node's addresses under it.
    pub(super) fn hostname(&self, configured: Option<&str>, node: &str, addresses: Vec<IpAddr>) -> Hostname {
        if let Some(configured) = configured {
            return std::future::ready(Some(configured.to_owned())).boxed().shared();
        }
        let (lookups, node) = (Arc::clone(&self.lookups), node.to_owned());
        async move {
            let found = async {
                let _permit = lookups.acquire().await.map_err(io::Error::other)?;
                resolve(&node).await
            };
            let found = match tokio::time::timeout(LOOKUP_LIMIT, found).await {
                Ok(found) => found,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            published(node, &addresses, found)
        }
        .boxed()
        .shared()
    }
}

/// Resolves a name as the API server would. The dot makes it absolute: `/etc/hosts` and search domains, which the API server does
/// not share, are not used.
async fn resolve(node: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((format!("{node}."), 0)).await?;
    Ok(found.map(|address| address.ip()).collect())
}

fn published(node: String, addresses: &[IpAddr], found: io::Result<Vec<IpAddr>>) -> Option<String> {
    match found {
        Ok(found) if found.iter().any(|ip| addresses.contains(ip)) => Some(node),
        found => {
            debug!(node, ?found, "the node's name does not resolve to its address: no Hostname address");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_published_only_if_it_resolves_to_the_node() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let own = [ip(1), ip(2)];
        let published = |found| published("vk".to_owned(), &own, found);
        assert_eq!(published(Ok(vec![ip(9), ip(2)])), Some("vk".to_owned()));
        assert_eq!(published(Ok(vec![ip(9)])), None);
        assert_eq!(published(Ok(Vec::new())), None);
        assert_eq!(published(Err(io::ErrorKind::TimedOut.into())), None);
    }

    #[tokio::test]
    async fn a_configured_name_is_published_as_it_is() {
        let resolver = HostnameResolver::new();
        let hostname = resolver.hostname(Some("vk.example.com"), "vk", Vec::new());
        assert_eq!(hostname.await.as_deref(), Some("vk.example.com"));
        // Reserved: it never resolves.
        assert_eq!(resolver.hostname(None, "vk.invalid", vec![IpAddr::from([0; 4])]).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_do_not_wait_for_lookups_that_take_long() {
        let resolver = HostnameResolver::new();
        let _held = resolver.lookups.acquire_many(CONCURRENT_LOOKUPS.try_into().unwrap()).await.unwrap();
        assert_eq!(resolver.hostname(None, "vk", vec![IpAddr::from([0; 4])]).await, None);
    }
}
