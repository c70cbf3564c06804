//! The synchronous state machine that decides what to copy and when to delete it: events in, actions out.
//!
//! It tracks which pods refer to each object. A copy is created before the first of these pods, follows the upper object, and is deleted
//! some time after the last one. Objects of others are never touched: a name conflict is detected by the attempt to create the object, or
//! by reading it where nothing is to be created, and every change is bound to the UID or the version of an object that was observed to be
//! ours.
//!
//! A pod must never get an object of somebody else because it knows its name. So every name that a pod refers to is an object of ours
//! before the pod is created, and stays one until the pod is gone: a pod that needs an object that does not exist in the upper cluster
//! waits, and an empty copy takes the name of one that is optional.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rand::{RngExt as _, rngs::StdRng};
use vk_provider::PodRef;

pub use self::event::{CallOutcome, Event};
use self::namespaces::LowerNamespace;
use super::{
    Kind, Readiness, build,
    copy_state::{CopyState, LowerCall, LowerState, NextStep, UpperState},
    diff::{CopyKey, DesiredCopy, ObservedCopy, UpperRef},
    kind::referenced_objects,
};
use crate::{
    dependencies::Dependencies,
    names::{self, NamespaceMapping, OwnerId},
    owner_config_map,
};

mod call_results;
mod event;
mod namespaces;
#[cfg(test)]
mod tests;

/// How long copies stay after the last pod that needs them.
pub const GRACE: Duration = Duration::from_mins(1);

/// An output of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start watching an upper object.
    Watch(CopyKey, UpperRef),
    /// Stop watching an upper object.
    Unwatch(CopyKey),
    /// Execute a call and report its outcome.
    Call(CopyKey, LowerCall),
    /// Make sure that a lower namespace and the owner ConfigMap in it exist.
    EnsureNamespace {
        /// The lower namespace.
        lower: String,
        /// The upper namespace.
        upper: String,
    },
    /// Remove the owner ConfigMap from a lower namespace that nobody uses, and the namespace if we created it.
    RetireNamespace(String),
    /// Record a warning on an upper pod.
    Warn {
        /// The pod.
        pod: PodRef,
        /// The machine-readable reason.
        reason: &'static str,
        /// The message.
        message: String,
    },
}

/// The state of all copies.
#[derive(Debug)]
pub struct CopyStateMachine {
    owner: OwnerId,
    owner_map_name: String,
    namespaces: NamespaceMapping,
    grace: Duration,
    retention: Duration,
    entries: BTreeMap<CopyKey, CopyState>,
    pods: BTreeMap<PodRef, BTreeSet<CopyKey>>,
    lower_namespaces: BTreeMap<String, LowerNamespace>,
    /// The UIDs of the owner ConfigMaps of other virtual nodes of this upper cluster.
    other_owners: BTreeMap<CopyKey, String>,
    listed: BTreeSet<(Kind, Option<String>)>,
    /// Deadlines of the entries.
    due: BTreeSet<(Duration, CopyKey)>,
    rng: StdRng,
}

// === impl CopyStateMachine ===

impl CopyStateMachine {
    /// A state machine without any knowledge. Copies are deleted `grace` after the last pod that needs them, and namespaces are retired
    /// `retention` after the last pod and copy in them.
    pub fn new(
        owner: OwnerId,
        namespaces: NamespaceMapping,
        (grace, retention): (Duration, Duration),
        rng: StdRng,
    ) -> Self {
        Self {
            owner_map_name: owner_config_map::name(&owner),
            owner,
            namespaces,
            grace,
            retention,
            entries: BTreeMap::new(),
            pods: BTreeMap::new(),
            lower_namespaces: BTreeMap::new(),
            other_owners: BTreeMap::new(),
            listed: BTreeSet::new(),
            due: BTreeSet::new(),
            rng,
        }
    }

