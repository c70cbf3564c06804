//! Objects of one kind that pods refer to, each read and kept current while somebody holds it.
//!
//! An object is read once and then watched, on a connection that such watches share. What cannot be watched, because there
//! are too many or because it is not permitted, is read again when it is asked for and was read too long ago. Nothing is ever
//! listed but by name, so that the rights of a node suffice.

mod kinds;
mod reading;

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

use self::reading::Reading;
use super::Limits;

/// How long a question waits for an object that was never read.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is missing and not watched is looked for again when it is asked for, unless that was just now.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// What a shelf needs to know of a kind.
pub(super) trait Shelved: Object {
    /// For references.
    const KIND: ReferenceKind;

    /// Where objects of this kind are.
    fn objects(client: Client, namespace: &str) -> Objects<Self>;

    /// It never changes again.
    fn is_immutable(&self) -> bool {
        false
    }

    /// Takes off what nobody needs. What kubectl applied last can be as large as the object itself.
    fn trim(&mut self) {
        let metadata = self.meta_mut();
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
}

/// The objects of one kind that pods refer to. Clones are the same shelf.
pub(super) struct ObjectCache<K: Shelved>(Arc<Inner<K>>);

struct Inner<K: Shelved> {
    reads: Reads,
    entries: Mutex<HashMap<Key, Weak<Entry<K>>>>,
}

/// How the shelves of a library read.
#[derive(Clone)]
pub(super) struct Reads {
    pub(super) client: Client,
    pub(super) limits: Limits,
    pub(super) supervisor: Supervisor,
    /// Watches that are open, of all shelves of a library.
    pub(super) watching: Arc<AtomicUsize>,
    /// The same for people, of all libraries.
    pub(super) shown: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    namespace: String,
    name: String,
}

/// An object that is kept current while somebody has this.
pub(super) struct Entry<K: Shelved> {
    key: Key,
    sight: Arc<watch::Sender<Sight<K>>>,
    asked: Arc<Notify>,
    shelf: Weak<Inner<K>>,
    /// Ends the reading.
    _stop: oneshot::Sender<()>,
}

/// What is known of an object.
struct Sight<K> {
    state: State<K>,
    /// Counts what was new.
    news: u64,
    at: Instant,
    /// It is watched, or never changes: what is known is as good as new.
    live: bool,
}

enum State<K> {
    Unread,
    Missing,
    There(Arc<K>),
    Failed(error::Kind, String),
}

// === impl ObjectCache ===

impl<K: Shelved> ObjectCache<K> {
    pub(super) fn new(reads: Reads) -> Self {
        Self(Arc::new(Inner { reads, entries: Mutex::default() }))
    }

    /// Sees to it that the object is kept current as long as somebody has what this answers.
    pub(super) fn hold(&self, namespace: &str, name: &str) -> Arc<Entry<K>> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.get(&key).and_then(Weak::upgrade) {
            return entry;
        }
        let unread = Sight { state: State::Unread, news: 0, at: Instant::now(), live: false };
        let (stop, stopped) = oneshot::channel();
        let entry = Arc::new(Entry {
            key: key.clone(),
            sight: Arc::new(watch::Sender::new(unread)),
            asked: Arc::default(),
            shelf: Arc::downgrade(&self.0),
            _stop: stop,
        });
        let reading = Reading {
            objects: K::objects(self.0.reads.client.clone(), namespace),
            key: key.clone(),
            sight: Arc::clone(&entry.sight),
            asked: Arc::clone(&entry.asked),
            reads: self.0.reads.clone(),
            rng: StdRng::from_rng(&mut rand::rng()),
        };
        let (supervisor, what) = (&self.0.reads.supervisor, format!("{:?} {namespace}/{name}", K::KIND));
        let guard = supervisor.clone();
        supervisor.spawn(what, task::Kind::Work, async move {
            tokio::select! {
                () = reading.run() => {}
                _ = stopped => {}
                () = guard.stopping() => {}
            }
        });
        entries.insert(key, Arc::downgrade(&entry));
        entry
    }

    /// How many objects are held.
    pub(super) fn len(&self) -> usize {
        self.0.entries.lock().len()
    }
}

impl<K: Shelved> Clone for ObjectCache<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

// === impl Entry ===

impl<K: Shelved> Entry<K> {
    /// The object, or `None` when there is none of that name.
    pub(super) async fn read(&self) -> Result<Option<Arc<K>>> {
        self.look().await.0
    }

    /// The same, and what becomes known of it after that.
    pub(super) async fn look(&self) -> (Result<Option<Arc<K>>>, Changes<K>) {
        let mut sights = self.sight.subscribe();
        let (old, asked) = {
            let sight = sights.borrow_and_update();
            let shelf = self.shelf.upgrade();
            let ttl = match sight.state {
                State::Missing | State::Failed(..) => MISSING_TTL,
                _ => shelf.map_or(Duration::ZERO, |shelf| shelf.reads.limits.ttl),
            };
            let known = !matches!(sight.state, State::Unread);
            (known && !sight.live && sight.at.elapsed() >= ttl, Instant::now())
        };
        if old {
            self.asked.notify_one();
        }
        let fresh = |sight: &Sight<K>| match sight.state {
            State::Unread => false,
            _ => !old || sight.live || sight.at >= asked,
        };
        // What is known and cannot be read again is better than nothing: pods must start while the API server is away.
        drop(tokio::time::timeout(PATIENCE, sights.wait_for(fresh)).await);
        let sight = sights.borrow_and_update();
        let answer = match &sight.state {
            State::There(object) => Ok(Some(Arc::clone(object))),
            State::Missing => Ok(None),
            State::Failed(kind, message) => Err(Error::new(kind.clone(), message.clone())),
            State::Unread => {
                let Key { namespace, name } = &self.key;
                let kind = K::KIND;
                Err(Error::unavailable(format!(
                    "read {kind:?} {namespace}/{name}: no answer within {PATIENCE:?}"
                )))
            }
        };
        let news = sight.news;
        drop(sight);
        (answer, Changes { sights, news })
    }

    /// Resolves when the object is there and fits.
    pub(super) async fn appeared(&self, fits: impl Fn(&K) -> bool) {
        let mut sights = self.sight.subscribe();
        let there = |sight: &Sight<K>| matches!(&sight.state, State::There(object) if fits(object));
        loop {
            // Where nothing is watched, somebody has to ask.
            let waited = tokio::time::timeout(PATIENCE, sights.wait_for(there)).await;
            match waited {
                Ok(_) => return,
                Err(_) if self.sight.borrow().live => {}
                Err(_) => self.asked.notify_one(),
            }
        }
    }
}

/// What becomes known of an object.
pub(super) struct Changes<K> {
    sights: watch::Receiver<Sight<K>>,
    news: u64,
}

impl<K: Shelved> Changes<K> {
    /// Resolves at the next news. To have read the same once more is none.
    pub(super) async fn next(&mut self) {
        let known = self.news;
        let news = self.sights.wait_for(|sight| sight.news != known).await.map(|sight| sight.news);
        match news {
            Ok(news) => self.news = news,
            Err(_) => std::future::pending().await,
        }
    }
}

impl<K: Shelved> Drop for Entry<K> {
    fn drop(&mut self) {
        let Some(shelf) = self.shelf.upgrade() else { return };
        let mut entries = shelf.entries.lock();
        // Somebody may have come back for it already.
        if entries.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.key);
        }
    }
}
