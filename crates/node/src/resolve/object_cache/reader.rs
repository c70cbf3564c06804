//! Reads one object and keeps it current.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::StreamExt as _;
use rand::{RngExt as _, rngs::StdRng};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::debug;
use vk_kube::{Kind, Objects, Selector, WatchEvent};
use vk_provider::Result;
use vk_supervisor::Backoff;

use super::{
    super::{AUTHORIZER_LAG, authorizer_backoff, read_error_kind},
    CacheContext, CachedObject, Key, Observation, State,
};

/// After this many `Forbidden` errors in a row we stop watching and poll.
const MAX_FORBIDDEN: u32 = 3;

/// Reads one object for as long as it is held.
pub(super) struct ObjectReader<K: CachedObject> {
    pub(super) objects: Objects<K>,
    pub(super) key: Key,
    pub(super) observation: Arc<watch::Sender<Observation<K>>>,
    pub(super) read_request: Arc<Notify>,
    pub(super) context: CacheContext,
    pub(super) rng: StdRng,
}

/// Why a watch ended.
enum WatchEnd {
    /// The object is immutable.
    Immutable,
    /// The watch is not permitted.
    Forbidden,
}

/// Counts an open watch against the limit.
struct WatchCount(CacheContext);

impl WatchCount {
    /// `None` if the limit is reached.
    fn new(context: &CacheContext) -> Option<Self> {
        let more = |now: usize| (now < context.limits.watches).then_some(now + 1);
        context.watching.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        context.watch_gauge.inc();
        Some(Self(context.clone()))
    }
}

impl Drop for WatchCount {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, Ordering::Relaxed);
        self.0.watch_gauge.dec();
    }
}

// === impl ObjectReader ===

impl<K: CachedObject> ObjectReader<K> {
    pub(super) async fn run(mut self) {
        self.read_first().await;
        if self.is_immutable() {
            return self.observation.send_modify(|observation| observation.live = true);
        }
        let watch_slot =
            WatchCount::new(&self.context).and_then(|it| Some((it, self.context.client.watch_slot()?)));
        if let Some((_counted, slot)) = watch_slot {
            match self.follow(self.objects.clone().on_slot(slot)).await {
                WatchEnd::Immutable => return,
                WatchEnd::Forbidden => debug!(key = ?self.key, "watch is not permitted; polling"),
            }
        }
        self.poll().await;
    }

    /// Reads the object once before the watch, which takes longer to start.
    async fn read_first(&mut self) {
        let started = Instant::now();
        let mut authorizer_backoff = authorizer_backoff();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            let Err(error) = self.get().await else { return };
            let wait = if error.kind == Kind::Forbidden && started.elapsed() < AUTHORIZER_LAG {
                authorizer_backoff.next(None, &mut self.rng)
            } else {
                let wait = backoff.next(error.retry_after, &mut self.rng);
                self.observe_error(&error);
                wait
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.read_request.notified(), if started.elapsed() > AUTHORIZER_LAG => {}
            }
        }
    }

    async fn get(&self) -> Result<(), vk_kube::Error> {
        match self.objects.get(&self.key.name).await {
            Ok(mut object) => {
                object.trim();
                self.observe(State::Present(Arc::new(object)), false);
                Ok(())
            }
            Err(error) if error.kind == Kind::NotFound => {
                self.observe(State::Missing, false);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Watches the object until the watch is not needed or not permitted.
    async fn follow(&self, objects: Objects<K>) -> WatchEnd {
        let selector = Selector { fields: Some(format!("metadata.name={}", self.key.name)), labels: None };
        let mut changes = std::pin::pin!(objects.watch_trimmed(&selector, K::trim));
        let mut listed = None;
        let mut forbidden = 0;
        while let Some(change) = changes.next().await {
            match change {
                WatchEvent::Restarted => listed = Some(false),
                WatchEvent::Applied(object) => {
                    listed = listed.map(|_| true);
                    self.observe(State::Present(Arc::new(object)), true);
                    if self.is_immutable() {
                        return WatchEnd::Immutable;
                    }
                }
                WatchEvent::Deleted(_) => self.observe(State::Missing, true),
                WatchEvent::Listed => {
                    forbidden = 0;
                    if listed.take() == Some(false) {
                        self.observe(State::Missing, true);
                    }
                }
                WatchEvent::Error(error) if error.kind == Kind::Forbidden => {
                    forbidden += 1;
                    if forbidden == MAX_FORBIDDEN {
                        self.observation.send_modify(|observation| observation.live = false);
                        return WatchEnd::Forbidden;
                    }
                }
                WatchEvent::Error(_) => {}
            }
        }
        WatchEnd::Forbidden
    }

    /// Reads the object on request, and periodically while there are subscribers.
    async fn poll(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            // 10 % jitter, to spread the reads of many objects.
            let period = self.context.limits.ttl.mul_f64(self.rng.random_range(0.9..1.1));
            tokio::select! {
                () = self.read_request.notified() => {}
                () = tokio::time::sleep(period) => {
                    if self.observation.receiver_count() == 0 {
                        continue;
                    }
                }
            }
            match self.get().await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    self.observe_error(&error);
                    tokio::time::sleep(backoff.next(error.retry_after, &mut self.rng)).await;
                }
            }
        }
    }

    fn is_immutable(&self) -> bool {
        matches!(&self.observation.borrow().state, State::Present(object) if object.is_immutable())
    }

    /// Publishes an observed state.
    fn observe(&self, state: State<K>, live: bool) {
        self.observation.send_modify(|observation| {
            let same = match (&observation.state, &state) {
                (State::Present(old), State::Present(new)) => {
                    let (old, new) = (old.meta(), new.meta());
                    old.resource_version == new.resource_version && old.uid == new.uid
                }
                (State::Missing, State::Missing) => true,
                _ => false,
            };
            if !same {
                observation.state = state;
                observation.revision += 1;
            }
            (observation.at, observation.live) = (Instant::now(), live);
        });
    }

    /// Publishes an error, unless an object or its absence was observed before: the last observation stays valid.
    fn observe_error(&self, error: &vk_kube::Error) {
        let Key { namespace, name } = &self.key;
        let kind = read_error_kind(error);
        let message = format!("read {:?} {namespace}/{name}: {error}", K::KIND);
        self.observation.send_if_modified(|observation| {
            if matches!(observation.state, State::Unread | State::Failed(..)) {
                observation.state = State::Failed(kind, message);
                observation.revision += 1;
                observation.at = Instant::now();
                return true;
            }
            false
        });
    }
}
