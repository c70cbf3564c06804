//! Sorts the pods on trial by their nodes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;
use vk_kube::WatchEvent;
use vk_provider::placement::trial_node;

use crate::pods::watch::PodWatchEvent;

/// All pods with the label, and the nodes that share the watch.
#[derive(Debug, Default)]
pub(super) struct TrialRouter {
    pods: HashMap<Arc<str>, Arc<Pod>>,
    /// Those of the list in progress.
    listing: Option<HashSet<Arc<str>>>,
    /// They were listed once.
    is_complete: bool,
    has_begun: bool,
    members: HashMap<String, Member>,
}

/// Wakes up the reader of a node.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) changed: Notify,
}

/// What a node has read, and what it has not.
#[derive(Debug)]
struct Member {
    mailbox: Arc<Mailbox>,
    progress: Progress,
    /// The pods that it has been shown.
    shown: HashSet<Arc<str>>,
    /// Pods that have changed since, with their last version.
    changed: BTreeMap<Arc<str>, Arc<Pod>>,
}

/// How far a node has read the list with which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    New,
    Listing,
    Listed,
}

// === impl TrialRouter ===

impl TrialRouter {
    /// A node joins. It replaces an earlier one of the same name. Also returns whether it is the first.
    pub(super) fn join(&mut self, node: &str) -> (Arc<Mailbox>, bool) {
        let mailbox = Arc::<Mailbox>::default();
        let (shown, changed) = Default::default();
        let member = Member { mailbox: Arc::clone(&mailbox), progress: Progress::New, shown, changed };
        self.members.insert(node.to_owned(), member);
        (mailbox, !std::mem::replace(&mut self.has_begun, true))
    }

    pub(super) fn leave(&mut self, node: &str, mailbox: &Arc<Mailbox>) {
        if self.members.get(node).is_some_and(|member| Arc::ptr_eq(&member.mailbox, mailbox)) {
            self.members.remove(node);
        }
    }

    /// An event of the watch.
    pub(super) fn watch_event(&mut self, event: WatchEvent<Pod>) {
        match event {
            WatchEvent::Restarted => self.listing = Some(HashSet::new()),
            WatchEvent::Applied(pod) => self.apply(&Arc::new(pod)),
            WatchEvent::Deleted(pod) => {
                if let Some(listing) = &mut self.listing {
                    listing.retain(|uid| pod.metadata.uid.as_deref() != Some(uid));
                }
                self.remove(&Arc::new(pod));
            }
            WatchEvent::Listed => {
                let listed = self.listing.take().unwrap_or_default();
                let gone = self.pods.iter().filter(|(uid, _)| !listed.contains(*uid));
                let gone: Vec<Arc<Pod>> = gone.map(|(_, pod)| Arc::clone(pod)).collect();
                for pod in gone {
                    self.remove(&pod);
                }
                if !std::mem::replace(&mut self.is_complete, true) {
                    self.members.values().for_each(|member| member.mailbox.changed.notify_one());
                }
            }
            WatchEvent::Error(_) => {}
        }
    }

    fn apply(&mut self, pod: &Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.as_deref().map(Arc::<str>::from) else { return };
        if let Some(listing) = &mut self.listing {
            listing.insert(Arc::clone(&uid));
        }
        if let Some(before) = self.pods.insert(Arc::clone(&uid), Arc::clone(pod))
            && trial_node(&before) != trial_node(pod)
        {
            self.tell(trial_node(&before), &uid, pod);
        }
        self.tell(trial_node(pod), &uid, pod);
    }

    fn remove(&mut self, pod: &Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.as_deref().map(Arc::<str>::from) else { return };
        if let Some(before) = self.pods.remove(&uid) {
            self.tell(trial_node(&before), &uid, pod);
        }
    }

    /// A pod that a node has, or had, has changed.
    fn tell(&mut self, node: Option<&str>, uid: &Arc<str>, pod: &Arc<Pod>) {
        if let Some(member) = node.and_then(|node| self.members.get_mut(node)) {
            member.changed.insert(Arc::clone(uid), Arc::clone(pod));
            member.mailbox.changed.notify_one();
        }
    }

