//! What is to_copy down, when, and when it goes: a synchronous state_machine, notified by events what happens and saying by actions what to do.
//!
//! It knows of each object which pods name it. A copy is made before the first of them, follows the upper object, and goes some time
//! after the last. What others made lower is never touched: a name that is taken is known by the attempt to make an object, and all
//! changes are bound to the UID or the version of an object that was seen to be ours.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use rand::rngs::StdRng;
use vk_kube::{Error, Kind as ErrorKind};
use vk_provider::PodRef;

use self::namespaces::LowerNamespace;
use super::{
    Kind, Readiness, build,
    copy_state::{Call, CopyState, LowerState, NextStep, UpperState},
    diff::{CopyKey, DesiredCopy, ObservedCopy, UpperRef},
};
use crate::{
    dependencies::Dependencies,
    names::{self, NamespaceMapping, Owner},
    owner_config_map,
};

mod namespaces;
#[cfg(test)]
mod tests;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time passes.
    Tick,
    /// A pod needs these, and nothing else any more.
    PodAdded(PodRef, Dependencies),
    /// A pod is gone, or has ended.
    PodRemoved(PodRef),
    /// What an upper object is to be lower; `None` if it is not there.
    UpperRead(CopyKey, Option<Arc<DesiredCopy>>),
    /// An upper object is there and is not to be to_copy, and what is lower of it stays.
    UpperSkipped(CopyKey),
    /// An upper object cannot be read.
    UpperUnreadable(CopyKey, Error),
    /// A lower object of our upper cluster was seen.
    LowerSeen(CopyKey, ObservedCopy),
    /// A lower object is gone since this version, or is not ours any more.
    LowerDeleted(CopyKey, u64),
    /// A lower object is not in a listing any more.
    LowerMissing(CopyKey),
    /// All lower objects of a kind were notified, of one namespace or of all.
    Listed(Kind, Option<String>),
    /// A call has ended.
    CallFinished(CopyKey, Result<CallOutcome, Error>),
    /// A lower namespace is there, with our anchor in it, or could not be made.
    NamespaceEnsured(String, Result<OwnerReference, Error>),
}

// === impl Event ===

