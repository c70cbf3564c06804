//! Lists and watches: all existing objects, and then the changes.
//!
//! If the server supports it, the list is streamed (`sendInitialEvents`): objects come one by one, and neither side holds all of
//! them. Otherwise the objects are listed in pages and watched from there.
//!
//! kube-rs has a reader too, but it accepts a streamed list of any age. A server that lags behind would omit objects
//! created since, and objects missing in a list count as deleted. Like client-go, this reader asks for the current state.

use std::{collections::VecDeque, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use kube::api::{ListParams, WatchEvent as ApiWatchEvent, WatchParams};
use tokio::time::Instant;
use tracing::info;

use super::{Selector, WatchEvent};
use crate::{Error, Kind, Objects, objects::Object};

/// Objects in one page.
const PAGE_SIZE: u32 = 500;
/// Time limit of a page.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);
/// Time limit for the server to begin its answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// After this silence in a streamed list, the server probably ignored `sendInitialEvents`, as servers do that predate it, unless
/// they reject it.
const WATCH_LIST_SILENCE: Duration = Duration::from_secs(20);
/// Time limit of a streamed list. Exceeding it suggests the same.
const WATCH_LIST_TIMEOUT: Duration = Duration::from_mins(5);
/// How long the server keeps a watch open.
const WATCH_SECONDS: u32 = 290;
/// When a silent watch counts as dead. The server sends a bookmark about once a minute (every 75 s at the latest), even if
/// nothing changes. A connection that was dropped, or a proxy that is stuck, sends neither an event nor an error.
const MAX_SILENCE: Duration = Duration::from_secs(90);
/// A watch without events that ends sooner is a failure.
const MIN_WATCH: Duration = Duration::from_secs(1);
/// The annotation on the bookmark after the last object of a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

type Events<K> = BoxStream<'static, kube::Result<ApiWatchEvent<K>>>;

pub(super) struct WatchReader<K: Object> {
    objects: Objects<K>,
    selector: Selector,
    /// Removes unneeded fields before an object is kept.
    trim: fn(&mut K),
    stage: WatchStage<K>,
    /// A streamed list timed out. If a paged one succeeds next, the server does not support streaming.
    watch_list_timed_out: bool,
    /// The server sent a bookmark since the watch was last found silent. It sends none for kinds that it does not cache (events),
    /// and none after its start before anything changed: then silence is no failure, but the watch is opened anew all the same.
    sends_bookmarks: bool,
}

enum WatchStage<K> {
    /// Nothing is listed yet.
    Start,
    /// Listing in pages.
    Paging { waiting: VecDeque<K>, token: Option<String>, version: Option<String> },
    /// Streaming a list.
    WatchList { events: Events<K>, started: Instant, last_object: Instant },
    /// Listed at this version.
    Listed { version: String },
    /// Watching for changes.
    Watching { events: Events<K>, version: String, opened: Instant, silent: bool },
}

// === impl WatchReader ===

impl<K: Object> WatchReader<K> {
    pub(super) fn new(objects: Objects<K>, selector: Selector, trim: fn(&mut K)) -> Self {
        Self {
            objects,
            selector,
            trim,
            stage: WatchStage::Start,
            watch_list_timed_out: false,
            sends_bookmarks: false,
        }
    }

    pub(super) fn objects(&self) -> &Objects<K> {
        &self.objects
    }

    /// The next event. After an error the reader continues where it was, if possible.
    pub(super) async fn next(&mut self) -> Result<WatchEvent<K>, Error> {
        loop {
            // A stage that fails without setting another starts over.
            let stage = std::mem::replace(&mut self.stage, WatchStage::Start);
            let event = match stage {
                WatchStage::Start => self.start().await?,
                WatchStage::Paging { waiting, token, version } => self.page(waiting, token, version).await?,
                WatchStage::WatchList { events, started, last_object } => {
                    self.watch_list(events, started, last_object).await?
                }
                WatchStage::Listed { version } => {
                    self.resume(version).await?;
                    None
                }
                WatchStage::Watching { events, version, opened, silent } => {
                    self.watching(events, version, opened, silent).await?
                }
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    async fn start(&mut self) -> Result<Option<WatchEvent<K>>, Error> {
        if self.watch_list_timed_out || !self.objects.client().supports_watch_list() {
            self.stage = WatchStage::Paging { waiting: VecDeque::new(), token: None, version: None };
            return Ok(Some(WatchEvent::Restarted));
        }
        match self.open("", true).await {
            Ok(events) => {
                let now = Instant::now();
                self.stage = WatchStage::WatchList { events, started: now, last_object: now };
                Ok(Some(WatchEvent::Restarted))
            }
            Err(error) if error.kind == Kind::Invalid => {
                self.disable_watch_list(&error.message);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Remembers that the server does not stream lists.
    fn disable_watch_list(&self, reason: &str) {
        if self.objects.client().disable_watch_list() {
            info!(reason, "the API server does not support streaming lists: listing in pages");
        }
    }

    async fn page(
        &mut self,
        mut waiting: VecDeque<K>,
        token: Option<String>,
        version: Option<String>,
    ) -> Result<Option<WatchEvent<K>>, Error> {
        if let Some(object) = waiting.pop_front() {
            self.stage = WatchStage::Paging { waiting, token, version };
            return Ok(Some(WatchEvent::Applied(object)));
        }
        if let (None, Some(version)) = (&token, version) {
            self.stage = WatchStage::Listed { version };
            return Ok(Some(WatchEvent::Listed));
        }
        let watch_list_timed_out = std::mem::take(&mut self.watch_list_timed_out);
        let api = self.objects.api_for_watches();
        let params = ListParams {
            field_selector: self.selector.fields.clone(),
            label_selector: self.selector.labels.clone(),
            limit: Some(PAGE_SIZE),
            continue_token: token,
            ..ListParams::default()
        };
        let list = with_timeout(PAGE_TIMEOUT, api.list(&params)).await?;
        if watch_list_timed_out {
            self.disable_watch_list("a streamed list did not end");
        }
        let mut waiting = VecDeque::from(list.items);
        waiting.iter_mut().for_each(self.trim);
        let token = list.metadata.continue_.filter(|token| !token.is_empty());
        let version = list.metadata.resource_version.filter(|version| !version.is_empty());
        if token.is_none() && version.is_none() {
            return Err(missing_version());
        }
        self.stage = WatchStage::Paging { waiting, token, version };
        Ok(None)
    }

    async fn watch_list(
        &mut self,
        mut events: Events<K>,
        started: Instant,
        mut last_object: Instant,
    ) -> Result<Option<WatchEvent<K>>, Error> {
        let until = (last_object + WATCH_LIST_SILENCE).min(started + WATCH_LIST_TIMEOUT);
        let Ok(event) = tokio::time::timeout_at(until, events.next()).await else {
            self.watch_list_timed_out = true;
            return Ok(None);
        };
        let event = event.ok_or_else(|| Error::new(Kind::Unreachable, "the streamed list was cut off"))?;
        let event = match event? {
            ApiWatchEvent::Added(object) => {
                last_object = Instant::now();
                Some(self.applied(object))
            }
            // A server that ignores `sendInitialEvents` continues like this forever.
            ApiWatchEvent::Modified(object) => Some(self.applied(object)),
            ApiWatchEvent::Deleted(object) => Some(self.deleted(object)),
            ApiWatchEvent::Bookmark(mark) if mark.metadata.annotations.contains_key(INITIAL_EVENTS_END) => {
                let version = mark.metadata.resource_version;
                self.stage = WatchStage::Watching { events, version, opened: started, silent: false };
                return Ok(Some(WatchEvent::Listed));
            }
            ApiWatchEvent::Bookmark(_) => None,
            ApiWatchEvent::Error(status) => {
                let error = Error::from(kube::Error::Api(status));
                if error.kind == Kind::Invalid {
                    self.disable_watch_list(&error.message);
                }
                return Err(error);
            }
        };
        self.stage = WatchStage::WatchList { events, started, last_object };
        Ok(event)
    }

    async fn resume(&mut self, version: String) -> Result<(), Error> {
        match self.open(&version, false).await {
            Ok(events) => {
                self.stage = WatchStage::Watching { events, version, opened: Instant::now(), silent: true };
                Ok(())
            }
            Err(error) => {
                // The version is too old, or a server restored from a backup does not have it yet.
                let lost = matches!(error.kind, Kind::Expired | Kind::Invalid)
                    || error.message.contains("Too large resource version");
                if !lost {
                    self.stage = WatchStage::Listed { version };
                }
                Err(error)
            }
        }
    }

    async fn watching(
        &mut self,
        mut events: Events<K>,
        version: String,
        opened: Instant,
        silent: bool,
    ) -> Result<Option<WatchEvent<K>>, Error> {
        let Ok(event) = tokio::time::timeout(MAX_SILENCE, events.next()).await else {
            self.stage = WatchStage::Listed { version };
            if std::mem::take(&mut self.sends_bookmarks) {
                let message = format!("the watch is silent: no event and no bookmark for {MAX_SILENCE:?}");
                return Err(Error::new(Kind::Timeout, message));
            }
            return Ok(None);
        };
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                self.stage = WatchStage::Listed { version };
                return Err(Error::from(error));
            }
            None => {
                self.stage = WatchStage::Listed { version };
                if silent && opened.elapsed() < MIN_WATCH {
                    return Err(Error::new(Kind::Unreachable, "the watch ended immediately"));
                }
                return Ok(None);
            }
        };
        let (version, event) = match event {
            ApiWatchEvent::Added(object) | ApiWatchEvent::Modified(object) => {
                (object.meta().resource_version.clone(), Some(self.applied(object)))
            }
            ApiWatchEvent::Deleted(object) => {
                (object.meta().resource_version.clone(), Some(self.deleted(object)))
            }
            ApiWatchEvent::Bookmark(mark) => {
                self.sends_bookmarks = true;
                (Some(mark.metadata.resource_version), None)
            }
            ApiWatchEvent::Error(status) => {
                let error = Error::from(kube::Error::Api(status));
                if error.kind != Kind::Expired {
                    self.stage = WatchStage::Listed { version };
                }
                return Err(error);
            }
        };
        let version = version.filter(|version| !version.is_empty()).ok_or_else(missing_version)?;
        self.stage = WatchStage::Watching { events, version, opened, silent: false };
        Ok(event)
    }

    /// Opens a watch with the current credentials.
    async fn open(&mut self, version: &str, send_initial_events: bool) -> Result<Events<K>, Error> {
        let api = self.objects.api_for_watches();
        let params = WatchParams {
            field_selector: self.selector.fields.clone(),
            label_selector: self.selector.labels.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events,
        };
        with_timeout(OPEN_TIMEOUT, api.watch(&params, version)).await.map(StreamExt::boxed)
    }

    fn applied(&self, mut object: K) -> WatchEvent<K> {
        (self.trim)(&mut object);
        WatchEvent::Applied(object)
    }

    fn deleted(&self, mut object: K) -> WatchEvent<K> {
        (self.trim)(&mut object);
        WatchEvent::Deleted(object)
    }
}

async fn with_timeout<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>> + Send,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, Box::pin(request)).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::timeout(limit)),
    }
}

fn missing_version() -> Error {
    Error::new(Kind::Server, "the API server sent no resourceVersion")
}
