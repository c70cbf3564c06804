//! Reads for the audit: lists of versions from the API server's cache, and single pods from the API server itself.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tracing::debug;
use vk_kube::{Client, Kind, Objects, Selector};
use vk_provider::PodRef;
use vk_supervisor::Backoff;

use super::PodVersions;
use crate::pods::watch::{PodWatchEvent, trim};

/// How often the versions are compared.
pub const PERIOD: Duration = Duration::from_mins(1);
/// How long the watch may take to show what a list has already.
const LAG: Duration = Duration::from_secs(5);

/// Lists of the versions of the pods that match the fields, at times that differ from node to node.
pub fn pod_versions(
    client: Client,
    fields: String,
    all_nodes: bool,
    period: Duration,
) -> BoxStream<'static, PodWatchEvent> {
    let selector = Selector { fields: Some(fields), labels: None };
    let pods = Objects::<Pod>::all(client);
    let backoff = Backoff::new(Duration::from_secs(1), period.max(Duration::from_secs(1)));
    let rng = StdRng::from_rng(&mut rand::rng());
    stream::unfold((pods, selector, backoff, rng), move |(pods, selector, mut backoff, mut rng)| async move {
        tokio::time::sleep(period.mul_f64(rng.random_range(0.5..1.5))).await;
        let list = loop {
            match pods.list_metadata(&selector).await {
                Ok(list) => break list,
                Err(error) => {
                    let wait = backoff.next(error.retry_after, &mut rng);
                    debug!(%error, ?wait, "cannot list the versions of the API server's pods: trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        };
        backoff.reset();
        tokio::time::sleep(LAG.min(period)).await;
        let event = PodWatchEvent::Versions(Arc::new(PodVersions::new(list, all_nodes)));
        Some((event, (pods, selector, backoff, rng)))
    })
    .boxed()
}

/// Reads what the API server itself, and not a cache, has under the pod's name.
pub(in crate::pods) async fn read_live(
    client: Client,
    node: &str,
    pod: &PodRef,
) -> Result<Option<Pod>, vk_kube::Error> {
    let pods = Objects::<Pod>::namespaced(client, pod.namespace.as_ref());
    let found = match pods.get(&pod.name).await {
        Ok(found) => Some(found),
        Err(error) if error.kind == Kind::NotFound => None,
        // A node identity may only read its own pods, and a pod that is gone is not one of them. It may list its own pods of
        // this name.
        Err(error) if error.kind == Kind::Forbidden => {
            let fields = format!("spec.nodeName={node},metadata.name={}", pod.name);
            let selector = Selector { fields: Some(fields), labels: None };
            pods.list(&selector).await?.objects.pop()
        }
        Err(error) => return Err(error),
    };
    Ok(found.map(|mut found| {
        trim(&mut found);
        found
    }))
}
