//! What is heard of claims, above and below.

use std::{collections::HashSet, hash::Hash, sync::Arc, time::Duration};

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
    claim_tracker::{Event, Key},
    volume,
};
use crate::names;

/// How often it is tried again to read what may not be read.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// What a watch reported of, so that what a new listing does not have is known to be gone.
struct ListTracker<K> {
    known: HashSet<K>,
    listing: Option<HashSet<K>>,
}

fn objects(client: &Client, namespace: Option<&String>) -> Objects<Slim<PersistentVolumeClaim>> {
    match namespace {
        Some(namespace) => Objects::namespaced(client.clone(), namespace),
        None => Objects::everywhere(client.clone()),
    }
}

/// Tells of upper claims for which our node was chosen, for ever. Where claims may not be watched, that is said once, and tried again ever
/// more seldom.
pub(super) async fn watch_upper(
    options: Arc<StorageOptions>,
    namespace: Option<String>,
    inbox: mpsc::Sender<Event>,
) {
    let claims = objects(&options.upper, namespace.as_ref());
    let mut rng = StdRng::from_rng(&mut rand::rng());
    let mut refused = REFUSED;
    let mut warned = false;
    let mut listed = ListTracker::<Key>::new();
    loop {
        let mut changes = std::pin::pin!(claims.watch(&Selector::default()));
        while let Some(change) = changes.next().await {
            let mut events = Vec::new();
            match change {
                WatchEvent::Restarted => listed.begin(),
                WatchEvent::Applied(Slim(claim)) => {
                    let Some(key) = Key::of(&claim) else { continue };
                    if volume::is_chosen(&claim, &options.owner.node) {
                        listed.see(key.clone());
                        events.push(Event::Upper(key, Arc::new(claim)));
                    } else if listed.miss(&key) {
                        events.push(Event::UpperGone(key));
                    }
                }
                WatchEvent::Deleted(Slim(claim)) => {
                    events.extend(Key::of(&claim).filter(|key| listed.miss(key)).map(Event::UpperGone));
                }
                WatchEvent::Listed => {
                    refused.reset();
                    warned = false;
                    events.extend(listed.end().into_iter().map(Event::UpperGone));
                }
                WatchEvent::Error(error) if error.kind == ErrorKind::Forbidden => {
                    if !std::mem::replace(&mut warned, true) {
                        warn!(
                            %error, namespace = namespace.as_deref().unwrap_or("*"),
                            "upper claims may not be watched, so classes of {PROVISIONER} are not served: permit to list and watch persistentvolumeclaims"
                        );
                    }
                    break;
                }
                WatchEvent::Error(_) => {}
            }
            if !sent(&inbox, events).await {
                return;
            }
        }
        tokio::time::sleep(refused.next(None, &mut rng)).await;
    }
}

/// Tells of our copies of claims, for ever.
pub(super) async fn watch_lower(
    options: Arc<StorageOptions>,
    namespace: Option<String>,
    inbox: mpsc::Sender<Event>,
) {
    let claims = objects(&options.lower, namespace.as_ref());
    let labels = Some(format!("{}={}", names::ORIGIN, options.owner.origin));
    let mut changes = std::pin::pin!(claims.watch(&Selector { fields: None, labels }));
    let mut listed = ListTracker::<String>::new();
    let mut first = true;
    while let Some(change) = changes.next().await {
        let mut events = Vec::new();
        match change {
            WatchEvent::Restarted => listed.begin(),
            WatchEvent::Applied(Slim(claim)) => {
                let Some(copy) = ClaimCopy::read(&claim) else { continue };
                listed.see(copy.uid.clone());
                events.push(Event::Lower(copy, first));
            }
            WatchEvent::Deleted(Slim(claim)) => {
                let uid = ClaimCopy::read(&claim).map(|copy| copy.uid);
                events.extend(uid.filter(|uid| listed.miss(uid)).map(Event::LowerGone));
            }
            WatchEvent::Listed => {
                first = false;
                events.extend(listed.end().into_iter().map(Event::LowerGone));
            }
            WatchEvent::Error(_) => {}
        }
        if !sent(&inbox, events).await {
            return;
        }
    }
}

/// Whether somebody is there to be reported.
async fn sent(inbox: &mpsc::Sender<Event>, events: Vec<Event>) -> bool {
    for event in events {
        if inbox.send(event).await.is_err() {
            return false;
        }
    }
    true
}

// === impl ListTracker ===

impl<K: Clone + Eq + Hash> ListTracker<K> {
    fn new() -> Self {
        Self { known: HashSet::new(), listing: None }
    }

    fn begin(&mut self) {
        self.listing = Some(HashSet::new());
    }

    fn see(&mut self, key: K) {
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        // Also if the listing breaks off: then the next one tells what became of it.
        self.known.insert(key);
    }

    /// Whether it was known.
    fn miss(&mut self, key: &K) -> bool {
        if let Some(listing) = &mut self.listing {
            listing.remove(key);
        }
        self.known.remove(key)
    }

    /// What is gone.
    fn end(&mut self) -> Vec<K> {
        let listed = self.listing.take().unwrap_or_default();
        let gone = self.known.difference(&listed).cloned().collect();
        self.known = listed;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_listing_does_not_have_is_gone() {
        let mut listed = ListTracker::new();
        listed.begin();
        listed.see("a");
        listed.see("b");
        assert!(listed.end().is_empty());
        assert!(listed.miss(&"b") && !listed.miss(&"b"));
        listed.see("c");
        // One that breaks off.
        listed.begin();
        listed.see("d");
        listed.begin();
        listed.see("c");
        let mut gone = listed.end();
        gone.sort_unstable();
        assert_eq!(gone, ["a", "d"]);
    }
}
