//! Watches of upper objects, one by one, and of all copies in the lower cluster.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
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
use crate::{list_tracker::ListTracker, names};

/// For this long after a pod is bound, its node may still be denied access to the objects that the pod refers to. Such errors are not
/// reported.
const AUTHORIZATION_LAG: Duration = Duration::from_secs(5);
/// After this many refusals in a row, watching is not permitted. A node may read claims but not watch them.
const MAX_REFUSALS: u32 = 3;
/// How often an object is read that cannot be watched.
const POLL: Duration = Duration::from_mins(1);

/// Drops metadata that is not needed. The last applied configuration can be as large as the object.
fn trim<K: CopiedObject>(object: &mut K) {
    let metadata = object.metadata_mut();
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Reports all copies of one kind. Never returns.
pub(super) async fn watch_lower<K: CopiedObject>(inner: Arc<Inner>, namespace: Option<String>) {
    let objects = K::objects(inner.lower.clone(), namespace.as_deref());
    let labels = Some(format!("{}={}", names::ORIGIN, inner.owner.origin));
    let mut changes = std::pin::pin!(objects.watch_trimmed(&Selector { fields: None, labels }, trim));
    let mut tracker = ListTracker::default();
    while let Some(change) = changes.next().await {
        match change {
            WatchEvent::Restarted => tracker.begin_list(),
            WatchEvent::Applied(object) => {
                let Some(key) = key(&object) else { continue };
                tracker.insert(key.clone());
                inner.handle(Event::LowerSeen(key, observe(&object, &inner.owner)));
            }
            WatchEvent::Deleted(object) => {
                let Some(key) = key(&object) else { continue };
                tracker.remove(&key);
                inner.handle(Event::LowerDeleted(key, version(object.metadata())));
            }
            WatchEvent::Listed => {
                for key in tracker.finish_list() {
                    inner.handle(Event::LowerMissing(key));
                }
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

/// Reports one upper object. Never returns.
pub(super) async fn watch_upper<K: CopiedObject>(inner: Arc<Inner>, key: CopyKey, source: UpperRef) {
    let node = inner.upper.clone();
    // Claims outlive the pods through which the node may read them, and a node may never watch claims. So the process uses its own client
    // if it may.
    let process = inner.claims.clone().filter(|_| K::COPY_KIND == Kind::Claim);
    let of = |client: Client| K::objects(client, Some(&source.namespace));
    let (first, other) = match process {
        Some(process) => (process, Some(of(node))),
        None => (node, None),
    };
    let (slot, objects) = (first.watch_slot(), of(first));
    let mut watch =
        UpperWatch { inner, key, source, objects, other, rng: StdRng::from_rng(&mut rand::rng()) };
    watch.read_until_success().await;
    if let Some(slot) = slot {
        watch.follow(watch.objects.clone().on_slot(slot)).await;
    }
    if let (Some(other), Some(slot)) =
        (watch.other.clone(), watch.inner.claims.as_ref().and_then(Client::watch_slot))
    {
        watch.follow(other.on_slot(slot)).await;
    }
    watch.poll().await;
}

/// The watch of one upper object.
struct UpperWatch<K: CopiedObject> {
    inner: Arc<Inner>,
    key: CopyKey,
    source: UpperRef,
    objects: Objects<K>,
    /// A second client for the case that the first is denied.
    other: Option<Objects<K>>,
    rng: StdRng,
}

impl<K: CopiedObject> UpperWatch<K> {
    /// Reads the object until it succeeds once, which is faster than starting a watch.
    async fn read_until_success(&mut self) {
        let started = Instant::now();
        let mut lag_backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut refused = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
        while let Err(error) = self.get().await {
            let wait = if error.kind == ErrorKind::Forbidden && started.elapsed() < AUTHORIZATION_LAG {
                lag_backoff.next(None, &mut self.rng)
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
            Ok(object) => self.report(Some(&object)).await,
            Err(error) if error.kind == ErrorKind::NotFound => self.report(None).await,
            Err(error) => Err(error),
        }
    }

    async fn report(&self, object: Option<&K>) -> Result<(), Error> {
        let desired = match object {
            Some(object) => {
                let has_volume = self.has_volume(object).await?;
                let context = CopyContext {
                    storage_classes: &self.inner.storage_classes,
                    has_volume,
                    has_source: self.has_source(object).await?,
                    metadata: &self.inner.metadata,
                };
                build(object, &self.key, &self.inner.owner, context)
            }
            None => None,
        };
        self.inner.handle(Event::upper_read(self.key.clone(), object.is_some(), desired));
        Ok(())
    }

    /// Whether the volume that a claim is bound to exists in the lower cluster. Without the permission to read volumes the answer is no.
    async fn has_volume(&self, object: &K) -> Result<bool, Error> {
        let Some(volume) = object.volume() else { return Ok(false) };
        let volumes: Objects<PersistentVolume> = Objects::all(self.inner.lower.clone());
        match volumes.get(volume).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Forbidden) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a claim is cloned from another one. It waits until that has a copy of ours: a claim of somebody else must not be cloned
    /// because it has the name.
    async fn has_source(&self, object: &K) -> Result<bool, Error> {
        let Some(name) = object.source_claim() else { return Ok(false) };
        let claims = PersistentVolumeClaim::objects(self.inner.lower.clone(), Some(&self.key.namespace));
        let source = UpperRef { namespace: self.source.namespace.clone(), name: name.to_owned() };
        let found = match claims.get(name).await {
            Ok(claim) => observe(&claim, &self.inner.owner).source,
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if found.as_ref() == Some(&source) {
            return Ok(true);
        }
        let message = format!("the claim {name}, from which it is cloned, has no copy in the lower cluster");
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// Watches the object, and returns when watching is not permitted.
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
                    if self.report(Some(&object)).await.is_err() {
                        self.read_until_success().await;
                    }
                }
                WatchEvent::Deleted(_) => drop(self.report(None).await),
                WatchEvent::Listed => {
                    refusals = 0;
                    if listing.take() == Some(false) {
                        drop(self.report(None).await);
                    }
                }
                WatchEvent::Error(error) if error.kind == ErrorKind::Forbidden => {
                    refusals += 1;
                    if refusals == MAX_REFUSALS {
                        return;
                    }
                }
                WatchEvent::Error(_) => {}
            }
        }
    }

    /// Reads the object periodically.
    async fn poll(&mut self) {
        loop {
            // Jitter spreads the reads of many objects.
            tokio::time::sleep(POLL.mul_f64(self.rng.random_range(0.9..1.1))).await;
            // An error says nothing about the object.
            drop(self.get().await);
        }
    }
}
