//! Watches that never end: they reconnect with back-off, pick up new credentials, and list again when they must.

mod reader;

use std::time::Duration;

use futures::{Stream, stream};
use rand::{SeedableRng as _, rngs::StdRng};
use tracing::{debug, warn};
use vk_supervisor::Backoff;

use self::reader::Reader;
use crate::{Error, Objects, objects::Object};

/// Which objects to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// A field selector, such as `metadata.name=vk`.
    pub fields: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
}

/// What a watch reports. Between a `Restarted` and the `Listed` after it come all objects that exist; what was known
/// before and is not among them is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<K> {
    /// A full listing begins.
    Restarted,
    /// An object exists, and looks like this.
    Applied(K),
    /// An object was deleted.
    Deleted(K),
    /// The full listing is complete.
    Listed,
    /// The server cannot be asked at the moment; the watch goes on trying. For information only.
    Error(Error),
}

impl<K> WatchEvent<K> {
    /// The same of an object in another form.
    pub fn map<T>(self, form: impl FnOnce(K) -> T) -> WatchEvent<T> {
        match self {
            Self::Restarted => WatchEvent::Restarted,
            Self::Applied(object) => WatchEvent::Applied(form(object)),
            Self::Deleted(object) => WatchEvent::Deleted(form(object)),
            Self::Listed => WatchEvent::Listed,
            Self::Error(error) => WatchEvent::Error(error),
        }
    }
}

struct State<K: Object> {
    reader: Reader<K>,
    backoff: Backoff,
    rng: StdRng,
}

impl<K: Object> Objects<K> {
    /// Watches for ever.
    pub fn watch(&self, selector: &Selector) -> impl Stream<Item = WatchEvent<K>> + Send + use<K> {
        self.watch_trimmed(selector, |_| {})
    }

    /// Watches for ever, and takes off each object what nobody needs before anything of it is kept.
    pub fn watch_trimmed(
        &self,
        selector: &Selector,
        trim: fn(&mut K),
    ) -> impl Stream<Item = WatchEvent<K>> + Send + use<K> {
        let state = State {
            reader: Reader::new(self.clone(), selector.clone(), trim),
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
            rng: StdRng::from_rng(&mut rand::rng()),
        };
        stream::unfold(state, |mut state| async move {
            let change = state.next().await;
            Some((change, state))
        })
    }
}

impl<K: Object> State<K> {
    async fn next(&mut self) -> WatchEvent<K> {
        match self.reader.next().await {
            Ok(change) => {
                // The start of a listing proves nothing: it may be said before the server is asked.
                if !matches!(change, WatchEvent::Restarted) {
                    self.backoff.reset();
                }
                change
            }
            Err(error) => self.pause(error).await,
        }
    }

    /// Waits before the next attempt.
    async fn pause(&mut self, error: Error) -> WatchEvent<K> {
        let resource = K::plural(&());
        self.reader.objects().client().metrics().count("watch", &resource, &Err::<(), _>(error.clone()));
        let wait = self.backoff.next(error.retry_after, &mut self.rng);
        // One broken connection is everyday life; a second failure in a row is worth a line.
        if self.backoff.failures() == 2 {
            warn!(%resource, kind = %error.kind, %error, "the watch is interrupted: trying again");
        } else {
            debug!(%resource, kind = %error.kind, %error, ?wait, "the watch is interrupted: trying again");
        }
        tokio::time::sleep(wait).await;
        WatchEvent::Error(error)
    }
}

#[cfg(test)]
mod tests;
