//! The comparison of the provider's pods with the API server's, from time to time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tracing::{debug, info, warn};
use vk_provider::{Error, ObservedPod, PodRef};

use super::{Answer, LOOK_LIMIT, Shell, Slot, acting::caught, surveying::live, worker::Event};

impl Shell {
    /// Asks for the provider's pods when it is time.
    pub(super) fn compare(&mut self) {
        let now = self.start.elapsed();
        if self.comparing || !self.synced || now < self.compare_at {
            return;
        }
        self.comparing = true;
        let provider = Arc::clone(&self.provider);
        self.tasks.spawn(async move { Answer::Pods(now, caught(LOOK_LIMIT, provider.pods()).await) });
    }

    pub(super) fn listed(&mut self, asked: Duration, answer: Result<Vec<ObservedPod>, Error>) {
        self.comparing = false;
        let now = self.start.elapsed();
        let pods = match answer {
            Ok(pods) => pods,
            Err(error) => {
                let wait = self.compare_backoff.next(error.kind().retry_after(), &mut self.rng);
                warn!(error = error.report(), ?wait, "cannot list the provider's pods: trying again");
                self.compare_at = now + wait;
                return;
            }
        };
        self.compare_backoff.reset();
        self.compare_at = now + self.policy.compare;
        if !self.listed {
            info!(pods = pods.len(), "the provider's pods are known");
            self.listed = true;
        }
        let mut there: HashMap<Arc<str>, ObservedPod> =
            pods.into_iter().map(|pod| (Arc::clone(&pod.pod.uid), pod)).collect();
        let mut known: Vec<Arc<str>> = self.workers.keys().cloned().collect();
        // What is there has its place; the rest is served in the order in which it came.
        known.sort_by_cached_key(|uid| {
            let precedence = self.workers.get(uid).map(|slot| slot.worker.precedence());
            (!there.contains_key(uid), precedence)
        });
        for uid in known {
            let status: Option<Box<PodStatus>> = there.remove(&uid).map(|pod| Box::new(pod.status));
            let admitted = |slot: &Slot| slot.freshness.admits(asked, slot.call.is_some(), status.is_some());
            if self.workers.get(&uid).is_some_and(|slot| admitted(slot)) {
                self.tell(&uid, Event::Listed(status));
            }
        }
        for pod in self.leftovers.sighted(there.into_values(), &self.node) {
            self.check(pod);
        }
    }

    /// Asks the API server itself, and not a cache, before anything is cleaned up.
    fn check(&mut self, pod: PodRef) {
        let (client, node) = (self.client.clone(), self.node.clone());
        self.tasks.spawn(async move {
            let found = live(client, &node, &pod).await;
            let is = |found: &Pod| found.metadata.uid.as_deref() == Some(&*pod.uid);
            let answer = found.map(|found| found.as_ref().is_some_and(is));
            Answer::Checked(pod, answer)
        });
    }

    pub(super) fn checked(&mut self, pod: PodRef, answer: Result<bool, vk_kube::Error>) {
        match answer {
            Ok(false) => {
                if self.leftovers.confirmed(&pod) {
                    warn!(%pod, "cleaning up a pod that the API server does not know");
                    let uid = Arc::clone(&pod.uid);
                    let claimed = self.worker(pod);
                    self.tell(&uid, Event::Listed(Some(claimed.unwrap_or_default())));
                }
            }
            Ok(true) => self.leftovers.known(&pod),
            Err(error) => debug!(%pod, %error, "cannot check whether the API server knows the pod"),
        }
    }
}
