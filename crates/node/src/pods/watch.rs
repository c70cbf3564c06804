//! How the pods of a node arrive: a watch with the node's name as field selector, which is all that a node identity may
//! have.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, future, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_kube::{Client, Objects, Selector, Slim, WatchEvent};

use super::{
    missed::Survey,
    surveying::{PERIOD, surveys},
};

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
    /// What the API server's cache has: a reason to look, and no more.
    Surveyed(Arc<Survey>),
}

/// Sights of all pods that are bound to a node.
pub type Sights = BoxStream<'static, Sight>;

/// The pods bound to one node, by a watch of its own, and surveys of them.
pub fn of_node(client: Client, node: &str) -> Sights {
    let fields = format!("spec.nodeName={node}");
    let surveys = surveys(client.clone(), fields.clone(), false, PERIOD);
    let selector = Selector { fields: Some(fields), labels: None };
    let watch = changes(client, &selector);
    stream::select(watch.filter_map(|change| future::ready(sight(change))), surveys).boxed()
}

/// A watch of pods, of which nobody needs everything.
pub(super) fn changes(
    client: Client,
    selector: &Selector,
) -> impl Stream<Item = WatchEvent<Pod>> + Send + use<> {
    let pods = Objects::<Slim<Pod>>::all(client);
    pods.watch_trimmed(selector, |Slim(pod)| trim(pod)).map(|change| change.map(|Slim(pod)| pod))
}

fn sight(change: WatchEvent<Pod>) -> Option<Sight> {
    Some(match change {
        WatchEvent::Restarted => Sight::Restarted,
        WatchEvent::Applied(pod) => Sight::Seen(Arc::new(pod)),
        WatchEvent::Deleted(pod) => Sight::Deleted(Arc::new(pod)),
        WatchEvent::Listed => Sight::Listed,
        WatchEvent::Error(_) => return None,
    })
}

/// Takes off what nobody here looks at. Everything else may matter to a provider.
pub(super) fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.self_link = None;
    // A list that grows while it is read has room for more than it will ever hold.
    if let Some(status) = &mut pod.status {
        shrink(status);
    }
    if let Some(spec) = &mut pod.spec {
        fit(&mut spec.tolerations);
        fit(&mut spec.volumes);
        for projected in spec.volumes.iter_mut().flatten().filter_map(|volume| volume.projected.as_mut()) {
            fit(&mut projected.sources);
        }
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            fit(&mut container.env);
            fit(&mut container.env_from);
            fit(&mut container.ports);
            fit(&mut container.volume_mounts);
        }
    }
}

fn fit<T>(list: &mut Option<Vec<T>>) {
    list.iter_mut().for_each(Vec::shrink_to_fit);
}

/// Gives back what the lists of a status have too much.
pub(super) fn shrink(status: &mut PodStatus) {
    fit(&mut status.container_statuses);
    fit(&mut status.init_container_statuses);
    fit(&mut status.ephemeral_container_statuses);
    fit(&mut status.conditions);
}
