//! One watch per kind and upper namespace instead of one per object, where the process may list.
//!
//! A node may only watch objects by name, and a watch for each of ten thousand objects costs the API server more than one for all objects
//! of a namespace. Only objects that somebody follows are kept, and only until they are taken.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use vk_kube::{Client, Kind as ErrorKind, Selector, WatchEvent, access::AccessCheck};
use vk_supervisor::Supervisor;

use super::kind::CopiedObject;

/// After this many refusals in a row, the permission is gone.
const MAX_REFUSALS: u32 = 3;
/// How long a missing permission is believed.
const REFUSAL_TTL: Duration = Duration::from_mins(5);

/// The watches of upper objects that all virtual nodes of a lower cluster share.
pub struct UpperWatches {
    pub(super) config_maps: NamespaceWatches<ConfigMap>,
    pub(super) secrets: NamespaceWatches<Secret>,
    pub(super) claims: NamespaceWatches<PersistentVolumeClaim>,
}

/// The watches of one kind, by namespace.
pub(super) struct NamespaceWatches<K> {
    client: Client,
    supervisor: Supervisor,
    /// A watch ends with the last object that somebody follows.
    by_namespace: Mutex<HashMap<String, Weak<NamespaceWatch<K>>>>,
    /// Since when listing is not permitted. The lock is held while the API server is asked, so that it is asked once.
    refused: tokio::sync::Mutex<HashMap<String, Option<Instant>>>,
}

#[derive(Debug)]
struct NamespaceWatch<K> {
    state: Mutex<WatchState<K>>,
    /// The reader, which ends when this is dropped.
    reader: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct WatchState<K> {
    followers: HashMap<String, Vec<Weak<Mailbox<K>>>>,
    /// All names that a list in progress has shown.
    listing: Option<HashSet<String>>,
    /// Everything was listed once.
    listed: bool,
    refusals: u32,
    /// Nobody reads the watch any more.
    ended: bool,
}

/// The newest observation of an object that its follower has not taken yet.
#[derive(Debug)]
struct Mailbox<K> {
    latest: Mutex<Option<Observation<K>>>,
    changed: Notify,
}

/// What a watch shows of an object.
#[derive(Debug)]
pub(super) enum Observation<K> {
    /// The object.
    Present(Box<K>),
    /// It was deleted or is not in a list. The watch may lag behind a read: read it again.
    Missing,
    /// The process may not watch any more.
    Refused,
}

/// Follows one object, until it is dropped.
#[derive(Debug)]
pub(super) struct Follower<K> {
    mailbox: Arc<Mailbox<K>>,
    /// The first list is still in progress, and will show the object if it exists.
    pub(super) listing: bool,
    _watch: Arc<NamespaceWatch<K>>,
}

// === impl UpperWatches ===

impl UpperWatches {
    /// Watches that need the permissions of this client. They end with the supervisor.
    pub fn new(client: &Client, supervisor: &Supervisor) -> Self {
        Self {
            config_maps: NamespaceWatches::new(client, supervisor),
            secrets: NamespaceWatches::new(client, supervisor),
            claims: NamespaceWatches::new(client, supervisor),
        }
    }
}

impl std::fmt::Debug for UpperWatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpperWatches").finish_non_exhaustive()
    }
}

// === impl NamespaceWatches ===

impl<K: CopiedObject> NamespaceWatches<K> {
    fn new(client: &Client, supervisor: &Supervisor) -> Self {
        Self {
            client: client.clone(),
            supervisor: supervisor.clone(),
            by_namespace: Mutex::default(),
            refused: tokio::sync::Mutex::default(),
        }
    }

    /// The client that lists.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Follows an object; `None` if the process may not list the objects of its namespace.
    pub(super) async fn follow(&self, namespace: &str, name: &str) -> Option<Follower<K>> {
        if !self.may_list(namespace).await {
            return None;
        }
        let follower = self.watch(namespace).follow(name);
        if follower.is_none() {
            // The permission was withdrawn since it was checked.
            self.by_namespace.lock().remove(namespace);
            self.refused.lock().await.insert(namespace.to_owned(), Some(Instant::now()));
        }
        follower
    }

