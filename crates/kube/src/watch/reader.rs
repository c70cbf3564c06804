//! Reads the objects of a watch: all that there are, and then what changes.
//!
//! Where the server can, the listing is streamed: objects come one by one, and neither side ever holds all of them. Where it
//! cannot, they are listed in pages, and watched from there.
//!
//! kube-rs has a reader too, but asks for a streamed listing of any age. A server that lags behind would answer with the
//! past, in which what was created since is missing; and what is missing in a listing counts as gone. Like client-go, this
//! one asks for what is there now.

use std::{collections::VecDeque, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use kube::api::{ListParams, WatchEvent as ApiWatchEvent, WatchParams};
use tokio::time::Instant;
use tracing::info;

use super::{Selector, WatchEvent};
use crate::{Error, Kind, Objects, objects::Object};

/// Objects in one page of a listing.
const PAGE: u32 = 500;
/// How long a page may take.
const PAGE_LIMIT: Duration = Duration::from_mins(1);
/// How long the server may take to begin its answer.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// After so much silence in a streamed listing, the server does not seem to know what was asked of it. That is what servers
/// do that were made before streamed listings, unless they refuse.
const SILENCE: Duration = Duration::from_secs(20);
/// No streamed listing takes longer: it would be another sign of that.
const LONGEST: Duration = Duration::from_mins(5);
/// How long the server keeps a watch open.
const WATCH_SECONDS: u32 = 290;
/// When a watch that is silent counts as dead: the server should have ended it.
const IDLE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// A watch that ends sooner, and without a word, is a failure.
const SHORT: Duration = Duration::from_secs(1);
/// What the server writes on the bookmark after the last object of a streamed listing.
const END: &str = "k8s.io/initial-events-end";

type Events<K> = BoxStream<'static, kube::Result<ApiWatchEvent<K>>>;

pub(super) struct Reader<K: Object> {
    objects: Objects<K>,
    selector: Selector,
    /// Takes off what nobody needs, before anything is kept.
    trim: fn(&mut K),
    stage: Stage<K>,
    /// A streamed listing came to nothing. If one in pages succeeds, the server is one that cannot stream.
    doubt: bool,
}

enum Stage<K> {
    /// Nothing is known.
    Begin,
    /// A listing in pages.
    Pages { waiting: VecDeque<K>, token: Option<String>, version: Option<String> },
    /// A streamed listing.
    Streamed { events: Events<K>, begun: Instant, heard: Instant },
    /// All is known as of this version.
    Known { version: String },
    /// What changes since then.
    Watching { events: Events<K>, version: String, opened: Instant, silent: bool },
}

// === impl Reader ===

impl<K: Object> Reader<K> {
    pub(super) fn new(objects: Objects<K>, selector: Selector, trim: fn(&mut K)) -> Self {
        Self { objects, selector, trim, stage: Stage::Begin, doubt: false }
    }

    pub(super) fn objects(&self) -> &Objects<K> {
        &self.objects
    }

    /// What comes next. After an error the reader goes on from where it was, if it can.
    pub(super) async fn next(&mut self) -> Result<WatchEvent<K>, Error> {
        loop {
            // A stage that fails and does not say otherwise is begun anew.
            let stage = std::mem::replace(&mut self.stage, Stage::Begin);
            let change = match stage {
                Stage::Begin => self.begin().await?,
                Stage::Pages { waiting, token, version } => self.page(waiting, token, version).await?,
                Stage::Streamed { events, begun, heard } => self.streamed(events, begun, heard).await?,
                Stage::Known { version } => {
                    self.resume(version).await?;
                    None
                }
                Stage::Watching { events, version, opened, silent } => {
                    self.watching(events, version, opened, silent).await?
                }
            };
            if let Some(change) = change {
                return Ok(change);
            }
        }
    }

    async fn begin(&mut self) -> Result<Option<WatchEvent<K>>, Error> {
        if self.doubt || !self.objects.client().streams() {
            self.stage = Stage::Pages { waiting: VecDeque::new(), token: None, version: None };
            return Ok(Some(WatchEvent::Restarted));
        }
        match self.open("", true).await {
            Ok(events) => {
                let now = Instant::now();
                self.stage = Stage::Streamed { events, begun: now, heard: now };
                Ok(Some(WatchEvent::Restarted))
            }
            Err(error) if error.kind == Kind::Invalid => {
                self.forgo(&error.message);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Remembers that this server cannot stream listings.
    fn forgo(&self, reason: &str) {
        if self.objects.client().forgo_streams() {
            info!(reason, "the API server does not stream listings: lists in pages are used");
        }
    }

    async fn page(
        &mut self,
        mut waiting: VecDeque<K>,
        token: Option<String>,
        version: Option<String>,
    ) -> Result<Option<WatchEvent<K>>, Error> {
        if let Some(object) = waiting.pop_front() {
            self.stage = Stage::Pages { waiting, token, version };
            return Ok(Some(WatchEvent::Applied(object)));
        }
        if let (None, Some(version)) = (&token, version) {
            self.stage = Stage::Known { version };
            return Ok(Some(WatchEvent::Listed));
        }
        let doubt = std::mem::take(&mut self.doubt);
        let api = self.objects.api_for_watches();
        let params = ListParams {
            field_selector: self.selector.fields.clone(),
            label_selector: self.selector.labels.clone(),
            limit: Some(PAGE),
            continue_token: token,
            ..ListParams::default()
        };
        let list = limited(PAGE_LIMIT, api.list(&params)).await?;
        if doubt {
            self.forgo("a streamed listing did not end");
        }
        let mut waiting = VecDeque::from(list.items);
        waiting.iter_mut().for_each(self.trim);
        let token = list.metadata.continue_.filter(|token| !token.is_empty());
        let version = list.metadata.resource_version.filter(|version| !version.is_empty());
        if token.is_none() && version.is_none() {
            return Err(versionless());
        }
        self.stage = Stage::Pages { waiting, token, version };
        Ok(None)
    }

    async fn streamed(
        &mut self,
        mut events: Events<K>,
        begun: Instant,
        mut heard: Instant,
    ) -> Result<Option<WatchEvent<K>>, Error> {
        let until = (heard + SILENCE).min(begun + LONGEST);
        let Ok(event) = tokio::time::timeout_at(until, events.next()).await else {
            self.doubt = true;
            return Ok(None);
        };
        let event = event.ok_or_else(|| Error::new(Kind::Unreachable, "the listing ended in the middle"))?;
        let change = match event? {
            ApiWatchEvent::Added(object) => {
                heard = Instant::now();
                Some(self.seen(object))
            }
            // A server that does not know of streamed listings goes on like this for ever.
            ApiWatchEvent::Modified(object) => Some(self.seen(object)),
            ApiWatchEvent::Deleted(object) => Some(self.deleted(object)),
            ApiWatchEvent::Bookmark(mark) if mark.metadata.annotations.contains_key(END) => {
                let version = mark.metadata.resource_version;
                self.stage = Stage::Watching { events, version, opened: begun, silent: false };
                return Ok(Some(WatchEvent::Listed));
            }
            ApiWatchEvent::Bookmark(_) => None,
            ApiWatchEvent::Error(status) => {
                let error = Error::from(kube::Error::Api(status));
                if error.kind == Kind::Invalid {
                    self.forgo(&error.message);
                }
                return Err(error);
            }
        };
        self.stage = Stage::Streamed { events, begun, heard };
        Ok(change)
    }

    async fn resume(&mut self, version: String) -> Result<(), Error> {
        match self.open(&version, false).await {
            Ok(events) => {
                self.stage = Stage::Watching { events, version, opened: Instant::now(), silent: true };
                Ok(())
            }
            Err(error) => {
                // A version that is too old, or that a server restored from a backup does not have yet.
                let lost = matches!(error.kind, Kind::Expired | Kind::Invalid)
                    || error.message.contains("Too large resource version");
                if !lost {
                    self.stage = Stage::Known { version };
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
        let event = match tokio::time::timeout(IDLE, events.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => {
                self.stage = Stage::Known { version };
                return Err(Error::from(error));
            }
            Ok(None) | Err(_) => {
                self.stage = Stage::Known { version };
                if silent && opened.elapsed() < SHORT {
                    return Err(Error::new(Kind::Unreachable, "the watch ended at once"));
                }
                return Ok(None);
            }
        };
        let (version, change) = match event {
            ApiWatchEvent::Added(object) | ApiWatchEvent::Modified(object) => {
                (object.meta().resource_version.clone(), Some(self.seen(object)))
            }
            ApiWatchEvent::Deleted(object) => {
                (object.meta().resource_version.clone(), Some(self.deleted(object)))
            }
            ApiWatchEvent::Bookmark(mark) => (Some(mark.metadata.resource_version), None),
            ApiWatchEvent::Error(status) => {
                let error = Error::from(kube::Error::Api(status));
                if error.kind != Kind::Expired {
                    self.stage = Stage::Known { version };
                }
                return Err(error);
            }
        };
        let version = version.filter(|version| !version.is_empty()).ok_or_else(versionless)?;
        self.stage = Stage::Watching { events, version, opened, silent: false };
        Ok(change)
    }

    /// Opens a watch with the credentials of this moment.
    async fn open(&mut self, version: &str, send_initial_events: bool) -> Result<Events<K>, Error> {
        let api = self.objects.api_for_watches();
        let params = WatchParams {
            field_selector: self.selector.fields.clone(),
            label_selector: self.selector.labels.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events,
        };
        limited(OPEN_LIMIT, api.watch(&params, version)).await.map(StreamExt::boxed)
    }

    fn seen(&self, mut object: K) -> WatchEvent<K> {
        (self.trim)(&mut object);
        WatchEvent::Applied(object)
    }

    fn deleted(&self, mut object: K) -> WatchEvent<K> {
        (self.trim)(&mut object);
        WatchEvent::Deleted(object)
    }
}

async fn limited<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>> + Send,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, Box::pin(request)).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::timeout(limit)),
    }
}

fn versionless() -> Error {
    Error::new(Kind::Server, "the API server tells no resourceVersion")
}
