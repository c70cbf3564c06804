//! What is heard of objects: above one by one, below all of ours.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use vk_kube::{Client, Error, Kind as ErrorKind, Objects, Selector, WatchEvent};
use vk_supervisor::Backoff;

use super::{
    Inner,
    build::{build, observe, version},
    diff::{CopyKey, UpperRef},
    kind::{CopiedObject, CopyContext, Kind},
    state_machine::Event,
};
use crate::names;

/// Right after a pod was bound, its node may not read what the pod names. So long, a refusal is no news.
const TRAILING: Duration = Duration::from_secs(5);
/// After so many refusals in a row, a watch is not permitted. A node may read claims and not watch them.
const REFUSALS: u32 = 3;
/// How often an object is read that cannot be watched.
const POLL: Duration = Duration::from_mins(1);

/// Takes off what nobody needs. What kubectl applied_keys last can be as large as the object itself.
fn trim<K: CopiedObject>(object: &mut K) {
    let metadata = object.metadata_mut();
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied_keys-configuration");
    }
}

/// Tells of all our copies of one kind, for ever.
pub(super) async fn watch_lower<K: CopiedObject>(inner: Arc<Inner>, namespace: Option<String>) {
    let objects = K::objects(inner.lower.clone(), namespace.as_deref());
    let labels = Some(format!("{}={}", names::ORIGIN, inner.owner.origin));
    let mut changes = std::pin::pin!(objects.watch_trimmed(&Selector { fields: None, labels }, trim));
    let mut known: HashSet<CopyKey> = HashSet::new();
    let mut listing: Option<HashSet<CopyKey>> = None;
    while let Some(change) = changes.next().await {
        match change {
            WatchEvent::Restarted => listing = Some(HashSet::new()),
            WatchEvent::Applied(object) => {
                let Some(key) = key(&object) else { continue };
                // Told of, also if the listing breaks off: then the next one tells what became of it.
                known.insert(key.clone());
                if let Some(listing) = &mut listing {
                    listing.insert(key.clone());
                }
                inner.handle(Event::LowerSeen(key, observe(&object, &inner.owner)));
            }
            WatchEvent::Deleted(object) => {
                let Some(key) = key(&object) else { continue };
                known.remove(&key);
                if let Some(listing) = &mut listing {
                    listing.remove(&key);
                }
                inner.handle(Event::LowerDeleted(key, version(object.metadata())));
            }
            WatchEvent::Listed => {
                let listed = listing.take().unwrap_or_default();
                for key in known.difference(&listed) {
                    inner.handle(Event::LowerMissing(key.clone()));
                }
                known = listed;
                inner.handle(Event::Listed(K::COPY_KIND, namespace.clone()));
            }
            WatchEvent::Error(_) => {}
        }
    }
}

fn key<K: CopiedObject>(object: &K) -> Option<CopyKey> {
    let metadata = object.metadata();
    Some(CopyKey { kind: K::COPY_KIND, namespace: metadata.namespace.clone()?, name: metadata.name.clone()? })
}

/// Tells of one upper object, for ever.
pub(super) async fn watch_upper<K: CopiedObject>(inner: Arc<Inner>, key: CopyKey, source: UpperRef) {
    let node = inner.upper.clone();
    // Claims outlive the pods by which the node may read them, and it may not watch them at all: the process reads them, if it may.
    let process = inner.claims.clone().filter(|_| K::COPY_KIND == Kind::Claim);
    let of = |client: Client| K::objects(client, Some(&source.namespace));
    let (first, other) = match process {
        Some(process) => (process, Some(of(node))),
        None => (node, None),
    };
    let (lane, objects) = (first.watch_slot(), of(first));
    let mut reading =
        UpperWatch { inner, key, source, objects, other, rng: StdRng::from_rng(&mut rand::rng()) };
    reading.first().await;
    if let Some(lane) = lane {
        reading.follow(reading.objects.clone().on(lane)).await;
    }
    if let (Some(other), Some(lane)) =
        (reading.other.clone(), reading.inner.claims.as_ref().and_then(Client::watch_slot))
    {
        reading.follow(other.on(lane)).await;
    }
    reading.poll().await;
}

