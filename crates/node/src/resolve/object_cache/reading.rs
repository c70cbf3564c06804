//! The reading of one object.

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
    super::{TRAILING, trailing, unreadable},
    Key, Reads, Shelved, Sight, State,
};

/// After so many refusals in a row, the watch is not permitted.
const REFUSALS: u32 = 3;

/// Reads one object for as long as it is held.
pub(super) struct Reading<K: Shelved> {
    pub(super) objects: Objects<K>,
    pub(super) key: Key,
    pub(super) sight: Arc<watch::Sender<Sight<K>>>,
    pub(super) asked: Arc<Notify>,
    pub(super) reads: Reads,
    pub(super) rng: StdRng,
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
    pub(super) async fn run(mut self) {
        self.first().await;
        if self.is_settled() {
            return self.sight.send_modify(|sight| sight.live = true);
        }
        let place = Counted::new(&self.reads).and_then(|it| Some((it, self.reads.client.watch_slot()?)));
        if let Some((_counted, lane)) = place {
            match self.follow(self.objects.clone().on_slot(lane)).await {
                Left::Settled => return,
                Left::Refused => debug!(key = ?self.key, "a watch is not permitted: reading now and then"),
            }
        }
        self.poll().await;
    }

    /// Reads it once, before it is watched: a watch takes longer to begin.
    async fn first(&mut self) {
        let begun = Instant::now();
        let mut trailing = trailing();
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
                WatchEvent::Restarted => listed = Some(false),
                WatchEvent::Applied(object) => {
                    listed = listed.map(|_| true);
                    self.saw(State::There(Arc::new(object)), true);
                    if self.is_settled() {
                        return Left::Settled;
                    }
                }
                WatchEvent::Deleted(_) => self.saw(State::Missing, true),
                WatchEvent::Listed => {
                    refusals = 0;
                    if listed.take() == Some(false) {
                        self.saw(State::Missing, true);
                    }
                }
                WatchEvent::Error(error) if error.kind == Kind::Forbidden => {
                    refusals += 1;
                    if refusals == REFUSALS {
                        self.sight.send_modify(|sight| sight.live = false);
                        return Left::Refused;
                    }
                }
                WatchEvent::Error(_) => {}
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
        let kind = unreadable(error);
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
