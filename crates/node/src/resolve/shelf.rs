//! Objects of one kind that pods refer to, each read and kept current while somebody holds it.
//!
//! An object is read once and then watched, on a connection that such watches share. What cannot be watched, because there
//! are too many or because it is not permitted, is read again when it is asked for and was read too long ago. Nothing is ever
//! listed but by name, so that the rights of a node suffice.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Secret},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use tracing::debug;
use vk_kube::{Change, Client, Kind, Objects, Selector, objects::Object};
use vk_provider::{Error, Result, error, resolve::ReferenceKind};
use vk_supervisor::{Backoff, Supervisor, task};

use super::Limits;

/// Right after a pod was bound, its node may not read what the pod refers to: the authorizer trails the watch by some
/// milliseconds. So long, a refusal is no news.
const TRAILING: Duration = Duration::from_secs(5);
/// How long a question waits for an object that was never read.
const PATIENCE: Duration = Duration::from_secs(10);
/// After so many refusals in a row, the watch is not permitted.
const REFUSALS: u32 = 3;
/// What is missing and not watched is looked for again when it is asked for, unless that was just now.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// What a shelf needs to know of a kind.
pub(super) trait Shelved: Object {
    /// For references.
    const KIND: ReferenceKind;

    /// Where objects of this kind are.
    fn objects(client: Client, namespace: &str) -> Objects<Self>;

    /// Takes off what nobody needs.
    fn trim(&mut self);

    /// It never changes again.
    fn is_immutable(&self) -> bool;
}

/// The objects of one kind that pods refer to. Clones are the same shelf.
pub(super) struct Shelf<K: Shelved>(Arc<Inner<K>>);

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

// === impl Shelf ===

impl<K: Shelved> Shelf<K> {
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

impl<K: Shelved> Clone for Shelf<K> {
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

/// Reads one object for as long as it is held.
struct Reading<K: Shelved> {
    objects: Objects<K>,
    key: Key,
    sight: Arc<watch::Sender<Sight<K>>>,
    asked: Arc<Notify>,
    reads: Reads,
    rng: StdRng,
}

/// Why a watch was left.
enum Left {
    /// It never changes again.
    Settled,
    /// It is not permitted.
    Refused,
}

/// Counts a watch while it is open.
struct Counted(Reads);

impl Counted {
    /// `None` when there are too many already.
    fn new(reads: &Reads) -> Option<Self> {
        let more = |now: usize| (now < reads.limits.watches).then_some(now + 1);
        reads.watching.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        reads.shown.inc();
        Some(Self(reads.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, Ordering::Relaxed);
        self.0.shown.dec();
    }
}

// === impl Reading ===

impl<K: Shelved> Reading<K> {
    async fn run(mut self) {
        self.first().await;
        if self.is_settled() {
            return self.sight.send_modify(|sight| sight.live = true);
        }
        let place = Counted::new(&self.reads).and_then(|it| Some((it, self.reads.client.lane()?)));
        if let Some((_counted, lane)) = place {
            match self.follow(self.objects.clone().on(lane)).await {
                Left::Settled => return,
                Left::Refused => debug!(key = ?self.key, "a watch is not permitted: reading now and then"),
            }
        }
        self.poll().await;
    }

    /// Reads it once, before it is watched: a watch takes longer to begin.
    async fn first(&mut self) {
        let begun = Instant::now();
        let mut trailing = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            let Err(error) = self.get().await else { return };
            let wait = if error.kind == Kind::Forbidden && begun.elapsed() < TRAILING {
                trailing.next(None, &mut self.rng)
            } else {
                let wait = backoff.next(error.retry_after, &mut self.rng);
                self.fail(&error);
                wait
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.asked.notified(), if begun.elapsed() > TRAILING => {}
            }
        }
    }

