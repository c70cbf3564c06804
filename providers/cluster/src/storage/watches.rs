//! Watches of upper claims and of their copies.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::sync::mpsc;
use tracing::warn;
use vk_kube::{Client, Kind as ErrorKind, Objects, Selector, Slim, WatchEvent};
use vk_supervisor::Backoff;

use super::{
    PROVISIONER, StorageOptions,
    claim_copy::ClaimCopy,
    claim_tracker::{ClaimKey, Event},
    volume,
};
use crate::{list_tracker::ListTracker, names};

/// Delay before a forbidden watch is retried.
const FORBIDDEN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

fn objects(client: &Client, namespace: Option<&String>) -> Objects<Slim<PersistentVolumeClaim>> {
    match namespace {
        Some(namespace) => Objects::namespaced(client.clone(), namespace),
        None => Objects::all(client.clone()),
    }
}

/// Reports upper claims for which our node was chosen. Never returns. A missing permission is logged once and retried with a growing
/// delay.
pub(super) async fn watch_upper(
    options: Arc<StorageOptions>,
    namespace: Option<String>,
    inbox: mpsc::Sender<Event>,
) {
    let claims = objects(&options.upper, namespace.as_ref());
    let mut rng = StdRng::from_rng(&mut rand::rng());
    let mut refused = FORBIDDEN_BACKOFF;
    let mut warned = false;
    let mut tracker = ListTracker::<ClaimKey>::default();
    loop {
        let mut changes = std::pin::pin!(claims.watch(&Selector::default()));
        while let Some(change) = changes.next().await {
            let mut events = Vec::new();
            match change {
                WatchEvent::Restarted => tracker.begin_list(),
                WatchEvent::Applied(Slim(claim)) => {
                    let Some(key) = ClaimKey::of(&claim) else { continue };
                    if volume::is_chosen(&claim, &options.owner.node) {
                        tracker.insert(key.clone());
                        events.push(Event::Upper(key, Arc::new(claim)));
                    } else if tracker.remove(&key) {
                        events.push(Event::UpperGone(key));
                    }
                }
                WatchEvent::Deleted(Slim(claim)) => {
                    events
                        .extend(ClaimKey::of(&claim).filter(|key| tracker.remove(key)).map(Event::UpperGone));
                }
                WatchEvent::Listed => {
                    refused.reset();
                    warned = false;
                    events.extend(tracker.finish_list().into_iter().map(Event::UpperGone));
                }
                WatchEvent::Error(error) if error.kind == ErrorKind::Forbidden => {
                    if !std::mem::replace(&mut warned, true) {
                        warn!(
                            %error, namespace = namespace.as_deref().unwrap_or("*"),
                            "not allowed to watch upper claims, so classes of {PROVISIONER} are not served: allow list and watch on persistentvolumeclaims"
                        );
                    }
                    break;
                }
                WatchEvent::Error(_) => {}
            }
            if !send_all(&inbox, events).await {
                return;
            }
        }
        tokio::time::sleep(refused.next(None, &mut rng)).await;
    }
}

/// Reports the copies of claims. Never returns.
pub(super) async fn watch_lower(
    options: Arc<StorageOptions>,
    namespace: Option<String>,
    inbox: mpsc::Sender<Event>,
) {
    let claims = objects(&options.lower, namespace.as_ref());
    let labels = Some(format!("{}={}", names::ORIGIN, options.owner.origin));
    let mut changes = std::pin::pin!(claims.watch(&Selector { fields: None, labels }));
    let mut tracker = ListTracker::<String>::default();
    let mut first = true;
    while let Some(change) = changes.next().await {
        let mut events = Vec::new();
        match change {
            WatchEvent::Restarted => tracker.begin_list(),
            WatchEvent::Applied(Slim(claim)) => {
                let Some(copy) = ClaimCopy::read(&claim) else { continue };
                tracker.insert(copy.uid.clone());
                events.push(Event::Lower(copy, first));
            }
            WatchEvent::Deleted(Slim(claim)) => {
                let uid = ClaimCopy::read(&claim).map(|copy| copy.uid);
                events.extend(uid.filter(|uid| tracker.remove(uid)).map(Event::LowerGone));
            }
            WatchEvent::Listed => {
                first = false;
                events.extend(tracker.finish_list().into_iter().map(Event::LowerGone));
            }
            WatchEvent::Error(_) => {}
        }
        if !send_all(&inbox, events).await {
            return;
        }
    }
}

/// Sends events. Returns whether the receiver still exists.
async fn send_all(inbox: &mpsc::Sender<Event>, events: Vec<Event>) -> bool {
    for event in events {
        if inbox.send(event).await.is_err() {
            return false;
        }
    }
    true
}
