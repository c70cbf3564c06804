use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::RngExt as _;
use serde_json::json;

use super::{
    mailbox::{CoalescingQueue, Mailbox},
    router::WatchRouter,
    *,
};
use crate::pods::watch_audit::{AuditFailure, PodVersions};

fn pod(node: &str, uid: &str, version: u64) -> Pod {
    let metadata =
        json!({"namespace": "default", "name": "web", "uid": uid, "resourceVersion": version.to_string()});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []}}))
        .unwrap()
}

fn listing(version: u64, objects: Vec<Pod>) -> ObjectList<Pod> {
    ObjectList { version, objects }
}

fn describe(event: &PodWatchEvent) -> String {
    let uid = |pod: &Pod| {
        let meta = pod.metadata.clone();
        format!("{}@{}", meta.uid.unwrap_or_default(), meta.resource_version.unwrap_or_default())
    };
    match event {
        PodWatchEvent::Restarted => "restarted".to_owned(),
        PodWatchEvent::Applied(pod) => format!("+{}", uid(pod)),
        PodWatchEvent::Deleted(pod) => format!("-{}", uid(pod)),
        PodWatchEvent::Listed => "listed".to_owned(),
        PodWatchEvent::Versions(_) => "versions".to_owned(),
        PodWatchEvent::AuditFailed(failure) => format!("audit failed: {}", failure.in_a_row),
    }
}

fn read(mailbox: &Mailbox) -> Vec<String> {
    std::iter::from_fn(|| mailbox.pop()).map(|event| describe(&event)).collect()
}

#[test]
fn each_node_gets_its_own_pods_and_the_marks_of_the_listing() {
    let mut router = WatchRouter::default();
    let ((_, a), (_, b)) = (router.join("a"), router.join("b"));
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Applied(pod("a", "1", 1)));
    router.watch_event(WatchEvent::Applied(pod("b", "2", 2)));
    router.watch_event(WatchEvent::Applied(pod("somebody-else", "3", 3)));
    router.watch_event(WatchEvent::Listed);
    // A namesake with another UID.
    router.watch_event(WatchEvent::Deleted(pod("a", "1", 4)));
    router.watch_event(WatchEvent::Applied(pod("a", "4", 5)));
    assert_eq!(read(&a), ["restarted", "-1@4", "listed", "+4@5"]);
    assert_eq!(read(&b), ["restarted", "+2@2", "listed"]);
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Listed);
    assert_eq!(read(&a), ["restarted", "listed"]);
}

#[test]
fn a_node_that_joins_in_the_middle_of_a_listing_gets_one_of_its_own() {
    let mut router = WatchRouter::default();
    let (_, early) = router.join("early");
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Applied(pod("late", "1", 1)));
    let (id, late) = router.join("late");
    router.watch_event(WatchEvent::Applied(pod("late", "2", 2)));
    router.watch_event(WatchEvent::Listed);
    assert_eq!(router.next_late(), Some(("late".to_owned(), id)));
    // The listing was made now; later answers come first.
    router.watch_event(WatchEvent::Applied(pod("late", "3", 7)));
    router.watch_event(WatchEvent::Deleted(pod("late", "2", 8)));
    router.watch_event(WatchEvent::Applied(pod("late", "1", 9)));
    assert_eq!(read(&late), [""; 0], "an incomplete list is not shown");
    router.listed_separately("late", id, listing(6, vec![pod("late", "1", 1), pod("late", "2", 2)]));
    let all = read(&late);
    assert_eq!(
        (all.first().map(String::as_str), all.last().map(String::as_str)),
        (Some("restarted"), Some("listed"))
    );
    let all: BTreeSet<&str> = all[1..all.len() - 1].iter().map(String::as_str).collect();
    assert_eq!(all, BTreeSet::from(["+1@9", "-2@8", "+3@7"]));
    assert_eq!(read(&early), ["restarted", "listed"]);
    router.listed_separately("late", id, listing(20, vec![]));
    assert_eq!(read(&late), [""; 0], "once is enough");
    // The watch trails behind: this one came and went before the listing.
    router.watch_event(WatchEvent::Applied(pod("late", "0", 4)));
    router.watch_event(WatchEvent::Deleted(pod("late", "0", 5)));
    router.watch_event(WatchEvent::Applied(pod("late", "4", 10)));
    assert_eq!(read(&late), ["+4@10"]);
}

