//! Cache of the objects of one kind that pods refer to. Each object is kept current while it is held.
//!
//! An object is read once and then watched, on a connection shared by these watches. If it cannot be watched, because there
//! are too many watches or because it is not permitted, it is read again on request when the last read is too old. All
//! requests are by name, so the permissions of a node are enough.

mod kinds;
mod reader;

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::AtomicUsize},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use vk_kube::{Client, Objects, objects::Object};
use vk_provider::{Error, Result, error, resolve::ReferenceKind};
use vk_supervisor::{Supervisor, task};

use self::reader::ObjectReader;
use super::Limits;

/// How long a caller waits for the first read of an object.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum age of a failed read or a missing object that is not watched.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// A kind of object that can be cached.
pub(super) trait CachedObject: Object {
    /// Kind in references.
    const KIND: ReferenceKind;

    /// API client for this kind.
    fn objects(client: Client, namespace: &str) -> Objects<Self>;

    /// Whether the object never changes again.
    fn is_immutable(&self) -> bool {
        false
    }

    /// Drops unused metadata. kubectl's last-applied annotation can be as large as the object itself.
    fn trim(&mut self) {
        let metadata = self.meta_mut();
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
}

/// The cached objects of one kind. Clones share the cache.
pub(super) struct ObjectCache<K: CachedObject>(Arc<Inner<K>>);

struct Inner<K: CachedObject> {
    context: CacheContext,
    entries: Mutex<HashMap<Key, Weak<Entry<K>>>>,
}

/// Dependencies shared by the caches of a node.
#[derive(Clone)]
pub(super) struct CacheContext {
    pub(super) client: Client,
    pub(super) limits: Limits,
    pub(super) supervisor: Supervisor,
    /// Number of open watches of all caches of a node.
    pub(super) watching: Arc<AtomicUsize>,
    /// Metric of open watches of all nodes.
    pub(super) watch_gauge: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    namespace: String,
    name: String,
}

/// Handle of an object. The object is kept current while a handle exists.
pub(super) struct Entry<K: CachedObject> {
    key: Key,
    observation: Arc<watch::Sender<Observation<K>>>,
    read_request: Arc<Notify>,
    cache: Weak<Inner<K>>,
    /// Stops the reader when dropped.
    _stop: oneshot::Sender<()>,
}

/// The last observed state of an object.
struct Observation<K> {
    state: State<K>,
    /// Incremented by every change.
    revision: u64,
    at: Instant,
    /// It is watched or immutable, so the state is current.
    live: bool,
}

enum State<K> {
    Unread,
    Missing,
    Present(Arc<K>),
    Failed(error::Kind, String),
}

// === impl ObjectCache ===

impl<K: CachedObject> ObjectCache<K> {
    pub(super) fn new(context: CacheContext) -> Self {
        Self(Arc::new(Inner { context, entries: Mutex::default() }))
    }

    /// Returns a handle that keeps the object current.
    pub(super) fn hold(&self, namespace: &str, name: &str) -> Arc<Entry<K>> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.get(&key).and_then(Weak::upgrade) {
            return entry;
        }
        let unread = Observation { state: State::Unread, revision: 0, at: Instant::now(), live: false };
        let (stop, stopped) = oneshot::channel();
        let entry = Arc::new(Entry {
            key: key.clone(),
            observation: Arc::new(watch::Sender::new(unread)),
            read_request: Arc::default(),
            cache: Arc::downgrade(&self.0),
            _stop: stop,
        });
        let reader = ObjectReader {
            objects: K::objects(self.0.context.client.clone(), namespace),
            key: key.clone(),
            observation: Arc::clone(&entry.observation),
            read_request: Arc::clone(&entry.read_request),
            context: self.0.context.clone(),
            rng: StdRng::from_rng(&mut rand::rng()),
        };
        let (supervisor, what) = (&self.0.context.supervisor, format!("{:?} {namespace}/{name}", K::KIND));
        let guard = supervisor.clone();
        supervisor.spawn(what, task::Kind::Work, async move {
            tokio::select! {
                () = reader.run() => {}
                _ = stopped => {}
                () = guard.stopping() => {}
            }
        });
        entries.insert(key, Arc::downgrade(&entry));
        entry
    }

