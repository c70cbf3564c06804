//! The avoid table: nodes where pods of a controller were stuck, so that new ones go elsewhere for some time.
//!
//! It is kept in the ConfigMap of the admission policy, with a key for each controller: `avoid.NAMESPACE.UID: vk-a=2026-11-18T20:05:00Z,vk-b=…`.
//! The policy makes new pods prefer other nodes. It has no clock: the process that made an entry, or its successor, removes it in time. Anybody
//! can write any UID into the owner references of a pod: the namespace keeps tenants apart.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::pod_state;

/// The prefix of the keys in the ConfigMap.
pub const KEY_PREFIX: &str = "avoid.";
/// The most entries. A ConfigMap holds 1 MiB.
const MAX_ENTRIES: usize = 5000;
/// The length of a UID that is an object's.
const MAX_UID: usize = 128;
/// The longest time for which a node is avoided.
const LONGEST: Duration = Duration::from_mins(30);

/// Nodes to avoid, by the controller and the name of the node.
#[derive(Debug, Default)]
pub(crate) struct AvoidTable {
    controllers: HashMap<Controller, BTreeMap<String, Entry>>,
    /// Controllers with entries that were withdrawn, and are still in the ConfigMap.
    withdrawn: BTreeSet<Controller>,
}

/// The controller of pods, as they name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Controller {
    namespace: String,
    uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    until: Timestamp,
    /// For how long it was made; `None` if an earlier process made it.
    period: Option<Duration>,
    /// Whether it is in force. One that is over is remembered for a while, so that the next one lasts twice as long.
    is_active: bool,
}

/// An entry that was added, and the one that it has replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addition {
    controller: Controller,
    node: String,
    before: Option<Entry>,
}

/// Keys of the ConfigMap with their new values; `None` removes a key.
pub(crate) type Changes = BTreeMap<String, Option<String>>;

// === impl Controller ===

impl Controller {
    /// The controller of a pod; `None` if it has none, or one with a UID that no object has.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let uid = &pod_state::controller(pod)?.uid;
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let is_valid = !uid.is_empty() && uid.len() <= MAX_UID && uid.chars().all(is_key);
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        is_valid.then(|| Self { namespace, uid: uid.clone() })
    }

    fn key(&self) -> String {
        format!("{KEY_PREFIX}{}.{}", self.namespace, self.uid)
    }

    fn parse(key: &str) -> Option<Self> {
        let (namespace, uid) = key.strip_prefix(KEY_PREFIX)?.split_once('.')?;
        let is_complete = !namespace.is_empty() && !uid.is_empty();
        is_complete.then(|| Self { namespace: namespace.to_owned(), uid: uid.to_owned() })
    }
}

// === impl AvoidTable ===

impl AvoidTable {
    /// Takes over the data of a ConfigMap, which an earlier process has written. Text that is no entry is ignored.
    pub(crate) fn load(&mut self, data: &BTreeMap<String, String>) {
        for (key, value) in data {
            let Some(controller) = Controller::parse(key) else { continue };
            for (node, until) in value.split(',').filter_map(parse) {
                let nodes = self.controllers.entry(controller.clone()).or_default();
                nodes.entry(node.to_owned()).or_insert(Entry { until, period: None, is_active: true });
            }
        }
    }

    /// The nodes that a pod avoids, because others of its controller were stuck there.
    pub(crate) fn nodes(&self, pod: &Pod) -> Vec<&str> {
        self.entries(pod).filter(|(_, entry)| entry.is_active).map(|(node, _)| node.as_str()).collect()
    }

    /// The nodes that a pod avoids at this time: for those who do not [end](Self::expire) entries.
    pub(crate) fn nodes_at(&self, now: Timestamp, pod: &Pod) -> Vec<&str> {
        self.entries(pod).filter(|(_, entry)| now < entry.until).map(|(node, _)| node.as_str()).collect()
    }

    fn entries(&self, pod: &Pod) -> impl Iterator<Item = (&String, &Entry)> {
        let nodes = Controller::of(pod).and_then(|controller| self.controllers.get(&controller));
        nodes.into_iter().flatten()
    }

