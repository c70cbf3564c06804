//! Lists of pods: those bound to the node, and those that the provider runs.

use std::{convert::Infallible, sync::Arc};

use axum::{body::Body, extract::Extension, response::Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use vk_provider::ObservedPod;

use super::{JSON, text};
use crate::{Api, http_error::HttpError};

/// `/pods`: the pods bound to the node, as the API server has them.
pub(super) async fn bound(Extension(api): Extension<Arc<Api>>) -> Response {
    list(api.pods.list().into_iter())
}

/// `/runningpods/`: the pods with running containers at the provider, whether the API server knows them or not.
pub(super) async fn running(Extension(api): Extension<Arc<Api>>) -> Result<Response, HttpError> {
    let pods = api.provider.pods().await?;
    Ok(list(pods.into_iter().filter_map(running_pod).map(Arc::new)))
}

/// Streams a list: ten thousand pods at once would take a lot of memory.
fn list(pods: impl Iterator<Item = Arc<Pod>> + Send + 'static) -> Response {
    let begin = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#;
    let items = pods.enumerate().filter_map(|(index, pod)| {
        let json = serde_json::to_string(&*pod).ok()?;
        Some(Bytes::from(if index == 0 { json } else { format!(",{json}") }))
    });
    let all = [Bytes::from_static(begin.as_bytes())].into_iter().chain(items);
    let all = stream::iter(all).chain(stream::iter([Bytes::from_static(b"]}")]));
    text(JSON, Body::from_stream(all.map(Ok::<_, Infallible>)))
}

/// A pod with only its running containers.
fn running_pod(observed: ObservedPod) -> Option<Pod> {
    let running = |list: &Option<Vec<ContainerStatus>>| -> Vec<Container> {
        let all = list.iter().flatten();
        all.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
            .map(|status| Container {
                name: status.name.clone(),
                image: Some(status.image.clone()),
                ..Container::default()
            })
            .collect()
    };
    let PodStatus { init_container_statuses, container_statuses, ephemeral_container_statuses, .. } =
        &observed.status;
    let containers =
        [init_container_statuses, container_statuses, ephemeral_container_statuses].map(running).concat();
    if containers.is_empty() {
        return None;
    }
    let mut pod = Pod::default();
    pod.metadata.namespace = Some(observed.pod.namespace.to_string());
    pod.metadata.name = Some(observed.pod.name.to_string());
    pod.metadata.uid = Some(observed.pod.uid.to_string());
    pod.spec = Some(PodSpec { containers, node_name: observed.node, ..PodSpec::default() });
    pod.status = Some(observed.status);
    Some(pod)
}