/// The reading of one upper object.
struct UpperWatch<K: CopiedObject> {
    inner: Arc<Inner>,
    key: CopyKey,
    source: UpperRef,
    objects: Objects<K>,
    /// The same as another who may read, where the first may not.
    other: Option<Objects<K>>,
    rng: StdRng,
}

impl<K: CopiedObject> UpperWatch<K> {
    /// Reads it until that succeeds once: a watch takes longer to begin.
    async fn first(&mut self) {
        let started = Instant::now();
        let mut trailing = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut refused = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
        while let Err(error) = self.get().await {
            let wait = if error.kind == ErrorKind::Forbidden && started.elapsed() < TRAILING {
                trailing.next(None, &mut self.rng)
            } else {
                let backoff = if error.kind == ErrorKind::Forbidden { &mut refused } else { &mut backoff };
                let wait = backoff.next(error.retry_after, &mut self.rng);
                self.inner.handle(Event::UpperUnreadable(self.key.clone(), error));
                wait
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn get(&self) -> Result<(), Error> {
        let mut found = self.objects.get(&self.source.name).await;
        if let (Err(error), Some(other)) = (&found, &self.other)
            && error.kind == ErrorKind::Forbidden
        {
            found = other.get(&self.source.name).await;
        }
        match found {
            Ok(object) => self.saw(Some(&object)).await,
            Err(error) if error.kind == ErrorKind::NotFound => self.saw(None).await,
            Err(error) => Err(error),
        }
    }

    async fn saw(&self, object: Option<&K>) -> Result<(), Error> {
        let desired = match object {
            Some(object) => {
                let has_volume = self.has_volume(object).await?;
                let context = CopyContext { storage_classes: &self.inner.storage_classes, has_volume };
                build(object, &self.key, &self.inner.owner, context)
            }
            None => None,
        };
        self.inner.handle(Event::upper_read(self.key.clone(), object.is_some(), desired));
        Ok(())
    }

    /// Whether there is a lower volume of the name that a claim is bound to. Who may not look finds none.
    async fn has_volume(&self, object: &K) -> Result<bool, Error> {
        let Some(volume) = object.volume() else { return Ok(false) };
        let volumes: Objects<PersistentVolume> = Objects::cluster(self.inner.lower.clone());
        match volumes.get(volume).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Forbidden) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Follows the object by a watch, until that is not permitted.
    async fn follow(&mut self, objects: Objects<K>) {
        let selector = Selector { fields: Some(format!("metadata.name={}", self.source.name)), labels: None };
        let mut changes = std::pin::pin!(objects.watch_trimmed(&selector, trim));
        let mut listing = None;
        let mut refusals = 0;
        while let Some(change) = changes.next().await {
            match change {
                WatchEvent::Restarted => listing = Some(false),
                WatchEvent::Applied(object) => {
                    listing = listing.map(|_| true);
                    if self.saw(Some(&object)).await.is_err() {
                        self.first().await;
                    }
                }
                WatchEvent::Deleted(_) => drop(self.saw(None).await),
                WatchEvent::Listed => {
                    refusals = 0;
                    if listing.take() == Some(false) {
                        drop(self.saw(None).await);
                    }
                }
                WatchEvent::Error(error) if error.kind == ErrorKind::Forbidden => {
                    refusals += 1;
                    if refusals == REFUSALS {
                        return;
                    }
                }
                WatchEvent::Error(_) => {}
            }
        }
    }

    /// Reads it now and then.
    async fn poll(&mut self) {
        loop {
            // A tenth more or less, so that the reads of many objects spread.
            tokio::time::sleep(POLL.mul_f64(self.rng.random_range(0.9..1.1))).await;
            // What is refused says nothing of what is there.
            drop(self.get().await);
        }
    }
}