    /// Avoids a node for this time, or for twice as long as the last time. Also returns what [`withdraw`](Self::withdraw) needs.
    pub(crate) fn add(
        &mut self,
        now: Timestamp,
        controller: &Controller,
        node: &str,
        first: Duration,
    ) -> (Changes, Addition) {
        let nodes = self.controllers.entry(controller.clone()).or_default();
        let before = nodes.get(node).map(|entry| entry.period.unwrap_or(first));
        let period = before.map_or(first, |before| (before * 2).min(LONGEST.max(first)));
        let until = now.checked_add(period).unwrap_or(Timestamp::MAX);
        let entry = Entry { until, period: Some(period), is_active: true };
        let before = nodes.insert(node.to_owned(), entry);
        let mut changed = self.drop_oldest();
        changed.insert(controller.clone());
        let addition = Addition { controller: controller.clone(), node: node.to_owned(), before };
        (self.changes(&changed), addition)
    }

    /// Undoes an addition, in the ConfigMap with the next [`expire`](Self::expire): no pod was evicted.
    pub(crate) fn withdraw(&mut self, addition: Addition) {
        let Addition { controller, node, before } = addition;
        let nodes = self.controllers.entry(controller.clone()).or_default();
        match before {
            Some(before) => drop(nodes.insert(node, before)),
            None => drop(nodes.remove(&node)),
        }
        self.withdrawn.insert(controller);
    }

    /// Ends the entries whose time is over. Returns the controllers whose entries have changed.
    pub(crate) fn expire(&mut self, now: Timestamp) -> BTreeSet<Controller> {
        let mut changed = std::mem::take(&mut self.withdrawn);
        for (controller, nodes) in &mut self.controllers {
            for entry in nodes.values_mut().filter(|entry| entry.is_active && entry.until <= now) {
                entry.is_active = false;
                changed.insert(controller.clone());
            }
            nodes.retain(|_, entry| {
                entry.is_active || entry.until.checked_add(LONGEST).is_ok_and(|forgotten| now < forgotten)
            });
        }
        self.controllers.retain(|_, nodes| !nodes.is_empty());
        changed
    }

    /// When the next entry ends.
    #[cfg(test)]
    fn next_end(&self) -> Option<Timestamp> {
        let entries = self.controllers.values().flat_map(BTreeMap::values);
        entries.filter(|entry| entry.is_active).map(|entry| entry.until).min()
    }

    /// What the ConfigMap has to say about these controllers.
    pub(crate) fn changes(&self, controllers: &BTreeSet<Controller>) -> Changes {
        let value = |controller: &Controller| {
            let nodes = self.controllers.get(controller).into_iter().flatten();
            let active = nodes.filter(|(_, entry)| entry.is_active);
            let texts: Vec<String> =
                active.map(|(node, entry)| format!("{node}={:.0}", entry.until)).collect();
            (!texts.is_empty()).then(|| texts.join(","))
        };
        controllers.iter().map(|controller| (controller.key(), value(controller))).collect()
    }

    /// Drops the oldest entries if there are too many. Returns the controllers whose entries have changed.
    fn drop_oldest(&mut self) -> BTreeSet<Controller> {
        if self.controllers.values().map(BTreeMap::len).sum::<usize>() <= MAX_ENTRIES {
            return BTreeSet::new();
        }
        let all = self.controllers.iter().flat_map(|(controller, nodes)| {
            nodes
                .iter()
                .map(move |(node, entry)| (entry.is_active, entry.until, controller.clone(), node.clone()))
        });
        let mut all: Vec<_> = all.collect();
        let surplus = all.len().saturating_sub(MAX_ENTRIES);
        all.sort();
        let mut changed = BTreeSet::new();
        for (_, _, controller, node) in all.into_iter().take(surplus) {
            let Some(nodes) = self.controllers.get_mut(&controller) else { continue };
            nodes.remove(&node);
            if nodes.is_empty() {
                self.controllers.remove(&controller);
            }
            changed.insert(controller);
        }
        changed
    }
}