#[test]
fn a_listing_all_nodes_comes_before_one_that_is_still_under_way() {
    let mut router = WatchRouter::default();
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Listed);
    let (id, late) = router.join("late");
    assert!(router.next_late().is_some());
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Applied(pod("late", "1", 5)));
    router.listed_separately("late", id, listing(1, vec![pod("late", "0", 1)]));
    router.watch_event(WatchEvent::Listed);
    assert_eq!(read(&late), ["restarted", "+1@5", "listed"]);
}

#[test]
fn a_node_that_has_left_gets_nothing_and_its_successor_begins_anew() {
    let mut router = WatchRouter::default();
    let (first, old) = router.join("a");
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Listed);
    let (second, new) = router.join("a");
    router.leave("a", first);
    assert!(router.is_late("a", second), "the old one does not take the new one along");
    router.watch_event(WatchEvent::Applied(pod("a", "1", 1)));
    assert_eq!(read(&old), ["restarted", "listed"]);
    router.listed_separately("a", second, listing(1, vec![pod("a", "1", 1)]));
    assert_eq!(read(&new), ["restarted", "+1@1", "listed"]);
    router.leave("a", second);
    router.watch_event(WatchEvent::Applied(pod("a", "2", 2)));
    assert_eq!(read(&new), [""; 0]);
}

#[test]
fn a_slow_reader_finds_no_more_than_its_pods() {
    let mut queue = CoalescingQueue::default();
    for round in 0..100 {
        queue.restarted();
        for index in 0..10 {
            queue.applied(Arc::new(pod("a", &format!("uid-{index}"), round * 10 + index)));
        }
        queue.listed();
        queue.deleted(Arc::new(pod("a", "uid-3", round * 10 + 3)));
        assert!(queue.len() <= 12, "{}", queue.len());
    }
    // What was deleted does not come back, whatever is said later.
    let events: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|event| describe(&event)).collect();
    assert_eq!(events.iter().filter(|event| event.starts_with("-uid-3")).count(), 1);
    assert!(!events.iter().any(|event| event.starts_with("+uid-3")), "{events:?}");
}

#[test]
fn what_the_watch_never_showed_is_read_and_handed_to_its_node() {
    let mut router = WatchRouter::default();
    let (_, a) = router.join("a");
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Applied(pod("a", "1", 1)));
    router.watch_event(WatchEvent::Applied(pod("other", "2", 2)));
    let versions = ["1", "2", "3", "4", "5"].map(|uid| {
        let pod = PodRef::new("default", "web", uid);
        (Arc::clone(&pod.uid), (pod, 9))
    });
    let list = Arc::new(PodVersions { version: 9, pods: versions.into(), all_nodes: true });
    assert!(router.versions_listed(&list).is_empty(), "not in the middle of a list");
    router.watch_event(WatchEvent::Listed);
    let mut missed = router.versions_listed(&list);
    missed.sort();
    let uids: Vec<&str> = missed.iter().map(|pod| &*pod.uid).collect();
    assert_eq!(uids, ["3", "4", "5"]);
    assert!(router.found(&missed[0], Some(pod("a", "3", 9))));
    // The watch was only late, and has shown more since.
    router.watch_event(WatchEvent::Applied(pod("a", "4", 9)));
    router.watch_event(WatchEvent::Deleted(pod("a", "4", 10)));
    assert!(!router.found(&missed[1], Some(pod("a", "4", 9))));
    assert!(!router.found(&missed[2], Some(pod("other", "5", 9))), "it is no pod of our nodes");
    assert_eq!(read(&a), ["restarted", "+1@1", "listed", "+3@9", "-4@10", "versions"]);
    assert!(router.versions_listed(&list).iter().all(|pod| &*pod.uid == "4"), "all others are known now");
}

