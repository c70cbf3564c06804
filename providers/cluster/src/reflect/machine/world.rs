//! Two clusters of a few lines, for the machine to act between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use rand::SeedableRng as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::reflect::{
    GRACE,
    kind::{Facts, Reflected},
};

pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) now: Duration,
    pub(super) owner: Owner,
    pub(super) namespaces: Namespaces,
    /// By kind, upper namespace and name.
    pub(super) above: BTreeMap<(Kind, String, String), Value>,
    pub(super) below: BTreeMap<Place, Value>,
    /// Lower namespaces.
    pub(super) grounds: BTreeSet<String>,
    /// What lower pods name.
    pub(super) used: BTreeSet<Place>,
    pub(super) watched: BTreeMap<Place, Source>,
    pub(super) calls: Vec<(Place, Call)>,
    pub(super) settles: Vec<(String, String)>,
    /// What the lower watch has not told yet, in order.
    pub(super) told_below: VecDeque<Event>,
    /// What the upper watches have not told yet, in order.
    pub(super) told_above: VecDeque<(Place, Source, Option<Value>)>,
    pub(super) warnings: Vec<(PodRef, &'static str, String)>,
    /// The calls that were made.
    pub(super) log: Vec<String>,
    version: u64,
}

pub(super) fn owner() -> Owner {
    Owner { origin: "upper".to_owned(), node: "vk".to_owned() }
}

pub(super) fn pod(name: &str) -> PodRef {
    PodRef::new("default", name, format!("uid-of-{name}"))
}

pub(super) fn place(kind: Kind, name: &str) -> Place {
    Place { kind, namespace: "default".to_owned(), name: name.to_owned() }
}

pub(super) fn needs(all: &[(Kind, &str)]) -> Dependencies {
    let mut needs = Dependencies::default();
    let need = crate::dependencies::Need { optional: false };
    for (kind, name) in all {
        let name = (*name).to_owned();
        match kind {
            Kind::ConfigMap => needs.config_maps.extend([(name, need)]),
            Kind::Secret => needs.secrets.extend([(name, need)]),
            Kind::Claim => needs.claims.extend([name]),
            Kind::ServiceAccount => needs.service_account = Some(name),
        }
    }
    needs
}

fn typed<K: DeserializeOwned>(object: &Value) -> K {
    serde_json::from_value(object.clone()).expect("an object of its kind")
}

impl World {
    pub(super) fn new() -> Self {
        Self::of(Namespaces::Same, 1)
    }

    pub(super) fn of(namespaces: Namespaces, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let mut world = Self {
            machine: Machine::new(owner(), namespaces.clone(), GRACE, rng),
            now: Duration::from_secs(1000),
            owner: owner(),
            namespaces,
            above: BTreeMap::new(),
            below: BTreeMap::new(),
            grounds: BTreeSet::new(),
            used: BTreeSet::new(),
            watched: BTreeMap::new(),
            calls: Vec::new(),
            settles: Vec::new(),
            told_below: VecDeque::new(),
            told_above: VecDeque::new(),
            warnings: Vec::new(),
            log: Vec::new(),
            version: 1,
        };
        world.list();
        world
    }

    /// Another process: it knows nothing, and nothing of the old one comes back.
    pub(super) fn restart(&mut self, seed: u64) {
        let rng = StdRng::seed_from_u64(seed);
        self.machine = Machine::new(self.owner.clone(), self.namespaces.clone(), GRACE, rng);
        self.watched.clear();
        self.calls.clear();
        self.settles.clear();
        self.told_below.clear();
        self.told_above.clear();
        self.list();
    }

    /// The lower watch breaks, and lists again: what it had not told is lost, and what went meanwhile is not in the listing.
    pub(super) fn break_watch(&mut self) {
        let lost: Vec<Event> = self.told_below.drain(..).collect();
        self.list();
        let gone = lost.into_iter().filter_map(|event| match event {
            Event::Lower(place, _) | Event::Gone(place, _) | Event::Vanished(place) => Some(place),
            _ => None,
        });
        let gone: BTreeSet<Place> = gone.filter(|place| !self.below.contains_key(place)).collect();
        let listed = self.told_below.len().saturating_sub(Kind::ALL.len());
        for place in gone {
            self.told_below.insert(listed, Event::Vanished(place));
        }
    }

    /// The listing of a lower watch that begins.
    fn list(&mut self) {
        let all: Vec<Place> = self.below.keys().cloned().collect();
        for place in all {
            self.tell_below(&place);
        }
        self.told_below.extend(Kind::ALL.map(|kind| Event::Listed(kind, None)));
    }