fn parse(entry: &str) -> Option<(&str, Timestamp)> {
    let (node, until) = entry.split_once('=')?;
    let node = node.trim();
    Some((node, until.trim().parse().ok()?)).filter(|_| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIRST: Duration = Duration::from_mins(5);

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 60 * minutes).unwrap()
    }

    fn owner(uid: &str) -> Controller {
        Controller { namespace: "team".to_owned(), uid: uid.to_owned() }
    }

    fn pod(controller: &str) -> Pod {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": controller, "controller": true});
        serde_json::from_value(json!({"metadata": {"namespace": "team", "ownerReferences": [owner]}}))
            .unwrap()
    }

    fn written(changes: &Changes) -> BTreeMap<String, String> {
        changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
    }

    #[test]
    fn a_node_is_avoided_for_five_minutes_and_then_twice_as_long_each_time_up_to_thirty() {
        let mut table = AvoidTable::default();
        let mut now = at(0);
        for minutes in [5, 10, 20, 30, 30] {
            table.add(now, &owner("u1"), "vk-a", FIRST);
            assert_eq!(table.nodes(&pod("u1")), ["vk-a"]);
            assert!(table.nodes(&pod("u2")).is_empty());
            let end = now.checked_add(Duration::from_mins(minutes)).unwrap();
            assert_eq!(table.next_end(), Some(end));
            assert!(table.expire(end.checked_sub(Duration::from_secs(1)).unwrap()).is_empty());
            let changes = table.expire(end);
            assert_eq!(table.changes(&changes), Changes::from([("avoid.team.u1".to_owned(), None)]));
            assert!(table.nodes(&pod("u1")).is_empty() && table.next_end().is_none());
            now = end;
        }
        table.expire(now.checked_add(LONGEST).unwrap());
        assert!(table.controllers.is_empty(), "everything is forgotten some time later");
    }

    #[test]
    fn another_process_continues_from_the_config_map() {
        let mut table = AvoidTable::default();
        table.add(at(0), &owner("u1"), "vk-b", FIRST);
        let (changes, _) = table.add(at(1), &owner("u1"), "vk-a", FIRST);
        let data = written(&changes);
        assert_eq!(data["avoid.team.u1"], "vk-a=2027-01-15T08:06:00Z,vk-b=2027-01-15T08:05:00Z");
        let mut next = AvoidTable::default();
        next.load(&data);
        assert_eq!(next.nodes(&pod("u1")), ["vk-a", "vk-b"]);
        let expired = next.expire(at(5));
        let expired = next.changes(&expired);
        assert_eq!(written(&expired)["avoid.team.u1"], "vk-a=2027-01-15T08:06:00Z");
        next.add(at(5), &owner("u1"), "vk-b", FIRST);
        assert_eq!(next.next_end(), Some(at(6)));
        next.expire(at(6));
        assert_eq!(next.next_end(), Some(at(15)), "the second time is twice as long");
    }

    #[test]
    fn an_entry_is_about_pods_of_one_namespace_and_a_uid_that_is_none_is_no_controller() {
        let mut table = AvoidTable::default();
        let (_, addition) = table.add(at(0), &owner("u1"), "vk-a", FIRST);
        let mut foreign = pod("u1");
        foreign.metadata.namespace = Some("evil".to_owned());
        assert!(table.nodes(&foreign).is_empty());
        for uid in ["", "not a/key", "a.b", &"x".repeat(129)] {
            assert_eq!(Controller::of(&pod(uid)), None, "{uid}");
        }
        table.withdraw(addition);
        assert_eq!(table.expire(at(0)), BTreeSet::from([owner("u1")]));
        assert!(table.controllers.is_empty());
    }

    #[test]
    fn what_is_withdrawn_leaves_the_entry_from_before() {
        let mut table = AvoidTable::default();
        table.add(at(0), &owner("u1"), "vk-a", FIRST);
        for _ in 0..3 {
            let (changes, addition) = table.add(at(1), &owner("u1"), "vk-a", FIRST);
            assert_eq!(written(&changes)["avoid.team.u1"], "vk-a=2027-01-15T08:11:00Z");
            table.withdraw(addition);
            assert_eq!(table.next_end(), Some(at(5)));
            let changed = table.expire(at(2));
            assert_eq!(written(&table.changes(&changed))["avoid.team.u1"], "vk-a=2027-01-15T08:05:00Z");
        }
        assert!(table.expire(at(2)).is_empty(), "it is said once");
    }

    #[test]
    fn text_that_is_no_entry_is_ignored() {
        let mut table = AvoidTable::default();
        let data = [
            ("avoid.team.u1", "x,=,vk-a=soon,,=2027-01-15T08:06:00Z"),
            ("avoid.x", "a=2027-01-15T08:06:00Z"),
            ("gate", "true"),
        ];
        table.load(&data.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert!(table.controllers.is_empty());
    }

    #[test]
    fn the_oldest_entries_are_dropped() {
        let mut table = AvoidTable::default();
        table.add(at(0), &owner("oldest"), "vk-a", FIRST);
        for index in 1..MAX_ENTRIES {
            table.add(at(1), &owner(&format!("u{index}")), "vk-a", FIRST);
        }
        let (changes, _) = table.add(at(2), &owner("newest"), "vk-a", FIRST);
        assert_eq!(changes.keys().collect::<Vec<_>>(), ["avoid.team.newest", "avoid.team.oldest"]);
        assert_eq!(changes["avoid.team.oldest"], None);
        assert_eq!(table.controllers.len(), MAX_ENTRIES);
    }
}
