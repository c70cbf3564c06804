//! Reads for the audit: lists of versions, and single pods from the API server itself.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tracing::{debug, info, warn};
use vk_kube::{Client, Error, Kind, MetadataList, Objects, Selector};
use vk_provider::PodRef;
use vk_supervisor::Backoff;

use super::{AuditFailure, PodVersions};
use crate::pods::watch::{PodWatchEvent, trim};

/// How often the versions are compared.
pub const PERIOD: Duration = Duration::from_mins(1);
/// How long the watch may take to show what a list has already.
const LAG: Duration = Duration::from_secs(5);
/// Time limit of a list with all its pages.
const LIST_LIMIT: Duration = Duration::from_mins(2);

/// The pods whose versions are listed.
#[derive(Clone)]
pub enum AuditScope {
    /// The pods of this node, in one response from the API server's cache, which has an index of them.
    Node(String),
    /// All bound pods, in pages. Only those for whose UID this holds are kept: most may be other nodes'.
    AllNodes(Arc<dyn Fn(&str) -> bool + Send + Sync>),
}

/// Lists versions again and again, at times that differ from node to node.
struct VersionLister {
    pods: Objects<Pod>,
    scope: AuditScope,
    period: Duration,
    /// Before the next attempt.
    wait: Duration,
    backoff: Backoff,
    rng: StdRng,
}

/// Lists of the versions of pods, and failures to list them.
pub fn pod_versions(
    client: Client,
    scope: AuditScope,
    period: Duration,
) -> BoxStream<'static, PodWatchEvent> {
    let mut lister = VersionLister {
        pods: Objects::all(client),
        scope,
        period,
        wait: Duration::ZERO,
        backoff: Backoff::new(Duration::from_secs(1), period.max(Duration::from_secs(1))),
        rng: StdRng::from_rng(&mut rand::rng()),
    };
    lister.wait_for_period();
    stream::unfold(lister, |mut lister| async move {
        let event = lister.next().await;
        Some((event, lister))
    })
    .boxed()
}

// === impl VersionLister ===

impl VersionLister {
    fn wait_for_period(&mut self) {
        self.wait = self.period.mul_f64(self.rng.random_range(0.5..1.5));
    }

    async fn next(&mut self) -> PodWatchEvent {
        tokio::time::sleep(self.wait).await;
        let listed = tokio::time::timeout(LIST_LIMIT, self.list()).await;
        match listed.unwrap_or_else(|_| Err(Error::timeout(LIST_LIMIT))) {
            Ok(list) => {
                if self.backoff.failures() >= AuditFailure::WORTH_REPORTING {
                    info!("the audit of the pod watch works again");
                }
                self.backoff.reset();
                self.wait_for_period();
                tokio::time::sleep(LAG.min(self.period)).await;
                let all_nodes = matches!(self.scope, AuditScope::AllNodes(_));
                PodWatchEvent::Versions(Arc::new(PodVersions::new(list, all_nodes)))
            }
            Err(error) => {
                self.wait = self.backoff.next(error.retry_after, &mut self.rng);
                let failure = AuditFailure { in_a_row: self.backoff.failures(), message: error.message };
                if failure.in_a_row == AuditFailure::WORTH_REPORTING {
                    warn!(error = failure.message, wait = ?self.wait, "the audit of the pod watch keeps failing: trying again");
                } else {
                    debug!(error = failure.message, wait = ?self.wait, "the audit of the pod watch failed: trying again");
                }
                PodWatchEvent::AuditFailed(Arc::new(failure))
            }
        }
    }

    async fn list(&self) -> Result<MetadataList, Error> {
        match &self.scope {
            AuditScope::Node(node) => {
                self.pods.list_metadata(&selector(format!("spec.nodeName={node}"))).await
            }
            AuditScope::AllNodes(relevant) => {
                let bound = selector("spec.nodeName!=".to_owned());
                self.pods.list_metadata_in_pages(&bound, |object| relevant(&object.uid)).await
            }
        }
    }
}

fn selector(fields: String) -> Selector {
    Selector { fields: Some(fields), labels: None }
}

/// Reads what the API server itself, and not a cache, has under the pod's name.
pub(in crate::pods) async fn read_live(
    client: Client,
    node: &str,
    pod: &PodRef,
) -> Result<Option<Pod>, Error> {
    let pods = Objects::<Pod>::namespaced(client, pod.namespace.as_ref());
    let found = match pods.get(&pod.name).await {
        Ok(found) => Some(found),
        Err(error) if error.kind == Kind::NotFound => None,
        // A node identity may only read its own pods, and a pod that is gone is not one of them. It may list its own pods of
        // this name.
        Err(error) if error.kind == Kind::Forbidden => {
            let fields = format!("spec.nodeName={node},metadata.name={}", pod.name);
            pods.list(&selector(fields)).await?.objects.pop()
        }
        Err(error) => return Err(error),
    };
    Ok(found.map(|mut found| {
        trim(&mut found);
        found
    }))
}

#[cfg(test)]
mod tests;
