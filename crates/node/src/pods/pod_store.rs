//! The pods of a node by name, for the kubelet API. It is filled from the controller's watch and from the answers to its writes,
//! so that nothing is read twice and nothing is held twice.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;

use super::{
    watch::{PodWatch, PodWatchEvent},
    worker::version,
};

/// The pods of a node. Clones share them.
#[derive(Clone, Default)]
pub struct PodStore(Arc<RwLock<PodsByName>>);

#[derive(Default)]
struct PodsByName {
    /// Of two with the same name, the one that was seen last: the older one is being deleted, or gone.
    by_name: HashMap<Name, Arc<Pod>>,
    /// Pods that were seen since the list in progress began.
    in_list: Option<HashSet<Name>>,
}

type Name = (String, String);

// === impl PodStore ===

impl PodStore {
    /// Passes the events of a watch on and records them. What an earlier watch has shown is forgotten.
    #[must_use]
    pub fn follow(&self, watch: PodWatch) -> PodWatch {
        *self.0.write() = PodsByName::default();
        let store = self.clone();
        watch.inspect(move |event| store.record(event)).boxed()
    }

    /// All pods.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.0.read().by_name.values().cloned().collect()
    }

    /// The pod of this name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.read().by_name.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// A newer version of a pod that is here, which the watch may not have shown yet.
    pub(super) fn renew(&self, pod: &Arc<Pod>) {
        let Some(name) = name(pod) else { return };
        if let Some(there) = self.0.write().by_name.get_mut(&name).filter(|there| is_newer(pod, there)) {
            *there = Arc::clone(pod);
        }
    }

    fn record(&self, event: &PodWatchEvent) {
        let mut pods = self.0.write();
        match event {
            PodWatchEvent::Restarted => pods.in_list = Some(HashSet::new()),
            PodWatchEvent::Applied(pod) => {
                let Some(name) = name(pod) else { return };
                if let Some(seen) = &mut pods.in_list {
                    seen.insert(name.clone());
                }
                if !pods.by_name.get(&name).is_some_and(|there| is_newer(there, pod)) {
                    pods.by_name.insert(name, Arc::clone(pod));
                }
            }
            PodWatchEvent::Deleted(pod) => {
                let Some(name) = name(pod) else { return };
                // A newer pod of the same name stays.
                if pods.by_name.get(&name).is_some_and(|there| there.metadata.uid == pod.metadata.uid) {
                    pods.by_name.remove(&name);
                }
            }
            PodWatchEvent::Listed => {
                if let Some(seen) = pods.in_list.take() {
                    pods.by_name.retain(|name, _| seen.contains(name));
                }
            }
            PodWatchEvent::Versions(_) | PodWatchEvent::AuditFailed(_) => {}
        }
    }
}

/// Whether it is a later version of the other pod.
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

    async fn after(watch: Vec<PodWatchEvent>) -> PodStore {
        let store = PodStore::default();
        store.follow(stream::iter(watch).boxed()).for_each(async |_| ()).await;
        store
    }

    fn uids(store: &PodStore) -> Vec<String> {
        let mut uids: Vec<String> = store.all().iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        uids.sort();
        uids
    }

    #[tokio::test]
    async fn pods_come_and_go_and_what_a_listing_lacks_is_gone() {
        let first = vec![
            PodWatchEvent::Restarted,
            PodWatchEvent::Applied(pod("a", "1")),
            PodWatchEvent::Applied(pod("b", "2")),
            PodWatchEvent::Listed,
        ];
        let then = vec![PodWatchEvent::Applied(pod("c", "3")), PodWatchEvent::Deleted(pod("a", "1"))];
        let store = after([first.clone(), then.clone()].concat()).await;
        assert_eq!(uids(&store), ["2", "3"]);
        assert!(
            store.find("ns", "b").is_some()
                && store.find("ns", "a").is_none()
                && store.find("x", "b").is_none()
        );

        let again =
            vec![PodWatchEvent::Restarted, PodWatchEvent::Applied(pod("c", "3")), PodWatchEvent::Listed];
        assert_eq!(uids(&after([first, then, again].concat()).await), ["3"]);
    }

    #[tokio::test]
    async fn the_end_of_an_older_namesake_does_not_take_the_newer_one_away() {
        let watch = vec![
            PodWatchEvent::Applied(pod("a", "1")),
            PodWatchEvent::Applied(pod("a", "2")),
            PodWatchEvent::Deleted(pod("a", "1")),
        ];
        assert_eq!(uids(&after(watch).await), ["2"]);
    }

    #[tokio::test]
    async fn what_a_write_has_answered_stands_until_the_watch_shows_something_newer() {
        let at = |version: &str| {
            let mut pod = Pod::clone(&pod("a", "1"));
            pod.metadata.resource_version = Some(version.to_owned());
            Arc::new(pod)
        };
        let store = after(vec![PodWatchEvent::Applied(at("7"))]).await;
        let version =
            |store: &PodStore| store.find("ns", "a").unwrap().metadata.resource_version.clone().unwrap();
        store.renew(&at("10"));
        assert_eq!(version(&store), "10");
        for (event, stands) in [("9", "10"), ("10", "10"), ("11", "11")] {
            store.record(&PodWatchEvent::Applied(at(event)));
            assert_eq!(version(&store), stands, "after {event}");
        }
        store.renew(&pod("b", "2"));
        assert_eq!(uids(&store), ["1"], "a pod that the watch has not shown does not stand here");
        store.record(&PodWatchEvent::Applied(pod("a", "3")));
        store.renew(&at("12"));
        assert_eq!(uids(&store), ["3"], "nor does an older namesake come back");
    }

    #[tokio::test]
    async fn a_new_watch_begins_with_an_empty_store() {
        let store = after(vec![PodWatchEvent::Applied(pod("a", "1"))]).await;
        drop(store.follow(stream::pending().boxed()));
        assert!(store.all().is_empty());
    }
}