    /// The watch of a namespace, which begins with the first object that somebody follows.
    fn watch(&self, namespace: &str) -> Arc<NamespaceWatch<K>> {
        let mut all = self.by_namespace.lock();
        all.retain(|_, watch| watch.strong_count() > 0);
        all.get(namespace).and_then(Weak::upgrade).unwrap_or_else(|| {
            let watch = Arc::new(NamespaceWatch::default());
            all.insert(namespace.to_owned(), Arc::downgrade(&watch));
            let reading = read(Arc::downgrade(&watch), self.client.clone(), namespace.to_owned());
            let guard = self.supervisor.clone();
            watch.reader.lock().spawn(self.supervisor.track(async move {
                tokio::select! {
                    () = reading => {}
                    () = guard.stopping() => {}
                }
            }));
            watch
        })
    }

    async fn may_list(&self, namespace: &str) -> bool {
        let mut refused = self.refused.lock().await;
        match refused.get(namespace) {
            Some(None) => return true,
            Some(Some(since)) if since.elapsed() < REFUSAL_TTL => return false,
            _ => {}
        }
        for verb in ["list", "watch"] {
            let check = AccessCheck {
                verb: verb.to_owned(),
                resource: K::plural(&()).into_owned(),
                namespace: namespace.to_owned(),
                ..AccessCheck::default()
            };
            if !matches!(check.allowed(&self.client).await, Ok(true)) {
                refused.insert(namespace.to_owned(), Some(Instant::now()));
                return false;
            }
        }
        refused.insert(namespace.to_owned(), None);
        true
    }
}

/// Watches all objects of a namespace, until nobody follows one or it is not permitted.
async fn read<K: CopiedObject>(watch: Weak<NamespaceWatch<K>>, client: Client, namespace: String) {
    let slot = client.watch_slot();
    let mut objects = K::objects(client, Some(&namespace));
    if let Some(slot) = slot {
        objects = objects.on_slot(slot);
    }
    let mut changes = std::pin::pin!(objects.watch_trimmed(&Selector::default(), K::trim));
    while let Some(change) = changes.next().await {
        let Some(watch) = watch.upgrade() else { return };
        let permitted = watch.state.lock().handle(change);
        if !permitted {
            return;
        }
    }
    if let Some(watch) = watch.upgrade() {
        watch.state.lock().end();
    }
}

// === impl NamespaceWatch ===

impl<K> Default for NamespaceWatch<K> {
    fn default() -> Self {
        let followers = HashMap::new();
        let state = WatchState { followers, listing: None, listed: false, refusals: 0, ended: false };
        Self { state: Mutex::new(state), reader: Mutex::default() }
    }
}

impl<K: CopiedObject> NamespaceWatch<K> {
    /// Follows an object; `None` if nobody reads the watch any more.
    fn follow(self: Arc<Self>, name: &str) -> Option<Follower<K>> {
        let mailbox = Arc::new(Mailbox { latest: Mutex::new(None), changed: Notify::new() });
        let mut state = self.state.lock();
        if state.ended {
            return None;
        }
        state.followers.entry(name.to_owned()).or_default().push(Arc::downgrade(&mailbox));
        // A list that has begun may have shown the object already.
        let listing = !state.listed && state.listing.is_none();
        drop(state);
        Some(Follower { mailbox, listing, _watch: self })
    }
}

// === impl WatchState ===

impl<K: CopiedObject> WatchState<K> {
    /// Returns whether watching is permitted.
    fn handle(&mut self, change: WatchEvent<K>) -> bool {
        match change {
            WatchEvent::Restarted => self.listing = Some(HashSet::new()),
            WatchEvent::Applied(object) => {
                let Some(name) = object.metadata().name.clone() else { return true };
                self.tell(&name, || Observation::Present(Box::new(object.clone())));
                if let Some(listing) = &mut self.listing {
                    listing.insert(name);
                }
            }
            WatchEvent::Deleted(object) => {
                let Some(name) = object.metadata().name.clone() else { return true };
                self.tell(&name, || Observation::Missing);
                if let Some(listing) = &mut self.listing {
                    listing.remove(&name);
                }
            }
            WatchEvent::Listed => {
                (self.refusals, self.listed) = (0, true);
                let listed = self.listing.take().unwrap_or_default();
                let missing: Vec<String> =
                    self.followers.keys().filter(|name| !listed.contains(*name)).cloned().collect();
                for name in missing {
                    self.tell(&name, || Observation::Missing);
                }
            }
            WatchEvent::Error(error) if error.kind == ErrorKind::Forbidden => {
                self.refusals += 1;
                if self.refusals == MAX_REFUSALS {
                    self.end();
                    return false;
                }
            }
            WatchEvent::Error(_) => {}
        }
        true
    }

