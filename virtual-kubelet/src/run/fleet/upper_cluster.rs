//! The upper cluster: the access of backends to it, and its version.

use std::collections::BTreeSet;

use tracing::warn;
use vk_kube::{Client, ServerVersion, UpperCluster};

use super::super::node_impersonation::NodeImpersonation;

/// The feature of nodes that accept exec, attach and port-forward as WebSockets.
const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";
/// The first version whose API server has a field for declared features.
const DECLARED_FEATURES_SINCE: ServerVersion = ServerVersion { major: 1, minor: 36 };

/// The access to the cluster that backends may use.
pub(super) fn access(client: &Client, readers: NodeImpersonation) -> UpperCluster {
    let own = client.clone();
    UpperCluster::new(client.clone(), move |node| readers.client_for(&own, node))
}

/// The version of the API server, if it reports one.
pub(super) async fn server_version(client: &Client) -> Option<ServerVersion> {
    match ServerVersion::fetch(client).await {
        Ok(version) => Some(version),
        Err(error) => {
            warn!(%error, "cannot read the version of the API server: the nodes declare no features");
            None
        }
    }
}

/// The features of our nodes, if the API server has a field for them.
pub(super) fn features(server: Option<ServerVersion>, web_sockets: bool) -> Option<BTreeSet<String>> {
    server.filter(|version| *version >= DECLARED_FEATURES_SINCE)?;
    Some(web_sockets.then(|| WEB_SOCKETS.to_owned()).into_iter().collect())
}
