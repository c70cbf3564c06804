//! Two clusters of a few lines, for the state_machine to act between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use rand::SeedableRng as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::copies::{
    GRACE,
    kind::{CopiedObject, CopyContext},
};

pub(super) struct FakeClusters {
    pub(super) state_machine: CopyStateMachine,
    pub(super) now: Duration,
    pub(super) owner: Owner,
    pub(super) namespaces: NamespaceMapping,
    /// By kind, upper namespace and name.
    pub(super) above: BTreeMap<(Kind, String, String), Value>,
    pub(super) below: BTreeMap<CopyKey, Value>,
    /// LowerState namespaces.
    pub(super) lower_namespaces: BTreeSet<String>,
    /// What lower pods name.
    pub(super) used: BTreeSet<CopyKey>,
    pub(super) watched: BTreeMap<CopyKey, UpperRef>,
    pub(super) calls: Vec<(CopyKey, Call)>,
    pub(super) settles: Vec<(String, String)>,
    /// What the lower watch has not notified yet, in order.
    pub(super) told_below: VecDeque<Event>,
    /// What the upper watches have not notified yet, in order.
    pub(super) told_above: VecDeque<(CopyKey, UpperRef, Option<Value>)>,
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

pub(super) fn key(kind: Kind, name: &str) -> CopyKey {
    CopyKey { kind, namespace: "default".to_owned(), name: name.to_owned() }
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

impl FakeClusters {
    pub(super) fn new() -> Self {
        Self::of(NamespaceMapping::Same, 1)
    }

    pub(super) fn of(namespaces: NamespaceMapping, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let mut clusters = Self {
            state_machine: CopyStateMachine::new(owner(), namespaces.clone(), GRACE, rng),
            now: Duration::from_secs(1000),
            owner: owner(),
            namespaces,
            above: BTreeMap::new(),
            below: BTreeMap::new(),
            lower_namespaces: BTreeSet::new(),
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
        clusters.list();
        clusters
    }

    /// Another process: it knows nothing, and nothing of the old one comes back.
    pub(super) fn restart(&mut self, seed: u64) {
        let rng = StdRng::seed_from_u64(seed);
        self.state_machine = CopyStateMachine::new(self.owner.clone(), self.namespaces.clone(), GRACE, rng);
        self.watched.clear();
        self.calls.clear();
        self.settles.clear();
        self.told_below.clear();
        self.told_above.clear();
        self.list();
    }

    /// The lower watch breaks, and lists again: what it had not notified is lost, and what went meanwhile is not in the listing.
    pub(super) fn break_watch(&mut self) {
        let lost: Vec<Event> = self.told_below.drain(..).collect();
        self.list();
        let gone = lost.into_iter().filter_map(|event| match event {
            Event::LowerSeen(key, _) | Event::LowerDeleted(key, _) | Event::LowerMissing(key) => Some(key),
            _ => None,
        });
        let gone: BTreeSet<CopyKey> = gone.filter(|key| !self.below.contains_key(key)).collect();
        let listed = self.told_below.len().saturating_sub(Kind::ALL.len());
        for key in gone {
            self.told_below.insert(listed, Event::LowerMissing(key));
        }
    }

    /// The listing of a lower watch that begins.
    fn list(&mut self) {
        let all: Vec<CopyKey> = self.below.keys().cloned().collect();
        for key in all {
            self.tell_below(&key);
        }
        self.told_below.extend(Kind::ALL.map(|kind| Event::Listed(kind, None)));
    }

    /// What the lower watch, which sees our label alone, says of an object.
    fn tell_below(&mut self, key: &CopyKey) {
        let found = self.found(key);
        if let Some(found) = found.filter(|it| it.labels.get(names::ORIGIN) == Some(&self.owner.origin)) {
            self.told_below.push_back(Event::LowerSeen(key.clone(), found));
        }
    }

    pub(super) fn found(&self, key: &CopyKey) -> Option<ObservedCopy> {
        let object = self.below.get(key)?;
        Some(match key.kind {
            Kind::ConfigMap => build::observe::<ConfigMap>(&typed(object), &self.owner),
            Kind::Secret => build::observe::<Secret>(&typed(object), &self.owner),
            Kind::ServiceAccount => build::observe::<ServiceAccount>(&typed(object), &self.owner),
            Kind::Claim => build::observe::<PersistentVolumeClaim>(&typed(object), &self.owner),
        })
    }

    pub(super) fn desired(&self, key: &CopyKey, upper: &Value) -> Option<DesiredCopy> {
        fn made<K: CopiedObject>(upper: &Value, key: &CopyKey, owner: &Owner) -> Option<DesiredCopy> {
            let context = CopyContext { storage_classes: &BTreeMap::new(), has_volume: false };
            build::build(&typed::<K>(upper), key, owner, context)
        }
        match key.kind {
            Kind::ConfigMap => made::<ConfigMap>(upper, key, &self.owner),
            Kind::Secret => made::<Secret>(upper, key, &self.owner),
            Kind::ServiceAccount => made::<ServiceAccount>(upper, key, &self.owner),
            Kind::Claim => made::<PersistentVolumeClaim>(upper, key, &self.owner),
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
        let watched = self.watched.iter().filter(|(key, source)| {
            key.kind == *kind && source.namespace == *namespace && source.name == *name
        });
        let object = self.above.get(&(*kind, namespace.clone(), name.clone()));
        let notified = watched.map(|(key, source)| (key.clone(), source.clone(), object.cloned()));
        self.told_above.extend(notified.collect::<Vec<_>>());
    }

    /// Somebody else makes an object in the lower cluster.
    pub(super) fn put_below(&mut self, key: &CopyKey, mut object: Value) {
        let version = self.next_version();
        let metadata = &mut object["metadata"];
        (metadata["namespace"], metadata["name"]) = (json!(key.namespace), json!(key.name));
        metadata["uid"] = json!(format!("lower-{version}"));
        metadata["resourceVersion"] = json!(version.to_string());
        self.below.insert(key.clone(), object);
        self.tell_below(key);
    }

    /// An object goes from the lower cluster.
    pub(super) fn take_below(&mut self, key: &CopyKey) {
        if self.below.remove(key).is_some() {
            let version = self.next_version();
            self.told_below.push_back(Event::LowerDeleted(key.clone(), version));
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        for action in self.state_machine.handle(self.now, event) {
            match action {
                Action::Watch(key, source) => {
                    let upper = (key.kind, source.namespace.clone(), source.name.clone());
                    self.told_above.push_back((key.clone(), source.clone(), self.above.get(&upper).cloned()));
                    self.watched.insert(key, source);
                }
                Action::Unwatch(key) => {
                    assert!(self.watched.remove(&key).is_some(), "{key} was watched");
                    self.told_above.retain(|(notified, ..)| *notified != key);
                }
                Action::Call(key, call) => {
                    assert!(self.calls.iter().all(|(other, _)| *other != key), "one at a time: {key}");
                    self.calls.push((key, call));
                }
                Action::EnsureNamespace { lower, upper } => self.settles.push((lower, upper)),
                Action::Warn { pod, reason, message } => self.warnings.push((pod, reason, message)),
            }
        }
    }

    /// Tells what the upper watches have to tell next.
    pub(super) fn hear_above(&mut self) -> bool {
        let Some((key, _, object)) = self.told_above.pop_front() else { return false };
        let there = object.is_some();
        let desired = object.and_then(|object| self.desired(&key, &object));
        self.tell(Event::upper_read(key, there, desired));
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
        self.lower_namespaces.insert(below.clone());
        let name = owner_config_map::name(&self.owner);
        let anchor = CopyKey { kind: Kind::ConfigMap, namespace: below.clone(), name: name.clone() };
        if !self.below.contains_key(&anchor) {
            let labels = json!({names::ORIGIN: self.owner.origin, names::NODE: self.owner.node_label()});
            self.put_below(&anchor, json!({"metadata": {"labels": labels}}));
        }
        let uid = self.below[&anchor]["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let reference = OwnerReference { name, uid, controller: Some(true), ..OwnerReference::default() };
        self.tell(Event::NamespaceEnsured(below, Ok(reference)));
        true
    }

    /// What the lower server does with a call. Nobody but us is heard here, so a foreign object must not change.
    pub(super) fn serve(&mut self, key: &CopyKey, call: &Call) -> Result<CallOutcome, Error> {
        let error = |kind: ErrorKind| Err(Error::new(kind, format!("{kind} {key}")));
        let found = |clusters: &Self| Ok(CallOutcome::Object(clusters.found(key).map(Box::new)));
        let current = self.found(key);
        let ours = current.as_ref().is_some_and(|found| found.source.is_some());
        match call {
            Call::Read => return found(self),
            Call::CheckUse => return Ok(CallOutcome::InUse(self.used.contains(key))),
            Call::Create(desired, anchor) => {
                if !self.lower_namespaces.contains(&key.namespace) {
                    return error(ErrorKind::NotFound);
                }
                if current.is_some() {
                    return error(ErrorKind::AlreadyExists);
                }
                let mut object: Value = serde_json::from_str(&desired.body).unwrap();
                object["metadata"]["ownerReferences"] =
                    anchor.iter().map(|anchor| serde_json::to_value(anchor).unwrap()).collect();
                self.put_below(key, object);
                self.log.push(format!("create {key}"));
            }
            Call::Patch(before, desired) => {
                let Some(current) = current else { return error(ErrorKind::NotFound) };
                if current.version != before.version {
                    return error(ErrorKind::Conflict);
                }
                if current.immutable && current.content != desired.content {
                    return error(ErrorKind::Invalid);
                }
                assert!(ours, "a foreign object is touched: {key}");
                let version = self.next_version();
                let object = self.below.get_mut(key).unwrap();
                apply(object, &before.patch(key.kind, desired));
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                self.tell_below(key);
                self.log.push(format!("patch {key}"));
            }
            Call::Delete(uid) => {
                let Some(current) = current else { return Ok(CallOutcome::Object(None)) };
                if current.uid != *uid {
                    return error(ErrorKind::Conflict);
                }
                assert!(ours, "a foreign object is touched: {key}");
                self.log.push(format!("delete {key}"));
                self.take_below(key);
                return Ok(CallOutcome::Deleting);
            }
        }
        found(self)
    }

    pub(super) fn answer_call(&mut self) -> bool {
        if self.calls.is_empty() {
            return false;
        }
        let (key, call) = self.calls.remove(0);
        let answer = self.serve(&key, &call);
        self.tell(Event::CallFinished(key, answer));
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
        while let Some(due) = self.state_machine.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.tell(Event::Tick);
            self.run();
        }
        self.now = end;
    }

    pub(super) fn want(&mut self, name: &str, all: &[(Kind, &str)]) {
        self.tell(Event::PodAdded(pod(name), needs(all)));
    }

    pub(super) fn release(&mut self, name: &str) {
        self.tell(Event::PodRemoved(pod(name)));
    }

    pub(super) fn data(&self, key: &CopyKey) -> Option<&Value> {
        self.below.get(key).map(|object| &object["data"])
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
