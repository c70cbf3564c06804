//! The comparison of what the workers know with what the API server has, from time to time.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tracing::{debug, warn};
use vk_kube::{Client, Kind, Objects, Selector};
use vk_provider::PodRef;
use vk_supervisor::Backoff;

use super::{
    Answer, Shell,
    missed::{Finding, Survey},
    watch::{Sight, trim},
    worker::Event,
};

/// How often pods are surveyed.
pub const PERIOD: Duration = Duration::from_mins(1);
/// How long the watch may take to tell what a survey shows already.
const LAG: Duration = Duration::from_secs(5);

/// Surveys of the pods that match the fields, at times that differ from node to node.
pub fn surveys(client: Client, fields: String, of_all: bool, period: Duration) -> BoxStream<'static, Sight> {
    let selector = Selector { fields: Some(fields), labels: None };
    let pods = Objects::<Pod>::all(client);
    let backoff = Backoff::new(Duration::from_secs(1), period.max(Duration::from_secs(1)));
    let rng = StdRng::from_rng(&mut rand::rng());
    stream::unfold((pods, selector, backoff, rng), move |(pods, selector, mut backoff, mut rng)| async move {
        tokio::time::sleep(period.mul_f64(rng.random_range(0.5..1.5))).await;
        let survey = loop {
            match pods.list_metadata(&selector).await {
                Ok(survey) => break survey,
                Err(error) => {
                    let wait = backoff.next(error.retry_after, &mut rng);
                    debug!(%error, ?wait, "cannot survey the API server's pods: trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        };
        backoff.reset();
        tokio::time::sleep(LAG.min(period)).await;
        let sight = Sight::Surveyed(Arc::new(Survey::new(survey, of_all)));
        Some((sight, (pods, selector, backoff, rng)))
    })
    .boxed()
}

/// Asks the API server itself, and not a cache, what it has under the pod's name.
pub(super) async fn live(client: Client, node: &str, pod: &PodRef) -> Result<Option<Pod>, vk_kube::Error> {
    let pods = Objects::<Pod>::namespaced(client, pod.namespace.as_ref());
    let found = match pods.get(&pod.name).await {
        Ok(found) => Some(found),
        Err(error) if error.kind == Kind::NotFound => None,
        // To a node identity a pod that is gone is none of its pods, and it may not ask for others. It may ask for a list of
        // its own that have this name.
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

impl Shell {
    /// While a listing is under way it tells more than a survey could.
    pub(super) fn surveyed(&mut self, survey: &Survey) {
        if self.synced && self.in_listing.is_none() {
            let known = self.workers.values().map(|slot| (slot.worker.pod(), slot.worker.known()));
            self.missed.surveyed(survey, known);
            self.read_missed();
        }
    }

    fn read_missed(&mut self) {
        while let Some(pod) = self.missed.take() {
            let (client, node) = (self.client.clone(), self.node.clone());
            self.tasks.spawn(async move {
                let answer = live(client, &node, &pod).await;
                Answer::Read(pod, answer.map(Box::new))
            });
        }
    }

    pub(super) fn was_read(&mut self, pod: &PodRef, answer: Result<Box<Option<Pod>>, vk_kube::Error>) {
        let known = self.workers.get(&pod.uid).map(|slot| slot.worker.known());
        let finding = match answer {
            Ok(found) => self.missed.read(pod, *found, known),
            Err(error) => {
                debug!(%pod, %error, "cannot read a pod about which the watch and the API server's cache differ");
                self.missed.unread(pod);
                None
            }
        };
        match finding {
            Some(Finding::Gone) => {
                warn!(%pod, "the watch did not tell that the pod is gone: found out by comparison");
                self.tell(&pod.uid, Event::Gone);
            }
            Some(Finding::Newer(found)) => {
                let node = found.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                if node == Some(&self.node) {
                    warn!(%pod, "the watch did not tell of the pod, or of a change to it: found out by comparison");
                    self.seen(found);
                }
            }
            None => {}
        }
        self.read_missed();
    }
}
