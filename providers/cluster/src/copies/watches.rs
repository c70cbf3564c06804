//! Follows upper objects: with a watch per kind and namespace where the process may list, else with a watch per object, as a node may, and
//! with periodic reads when there are too many of these.

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
    namespace_watch::{Follower, NamespaceWatches, Observation},
    state_machine::Event,
};

/// For this long after a pod is bound, its node may still be denied access to the objects that the pod refers to. Such errors are not
/// reported.
const AUTHORIZATION_LAG: Duration = Duration::from_secs(5);
/// After this many refusals in a row, watching is not permitted. A node may read claims but not watch them.
const MAX_REFUSALS: u32 = 3;
/// How often an object is read that cannot be watched.
const POLL: Duration = Duration::from_mins(1);
/// How long the first list of a namespace may take before an object is read instead.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports one upper object. Never returns. `shared` are the watches of whole namespaces, if the process has some.
pub(super) async fn watch_upper<K: CopiedObject>(
    inner: Arc<Inner>,
    shared: Option<&NamespaceWatches<K>>,
    key: CopyKey,
    source: UpperRef,
) {
    let node = inner.upper.clone();
    // Claims outlive the pods through which the node may read them, and a node may never watch claims. So the process uses its own client
    // if it may.
    let process = inner.claims.clone().filter(|_| K::COPY_KIND == Kind::Claim);
    let of = |client: Client| K::objects(client, Some(&source.namespace));
    let follower = match shared {
        Some(shared) => shared.follow(&source.namespace, &source.name).await,
        None => None,
    };
    let lister = follower.as_ref().and(shared).map(NamespaceWatches::client).or(process.as_ref());
    let lister = lister.map(|client| of(client.clone()));
    let (first, other) = match process {
        Some(process) => (process, Some(of(node))),
        None => (node, None),
    };
    let objects = of(first.clone());
    let rng = StdRng::from_rng(&mut rand::rng());
    let mut watch = UpperWatch { inner, key, source, lister, objects, other, newest: 0, rng };
    if let Some(follower) = follower {
        watch.follow_namespace(follower).await;
    } else {
        watch.read_until_success().await;
    }
    if let Some(slot) = first.watch_slot() {
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
    /// The client of the process, if it may list the objects of the namespace.
    lister: Option<Objects<K>>,
    objects: Objects<K>,
    /// A second client for the case that the first is denied.
    other: Option<Objects<K>>,
    /// The newest version that was reported.
    newest: u64,
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

    /// Reads the object and reports it.
    async fn get(&mut self) -> Result<(), Error> {
        let found = self.read().await?;
        self.report(found.as_ref()).await
    }

    /// Reads the object. Where the process may list, it lists by name, because that is permitted for the watch already: a node may read
    /// an object only while one of its pods refers to it, and the deletion of a claim has to be confirmed later than that.
    async fn read(&self) -> Result<Option<K>, Error> {
        if let Some(lister) = &self.lister {
            match lister.list(&self.by_name()).await {
                Err(error) if error.kind == ErrorKind::Forbidden => {}
                list => {
                    return match list?.objects.into_iter().next() {
                        None => self.confirm_absence().await,
                        found => Ok(found),
                    };
                }
            }
        }
        self.read_by_name().await
    }

    /// Reads a claim that a list lacks, because its copy may hold data and something between us and the API server may filter lists. If
    /// nobody may read it, the list has to be enough.
    async fn confirm_absence(&self) -> Result<Option<K>, Error> {
        if K::COPY_KIND != Kind::Claim {
            return Ok(None);
        }
        match self.read_by_name().await {
            Err(error) if error.kind == ErrorKind::Forbidden => Ok(None),
            found => found,
        }
    }

    async fn read_by_name(&self) -> Result<Option<K>, Error> {
        let mut found = self.objects.get(&self.source.name).await;
        if let (Err(error), Some(other)) = (&found, &self.other)
            && error.kind == ErrorKind::Forbidden
        {
            found = other.get(&self.source.name).await;
        }
        match found {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    fn by_name(&self) -> Selector {
        Selector { fields: Some(format!("metadata.name={}", self.source.name)), labels: None }
    }

    async fn report(&mut self, object: Option<&K>) -> Result<(), Error> {
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
        self.newest = object.map_or(self.newest, |object| version(object.metadata()));
        let uid = object.map(|object| object.metadata().uid.as_deref().unwrap_or_default());
        self.inner.handle(Event::upper_read(self.key.clone(), uid, desired));
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

    /// Follows the watch of the namespace, and returns when watching is not permitted.
    async fn follow_namespace(&mut self, follower: Follower<K>) {
        let mut observation = Observation::Missing;
        if follower.listing
            && let Ok(first) = tokio::time::timeout(LIST_TIMEOUT, follower.next()).await
        {
            observation = first;
        }
        loop {
            let reported = match observation {
                // The watch may lag behind a read.
                Observation::Present(object) if version(object.metadata()) < self.newest => true,
                Observation::Present(object) => self.report(Some(&object)).await.is_ok(),
                Observation::Missing => false,
                Observation::Refused => return,
            };
            if !reported {
                // What the watch shows meanwhile counts, even if the object can never be read.
                tokio::select! {
                    () = self.read_until_success() => {}
                    next = follower.next() => {
                        observation = next;
                        continue;
                    }
                }
            }
            observation = follower.next().await;
        }
    }

    /// Watches the object, and returns when watching is not permitted.
    async fn follow(&mut self, objects: Objects<K>) {
        let mut changes = std::pin::pin!(objects.watch_trimmed(&self.by_name(), K::trim));
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
                        Box::pin(self.report_missing()).await;
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

    /// Reports an object that a list lacks.
    async fn report_missing(&mut self) {
        let reported = match self.confirm_absence().await {
            Ok(found) => self.report(found.as_ref()).await,
            Err(error) => Err(error),
        };
        if reported.is_err() {
            self.read_until_success().await;
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