    /// Handles an event. `now` is the time since the start.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {
                while self.due.first().is_some_and(|(at, _)| *at <= now)
                    && let Some((_, key)) = self.due.pop_first()
                {
                    if let Some(entry) = self.entries.get_mut(&key) {
                        entry.due = None;
                    }
                    self.advance(now, &key, &mut actions);
                }
                self.retry_namespaces(now, &mut actions);
                self.retire_namespaces(now, &mut actions);
            }
            Event::PodAdded(pod, dependencies) => self.add_pod(now, &pod, &dependencies, &mut actions),
            Event::PodRemoved(pod) => {
                let keys = self.pods.remove(&pod).unwrap_or_default();
                self.release_copies(now, &pod, keys, &mut actions);
                self.release_namespace(now, &pod.namespace);
            }
            Event::UpperRead(key, desired) => {
                let upper =
                    desired.map_or_else(|| UpperState::Absent(self.empty_copy(&key)), UpperState::Present);
                self.handle_upper(now, &key, upper, &mut actions);
            }
            Event::UpperSkipped(key, uid) => {
                self.handle_upper(now, &key, UpperState::Skipped(uid), &mut actions);
            }
            Event::UpperUnreadable(key, error) => {
                if let Some(entry) = self.entries.get_mut(&key).filter(|it| it.upper == UpperState::Unknown) {
                    entry.last_error = Some(error);
                }
            }
            Event::LowerSeen(key, found) => self.handle_lower(now, &key, found, &mut actions),
            Event::LowerDeleted(key, version) => {
                self.handle_owner_deleted(now, &key, &mut actions);
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.observe_deleted(version);
                    entry.not_before = entry.not_before.min(now);
                    self.advance(now, &key, &mut actions);
                }
            }
            Event::LowerMissing(key) => {
                self.handle_owner_deleted(now, &key, &mut actions);
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.lower = LowerState::Unknown;
                    entry.stale = true;
                    self.advance(now, &key, &mut actions);
                }
            }
            Event::Listed(kind, namespace) => {
                self.listed.insert((kind, namespace));
                // Copies of any kind have ConfigMaps as owners.
                self.advance_all(now, |key| key.kind == kind || kind == Kind::ConfigMap, &mut actions);
            }
            Event::CallFinished(key, answer) => self.handle_call_result(now, &key, answer, &mut actions),
            Event::NamespaceEnsured(lower, answer) => {
                self.handle_namespace_result(now, &lower, answer, &mut actions);
            }
            Event::NamespaceRetired(lower, answer) => self.handle_retired(now, &lower, &answer, &mut actions),
        }
        actions
    }

    /// When to send [`Event::Tick`] if nothing else happens before.
    pub fn deadline(&self) -> Option<Duration> {
        let may_retire = self.free_retirements() > 0;
        let lower_namespaces = self.lower_namespaces.values().filter_map(|it| it.deadline(may_retire));
        lower_namespaces.chain(self.due.first().map(|(at, _)| *at)).min()
    }

    /// Whether the copies that a pod needs are in place.
    pub fn readiness(&self, pod: &PodRef) -> Readiness {
        self.worst_readiness(pod).0
    }

    /// The copy that a pod is waiting for, for messages; `None` if it waits for its namespace.
    pub fn pending_copy(&self, pod: &PodRef) -> Option<(&CopyKey, &UpperRef)> {
        let key = self.worst_readiness(pod).1?;
        Some((key, &self.entries.get(key)?.source))
    }

    fn worst_readiness(&self, pod: &PodRef) -> (Readiness, Option<&CopyKey>) {
        let Some(keys) = self.pods.get(pod) else { return (Readiness::Waiting, None) };
        let namespace =
            self.namespaces.to_lower(&pod.namespace).and_then(|lower| self.lower_namespaces.get(&lower));
        let namespace = match namespace {
            Some(LowerNamespace { owner_reference: Some(_), .. }) => Readiness::Ready,
            Some(LowerNamespace { last_error: Some(error), .. }) => Readiness::Failed(error.clone()),
            _ => Readiness::Waiting,
        };
        let copies = keys.iter().filter_map(|key| Some((self.entries.get(key)?.readiness(pod), Some(key))));
        let severity = |readiness: &Readiness| match readiness {
            Readiness::Ready => 0,
            Readiness::Waiting => 1,
            Readiness::Missing => 2,
            Readiness::Failed(_) => 3,
            Readiness::Conflict => 4,
        };
        let all = copies.chain([(namespace, None)]);
        all.max_by_key(|(readiness, _)| severity(readiness)).unwrap_or((Readiness::Ready, None))
    }

    fn add_pod(
        &mut self,
        now: Duration,
        pod: &PodRef,
        dependencies: &Dependencies,
        actions: &mut Vec<Action>,
    ) {
        let Some(lower) = self.namespaces.to_lower(&pod.namespace) else { return };
        self.ensure_namespace(now, &lower, &pod.namespace, actions);
        let wanted: BTreeSet<CopyKey> = referenced_objects(dependencies)
            .map(|(kind, name)| CopyKey { kind, namespace: lower.clone(), name: name.to_owned() })
            .collect();
        for key in &wanted {
            let source = UpperRef { namespace: pod.namespace.to_string(), name: key.name.clone() };
            let entry = self
                .entries
                .entry(key.clone())
                .or_insert_with(|| CopyState::new(key.kind, source.clone(), now));
            if entry.source != source {
                // A copy made under another namespace mapping: not ours to change.
                (entry.source, entry.upper, entry.watched) = (source, UpperState::Unknown, false);
            }
            // A watch that was denied retries ever less often, but a new pod may have brought the permission.
            if entry.upper == UpperState::Unknown && (entry.pods.is_empty() || entry.last_error.is_some()) {
                (entry.watched, entry.last_error) = (false, None);
            }
            entry.add_pod(pod.clone(), !dependencies.is_optional(key.kind, &key.name), now);
            self.watch_upper(key, actions);
            self.advance(now, key, actions);
        }
        let before = self.pods.insert(pod.clone(), wanted.clone()).unwrap_or_default();
        self.release_copies(now, pod, before.difference(&wanted).cloned().collect(), actions);
    }

    fn release_copies(
        &mut self,
        now: Duration,
        pod: &PodRef,
        keys: BTreeSet<CopyKey>,
        actions: &mut Vec<Action>,
    ) {
        for key in keys {
            let grace_end = self.jittered(now, self.grace);
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.remove_pod(pod, grace_end);
                self.advance(now, &key, actions);
            }
        }
    }

    /// Makes sure that the upper object is watched.
    fn watch_upper(&mut self, key: &CopyKey, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.watched) else { return };
        entry.watched = true;
        if key.kind.is_watched() {
            actions.push(Action::Watch(key.clone(), entry.source.clone()));
        } else {
            // Its upper account says nothing about it.
            let bare = build::build_empty(&entry.source, key, &self.owner).map(Arc::new);
            entry.upper = bare.map_or(UpperState::Unknown, UpperState::Present);
        }
    }

    /// The empty copy that reserves the name of an object that does not exist.
    fn empty_copy(&self, key: &CopyKey) -> Option<Arc<DesiredCopy>> {
        let entry = self.entries.get(key)?;
        build::build_empty(&entry.source, key, &self.owner).map(Arc::new)
    }

    fn handle_upper(&mut self, now: Duration, key: &CopyKey, upper: UpperState, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.upper != upper {
            // The new version may succeed where the old one was rejected.
            if !entry.is_foreign() {
                entry.not_before = now;
                entry.backoff.reset();
                entry.notified.clear();
            }
            entry.last_error = None;
            entry.handle_upper_change(upper, now);
        }
        self.advance(now, key, actions);
    }

    fn handle_lower(&mut self, now: Duration, key: &CopyKey, found: ObservedCopy, actions: &mut Vec<Action>) {
        // The owner ConfigMap of this node or of another one.
        if found.labels.contains_key(names::NODE) {
            return self.handle_owner_seen(now, key, found.uid, actions);
        }
        let grace_end = self.jittered(now, self.grace);
        if !self.entries.contains_key(key) {
            // Left by an earlier process. Perhaps no pod needs it any more.
            let Some(source) = found.source.clone() else { return };
            self.entries.insert(key.clone(), CopyState::new(key.kind, source, grace_end));
            if !key.kind.is_removed_with_pods() {
                self.watch_upper(key, actions);
            }
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.observe(found, grace_end);
            self.advance(now, key, actions);
        }
    }

    fn advance_all(&mut self, now: Duration, which: impl Fn(&CopyKey) -> bool, actions: &mut Vec<Action>) {
        let keys: Vec<CopyKey> = self.entries.keys().filter(|key| which(key)).cloned().collect();
        for key in keys {
            self.advance(now, &key, actions);
        }
    }

    /// The end of a period that begins now. Jitter spreads what many copies and many nodes do at the same time.
    fn jittered(&mut self, now: Duration, period: Duration) -> Duration {
        now + period.mul_f64(self.rng.random_range(1.0..1.1))
    }

    /// Takes the next step for one copy.
    fn advance(&mut self, now: Duration, key: &CopyKey, actions: &mut Vec<Action>) {
        if !key.kind.is_removed_with_pods() {
            self.watch_upper(key, actions);
        }
        let is_listed = |kind: Kind| {
            self.listed.contains(&(kind, None)) || self.listed.contains(&(kind, Some(key.namespace.clone())))
        };
        let (listed, owners_listed) = (is_listed(key.kind), is_listed(Kind::ConfigMap));
        let owner_reference = self
            .lower_namespaces
            .get(&key.namespace)
            .and_then(|namespace| namespace.owner_reference.as_ref());
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(due) = entry.due.take() {
            self.due.remove(&(due, key.clone()));
        }
        if !listed {
            return;
        }
        // An owner deletes its copies itself, also those of a pod that waits for something else.
        let first = CopyKey { kind: Kind::ConfigMap, namespace: key.namespace.clone(), name: String::new() };
        let other_owners = self.other_owners.range(first..);
        let is_left = |found: &ObservedCopy| {
            let mut here = other_owners.clone().take_while(|(map, _)| map.namespace == key.namespace);
            let exists = |uid: &String| here.any(|(_, other)| other == uid);
            !found.owners.is_empty() && (!owners_listed || found.owners.iter().any(exists))
        };
        match entry.next_step(now, owner_reference, is_left) {
            NextStep::Wait(until) => {
                entry.due = until;
                self.due.extend(until.map(|until| (until, key.clone())));
            }
            NextStep::Call(call) => {
                entry.stale &= call != LowerCall::Read;
                entry.in_flight = Some(call.clone());
                actions.push(Action::Call(key.clone(), call));
            }
            NextStep::EnsureNamespace => {
                let upper = entry.source.namespace.clone();
                self.ensure_namespace(now, &key.namespace, &upper, actions);
            }
            NextStep::Forget => {
                if self.entries.remove(key).is_some_and(|it| it.watched && it.kind.is_watched()) {
                    actions.push(Action::Unwatch(key.clone()));
                }
            }
        }
    }
}