    /// Number of held objects.
    pub(super) fn len(&self) -> usize {
        self.0.entries.lock().len()
    }
}

impl<K: CachedObject> Clone for ObjectCache<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

// === impl Entry ===

impl<K: CachedObject> Entry<K> {
    /// The object; `None` if it does not exist.
    pub(super) async fn read(&self) -> Result<Option<Arc<K>>> {
        self.read_and_subscribe().await.0
    }

    /// Reads the object and returns a subscription to later changes.
    pub(super) async fn read_and_subscribe(&self) -> (Result<Option<Arc<K>>>, Changes<K>) {
        let mut observations = self.observation.subscribe();
        let (stale, requested_at) = {
            let observation = observations.borrow_and_update();
            let cache = self.cache.upgrade();
            let ttl = match observation.state {
                State::Missing | State::Failed(..) => MISSING_TTL,
                _ => cache.map_or(Duration::ZERO, |cache| cache.context.limits.ttl),
            };
            let known = !matches!(observation.state, State::Unread);
            (known && !observation.live && observation.at.elapsed() >= ttl, Instant::now())
        };
        if stale {
            self.read_request.notify_one();
        }
        let fresh = |observation: &Observation<K>| match observation.state {
            State::Unread => false,
            _ => !stale || observation.live || observation.at >= requested_at,
        };
        // If it cannot be read again, use the last observed state: pods must start during an API server outage.
        drop(tokio::time::timeout(READ_TIMEOUT, observations.wait_for(fresh)).await);
        let observation = observations.borrow_and_update();
        let answer = match &observation.state {
            State::Present(object) => Ok(Some(Arc::clone(object))),
            State::Missing => Ok(None),
            State::Failed(kind, message) => Err(Error::new(kind.clone(), message.clone())),
            State::Unread => {
                let Key { namespace, name } = &self.key;
                let kind = K::KIND;
                Err(Error::unavailable(format!(
                    "read {kind:?} {namespace}/{name}: no answer within {READ_TIMEOUT:?}"
                )))
            }
        };
        let revision = observation.revision;
        drop(observation);
        (answer, Changes { observations, revision })
    }

    /// Resolves when the object exists and `fits`.
    pub(super) async fn appeared(&self, fits: impl Fn(&K) -> bool) {
        let mut observations = self.observation.subscribe();
        let present = |observation: &Observation<K>| matches!(&observation.state, State::Present(object) if fits(object));
        loop {
            // Without a watch, request another read.
            let waited = tokio::time::timeout(READ_TIMEOUT, observations.wait_for(present)).await;
            match waited {
                Ok(_) => return,
                Err(_) if self.observation.borrow().live => {}
                Err(_) => self.read_request.notify_one(),
            }
        }
    }
}

/// Subscription to the changes of an object.
pub(super) struct Changes<K> {
    observations: watch::Receiver<Observation<K>>,
    revision: u64,
}

impl<K: CachedObject> Changes<K> {
    /// Resolves at the next change. Reading the same version again is not a change.
    pub(super) async fn next(&mut self) {
        let known = self.revision;
        let revision = self
            .observations
            .wait_for(|observation| observation.revision != known)
            .await
            .map(|observation| observation.revision);
        match revision {
            Ok(revision) => self.revision = revision,
            Err(_) => std::future::pending().await,
        }
    }
}

impl<K: CachedObject> Drop for Entry<K> {
    fn drop(&mut self) {
        let Some(cache) = self.cache.upgrade() else { return };
        let mut entries = cache.entries.lock();
        // A new handle may exist already.
        if entries.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.key);
        }
    }
}
