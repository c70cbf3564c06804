//! Watches that never end: they reconnect with back-off, pick up new credentials, and list again when they must.

use std::{collections::VecDeque, time::Duration};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use kube::runtime::watcher;
use rand::{SeedableRng as _, rngs::StdRng};
use tracing::{debug, warn};
use vk_supervisor::Backoff;

use crate::{Error, Kind, Objects, objects::Object};

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
pub enum Change<K> {
    /// A full listing begins.
    Restarted,
    /// An object exists, and looks like this.
    Seen(K),
    /// An object was deleted.
    Deleted(K),
    /// The full listing is complete.
    Listed,
    /// The server cannot be asked at the moment; the watch goes on trying. For information only.
    Trouble(Error),
}

struct State<K: Object> {
    objects: Objects<K>,
    config: watcher::Config,
    events: BoxStream<'static, watcher::Result<watcher::Event<K>>>,
    pending: VecDeque<Change<K>>,
    backoff: Backoff,
    rng: StdRng,
}

impl<K: Object> Objects<K> {
    /// Watches for ever.
    pub fn watch(&self, selector: &Selector) -> impl Stream<Item = Change<K>> + Send + use<K> {
        let mut config = watcher::Config::default();
        if let Some(fields) = &selector.fields {
            config = config.fields(fields);
        }
        if let Some(labels) = &selector.labels {
            config = config.labels(labels);
        }
        let state = State {
            objects: self.clone(),
            events: watcher(self.api_for_watches(), config.clone()).boxed(),
            config,
            pending: VecDeque::new(),
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
    async fn next(&mut self) -> Change<K> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return change;
            }
            let change = match self.events.next().await {
                Some(Ok(event)) => {
                    // The start of a listing is said before the server is asked, and proves nothing.
                    if !matches!(event, watcher::Event::Init) {
                        self.backoff.reset();
                    }
                    match event {
                        watcher::Event::Init => Change::Restarted,
                        watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                            Change::Seen(object)
                        }
                        watcher::Event::Delete(object) => Change::Deleted(object),
                        watcher::Event::InitDone => Change::Listed,
                    }
                }
                Some(Err(error)) => self.pause(Some(error)).await,
                None => self.pause(None).await,
            };
            self.pending.push_back(change);
        }
    }

    /// Waits before the next attempt, and begins anew where the old watch cannot go on.
    async fn pause(&mut self, error: Option<watcher::Error>) -> Change<K> {
        let over = error.is_none();
        let error = error.map_or_else(|| Error::new(Kind::Unreachable, "the watch ended"), into_error);
        let resource = K::plural(&());
        self.objects.client().metrics().count("watch", &resource, &Err::<(), _>(error.clone()));
        let wait = self.backoff.next(error.retry_after, &mut self.rng);
        // One broken connection is everyday life; a second failure in a row is worth a line.
        if self.backoff.failures() == 2 {
            warn!(%resource, kind = %error.kind, %error, "the watch is interrupted: trying again");
        } else {
            debug!(%resource, kind = %error.kind, %error, ?wait, "the watch is interrupted: trying again");
        }
        tokio::time::sleep(wait).await;
        // kube-rs' watcher goes on from where it was, but with the client that it was made with.
        if over
            || matches!(error.kind, Kind::Unauthorized | Kind::Forbidden)
            || self.objects.client_mut().renewed()
        {
            self.events = watcher(self.objects.api_for_watches(), self.config.clone()).boxed();
        }
        Change::Trouble(error)
    }
}

fn into_error(error: watcher::Error) -> Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Error::from(error),
        watcher::Error::WatchError(status) => Error::from(kube::Error::Api(status)),
        error @ watcher::Error::NoResourceVersion => Error::new(Kind::Server, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use k8s_openapi::api::core::v1::Node;
    use kube::client::Body;

    use super::*;
    use crate::{Client, Metrics};

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_asks_less_and_less_often() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let service = tower::service_fn(move |_: http::Request<Body>| {
            counter.fetch_add(1, Ordering::Relaxed);
            let status =
                br#"{"kind":"Status","status":"Failure","reason":"Forbidden","message":"no","code":403}"#;
            let answer = http::Response::builder().status(403).body(Body::from(status.to_vec()));
            async move { Ok::<_, std::convert::Infallible>(answer.expect("a response")) }
        });
        let client = Client::fixed(kube::Client::new(service, "default"), Metrics::default());
        let mut changes = Objects::<Node>::cluster(client).watch(&Selector::default()).boxed();
        let watching = async {
            while let Some(change) = changes.next().await {
                assert!(matches!(change, Change::Restarted | Change::Trouble(_)), "{change:?}");
            }
        };
        assert!(tokio::time::timeout(Duration::from_mins(2), watching).await.is_err(), "it never ends");
        let asked = asked.load(Ordering::Relaxed);
        assert!((10..=40).contains(&asked), "{asked} requests in two minutes");
    }
}