    /// What the lower watch, which sees our label alone, says of an object.
    fn tell_below(&mut self, place: &Place) {
        let found = self.found(place);
        if let Some(found) = found.filter(|it| it.labels.get(names::ORIGIN) == Some(&self.owner.origin)) {
            self.told_below.push_back(Event::Lower(place.clone(), found));
        }
    }

    pub(super) fn found(&self, place: &Place) -> Option<Found> {
        let object = self.below.get(place)?;
        Some(match place.kind {
            Kind::ConfigMap => forge::find::<ConfigMap>(&typed(object), &self.owner),
            Kind::Secret => forge::find::<Secret>(&typed(object), &self.owner),
            Kind::ServiceAccount => forge::find::<ServiceAccount>(&typed(object), &self.owner),
            Kind::Claim => forge::find::<PersistentVolumeClaim>(&typed(object), &self.owner),
        })
    }

    pub(super) fn forged(&self, place: &Place, upper: &Value) -> Option<Forged> {
        fn made<K: Reflected>(upper: &Value, place: &Place, owner: &Owner) -> Option<Forged> {
            let facts = Facts { storage_classes: &BTreeMap::new(), has_volume: false };
            forge::forge(&typed::<K>(upper), place, owner, facts)
        }
        match place.kind {
            Kind::ConfigMap => made::<ConfigMap>(upper, place, &self.owner),
            Kind::Secret => made::<Secret>(upper, place, &self.owner),
            Kind::ServiceAccount => made::<ServiceAccount>(upper, place, &self.owner),
            Kind::Claim => made::<PersistentVolumeClaim>(upper, place, &self.owner),
        }
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Somebody puts an object into the upper cluster, or changes it.
    pub(super) fn put(&mut self, kind: Kind, namespace: &str, name: &str, mut object: Value) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        let uid = self.above.get(&key).map(|known| known["metadata"]["uid"].clone());
        let uid = uid.unwrap_or_else(|| json!(format!("upper-{}", self.next_version())));
        let metadata = &mut object["metadata"];
        (metadata["namespace"], metadata["name"], metadata["uid"]) = (json!(namespace), json!(name), uid);
        self.above.insert(key.clone(), object);
        self.tell_above(&key);
    }

