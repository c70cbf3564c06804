//! What is copied down, when, and when it goes: a synchronous machine, told by events what happens and saying by actions what to do.
//!
//! It knows of each object which pods name it. A copy is made before the first of them, follows the upper object, and goes some time
//! after the last. What others made below is never touched: a name that is taken is known by the attempt to make an object, and all
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

use self::ground::Ground;
use super::{
    Kind, Standing,
    entry::{Call, Entry, Lower, Step, Upper},
    forge,
    twin::{Forged, Found, Place, Source},
};
use crate::{
    anchor,
    dependencies::Dependencies,
    names::{self, Namespaces, Owner},
};

mod ground;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time passes.
    Tick,
    /// A pod needs these, and nothing else any more.
    Wanted(PodRef, Dependencies),
    /// A pod is gone, or has ended.
    Unwanted(PodRef),
    /// What an upper object is to be below; `None` if it is not there.
    Upper(Place, Option<Arc<Forged>>),
    /// An upper object is there and is not to be copied, and what is below of it stays.
    Skipped(Place),
    /// An upper object cannot be read.
    Unreadable(Place, Error),
    /// A lower object of our upper cluster was seen.
    Lower(Place, Found),
    /// A lower object is gone since this version, or is not ours any more.
    Gone(Place, u64),
    /// A lower object is not in a listing any more.
    Vanished(Place),
    /// All lower objects of a kind were told, of one namespace or of all.
    Listed(Kind, Option<String>),
    /// A call has ended.
    Answer(Place, Result<Answer, Error>),
    /// A lower namespace is there, with our anchor in it, or could not be made.
    Settled(String, Result<OwnerReference, Error>),
}

// === impl Event ===