    async fn get(&self) -> Result<(), vk_kube::Error> {
        match self.objects.get(&self.key.name).await {
            Ok(mut object) => {
                object.trim();
                self.saw(State::There(Arc::new(object)), false);
                Ok(())
            }
            Err(error) if error.kind == Kind::NotFound => {
                self.saw(State::Missing, false);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Follows the object by a watch, until that is of no use.
    async fn follow(&self, objects: Objects<K>) -> Left {
        let selector = Selector { fields: Some(format!("metadata.name={}", self.key.name)), labels: None };
        let mut changes = std::pin::pin!(objects.watch_trimmed(&selector, K::trim));
        let mut listed = None;
        let mut refusals = 0;
        while let Some(change) = changes.next().await {
            match change {
                Change::Restarted => listed = Some(false),
                Change::Seen(object) => {
                    listed = listed.map(|_| true);
                    self.saw(State::There(Arc::new(object)), true);
                    if self.is_settled() {
                        return Left::Settled;
                    }
                }
                Change::Deleted(_) => self.saw(State::Missing, true),
                Change::Listed => {
                    refusals = 0;
                    if listed.take() == Some(false) {
                        self.saw(State::Missing, true);
                    }
                }
                Change::Trouble(error) if error.kind == Kind::Forbidden => {
                    refusals += 1;
                    if refusals == REFUSALS {
                        self.sight.send_modify(|sight| sight.live = false);
                        return Left::Refused;
                    }
                }
                Change::Trouble(_) => {}
            }
        }
        Left::Refused
    }

    /// Reads it when it is asked for, and now and then while somebody waits for changes.
    async fn poll(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            // A tenth more or less, so that the reads of many objects spread.
            let period = self.reads.limits.ttl.mul_f64(self.rng.random_range(0.9..1.1));
            tokio::select! {
                () = self.asked.notified() => {}
                () = tokio::time::sleep(period) => {
                    if self.sight.receiver_count() == 0 {
                        continue;
                    }
                }
            }
            match self.get().await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    self.fail(&error);
                    tokio::time::sleep(backoff.next(error.retry_after, &mut self.rng)).await;
                }
            }
        }
    }

    fn is_settled(&self) -> bool {
        matches!(&self.sight.borrow().state, State::There(object) if object.is_immutable())
    }

    /// Notes what was seen.
    fn saw(&self, state: State<K>, live: bool) {
        self.sight.send_modify(|sight| {
            let same = match (&sight.state, &state) {
                (State::There(old), State::There(new)) => {
                    let (old, new) = (old.meta(), new.meta());
                    old.resource_version == new.resource_version && old.uid == new.uid
                }
                (State::Missing, State::Missing) => true,
                _ => false,
            };
            if !same {
                sight.state = state;
                sight.news += 1;
            }
            (sight.at, sight.live) = (Instant::now(), live);
        });
    }

    /// What is known stays known while it cannot be read.
    fn fail(&self, error: &vk_kube::Error) {
        let Key { namespace, name } = &self.key;
        let kind = match error.kind {
            Kind::Forbidden | Kind::Unauthorized => error::Kind::Denied,
            _ => error::Kind::Unavailable,
        };
        let message = format!("read {:?} {namespace}/{name}: {error}", K::KIND);
        self.sight.send_if_modified(|sight| {
            if matches!(sight.state, State::Unread | State::Failed(..)) {
                sight.state = State::Failed(kind, message);
                sight.news += 1;
                sight.at = Instant::now();
                return true;
            }
            false
        });
    }
}

// === kinds ===

impl Shelved for ConfigMap {
    const KIND: ReferenceKind = ReferenceKind::ConfigMap;

    fn objects(client: Client, namespace: &str) -> Objects<Self> {
        Objects::namespaced(client, namespace)
    }

    fn trim(&mut self) {
        trim(&mut self.metadata);
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Shelved for Secret {
    const KIND: ReferenceKind = ReferenceKind::Secret;

    fn objects(client: Client, namespace: &str) -> Objects<Self> {
        Objects::namespaced(client, namespace)
    }

    fn trim(&mut self) {
        trim(&mut self.metadata);
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Shelved for RuntimeClass {
    const KIND: ReferenceKind = ReferenceKind::RuntimeClass;

    fn objects(client: Client, _namespace: &str) -> Objects<Self> {
        Objects::cluster(client)
    }

    fn trim(&mut self) {
        trim(&mut self.metadata);
    }

    fn is_immutable(&self) -> bool {
        false
    }
}

/// What kubectl applied last can be as large as the object itself.
fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