    /// The next event for a node.
    pub(super) fn next(&mut self, node: &str, mailbox: &Arc<Mailbox>) -> Option<PodWatchEvent> {
        let member = self.members.get_mut(node).filter(|_| self.is_complete)?;
        if !Arc::ptr_eq(&member.mailbox, mailbox) {
            return None;
        }
        let is_here = |pod: &&Arc<Pod>| trial_node(pod) == Some(node);
        if member.progress == Progress::New {
            let pods = self.pods.iter().filter(|(_, pod)| is_here(pod));
            member.changed = pods.map(|(uid, pod)| (Arc::clone(uid), Arc::clone(pod))).collect();
            member.progress = Progress::Listing;
            return Some(PodWatchEvent::Restarted);
        }
        while let Some((uid, pod)) = member.changed.pop_first() {
            if let Some(current) = self.pods.get(&uid).filter(is_here) {
                member.shown.insert(uid);
                return Some(PodWatchEvent::Applied(Arc::clone(current)));
            }
            if member.shown.remove(&uid) {
                return Some(PodWatchEvent::Deleted(pod));
            }
        }
        if member.progress == Progress::Listing {
            member.progress = Progress::Listed;
            return Some(PodWatchEvent::Listed);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, node: &str, version: u32) -> Pod {
        let metadata = json!({"uid": uid, "resourceVersion": version.to_string(), "labels": {
            "multicluster.virtual-kubelet.io/trial": node,
        }});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// What a node reads now, and the versions.
    fn read(router: &mut TrialRouter, node: &str, mailbox: &Arc<Mailbox>) -> String {
        let mut events = Vec::new();
        while let Some(event) = router.next(node, mailbox) {
            let of = |pod: &Pod| {
                let metadata = &pod.metadata;
                format!("{}@{}", metadata.uid.as_ref().unwrap(), metadata.resource_version.as_ref().unwrap())
            };
            events.push(match event {
                PodWatchEvent::Applied(pod) => format!("+{}", of(&pod)),
                PodWatchEvent::Deleted(pod) => format!("-{}", of(&pod)),
                other => format!("{other:?}"),
            });
        }
        events.join(" ")
    }

    #[test]
    fn each_node_reads_its_own_pods_as_if_it_had_a_watch_of_its_own() {
        let mut router = TrialRouter::default();
        let (a, is_first) = router.join("a");
        let (b, is_second) = router.join("b");
        assert!(is_first && !is_second);
        router.watch_event(WatchEvent::Restarted);
        router.watch_event(WatchEvent::Applied(pod("p", "a", 1)));
        assert_eq!(read(&mut router, "a", &a), "", "the list is not complete");
        router.watch_event(WatchEvent::Listed);
        assert_eq!(read(&mut router, "a", &a), "Restarted +p@1 Listed");
        assert_eq!(read(&mut router, "b", &b), "Restarted Listed");
        router.watch_event(WatchEvent::Applied(pod("p", "a", 2)));
        router.watch_event(WatchEvent::Applied(pod("p", "a", 3)));
        assert_eq!(read(&mut router, "a", &a), "+p@3", "the last version is enough");
        router.watch_event(WatchEvent::Applied(pod("p", "b", 4)));
        assert_eq!((read(&mut router, "a", &a), read(&mut router, "b", &b)), ("-p@4".into(), "+p@4".into()));
        router.watch_event(WatchEvent::Deleted(pod("p", "b", 5)));
        assert_eq!((read(&mut router, "a", &a), read(&mut router, "b", &b)), (String::new(), "-p@5".into()));
        router.watch_event(WatchEvent::Applied(pod("p", "a", 6)));
        assert_eq!(read(&mut router, "a", &a), "+p@6", "a pod may come back");
    }

    #[test]
    fn a_node_that_joins_late_is_shown_what_there_is_and_one_that_has_left_costs_nothing() {
        let mut router = TrialRouter::default();
        let (first, _) = router.join("a");
        router.watch_event(WatchEvent::Restarted);
        router.watch_event(WatchEvent::Applied(pod("p", "b", 1)));
        router.watch_event(WatchEvent::Listed);
        let (b, _) = router.join("b");
        assert_eq!(read(&mut router, "b", &b), "Restarted +p@1 Listed");
        let (again, _) = router.join("a");
        assert_eq!(read(&mut router, "a", &first), "", "another one has its name");
        router.leave("a", &first);
        assert_eq!(read(&mut router, "a", &again), "Restarted Listed");
        router.leave("a", &again);
        router.leave("b", &b);
        assert!(router.members.is_empty());
    }

    #[test]
    fn a_list_shows_what_the_watch_has_lost() {
        let mut router = TrialRouter::default();
        let (a, _) = router.join("a");
        for pods in [vec![pod("p", "a", 1), pod("q", "a", 2)], vec![pod("q", "a", 3), pod("r", "a", 4)]] {
            router.watch_event(WatchEvent::Restarted);
            for pod in pods {
                router.watch_event(WatchEvent::Applied(pod));
            }
            router.watch_event(WatchEvent::Listed);
            if router.pods.contains_key("p") {
                assert_eq!(read(&mut router, "a", &a), "Restarted +p@1 +q@2 Listed");
            }
        }
        assert_eq!(read(&mut router, "a", &a), "-p@1 +q@3 +r@4");
    }
}