#[test]
fn an_audit_keeps_only_our_pods_and_those_that_the_watch_never_showed() {
    let mut router = WatchRouter::default();
    router.join("a");
    assert!(!router.is_audited("1"), "nothing is known yet");
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Applied(pod("a", "1", 1)));
    router.watch_event(WatchEvent::Applied(pod("other", "2", 2)));
    router.watch_event(WatchEvent::Applied(pod("late", "3", 3)));
    router.watch_event(WatchEvent::Listed);
    assert_eq!(["1", "2", "3", "4"].map(|uid| router.is_audited(uid)), [true, false, false, true]);
    let (id, _) = router.join("late");
    router.listed_separately("late", id, listing(4, vec![pod("late", "3", 3)]));
    assert!(router.is_audited("3"), "the pods of a node that joins later are ours");
    router.watch_event(WatchEvent::Deleted(pod("a", "1", 5)));
    router.watch_event(WatchEvent::Applied(pod("a", "5", 6)));
    assert!(router.is_audited("5"));
    assert_eq!(router.ours_len(), 2, "what is gone is forgotten");
}

#[test]
fn an_audit_that_met_a_list_in_progress_proves_nothing() {
    let mut router = WatchRouter::default();
    let (_, a) = router.join("a");
    router.watch_event(WatchEvent::Restarted);
    assert!(!router.is_audited("1"));
    router.watch_event(WatchEvent::Applied(pod("a", "1", 1)));
    router.watch_event(WatchEvent::Listed);
    let empty = Arc::new(PodVersions { version: 9, all_nodes: true, ..PodVersions::default() });
    router.versions_listed(&empty);
    assert_eq!(read(&a), ["restarted", "+1@1", "listed"], "its pod would seem to be gone");
    router.versions_listed(&empty);
    assert_eq!(read(&a), ["versions"], "the next one counts");
}

#[test]
fn every_node_learns_that_the_audit_fails_and_that_it_works_again() {
    let mut router = WatchRouter::default();
    let ((_, a), (_, b)) = (router.join("a"), router.join("b"));
    router.watch_event(WatchEvent::Restarted);
    router.watch_event(WatchEvent::Listed);
    let failure = |in_a_row| Arc::new(AuditFailure { in_a_row, message: "no".to_owned() });
    router.audit_failed(&failure(1));
    router.audit_failed(&failure(2));
    assert_eq!(read(&a), ["restarted", "listed", "audit failed: 2"], "the newest counts");
    router.versions_listed(&Arc::default());
    assert_eq!(read(&a), ["versions"]);
    assert_eq!(read(&b), ["restarted", "listed", "versions"]);
}

// === Whatever the order ===

const NODES: [&str; 4] = ["a", "b", "c", "foreign"];

/// What a controller makes of its events.
#[derive(Default)]
struct Reader {
    known: BTreeMap<String, u64>,
    listing: Option<BTreeSet<String>>,
    complete: bool,
}

/// Pods, the events that a watch has yet to show, and a router with readers of all speeds.
struct World {
    pods: BTreeMap<String, (&'static str, u64)>,
    version: u64,
    uids: u64,
    log: VecDeque<WatchEvent<Pod>>,
    router: WatchRouter,
    readers: BTreeMap<&'static str, (u64, Arc<Mailbox>, Reader)>,
    /// Listings for latecomers that are under way, as of when they were asked for.
    lists: Vec<(String, u64, ObjectList<Pod>)>,
    rng: StdRng,
}

impl World {
    fn listing(&self, node: Option<&str>) -> Vec<Pod> {
        let of = self.pods.iter().filter(|(_, (home, _))| node.is_none_or(|node| node == *home));
        of.map(|(uid, (home, version))| pod(home, uid, *version)).collect()
    }

    fn step(&mut self) {
        self.version += 1;
        let node = NODES[self.rng.random_range(0..NODES.len())];
        let any = self.rng.random_range(0..self.pods.len().max(1));
        let some = self.pods.keys().nth(any).cloned();
        match self.rng.random_range(0..14) {
            0..=2 => {
                self.uids += 1;
                let uid = format!("uid-{}", self.uids);
                self.pods.insert(uid.clone(), (node, self.version));
                self.log.push_back(WatchEvent::Applied(pod(node, &uid, self.version)));
            }
            3 => {
                if let Some((home, version)) = some.as_ref().and_then(|uid| self.pods.get_mut(uid)) {
                    *version = self.version;
                    let changed = pod(home, &some.unwrap_or_default(), self.version);
                    self.log.push_back(WatchEvent::Applied(changed));
                }
            }
            4 => {
                if let Some((uid, (home, _))) = some.and_then(|uid| self.pods.remove_entry(&uid)) {
                    self.log.push_back(WatchEvent::Deleted(pod(home, &uid, self.version)));
                }
            }
            5 => self.restart(),
            6 if node != "foreign" => {
                let (id, mailbox) = self.router.join(node);
                self.readers.insert(node, (id, mailbox, Reader::default()));
            }
            7 => {
                if let Some((id, _, _)) = self.readers.remove(node) {
                    self.router.leave(node, id);
                }
            }
            8 => self.ask(),
            9 => self.answer(),
            10 | 11 => self.show(),
            _ => drop(self.take(node)),
        }
    }

