//! The marks on the owner ConfigMaps of virtual nodes that are removing a namespace.
//!
//! Who removes a namespace marks its own owner ConfigMap first, and then looks for those of others. Who begins to use it creates its own
//! first, and then looks for marks. So one of both sees the other.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{Client, Error, Kind, Objects, Patch};
use vk_supervisor::Clock;

use crate::{
    names::{self, OwnerId},
    owner_config_map::{self, node_of},
};

/// For how long a mark counts. A process that ended in between leaves its mark.
const MARK_TTL: Duration = Duration::from_mins(5);
/// After this a mark that was seen is forgotten: most of these namespaces are gone. If it is still there, it counts once more.
const MEMORY: Duration = Duration::from_hours(24);

/// Sets marks, and remembers those of all virtual nodes that this process has seen.
///
/// The time in a mark is that of another machine, whose clock may be wrong. So a mark counts from when this process has first seen it, by
/// its monotonic clock, and its value only shows whether it is still the same mark: like the leases of client-go's leader election.
#[derive(Debug)]
pub(crate) struct RetirementMarks {
    clock: Clock,
    known: Mutex<KnownMarks>,
}

/// The values of marks, by the UID of the owner ConfigMap.
#[derive(Debug, Default)]
struct KnownMarks {
    /// Each with the time when it was first seen.
    seen: HashMap<String, (String, Instant)>,
    /// Those that this process has set, and has not deleted the namespace since. They may be there although the request failed.
    without_deletion: HashMap<String, String>,
}

// === impl RetirementMarks ===

impl RetirementMarks {
    /// A process that has seen no marks yet. Its own marks have the time of this clock.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, known: Mutex::default() }
    }

    /// Marks the owner ConfigMap with this UID: its node begins to remove the namespace.
    pub(crate) async fn set(
        &self,
        lower: &Client,
        namespace: &str,
        owner: &OwnerId,
        uid: &str,
    ) -> Result<(), Error> {
        let value = self.clock.now().to_string();
        self.known.lock().without_deletion.insert(uid.to_owned(), value.clone());
        patch(lower, namespace, owner, uid, Some(value)).await
    }

    /// The namespace, or only the owner ConfigMap, is deleted now. This may take effect even if it fails, so from now on the mark counts for
    /// this process too.
    pub(crate) fn record_deletion(&self, uid: &str) {
        self.known.lock().without_deletion.remove(uid);
    }

    /// Removes the mark: the namespace stays.
    pub(crate) async fn clear(
        &self,
        lower: &Client,
        namespace: &str,
        owner: &OwnerId,
        uid: &str,
    ) -> Result<(), Error> {
        patch(lower, namespace, owner, uid, None).await
    }

    /// All owner ConfigMaps in a namespace, each with whether its virtual node is removing the namespace.
    pub(crate) async fn owner_maps(
        &self,
        lower: &Client,
        namespace: &str,
    ) -> Result<Vec<(ConfigMap, bool)>, Error> {
        let maps = owner_config_map::list(lower, namespace).await?;
        let with_mark = |map: ConfigMap| {
            let retiring = self.is_retiring(&map);
            (map, retiring)
        };
        Ok(maps.into_iter().map(with_mark).collect())
    }

    /// Whether the virtual node of an owner ConfigMap that was just read is removing the namespace.
    fn is_retiring(&self, map: &ConfigMap) -> bool {
        let uid = map.metadata.uid.as_deref().unwrap_or_default();
        let mut known = self.known.lock();
        let KnownMarks { seen, without_deletion } = &mut *known;
        let Some(value) = value(map) else {
            seen.remove(uid);
            return false;
        };
        if without_deletion.get(uid).is_some_and(|own| own == value) {
            return false;
        }
        if let Some((known, since)) = seen.get(uid)
            && known == value
        {
            return since.elapsed() < MARK_TTL;
        }
        seen.retain(|_, (_, since)| since.elapsed() < MEMORY);
        seen.insert(uid.to_owned(), (value.to_owned(), Instant::now()));
        true
    }

    /// Fails while a namespace is being deleted or a virtual node of any upper cluster is removing it. It is asked after our owner ConfigMap
    /// was created. A mark of our own counts too, unless this process has set it and not deleted the namespace: the deletion that it or an
    /// earlier process asked for may still take effect.
    pub(crate) async fn check_namespace_stays(
        &self,
        lower: &Client,
        namespace: &str,
        owner: &OwnerId,
    ) -> Result<(), Error> {
        let maps = self.owner_maps(lower, namespace).await?;
        if let Some((map, _)) = maps.iter().find(|(_, retiring)| *retiring) {
            let message = format!(
                "virtual node {} is about to delete namespace {namespace} of the lower cluster: waiting until it is gone or stays",
                node_of(map)
            );
            return Err(Error::new(Kind::Conflict, message));
        }
        let ours = maps.iter().map(|(map, _)| map).filter(|map| owner.owns(&map.metadata));
        for map in ours.filter(|map| value(map).is_some()) {
            self.clear(lower, namespace, owner, map.metadata.uid.as_deref().unwrap_or_default()).await?;
        }
        let namespaces: Objects<Namespace> = Objects::all(lower.clone());
        match namespaces.get(namespace).await {
            Ok(found) if found.metadata.deletion_timestamp.is_some() => {
                let message = format!(
                    "namespace {namespace} of the lower cluster is being deleted: waiting until it is gone"
                );
                Err(Error::new(Kind::Conflict, message))
            }
            // A process with permissions in some namespaces only relies on existing ones.
            Err(error) if error.kind == Kind::Forbidden => Ok(()),
            found => found.map(drop),
        }
    }
}

