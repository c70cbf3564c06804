//! The watch of a node's pods, with the node's name as field selector, which is all that a node identity may have.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, future, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_kube::{Client, Objects, Selector, Slim, WatchEvent};

use super::watch_audit::{AuditFailure, AuditScope, PERIOD, PodVersions, pod_versions};

/// What the watch of a node's pods shows.
#[derive(Clone, Debug)]
pub enum PodWatchEvent {
    /// A full list begins.
    Restarted,
    /// A version of a pod of the node.
    Applied(Arc<Pod>),
    /// A pod is gone.
    Deleted(Arc<Pod>),
    /// The list is complete: a pod that was not shown since it began is gone.
    Listed,
    /// The versions that were listed for the audit: a reason to check, and no more.
    Versions(Arc<PodVersions>),
    /// The versions could not be listed.
    AuditFailed(Arc<AuditFailure>),
}

/// The watch of all pods that are bound to a node.
pub type PodWatch = BoxStream<'static, PodWatchEvent>;

/// The pods bound to one node, by a watch of its own, and the lists of versions for its audit.
pub fn of_node(client: Client, node: &str) -> PodWatch {
    let versions = pod_versions(client.clone(), AuditScope::Node(node.to_owned()), PERIOD);
    let selector = Selector { fields: Some(format!("spec.nodeName={node}")), labels: None };
    let watch = pod_changes(client, &selector);
    stream::select(watch.filter_map(|event| future::ready(pod_event(event))), versions).boxed()
}

/// A watch of pods without the fields that nobody here reads.
pub(super) fn pod_changes(
    client: Client,
    selector: &Selector,
) -> impl Stream<Item = WatchEvent<Pod>> + Send + use<> {
    let pods = Objects::<Slim<Pod>>::all(client);
    pods.watch_trimmed(selector, |Slim(pod)| trim(pod)).map(|event| event.map(|Slim(pod)| pod))
}

fn pod_event(event: WatchEvent<Pod>) -> Option<PodWatchEvent> {
    Some(match event {
        WatchEvent::Restarted => PodWatchEvent::Restarted,
        WatchEvent::Applied(pod) => PodWatchEvent::Applied(Arc::new(pod)),
        WatchEvent::Deleted(pod) => PodWatchEvent::Deleted(Arc::new(pod)),
        WatchEvent::Listed => PodWatchEvent::Listed,
        WatchEvent::Error(_) => return None,
    })
}

/// Removes what nobody here reads. Everything else may matter to a provider.
pub(super) fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.self_link = None;
    // Lists that grew while they were decoded have spare capacity.
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

/// Gives back the spare capacity of a status' lists.
pub(super) fn shrink(status: &mut PodStatus) {
    fit(&mut status.container_statuses);
    fit(&mut status.init_container_statuses);
    fit(&mut status.ephemeral_container_statuses);
    fit(&mut status.conditions);
}
