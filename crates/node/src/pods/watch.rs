//! How the pods of a node arrive: a watch with the node's name as field selector, which is all that a node identity may
//! have.

use std::sync::Arc;

use futures::{StreamExt as _, future, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Change, Client, Objects, Selector};

/// What the watch tells.
#[derive(Clone, Debug)]
pub enum Sight {
    /// A full listing begins.
    Restarted,
    /// A pod of the node is like this.
    Seen(Arc<Pod>),
    /// A pod is gone.
    Deleted(Arc<Pod>),
    /// The listing is complete: what was not seen since it began is gone.
    Listed,
}

/// Sights of all pods that are bound to a node.
pub type Sights = BoxStream<'static, Sight>;

/// The pods bound to one node.
pub fn of_node(client: Client, node: &str) -> Sights {
    let selector = Selector { fields: Some(format!("spec.nodeName={node}")), labels: None };
    Objects::<Pod>::everywhere(client)
        .watch_trimmed(&selector, trim)
        .filter_map(|change| {
            future::ready(match change {
                Change::Restarted => Some(Sight::Restarted),
                Change::Seen(pod) => Some(Sight::Seen(Arc::new(pod))),
                Change::Deleted(pod) => Some(Sight::Deleted(Arc::new(pod))),
                Change::Listed => Some(Sight::Listed),
                Change::Trouble(_) => None,
            })
        })
        .boxed()
}

/// Takes off what nobody here looks at: half of a pod's weight. Everything else may matter to a provider.
pub(super) fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.self_link = None;
}