impl Event {
    /// An upper object was read: whether it is there, and what it is to be lower. A claim that is there and shall not be to_copy is no claim that
    /// is gone: there may be data behind its copy.
    pub fn upper_read(key: CopyKey, there: bool, desired: Option<DesiredCopy>) -> Self {
        if there && desired.is_none() && key.kind == Kind::Claim {
            return Self::UpperSkipped(key);
        }
        Self::UpperRead(key, desired.map(Arc::new))
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum CallOutcome {
    /// With this object, or without one.
    Object(Option<Box<ObservedCopy>>),
    /// It is being deleted.
    Deleting,
    /// With whether a lower pod names it.
    InUse(bool),
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read an upper object, and go on telling of it.
    Watch(CopyKey, UpperRef),
    /// Tell no more of it.
    Unwatch(CopyKey),
    /// Make a call, and tell how it ended.
    Call(CopyKey, Call),
    /// See to it that there is a lower namespace for an upper one, and our anchor in it.
    EnsureNamespace {
        /// The lower namespace.
        lower: String,
        /// The upper one.
        upper: String,
    },
    /// Tell the user of a pod.
    Warn {
        /// The pod.
        pod: PodRef,
        /// For programs.
        reason: &'static str,
        /// For people.
        message: String,
    },
}

/// All copies.
#[derive(Debug)]
pub struct CopyStateMachine {
    owner: Owner,
    anchor: String,
    namespaces: NamespaceMapping,
    grace: Duration,
    entries: BTreeMap<CopyKey, CopyState>,
    pods: BTreeMap<PodRef, BTreeSet<CopyKey>>,
    lower_namespaces: BTreeMap<String, LowerNamespace>,
    listed: BTreeSet<(Kind, Option<String>)>,
    /// When something is due.
    due: BTreeSet<(Duration, CopyKey)>,
    rng: StdRng,
}

// === impl CopyStateMachine ===

impl CopyStateMachine {
    /// A state_machine that knows of nothing. Copies go this long after the last pod that needs them.
    pub fn new(owner: Owner, namespaces: NamespaceMapping, grace: Duration, rng: StdRng) -> Self {
        Self {
            anchor: owner_config_map::name(&owner),
            owner,
            namespaces,
            grace,
            entries: BTreeMap::new(),
            pods: BTreeMap::new(),
            lower_namespaces: BTreeMap::new(),
            listed: BTreeSet::new(),
            due: BTreeSet::new(),
            rng,
        }
    }

    /// Takes an event and says what to do. The time counts from the start.
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
            }
            Event::PodAdded(pod, dependencies) => self.add_pod(now, &pod, &dependencies, &mut actions),
            Event::PodRemoved(pod) => {
                let keys = self.pods.remove(&pod).unwrap_or_default();
                self.release_copies(now, &pod, keys, &mut actions);
            }
            Event::UpperRead(key, desired) => {
                let upper = desired.map_or(UpperState::Absent, UpperState::Present);
                self.handle_upper(now, &key, upper, &mut actions);
            }
            Event::UpperSkipped(key) => self.handle_upper(now, &key, UpperState::Skipped, &mut actions),
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
                self.advance_all(now, |key| key.kind == kind, &mut actions);
            }
            Event::CallFinished(key, answer) => self.handle_call_result(now, &key, answer, &mut actions),
            Event::NamespaceEnsured(lower, answer) => {
                self.handle_namespace_result(now, &lower, answer, &mut actions)
            }
        }
        actions
    }

    /// When to send a [`Event::Tick`], if nothing else happens before.
    pub fn deadline(&self) -> Option<Duration> {
        let lower_namespaces = self
            .lower_namespaces
            .values()
            .filter(|namespace_state| namespace_state.is_waiting())
            .map(|it| it.not_before);
        lower_namespaces.chain(self.due.first().map(|(at, _)| *at)).min()
    }

    /// How a pod stands with what it needs.
    pub fn readiness(&self, pod: &PodRef) -> Readiness {
        let Some(keys) = self.pods.get(pod) else { return Readiness::Ready };
        let namespace_state =
            self.namespaces.to_lower(&pod.namespace).and_then(|lower| self.lower_namespaces.get(&lower));
        let namespace_state = match namespace_state {
            Some(LowerNamespace { anchor: Some(_), .. }) => Readiness::Ready,
            Some(LowerNamespace { last_error: Some(error), .. }) => Readiness::Failed(error.clone()),
            _ => Readiness::Waiting,
        };
        let entries = keys.iter().filter_map(|key| Some(self.entries.get(key)?.readiness()));
        let mut worst = Readiness::Ready;
        for readiness in entries.chain([namespace_state]) {
            match readiness {
                Readiness::Failed(_) => return readiness,
                Readiness::Waiting => worst = readiness,
                Readiness::Ready => {}
            }
        }
        worst
    }

    /// What a pod still waits for, for people.
    pub fn pending_copy(&self, pod: &PodRef) -> Option<&CopyKey> {
        let mut keys = self.pods.get(pod)?.iter();
        keys.find(|key| self.entries.get(key).is_some_and(|it| it.readiness() != Readiness::Ready))
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
                // Of a time when namespaces were called otherwise: not ours to change.
                (entry.source, entry.upper, entry.watched) = (source, UpperState::Unknown, false);
            }
            // A reader that was refused tries ever more seldom, and a new pod may be a new right.
            if entry.upper == UpperState::Unknown && (entry.pods.is_empty() || entry.last_error.is_some()) {
                (entry.watched, entry.last_error) = (false, None);
            }
            entry.add_pod(pod.clone());
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
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.remove_pod(pod, now);
                self.advance(now, &key, actions);
            }
        }
    }

    /// Sees to it that the upper object is known.
    fn watch_upper(&mut self, key: &CopyKey, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.watched) else { return };
        entry.watched = true;
        if key.kind.is_watched() {
            actions.push(Action::Watch(key.clone(), entry.source.clone()));
        } else {
            let bare = build::build_service_account(&entry.source, key, &self.owner);
            entry.upper = UpperState::Present(Arc::new(bare));
        }
    }

    /// An upper object was read.
    fn handle_upper(&mut self, now: Duration, key: &CopyKey, upper: UpperState, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.upper != upper {
            // What was refused may do now.
            if !entry.is_foreign() {
                entry.not_before = now;
                entry.backoff.reset();
                entry.notified.clear();
            }
            entry.last_error = None;
            entry.upper = upper;
        }
        self.advance(now, key, actions);
    }

    fn handle_lower(&mut self, now: Duration, key: &CopyKey, found: ObservedCopy, actions: &mut Vec<Action>) {
        // An anchor: this node's, or another's.
        if found.labels.contains_key(names::NODE) {
            return;
        }
        if !self.entries.contains_key(key) {
            // Of a time before this process. Perhaps no pod needs it any more.
            let Some(source) = found.source.clone() else { return };
            self.entries.insert(key.clone(), CopyState::new(key.kind, source, now));
            if !key.kind.is_removed_with_pods() {
                self.watch_upper(key, actions);
            }
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.observe(found);
            self.advance(now, key, actions);
        }
    }

    fn handle_call_result(
        &mut self,
        now: Duration,
        key: &CopyKey,
        answer: Result<CallOutcome, Error>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(call) = entry.in_flight.take() else { return };
        match answer {
            Ok(CallOutcome::Object(found)) if call == Call::Read => {
                entry.handle_read(found.map(|found| *found), now, &mut self.rng);
            }
            Ok(CallOutcome::Object(found)) => {
                entry.last_error = None;
                entry.backoff.reset();
                entry.record_write(&call, now, &mut self.rng);
                match found {
                    Some(found) => entry.observe(*found),
                    None => entry.lower = LowerState::Unknown,
                }
            }
            Ok(CallOutcome::Deleting) => {
                entry.last_error = None;
                // The watch tells when it is gone. Should it not, somebody has to look.
                if let (LowerState::Present(found), Call::Delete(uid)) = (&mut entry.lower, &call) {
                    found.deleting |= found.uid == *uid;
                }
                entry.not_before = now + entry.backoff.next(None, &mut self.rng);
            }
            Ok(CallOutcome::InUse(used)) => {
                entry.last_error = None;
                entry.handle_use_check(used, now);
            }
            Err(error) => self.handle_call_error(now, key, &call, error, actions),
        }
        self.warn_about_foreign(key, actions);
        self.advance(now, key, actions);
    }

    fn handle_call_error(
        &mut self,
        now: Duration,
        key: &CopyKey,
        call: &Call,
        error: Error,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let lost = matches!(
            error.kind,
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::Replaced
        );
        match (call, error.kind) {
            // The namespace is gone.
            (Call::Create(..), ErrorKind::NotFound) => {
                entry.not_before = now + entry.backoff.next(None, &mut self.rng);
                if let Some(namespace_state) = self.lower_namespaces.get_mut(&key.namespace) {
                    namespace_state.mark_lost(now);
                }
            }
            // The name is taken. What was foreign before is taken for that until it was looked at.
            (Call::Create(..), ErrorKind::AlreadyExists) => {
                entry.stale = true;
                if !entry.is_foreign() {
                    entry.lower = LowerState::Unknown;
                }
                entry.backoff.next(None, &mut self.rng);
            }
            // Somebody was faster, or it is another one by now.
            (Call::Create(..) | Call::Patch(..) | Call::Delete(_), _) if lost => {
                entry.lower = LowerState::Unknown;
                let first = entry.backoff.failures() == 0;
                let wait = entry.backoff.next(None, &mut self.rng);
                if !first {
                    entry.not_before = now + wait;
                }
            }
            (_, kind) => {
                entry.not_before = now + entry.backoff.next(error.retry_after, &mut self.rng);
                if matches!(kind, ErrorKind::Invalid | ErrorKind::Forbidden) {
                    let message = format!("cannot be to_copy to the lower cluster as {key}: {error}");
                    for pod in entry.pods.difference(&entry.notified) {
                        let (pod, message) = (pod.clone(), message.clone());
                        actions.push(Action::Warn { pod, reason: "FailedReflection", message });
                    }
                    entry.notified = entry.pods.clone();
                }
                entry.last_error = Some(error);
            }
        }
    }

    fn warn_about_foreign(&mut self, key: &CopyKey, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        // Where there is nothing upper it is not in the way.
        if !entry.is_foreign() || !matches!(entry.upper, UpperState::Present(_)) {
            return;
        }
        for pod in entry.pods.difference(&entry.notified) {
            let message = format!(
                "{key} is in the lower cluster already and was not made from here: it is used as it is"
            );
            actions.push(Action::Warn { pod: pod.clone(), reason: "ForeignObject", message });
        }
        entry.notified = entry.pods.clone();
    }

    fn advance_all(&mut self, now: Duration, which: impl Fn(&CopyKey) -> bool, actions: &mut Vec<Action>) {
        let keys: Vec<CopyKey> = self.entries.keys().filter(|key| which(key)).cloned().collect();
        for key in keys {
            self.advance(now, &key, actions);
        }
    }

    /// Starts what is to be done next about one copy.
    fn advance(&mut self, now: Duration, key: &CopyKey, actions: &mut Vec<Action>) {
        self.warn_about_foreign(key, actions);
        let listed = self.listed.contains(&(key.kind, None))
            || self.listed.contains(&(key.kind, Some(key.namespace.clone())));
        let anchor = self
            .lower_namespaces
            .get(&key.namespace)
            .and_then(|namespace_state| namespace_state.anchor.as_ref());
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(due) = entry.due.take() {
            self.due.remove(&(due, key.clone()));
        }
        if !listed {
            return;
        }
        match entry.next_step(now, anchor, self.grace) {
            NextStep::Wait(until) => {
                entry.due = until;
                self.due.extend(until.map(|until| (until, key.clone())));
            }
            NextStep::Call(call) => {
                entry.stale &= call != Call::Read;
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

/// What a pod names.
fn referenced_objects(dependencies: &Dependencies) -> impl Iterator<Item = (Kind, &str)> {
    let config_maps = dependencies.config_maps.keys().map(|name| (Kind::ConfigMap, name));
    let secrets = dependencies.secrets.keys().map(|name| (Kind::Secret, name));
    let claims = dependencies.claims.iter().map(|name| (Kind::Claim, name));
    let accounts = dependencies.service_account.iter().map(|name| (Kind::ServiceAccount, name));
    config_maps.chain(secrets).chain(claims).chain(accounts).map(|(kind, name)| (kind, name.as_str()))
}
