//! Finds events that a watch has lost.
//!
//! Nobody notices a watch that loses an event and goes on. So the versions in a mirror are compared with a list of versions from time to
//! time. That list comes from a cache of the API server and proves nothing: where the mirror lags behind it, and still does so some
//! seconds later, everything is listed again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tracing::debug;
use vk_kube::{MetadataList, Objects, Selector, objects::Object};

use super::mirror::{Mirror, ObjectKey};

/// How often the versions of pods and nodes are compared, and those of copies, of which there are more and which change less.
pub(super) const PERIOD: Duration = Duration::from_mins(1);
pub(super) const COPY_PERIOD: Duration = Duration::from_mins(5);
/// How long the watch may take to show what a list has already.
pub(super) const LAG: Duration = Duration::from_secs(5);

/// Lists of the versions of all objects of a watch, at times that differ from watch to watch.
pub(super) fn version_lists<K: Object>(
    objects: Objects<K>,
    selector: Selector,
    period: Duration,
) -> BoxStream<'static, MetadataList> {
    let rng = StdRng::from_rng(&mut rand::rng());
    let lists = stream::unfold((objects, selector, rng), move |(objects, selector, mut rng)| async move {
        loop {
            tokio::time::sleep(period.mul_f64(rng.random_range(0.5..1.5))).await;
            match objects.list_metadata(&selector).await {
                Ok(list) => return Some((list, (objects, selector, rng))),
                // The watch has the same API server, and reports its errors.
                Err(error) => debug!(%error, "cannot list the versions of lower objects"),
            }
        }
    });
    lists.boxed()
}

/// The objects of which the mirror has an older version than the list, or which only one of them has.
pub(super) fn lagging<V: Versioned>(mirror: &Mirror<V>, list: &MetadataList) -> HashSet<ObjectKey> {
    // Everything is about to be listed anyway.
    if !mirror.is_synced() || mirror.is_listing() {
        return HashSet::new();
    }
    let listed: HashMap<ObjectKey, u64> = list
        .objects
        .iter()
        .map(|object| ((object.namespace.clone(), object.name.clone()), object.version))
        .collect();
    let has = |key: &ObjectKey, at_least: u64| mirror.get(key).is_some_and(|it| it.version() >= at_least);
    // What is newer than the list cannot be in it.
    let is_gone = |key: &ObjectKey| !listed.contains_key(key) && !has(key, list.version.saturating_add(1));
    let gone = mirror.keys().filter(|key| is_gone(key)).cloned();
    listed
        .iter()
        .filter(|(key, version)| !has(key, **version))
        .map(|(key, _)| key.clone())
        .chain(gone)
        .collect()
}

/// A value of a mirror whose resource version is known.
pub(super) trait Versioned {
    /// The resource version as a number.
    fn version(&self) -> u64;
}

impl<K: Metadata<Ty = ObjectMeta>> Versioned for Arc<K> {
    fn version(&self) -> u64 {
        let version = self.metadata().resource_version.as_ref();
        version.and_then(|version| version.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use vk_kube::metadata_list::ObjectVersion;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        (String::new(), name.to_owned())
    }

    fn mirror(nodes: &[(&str, u64)]) -> Mirror<Arc<Node>> {
        let mut mirror = Mirror::default();
        mirror.begin_listing();
        for (name, version) in nodes {
            let mut node = Node::default();
            node.metadata.resource_version = Some(version.to_string());
            mirror.upsert(key(name), Arc::new(node));
        }
        mirror.finish_listing();
        mirror
    }

    fn list(version: u64, nodes: &[(&str, u64)]) -> MetadataList {
        let objects = nodes.iter().map(|(name, version)| ObjectVersion {
            namespace: String::new(),
            name: (*name).to_owned(),
            uid: String::new(),
            version: *version,
        });
        MetadataList { version, objects: objects.collect() }
    }

    #[test]
    fn a_mirror_that_missed_events_lags_behind_the_list() {
        let mirror = mirror(&[("same", 3), ("changed", 4), ("deleted", 5)]);
        let listed = list(9, &[("same", 3), ("changed", 7), ("new", 8)]);
        assert_eq!(lagging(&mirror, &listed), ["changed", "deleted", "new"].map(key).into());
    }

    #[test]
    fn a_mirror_that_is_ahead_of_the_list_does_not_lag() {
        let mut mirror = mirror(&[("newer", 7), ("created since", 8)]);
        assert!(lagging(&mirror, &list(6, &[("newer", 3)])).is_empty());
        mirror.begin_listing();
        assert!(lagging(&mirror, &list(9, &[("newer", 9)])).is_empty(), "a list is in progress");
    }
}
