//! Watches that never end: they reconnect with back-off, use reloaded credentials, and list again when necessary.

mod reader;

use std::time::Duration;

use futures::{Stream, stream};
use rand::{SeedableRng as _, rngs::StdRng};
use tracing::{debug, warn};
use vk_supervisor::Backoff;

use self::reader::WatchReader;
use crate::{Error, Objects, objects::Object};

/// Selects the objects to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// A field selector, such as `metadata.name=vk`.
    pub fields: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
}

/// An event of a watch. All existing objects come between `Restarted` and the next `Listed`; objects that were known before and
/// are not among them are gone.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<K> {
    /// A full list begins.
    Restarted,
    /// An object was created or changed, or is listed.
    Applied(K),
    /// An object was deleted.
    Deleted(K),
    /// The full list is complete.
    Listed,
    /// The API server is unavailable; the watch keeps retrying. For information only.
    Error(Error),
}

impl<K> WatchEvent<K> {
    /// Converts the object.
    pub fn map<T>(self, convert: impl FnOnce(K) -> T) -> WatchEvent<T> {
        match self {
            Self::Restarted => WatchEvent::Restarted,
            Self::Applied(object) => WatchEvent::Applied(convert(object)),
            Self::Deleted(object) => WatchEvent::Deleted(convert(object)),
            Self::Listed => WatchEvent::Listed,
            Self::Error(error) => WatchEvent::Error(error),
        }
    }
}

struct WatchState<K: Object> {
    reader: WatchReader<K>,
    backoff: Backoff,
    rng: StdRng,
}

impl<K: Object> Objects<K> {
    /// Watches forever.
    pub fn watch(&self, selector: &Selector) -> impl Stream<Item = WatchEvent<K>> + Send + use<K> {
        self.watch_trimmed(selector, |_| {})
    }

    /// Watches forever and removes unneeded fields from each object before anything is kept.
    pub fn watch_trimmed(
        &self,
        selector: &Selector,
        trim: fn(&mut K),
    ) -> impl Stream<Item = WatchEvent<K>> + Send + use<K> {
        let state = WatchState {
            reader: WatchReader::new(self.clone(), selector.clone(), trim),
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
            rng: StdRng::from_rng(&mut rand::rng()),
        };
        stream::unfold(state, |mut state| async move {
            let event = state.next().await;
            Some((event, state))
        })
    }
}

impl<K: Object> WatchState<K> {
    async fn next(&mut self) -> WatchEvent<K> {
        match self.reader.next().await {
            Ok(event) => {
                // `Restarted` proves nothing: it may come before the server is asked.
                if !matches!(event, WatchEvent::Restarted) {
                    self.backoff.reset();
                }
                event
            }
            Err(error) => self.back_off(error).await,
        }
    }

    /// Waits before the next attempt.
    async fn back_off(&mut self, error: Error) -> WatchEvent<K> {
        let resource = K::plural(&());
        self.reader.objects().client().metrics().count("watch", &resource, &Err::<(), _>(error.clone()));
        let wait = self.backoff.next(error.retry_after, &mut self.rng);
        // One broken connection is normal; a second failure in a row is worth a warning.
        if self.backoff.failures() == 2 {
            warn!(%resource, kind = %error.kind, %error, "watch interrupted: will retry");
        } else {
            debug!(%resource, kind = %error.kind, %error, ?wait, "watch interrupted: will retry");
        }
        tokio::time::sleep(wait).await;
        WatchEvent::Error(error)
    }
}

#[cfg(test)]
mod tests;
