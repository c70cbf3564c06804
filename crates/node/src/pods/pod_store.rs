//! The pods of a node by name, for whoever asks from outside: the kubelet API. It is filled from what the controller sees and what
//! its writes answer, so that nothing is read twice and nothing is held twice.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;

use super::{
    watch::{Sight, Sights},
    worker::version,
};

/// The roll of a node's pods. Clones share it.
#[derive(Clone, Default)]
pub struct PodStore(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    /// Of two with one name, the one that was seen last: the older one is being deleted, or gone.
    by_name: HashMap<Name, Arc<Pod>>,
    /// Seen since a listing began.
    in_listing: Option<HashSet<Name>>,
}

type Name = (String, String);

// === impl PodStore ===

impl PodStore {
    /// Passes sights on and keeps the roll by them. What an earlier stream of sights has told counts no more.
    #[must_use]
    pub fn follow(&self, sights: Sights) -> Sights {
        *self.0.write() = Known::default();
        let roll = self.clone();
        sights.inspect(move |sight| roll.note(sight)).boxed()
    }

    /// All pods.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.0.read().by_name.values().cloned().collect()
    }

    /// The pod of this name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.read().by_name.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// A pod that stands here is like this by now, which the watch may not have shown yet.
    pub(super) fn renew(&self, pod: &Arc<Pod>) {
        let Some(name) = name(pod) else { return };
        if let Some(there) = self.0.write().by_name.get_mut(&name).filter(|there| is_newer(pod, there)) {
            *there = Arc::clone(pod);
        }
    }

    fn note(&self, sight: &Sight) {
        let mut known = self.0.write();
        match sight {
            Sight::Restarted => known.in_listing = Some(HashSet::new()),
            Sight::Seen(pod) => {
                let Some(name) = name(pod) else { return };
                if let Some(seen) = &mut known.in_listing {
                    seen.insert(name.clone());
                }
                if !known.by_name.get(&name).is_some_and(|there| is_newer(there, pod)) {
                    known.by_name.insert(name, Arc::clone(pod));
                }
            }
            Sight::Deleted(pod) => {
                let Some(name) = name(pod) else { return };
                // A namesake that came since stays.
                if known.by_name.get(&name).is_some_and(|there| there.metadata.uid == pod.metadata.uid) {
                    known.by_name.remove(&name);
                }
            }
            Sight::Listed => {
                if let Some(seen) = known.in_listing.take() {
                    known.by_name.retain(|name, _| seen.contains(name));
                }
            }
            Sight::Surveyed(_) => {}
        }
    }
}

/// Whether it is the same pod as the other one, later.
fn is_newer(pod: &Pod, other: &Pod) -> bool {
    pod.metadata.uid == other.metadata.uid && version(pod) > version(other)
}

fn name(pod: &Pod) -> Option<Name> {
    Some((pod.metadata.namespace.clone()?, pod.metadata.name.clone()?))
}

impl fmt::Debug for PodStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodStore({} pods)", self.0.read().by_name.len())
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        Arc::new(pod)
    }

    async fn after(sights: Vec<Sight>) -> PodStore {
        let roll = PodStore::default();
        roll.follow(stream::iter(sights).boxed()).for_each(async |_| ()).await;
        roll
    }

    fn uids(roll: &PodStore) -> Vec<String> {
        let mut uids: Vec<String> = roll.all().iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        uids.sort();
        uids
    }

    #[tokio::test]
    async fn pods_come_and_go_and_what_a_listing_lacks_is_gone() {
        let first =
            vec![Sight::Restarted, Sight::Seen(pod("a", "1")), Sight::Seen(pod("b", "2")), Sight::Listed];
        let then = vec![Sight::Seen(pod("c", "3")), Sight::Deleted(pod("a", "1"))];
        let roll = after([first.clone(), then.clone()].concat()).await;
        assert_eq!(uids(&roll), ["2", "3"]);
        assert!(
            roll.find("ns", "b").is_some() && roll.find("ns", "a").is_none() && roll.find("x", "b").is_none()
        );

        let again = vec![Sight::Restarted, Sight::Seen(pod("c", "3")), Sight::Listed];
        assert_eq!(uids(&after([first, then, again].concat()).await), ["3"]);
    }

    #[tokio::test]
    async fn the_end_of_an_older_namesake_does_not_take_the_newer_one_away() {
        let sights =
            vec![Sight::Seen(pod("a", "1")), Sight::Seen(pod("a", "2")), Sight::Deleted(pod("a", "1"))];
        assert_eq!(uids(&after(sights).await), ["2"]);
    }

    #[tokio::test]
    async fn what_a_write_has_answered_stands_until_the_watch_shows_something_newer() {
        let at = |version: &str| {
            let mut pod = Pod::clone(&pod("a", "1"));
            pod.metadata.resource_version = Some(version.to_owned());
            Arc::new(pod)
        };
        let roll = after(vec![Sight::Seen(at("7"))]).await;
        let version =
            |roll: &PodStore| roll.find("ns", "a").unwrap().metadata.resource_version.clone().unwrap();
        roll.renew(&at("10"));
        assert_eq!(version(&roll), "10");
        for (sight, stands) in [("9", "10"), ("10", "10"), ("11", "11")] {
            roll.note(&Sight::Seen(at(sight)));
            assert_eq!(version(&roll), stands, "after {sight}");
        }
        roll.renew(&pod("b", "2"));
        assert_eq!(uids(&roll), ["1"], "a pod that the watch has not shown does not stand here");
        roll.note(&Sight::Seen(pod("a", "3")));
        roll.renew(&at("12"));
        assert_eq!(uids(&roll), ["3"], "nor does an older namesake come back");
    }

    #[tokio::test]
    async fn a_new_stream_of_sights_begins_from_nothing() {
        let roll = after(vec![Sight::Seen(pod("a", "1"))]).await;
        drop(roll.follow(stream::pending().boxed()));
        assert!(roll.all().is_empty());
    }
}