    /// The watch breaks and begins anew: what it had yet to show is in the list.
    fn restart(&mut self) {
        self.log.clear();
        self.log.push_back(WatchEvent::Restarted);
        let listing = self.listing(None);
        self.log.extend(listing.into_iter().map(WatchEvent::Applied));
        self.log.push_back(WatchEvent::Listed);
    }

    fn ask(&mut self) {
        if let Some((node, id)) = self.router.next_late() {
            let listing = listing(self.version, self.listing(Some(&node)));
            self.lists.push((node, id, listing));
        }
    }

    fn answer(&mut self) {
        if !self.lists.is_empty() {
            let (node, id, listing) = self.lists.remove(self.rng.random_range(0..self.lists.len()));
            self.router.listed_separately(&node, id, listing);
        }
    }

    fn show(&mut self) {
        if let Some(change) = self.log.pop_front() {
            self.router.watch_event(change);
        }
    }

    /// Returns whether there was something to take.
    fn take(&mut self, node: &str) -> bool {
        let Some((_, mailbox, reader)) = self.readers.get_mut(node) else { return false };
        let Some(event) = mailbox.pop() else { return false };
        match event {
            PodWatchEvent::Restarted => reader.listing = Some(BTreeSet::new()),
            PodWatchEvent::Applied(pod) => {
                let home = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                assert_eq!(home, Some(node), "a pod of another node");
                let uid = pod.metadata.uid.clone().unwrap();
                let version = pod.metadata.resource_version.as_deref().unwrap().parse().unwrap();
                reader.listing.as_mut().map(|listing| listing.insert(uid.clone()));
                let known = reader.known.entry(uid).or_insert(version);
                *known = version.max(*known);
            }
            PodWatchEvent::Deleted(pod) => {
                let uid = pod.metadata.uid.clone().unwrap();
                assert!(!self.pods.contains_key(&uid), "{uid} exists and is reported as gone");
                reader.known.remove(&uid);
            }
            PodWatchEvent::Listed => {
                let listing = reader.listing.take().expect("a start before the end");
                for uid in reader.known.keys().filter(|uid| !listing.contains(*uid)) {
                    assert!(!self.pods.contains_key(uid), "{uid} exists and was not in the list");
                }
                reader.known.retain(|uid, _| listing.contains(uid));
                reader.complete = true;
            }
            PodWatchEvent::Versions(_) | PodWatchEvent::AuditFailed(_) => {}
        }
        true
    }

    fn settle(&mut self) {
        while !self.log.is_empty() {
            self.show();
        }
        for _ in 0..300 {
            self.ask();
            self.answer();
        }
        for node in NODES {
            while self.take(node) {}
        }
    }
}

#[test]
fn whatever_the_order_each_reader_ends_up_with_exactly_the_pods_of_its_node() {
    for seed in 0..500 {
        let mut world = World {
            pods: BTreeMap::new(),
            version: 0,
            uids: 0,
            log: VecDeque::new(),
            router: WatchRouter::default(),
            readers: BTreeMap::new(),
            lists: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
        };
        world.restart();
        for _ in 0..world.rng.random_range(10..300) {
            world.step();
        }
        world.settle();
        for (node, (_, _, reader)) in &world.readers {
            let there = world.pods.iter().filter(|(_, (home, _))| home == node);
            let there: BTreeMap<String, u64> =
                there.map(|(uid, (_, version))| (uid.clone(), *version)).collect();
            assert_eq!(reader.known, there, "node {node}, seed {seed}");
            assert!(reader.complete && reader.listing.is_none(), "node {node}, seed {seed}");
        }
    }
}
