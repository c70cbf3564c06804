//! Lists of pods that tell whether an object is in use, for decisions that must not depend on the watch alone.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};
use vk_kube::{Client, Error, Objects, Selector};

use super::references::{ObjectUse, object_uses};
use crate::{
    copies::{Kind, diff::CopyKey},
    names::ORIGIN,
};

/// For how long a list answers: a sweep asks for thousands of copies at once, and each virtual node asks for all of them.
const TTL: Duration = Duration::from_secs(2);
/// How many namespaces are listed at a time. These are reads, which must not wait for writes, nor writes for them.
const CONCURRENT_LISTS: usize = 4;

/// What pods refer to, by namespace. All virtual nodes of a lower cluster share these lists.
#[derive(Debug)]
pub(super) struct UseLists {
    /// The lock of a namespace is held while its pods are listed, so that they are listed once.
    by_namespace: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<UseList>>>>>,
    permits: Semaphore,
}

#[derive(Debug)]
struct UseList {
    fresh_until: Instant,
    /// An error counts for all that ask, too: otherwise each of them would list again.
    uses: Result<HashMap<(Kind, String), ObjectUse>, Error>,
}

// === impl UseLists ===

impl Default for UseLists {
    fn default() -> Self {
        Self { by_namespace: Mutex::default(), permits: Semaphore::new(CONCURRENT_LISTS) }
    }
}

impl UseLists {
    /// How the pods of an upper cluster use an object; `None` if they do not.
    pub(super) async fn find(
        &self,
        client: &Client,
        origin: &str,
        key: &CopyKey,
    ) -> Result<Option<ObjectUse>, Error> {
        let list = self.list_of(&key.namespace);
        let mut list = list.lock().await;
        let fresh = if let Some(fresh) = list.take().filter(UseList::is_fresh) {
            fresh
        } else {
            let _permit = self.permits.acquire().await;
            UseList::read(client, origin, &key.namespace).await
        };
        let found = match &fresh.uses {
            Ok(uses) => Ok(uses.get(&(key.kind, key.name.clone())).copied()),
            Err(error) => Err(error.clone()),
        };
        *list = Some(fresh);
        found
    }

    fn list_of(&self, namespace: &str) -> Arc<tokio::sync::Mutex<Option<UseList>>> {
        let mut all = self.by_namespace.lock();
        if !all.contains_key(namespace) {
            let is_fresh = |list: &Option<UseList>| list.as_ref().is_some_and(UseList::is_fresh);
            all.retain(|_, list| {
                Arc::strong_count(list) > 1 || list.try_lock().is_ok_and(|list| is_fresh(&list))
            });
        }
        Arc::clone(all.entry(namespace.to_owned()).or_default())
    }
}

// === impl UseList ===

impl UseList {
    async fn read(client: &Client, origin: &str, namespace: &str) -> Self {
        // What happens while the pods are listed may be missing from the list.
        let begun = Instant::now();
        let uses = Self::list(client, origin, namespace).await;
        let fresh_until = match &uses {
            Ok(_) => begun + TTL,
            Err(error) => Instant::now() + error.retry_after.unwrap_or(TTL),
        };
        Self { fresh_until, uses }
    }

    async fn list(
        client: &Client,
        origin: &str,
        namespace: &str,
    ) -> Result<HashMap<(Kind, String), ObjectUse>, Error> {
        let pods: Objects<Pod> = Objects::namespaced(client.clone(), namespace);
        let labels = Some(format!("{ORIGIN}={origin}"));
        let mut uses = HashMap::new();
        for pod in pods.list(&Selector { fields: None, labels }).await?.objects {
            for (kind, name, by) in object_uses(&pod) {
                match uses.entry((kind, name)) {
                    Entry::Vacant(entry) => drop(entry.insert(by)),
                    Entry::Occupied(mut entry) => *entry.get_mut() = by.max(*entry.get()),
                }
            }
        }
        Ok(uses)
    }

    fn is_fresh(&self) -> bool {
        Instant::now() < self.fresh_until
    }
}
