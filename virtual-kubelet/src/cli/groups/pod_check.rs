//! Whether the pods of groups exist.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_kube::{Client, Kind, Objects, Selector};
use vk_provider::{PodRef, inventory::Group};

use super::Holding;
use crate::run::PROVIDER_LABEL;

/// What the API server says about the pod of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodFate {
    /// The pod exists.
    Exists,
    /// The cluster of the group has no pod with this UID.
    Missing,
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// The pods of the API server, or why they could not be read.
#[derive(Debug)]
pub(super) struct ClusterPods {
    /// The UID of the namespace `kube-system`.
    pub(super) cluster: Option<String>,
    /// The URL of the API server.
    pub(super) server: String,
    /// The UIDs of all pods.
    pub(super) uids: Result<HashSet<String>, String>,
    /// Names and providers of the virtual nodes.
    pub(super) nodes: HashSet<(String, String)>,
}

// === impl ClusterPods ===

impl ClusterPods {
    /// Reads the pods of all namespaces, consistently.
    pub(super) async fn read(client: &Result<Client, String>, cluster: Option<String>) -> Self {
        let client = match client {
            Ok(client) => client,
            Err(error) => return Self::unreadable(cluster, String::new(), error.clone()),
        };
        let server = client.server().to_owned();
        let listed = Objects::<Pod>::all(client.clone());
        let listed = listed.list_metadata_in_pages(&Selector::default(), |_| true).await;
        let uids = match listed {
            Ok(list) => list.objects.into_iter().map(|object| object.uid).collect(),
            Err(error) => {
                let hint = match error.kind {
                    Kind::Forbidden | Kind::Unauthorized => {
                        "; listing pods of all namespaces must be permitted"
                    }
                    _ => "",
                };
                let why = format!("cannot list the pods of {server}: {error}{hint}");
                return Self::unreadable(cluster, server, why);
            }
        };
        // Only a hint that the groups belong to this cluster: without permission there are none.
        let nodes = Objects::<Node>::all(client.clone()).list(&Selector::default()).await;
        let nodes = nodes.map(|list| list.objects).unwrap_or_default();
        let virtual_node = |node: Node| {
            let provider = node.metadata.labels?.remove(PROVIDER_LABEL)?;
            Some((node.metadata.name?, provider))
        };
        Self { cluster, server, uids: Ok(uids), nodes: nodes.into_iter().filter_map(virtual_node).collect() }
    }

    fn unreadable(cluster: Option<String>, server: String, why: String) -> Self {
        Self { cluster, server, uids: Err(why), nodes: HashSet::new() }
    }
}

/// What is known about the pod of a group. `named` says that the user chose the cluster by name, which may be another than that of the API
/// server.
pub(super) fn pod_fate(group: &Group, holding: &Holding, pods: &ClusterPods, named: bool) -> PodFate {
    let uids = match &pods.uids {
        Ok(uids) => uids,
        Err(why) => return PodFate::Unknown(why.clone()),
    };
    let Some(pod) = &group.pod else {
        return PodFate::Unknown(format!("group {} is not marked with a pod", group.id));
    };
    if uids.contains(&*pod.uid) {
        return PodFate::Exists;
    }
    // A pod that is not there says nothing if the API server is that of another cluster.
    if is_of_cluster(group, holding, pods, named) {
        return PodFate::Missing;
    }
    PodFate::Unknown(format!(
        "nothing shows that {} is the API server of the cluster {}: it has no pod and no virtual node of these groups; choose it with \
         --kubeconfig",
        pods.server,
        group.cluster.as_deref().unwrap_or("of the groups")
    ))
}

/// Whether a group belongs to the cluster of the API server: it is marked with its UID; or a pod of another group of the node with the same
/// mark is there (two clusters may have chosen one name);
/// or, if the mark is the name in the configuration, its virtual node.
fn is_of_cluster(group: &Group, holding: &Holding, pods: &ClusterPods, named: bool) -> bool {
    if let (Some(own), Some(cluster)) = (&pods.cluster, &group.cluster) {
        if own == cluster {
            return true;
        }
        if is_uid(cluster) {
            return false;
        }
    }
    let exists = |pod: &PodRef| pods.uids.as_ref().is_ok_and(|uids| uids.contains(&*pod.uid));
    let mut same_mark =
        holding.groups.iter().filter(|other| other.cluster == group.cluster && other.node == group.node);
    if same_mark.any(|other| other.pod.as_ref().is_some_and(exists)) {
        return true;
    }
    let node = group.node.clone().map(|node| (node, holding.provider.clone()));
    !named && node.is_some_and(|node| pods.nodes.contains(&node))
}

/// Whether a text looks like the UID of an object.
fn is_uid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-')
}

#[cfg(test)]
mod tests;