impl Event {
    /// An upper object was read: whether it is there, and what it is to be below. A claim that is there and shall not be copied is no claim that
    /// is gone: there may be data behind its copy.
    pub fn read(place: Place, there: bool, forged: Option<Forged>) -> Self {
        if there && forged.is_none() && place.kind == Kind::Claim {
            return Self::Skipped(place);
        }
        Self::Upper(place, forged.map(Arc::new))
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// With this object, or without one.
    Found(Option<Box<Found>>),
    /// It is being deleted.
    Deleted,
    /// With whether a lower pod names it.
    Used(bool),
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read an upper object, and go on telling of it.
    Watch(Place, Source),
    /// Tell no more of it.
    Unwatch(Place),
    /// Make a call, and tell how it ended.
    Call(Place, Call),
    /// See to it that there is a lower namespace for an upper one, and our anchor in it.
    Settle {
        /// The lower namespace.
        below: String,
        /// The upper one.
        above: String,
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
pub struct Machine {
    owner: Owner,
    anchor: String,
    namespaces: Namespaces,
    grace: Duration,
    entries: BTreeMap<Place, Entry>,
    pods: BTreeMap<PodRef, BTreeSet<Place>>,
    grounds: BTreeMap<String, Ground>,
    listed: BTreeSet<(Kind, Option<String>)>,
    /// When something is due.
    due: BTreeSet<(Duration, Place)>,
    rng: StdRng,
}

// === impl Machine ===

impl Machine {
    /// A machine that knows of nothing. Copies go this long after the last pod that needs them.
    pub fn new(owner: Owner, namespaces: Namespaces, grace: Duration, rng: StdRng) -> Self {
        Self {
            anchor: anchor::name(&owner),
            owner,
            namespaces,
            grace,
            entries: BTreeMap::new(),
            pods: BTreeMap::new(),
            grounds: BTreeMap::new(),
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
                    && let Some((_, place)) = self.due.pop_first()
                {
                    if let Some(entry) = self.entries.get_mut(&place) {
                        entry.due = None;
                    }
                    self.advance(now, &place, &mut actions);
                }
                self.settle_again(now, &mut actions);
            }
            Event::Wanted(pod, dependencies) => self.want(now, &pod, &dependencies, &mut actions),
            Event::Unwanted(pod) => {
                let places = self.pods.remove(&pod).unwrap_or_default();
                self.release(now, &pod, places, &mut actions);
            }
            Event::Upper(place, forged) => {
                let upper = forged.map_or(Upper::Absent, Upper::There);
                self.read(now, &place, upper, &mut actions);
            }
            Event::Skipped(place) => self.read(now, &place, Upper::Skipped, &mut actions),
            Event::Unreadable(place, error) => {
                if let Some(entry) = self.entries.get_mut(&place).filter(|it| it.upper == Upper::Unread) {
                    entry.trouble = Some(error);
                }
            }
            Event::Lower(place, found) => self.saw(now, &place, found, &mut actions),
            Event::Gone(place, version) => {
                self.unsettle_if_anchor(now, &place, &mut actions);
                if let Some(entry) = self.entries.get_mut(&place) {
                    entry.miss(version);
                    entry.not_before = entry.not_before.min(now);
                    self.advance(now, &place, &mut actions);
                }
            }
            Event::Vanished(place) => {
                self.unsettle_if_anchor(now, &place, &mut actions);
                if let Some(entry) = self.entries.get_mut(&place) {
                    entry.lower = Lower::Unread;
                    entry.doubted = true;
                    self.advance(now, &place, &mut actions);
                }
            }
            Event::Listed(kind, namespace) => {
                self.listed.insert((kind, namespace));
                self.advance_all(now, |place| place.kind == kind, &mut actions);
            }
            Event::Answer(place, answer) => self.answered(now, &place, answer, &mut actions),
            Event::Settled(below, answer) => self.settled(now, &below, answer, &mut actions),
        }
        actions
    }

    /// When to send a [`Event::Tick`], if nothing else happens before.
    pub fn deadline(&self) -> Option<Duration> {
        let grounds = self.grounds.values().filter(|ground| ground.is_waiting()).map(|it| it.not_before);
        grounds.chain(self.due.first().map(|(at, _)| *at)).min()
    }

    /// How a pod stands with what it needs.
    pub fn standing(&self, pod: &PodRef) -> Standing {
        let Some(places) = self.pods.get(pod) else { return Standing::Ready };
        let ground = self.namespaces.below(&pod.namespace).and_then(|below| self.grounds.get(&below));
        let ground = match ground {
            Some(Ground { anchor: Some(_), .. }) => Standing::Ready,
            Some(Ground { trouble: Some(error), .. }) => Standing::Failed(error.clone()),
            _ => Standing::Waiting,
        };
        let entries = places.iter().filter_map(|place| Some(self.entries.get(place)?.standing()));
        let mut worst = Standing::Ready;
        for standing in entries.chain([ground]) {
            match standing {
                Standing::Failed(_) => return standing,
                Standing::Waiting => worst = standing,
                Standing::Ready => {}
            }
        }
        worst
    }

    /// What a pod still waits for, for people.
    pub fn awaited(&self, pod: &PodRef) -> Option<&Place> {
        let mut places = self.pods.get(pod)?.iter();
        places.find(|place| self.entries.get(place).is_some_and(|it| it.standing() != Standing::Ready))
    }

    fn want(&mut self, now: Duration, pod: &PodRef, dependencies: &Dependencies, actions: &mut Vec<Action>) {
        let Some(below) = self.namespaces.below(&pod.namespace) else { return };
        self.settle(now, &below, &pod.namespace, actions);
        let wanted: BTreeSet<Place> = named(dependencies)
            .map(|(kind, name)| Place { kind, namespace: below.clone(), name: name.to_owned() })
            .collect();
        for place in &wanted {
            let source = Source { namespace: pod.namespace.to_string(), name: place.name.clone() };
            let entry = self
                .entries
                .entry(place.clone())
                .or_insert_with(|| Entry::new(place.kind, source.clone(), now));
            if entry.source != source {
                // Of a time when namespaces were called otherwise: not ours to change.
                (entry.source, entry.upper, entry.watched) = (source, Upper::Unread, false);
            }
            // A reader that was refused tries ever more seldom, and a new pod may be a new right.
            if entry.upper == Upper::Unread && (entry.pods.is_empty() || entry.trouble.is_some()) {
                (entry.watched, entry.trouble) = (false, None);
            }
            entry.want(pod.clone());
            self.watch(place, actions);
            self.advance(now, place, actions);
        }
        let before = self.pods.insert(pod.clone(), wanted.clone()).unwrap_or_default();
        self.release(now, pod, before.difference(&wanted).cloned().collect(), actions);
    }

    fn release(&mut self, now: Duration, pod: &PodRef, places: BTreeSet<Place>, actions: &mut Vec<Action>) {
        for place in places {
            if let Some(entry) = self.entries.get_mut(&place) {
                entry.release(pod, now);
                self.advance(now, &place, actions);
            }
        }
    }

    /// Sees to it that the upper object is known.
    fn watch(&mut self, place: &Place, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(place).filter(|entry| !entry.watched) else { return };
        entry.watched = true;
        if place.kind.is_read() {
            actions.push(Action::Watch(place.clone(), entry.source.clone()));
        } else {
            let bare = forge::bare_account(&entry.source, place, &self.owner);
            entry.upper = Upper::There(Arc::new(bare));
        }
    }

    /// An upper object was read.
    fn read(&mut self, now: Duration, place: &Place, upper: Upper, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(place) else { return };
        if entry.upper != upper {
            // What was refused may do now.
            if !entry.is_foreign() {
                entry.not_before = now;
                entry.backoff.reset();
                entry.told.clear();
            }
            entry.trouble = None;
            entry.upper = upper;
        }
        self.advance(now, place, actions);
    }

    fn saw(&mut self, now: Duration, place: &Place, found: Found, actions: &mut Vec<Action>) {
        // An anchor: this node's, or another's.
        if found.labels.contains_key(names::NODE) {
            return;
        }
        if !self.entries.contains_key(place) {
            // Of a time before this process. Perhaps no pod needs it any more.
            let Some(source) = found.source.clone() else { return };
            self.entries.insert(place.clone(), Entry::new(place.kind, source, now));
            if !place.kind.goes_with_pods() {
                self.watch(place, actions);
            }
        }
        if let Some(entry) = self.entries.get_mut(place) {
            entry.see(found);
            self.advance(now, place, actions);
        }
    }

    fn answered(
        &mut self,
        now: Duration,
        place: &Place,
        answer: Result<Answer, Error>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(place) else { return };
        let Some(call) = entry.under_way.take() else { return };
        match answer {
            Ok(Answer::Found(found)) if call == Call::Read => {
                entry.look(found.map(|found| *found), now, &mut self.rng);
            }
            Ok(Answer::Found(found)) => {
                entry.trouble = None;
                entry.backoff.reset();
                entry.wrote(&call, now, &mut self.rng);
                match found {
                    Some(found) => entry.see(*found),
                    None => entry.lower = Lower::Unread,
                }
            }
            Ok(Answer::Deleted) => {
                entry.trouble = None;
                // The watch tells when it is gone. Should it not, somebody has to look.
                if let (Lower::There(found), Call::Delete(uid)) = (&mut entry.lower, &call) {
                    found.deleting |= found.uid == *uid;
                }
                entry.not_before = now + entry.backoff.next(None, &mut self.rng);
            }
            Ok(Answer::Used(used)) => {
                entry.trouble = None;
                entry.surveyed(used, now);
            }
            Err(error) => self.failed(now, place, &call, error, actions),
        }
        self.warn_of_foreign(place, actions);
        self.advance(now, place, actions);
    }

    fn failed(&mut self, now: Duration, place: &Place, call: &Call, error: Error, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(place) else { return };
        let lost = matches!(
            error.kind,
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::Replaced
        );
        match (call, error.kind) {
            // The namespace is gone.
            (Call::Create(..), ErrorKind::NotFound) => {
                entry.not_before = now + entry.backoff.next(None, &mut self.rng);
                if let Some(ground) = self.grounds.get_mut(&place.namespace) {
                    ground.lose(now);
                }
            }
            // The name is taken. What was foreign before is taken for that until it was looked at.
            (Call::Create(..), ErrorKind::AlreadyExists) => {
                entry.doubted = true;
                if !entry.is_foreign() {
                    entry.lower = Lower::Unread;
                }
                entry.backoff.next(None, &mut self.rng);
            }
            // Somebody was faster, or it is another one by now.
            (Call::Create(..) | Call::Patch(..) | Call::Delete(_), _) if lost => {
                entry.lower = Lower::Unread;
                let first = entry.backoff.failures() == 0;
                let wait = entry.backoff.next(None, &mut self.rng);
                if !first {
                    entry.not_before = now + wait;
                }
            }
            (_, kind) => {
                entry.not_before = now + entry.backoff.next(error.retry_after, &mut self.rng);
                if matches!(kind, ErrorKind::Invalid | ErrorKind::Forbidden) {
                    let message = format!("cannot be copied to the lower cluster as {place}: {error}");
                    for pod in entry.pods.difference(&entry.told) {
                        let (pod, message) = (pod.clone(), message.clone());
                        actions.push(Action::Warn { pod, reason: "FailedReflection", message });
                    }
                    entry.told = entry.pods.clone();
                }
                entry.trouble = Some(error);
            }
        }
    }

    fn warn_of_foreign(&mut self, place: &Place, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(place) else { return };
        // Where there is nothing above it is not in the way.
        if !entry.is_foreign() || !matches!(entry.upper, Upper::There(_)) {
            return;
        }
        for pod in entry.pods.difference(&entry.told) {
            let message = format!(
                "{place} is in the lower cluster already and was not made from here: it is used as it is"
            );
            actions.push(Action::Warn { pod: pod.clone(), reason: "ForeignObject", message });
        }
        entry.told = entry.pods.clone();
    }

    fn advance_all(&mut self, now: Duration, which: impl Fn(&Place) -> bool, actions: &mut Vec<Action>) {
        let places: Vec<Place> = self.entries.keys().filter(|place| which(place)).cloned().collect();
        for place in places {
            self.advance(now, &place, actions);
        }
    }

    /// Starts what is to be done next about one copy.
    fn advance(&mut self, now: Duration, place: &Place, actions: &mut Vec<Action>) {
        self.warn_of_foreign(place, actions);
        let listed = self.listed.contains(&(place.kind, None))
            || self.listed.contains(&(place.kind, Some(place.namespace.clone())));
        let anchor = self.grounds.get(&place.namespace).and_then(|ground| ground.anchor.as_ref());
        let Some(entry) = self.entries.get_mut(place) else { return };
        if let Some(due) = entry.due.take() {
            self.due.remove(&(due, place.clone()));
        }
        if !listed {
            return;
        }
        match entry.next(now, anchor, self.grace) {
            Step::Rest(until) => {
                entry.due = until;
                self.due.extend(until.map(|until| (until, place.clone())));
            }
            Step::Call(call) => {
                entry.doubted &= call != Call::Read;
                entry.under_way = Some(call.clone());
                actions.push(Action::Call(place.clone(), call));
            }
            Step::Settle => {
                let above = entry.source.namespace.clone();
                self.settle(now, &place.namespace, &above, actions);
            }
            Step::Forget => {
                if self.entries.remove(place).is_some_and(|it| it.watched && it.kind.is_read()) {
                    actions.push(Action::Unwatch(place.clone()));
                }
            }
        }
    }
}

/// What a pod names.
fn named(dependencies: &Dependencies) -> impl Iterator<Item = (Kind, &str)> {
    let config_maps = dependencies.config_maps.keys().map(|name| (Kind::ConfigMap, name));
    let secrets = dependencies.secrets.keys().map(|name| (Kind::Secret, name));
    let claims = dependencies.claims.iter().map(|name| (Kind::Claim, name));
    let accounts = dependencies.service_account.iter().map(|name| (Kind::ServiceAccount, name));
    config_maps.chain(secrets).chain(claims).chain(accounts).map(|(kind, name)| (kind, name.as_str()))
}
