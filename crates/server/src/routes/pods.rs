//! Lists of pods: those that the API server wants here, and those that the provider runs.

use std::{convert::Infallible, sync::Arc};

use axum::{body::Body, extract::Extension, response::Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use vk_provider::ObservedPod;

use super::{JSON, text};
use crate::{Api, refusal::Refusal};

/// `/pods`: what is bound to the node, as the API server has it.
pub(super) async fn known(Extension(api): Extension<Arc<Api>>) -> Response {
    list(api.pods.all().into_iter())
}

/// `/runningpods/`: what the provider has containers of, whether or not the API server knows.
pub(super) async fn running(Extension(api): Extension<Arc<Api>>) -> Result<Response, Refusal> {
    let pods = api.provider.pods().await?;
    Ok(list(pods.into_iter().filter_map(alive).map(Arc::new)))
}

/// A list, written as it is sent: ten thousand pods at once would be heavy.
fn list(pods: impl Iterator<Item = Arc<Pod>> + Send + 'static) -> Response {
    let begin = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#;
    let items = pods.enumerate().filter_map(|(place, pod)| {
        let json = serde_json::to_string(&*pod).ok()?;
        Some(Bytes::from(if place == 0 { json } else { format!(",{json}") }))
    });
    let all = [Bytes::from_static(begin.as_bytes())].into_iter().chain(items);
    let all = stream::iter(all).chain(stream::iter([Bytes::from_static(b"]}")]));
    text(JSON, Body::from_stream(all.map(Ok::<_, Infallible>)))
}

/// A pod with its running containers, and nothing else that only the API server knows.
fn alive(observed: ObservedPod) -> Option<Pod> {
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