    pub(super) fn take(&mut self, kind: Kind, namespace: &str, name: &str) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        if self.above.remove(&key).is_some() {
            self.tell_above(&key);
        }
    }

    fn tell_above(&mut self, (kind, namespace, name): &(Kind, String, String)) {
        let watched = self.watched.iter().filter(|(place, source)| {
            place.kind == *kind && source.namespace == *namespace && source.name == *name
        });
        let object = self.above.get(&(*kind, namespace.clone(), name.clone()));
        let told = watched.map(|(place, source)| (place.clone(), source.clone(), object.cloned()));
        self.told_above.extend(told.collect::<Vec<_>>());
    }

    /// Somebody else makes an object in the lower cluster.
    pub(super) fn put_below(&mut self, place: &Place, mut object: Value) {
        let version = self.next_version();
        let metadata = &mut object["metadata"];
        (metadata["namespace"], metadata["name"]) = (json!(place.namespace), json!(place.name));
        metadata["uid"] = json!(format!("lower-{version}"));
        metadata["resourceVersion"] = json!(version.to_string());
        self.below.insert(place.clone(), object);
        self.tell_below(place);
    }

    /// An object goes from the lower cluster.
    pub(super) fn take_below(&mut self, place: &Place) {
        if self.below.remove(place).is_some() {
            let version = self.next_version();
            self.told_below.push_back(Event::Gone(place.clone(), version));
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        for action in self.machine.handle(self.now, event) {
            match action {
                Action::Watch(place, source) => {
                    let key = (place.kind, source.namespace.clone(), source.name.clone());
                    self.told_above.push_back((place.clone(), source.clone(), self.above.get(&key).cloned()));
                    self.watched.insert(place, source);
                }
                Action::Unwatch(place) => {
                    assert!(self.watched.remove(&place).is_some(), "{place} was watched");
                    self.told_above.retain(|(told, ..)| *told != place);
                }
                Action::Call(place, call) => {
                    assert!(self.calls.iter().all(|(other, _)| *other != place), "one at a time: {place}");
                    self.calls.push((place, call));
                }
                Action::Settle { below, above } => self.settles.push((below, above)),
                Action::Warn { pod, reason, message } => self.warnings.push((pod, reason, message)),
            }
        }
    }

    /// Tells what the upper watches have to tell next.
    pub(super) fn hear_above(&mut self) -> bool {
        let Some((place, _, object)) = self.told_above.pop_front() else { return false };
        let there = object.is_some();
        let forged = object.and_then(|object| self.forged(&place, &object));
        self.tell(Event::read(place, there, forged));
        true
    }

    pub(super) fn hear_below(&mut self) -> bool {
        let Some(event) = self.told_below.pop_front() else { return false };
        self.tell(event);
        true
    }

    pub(super) fn answer_settle(&mut self) -> bool {
        if self.settles.is_empty() {
            return false;
        }
        let (below, _) = self.settles.remove(0);
        self.grounds.insert(below.clone());
        let name = anchor::name(&self.owner);
        let anchor = Place { kind: Kind::ConfigMap, namespace: below.clone(), name: name.clone() };
        if !self.below.contains_key(&anchor) {
            let labels = json!({names::ORIGIN: self.owner.origin, names::NODE: self.owner.node_label()});
            self.put_below(&anchor, json!({"metadata": {"labels": labels}}));
        }
        let uid = self.below[&anchor]["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let reference = OwnerReference { name, uid, controller: Some(true), ..OwnerReference::default() };
        self.tell(Event::Settled(below, Ok(reference)));
        true
    }

    /// What the lower server does with a call. Nobody but us is heard here, so a foreign object must not change.
    pub(super) fn serve(&mut self, place: &Place, call: &Call) -> Result<Answer, Error> {
        let error = |kind: ErrorKind| Err(Error::new(kind, format!("{kind} {place}")));
        let found = |world: &Self| Ok(Answer::Found(world.found(place).map(Box::new)));
        let current = self.found(place);
        let ours = current.as_ref().is_some_and(|found| found.source.is_some());
        match call {
            Call::Read => return found(self),
            Call::Survey => return Ok(Answer::Used(self.used.contains(place))),
            Call::Create(forged, anchor) => {
                if !self.grounds.contains(&place.namespace) {
                    return error(ErrorKind::NotFound);
                }
                if current.is_some() {
                    return error(ErrorKind::AlreadyExists);
                }
                let mut object: Value = serde_json::from_str(&forged.body).unwrap();
                object["metadata"]["ownerReferences"] =
                    anchor.iter().map(|anchor| serde_json::to_value(anchor).unwrap()).collect();
                self.put_below(place, object);
                self.log.push(format!("create {place}"));
            }
            Call::Patch(before, forged) => {
                let Some(current) = current else { return error(ErrorKind::NotFound) };
                if current.version != before.version {
                    return error(ErrorKind::Conflict);
                }
                if current.frozen && current.content != forged.content {
                    return error(ErrorKind::Invalid);
                }
                assert!(ours, "a foreign object is touched: {place}");
                let version = self.next_version();
                let object = self.below.get_mut(place).unwrap();
                apply(object, &before.patch(place.kind, forged));
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                self.tell_below(place);
                self.log.push(format!("patch {place}"));
            }
            Call::Delete(uid) => {
                let Some(current) = current else { return Ok(Answer::Found(None)) };
                if current.uid != *uid {
                    return error(ErrorKind::Conflict);
                }
                assert!(ours, "a foreign object is touched: {place}");
                self.log.push(format!("delete {place}"));
                self.take_below(place);
                return Ok(Answer::Deleted);
            }
        }
        found(self)
    }

    pub(super) fn answer_call(&mut self) -> bool {
        if self.calls.is_empty() {
            return false;
        }
        let (place, call) = self.calls.remove(0);
        let answer = self.serve(&place, &call);
        self.tell(Event::Answer(place, answer));
        true
    }

    /// Until nothing is left to do, without time passing.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000 {
            let moved = self.hear_below() || self.hear_above() || self.answer_settle() || self.answer_call();
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", &self.log[self.log.len().saturating_sub(10)..]);
    }

    /// Lets time pass, and does what is due.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while let Some(due) = self.machine.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.tell(Event::Tick);
            self.run();
        }
        self.now = end;
    }

    pub(super) fn want(&mut self, name: &str, all: &[(Kind, &str)]) {
        self.tell(Event::Wanted(pod(name), needs(all)));
    }

    pub(super) fn release(&mut self, name: &str) {
        self.tell(Event::Unwanted(pod(name)));
    }

    pub(super) fn data(&self, place: &Place) -> Option<&Value> {
        self.below.get(place).map(|object| &object["data"])
    }
}

/// A JSON patch, as far as we write any.
fn apply(object: &mut Value, patch: &Value) {
    for operation in patch.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent).and_then(Value::as_object_mut);
        let parent = parent.unwrap_or_else(|| panic!("nothing to patch at {path}"));
        if operation["op"] == "remove" {
            assert!(parent.remove(&key).is_some(), "nothing to remove at {path}");
        } else if operation["value"].is_null() {
            parent.remove(&key);
        } else {
            parent.insert(key, operation["value"].clone());
        }
    }
}