fn value(map: &ConfigMap) -> Option<&str> {
    names::annotation(&map.metadata, names::RETIRING)
}

async fn patch(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    uid: &str,
    value: Option<String>,
) -> Result<(), Error> {
    let objects: Objects<ConfigMap> = Objects::namespaced(lower.clone(), namespace);
    let mark = json!({"metadata": {"uid": uid, "annotations": {names::RETIRING: value}}});
    objects.patch(&owner_config_map::name(owner), Patch::Merge(&mark)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(uid: &str, mark: Option<&str>) -> ConfigMap {
        let annotations = mark.map(|mark| json!({names::RETIRING: mark}));
        serde_json::from_value(json!({"metadata": {"uid": uid, "annotations": annotations}})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_counts_until_it_was_seen_for_five_minutes_whatever_time_it_shows() {
        for time in ["1970-01-01T00:00:00Z", "2999-12-31T23:59:59Z"] {
            let marks = RetirementMarks::new(Clock::system());
            assert!(marks.is_retiring(&map("a", Some(time))), "seen for the first time");
            tokio::time::advance(MARK_TTL.saturating_sub(Duration::from_secs(1))).await;
            assert!(marks.is_retiring(&map("a", Some(time))));
            assert!(marks.is_retiring(&map("b", Some(time))), "that of another node");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!marks.is_retiring(&map("a", Some(time))), "its process has ended");
            assert!(marks.is_retiring(&map("b", Some(time))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_mark_counts_from_when_it_is_first_seen() {
        let marks = RetirementMarks::new(Clock::system());
        assert!(marks.is_retiring(&map("a", Some("1"))));
        tokio::time::advance(MARK_TTL).await;
        assert!(marks.is_retiring(&map("a", Some("2"))));
        assert!(!marks.is_retiring(&map("a", None)), "it was removed");
        assert!(marks.is_retiring(&map("a", Some("2"))));
        assert!(marks.is_retiring(&map("a", Some("2"))), "it is still that one");
    }

    #[tokio::test(start_paused = true)]
    async fn marks_that_were_seen_long_ago_are_forgotten() {
        let marks = RetirementMarks::new(Clock::system());
        assert!(marks.is_retiring(&map("gone", Some("1"))));
        tokio::time::advance(MEMORY).await;
        assert!(marks.is_retiring(&map("new", Some("1"))));
        assert_eq!(marks.known.lock().seen.keys().collect::<Vec<_>>(), ["new"]);
    }
}