    /// Tells all followers that nothing more will be shown.
    fn end(&mut self) {
        self.ended = true;
        let all: Vec<String> = self.followers.keys().cloned().collect();
        for name in all {
            self.tell(&name, || Observation::Refused);
        }
    }

    fn tell(&mut self, name: &str, observation: impl Fn() -> Observation<K>) {
        let Some(followers) = self.followers.get_mut(name) else { return };
        followers.retain(|mailbox| mailbox.strong_count() > 0);
        for mailbox in followers.iter().filter_map(Weak::upgrade) {
            *mailbox.latest.lock() = Some(observation());
            mailbox.changed.notify_one();
        }
        if followers.is_empty() {
            self.followers.remove(name);
        }
    }
}

// === impl Follower ===

impl<K> Follower<K> {
    /// The next observation.
    pub(super) async fn next(&self) -> Observation<K> {
        loop {
            if let Some(observation) = self.mailbox.latest.lock().take() {
                return observation;
            }
            self.mailbox.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn map(name: &str, value: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.data = Some([("a".to_owned(), value.to_owned())].into());
        map
    }

    fn next(follower: &Follower<ConfigMap>) -> Option<String> {
        follower.next().now_or_never().map(|observation| match observation {
            Observation::Present(map) => map.data.unwrap()["a"].clone(),
            Observation::Missing => "missing".to_owned(),
            Observation::Refused => "refused".to_owned(),
        })
    }

    #[test]
    fn followers_get_the_newest_state_of_their_object_only() {
        let watch = Arc::new(NamespaceWatch::default());
        let (one, other) =
            (Arc::clone(&watch).follow("one").unwrap(), Arc::clone(&watch).follow("other").unwrap());
        assert!(one.listing, "the first list will show it");
        let handle = |change| assert!(watch.state.lock().handle(change));
        handle(WatchEvent::Restarted);
        handle(WatchEvent::Applied(map("one", "1")));
        handle(WatchEvent::Applied(map("unknown", "1")));
        let late = Arc::clone(&watch).follow("unknown").unwrap();
        assert!(!late.listing, "the list has shown it already: it must be read");
        handle(WatchEvent::Listed);
        assert_eq!((next(&one).as_deref(), next(&other).as_deref()), (Some("1"), Some("missing")));
        assert_eq!(next(&late), None, "it was in the list");
        handle(WatchEvent::Applied(map("one", "2")));
        handle(WatchEvent::Applied(map("one", "3")));
        assert_eq!((next(&one).as_deref(), next(&one)), (Some("3"), None));
        handle(WatchEvent::Deleted(map("one", "3")));
        assert_eq!(next(&one).as_deref(), Some("missing"));
        drop(other);
        handle(WatchEvent::Applied(map("other", "1")));
        assert_eq!(watch.state.lock().followers.len(), 2, "nobody follows it any more");
    }

    #[test]
    fn followers_learn_that_watching_is_not_permitted() {
        let watch = Arc::new(NamespaceWatch::default());
        let follower = Arc::clone(&watch).follow("one").unwrap();
        let refused = || WatchEvent::Error(vk_kube::Error::new(ErrorKind::Forbidden, "no"));
        assert!(watch.state.lock().handle(refused()) && watch.state.lock().handle(refused()));
        assert!(!watch.state.lock().handle(refused()));
        assert_eq!(next(&follower).as_deref(), Some("refused"));
        assert!(Arc::clone(&watch).follow("two").is_none(), "nobody would tell it anything");
    }
}
