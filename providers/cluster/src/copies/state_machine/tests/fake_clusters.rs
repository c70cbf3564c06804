//! Two fake clusters that the state machine acts on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::{
    api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use rand::SeedableRng as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vk_kube::{Error, Kind as ErrorKind};

use super::*;
use crate::copies::{
    Deletion, GRACE,
    kind::{CopiedObject, CopyContext, KeptMetadata},
};

pub(super) struct FakeClusters {
    pub(super) state_machine: CopyStateMachine,
    pub(super) now: Duration,
    pub(super) owner: OwnerId,
    pub(super) namespaces: NamespaceMapping,
    /// By kind, upper namespace and name.
    pub(super) upper: BTreeMap<(Kind, String, String), Value>,
    pub(super) lower: BTreeMap<CopyKey, Value>,
    /// Lower namespaces.
    pub(super) lower_namespaces: BTreeSet<String>,
    /// Objects that lower pods refer to.
    pub(super) used: BTreeSet<CopyKey>,
    pub(super) watched: BTreeMap<CopyKey, UpperRef>,
    pub(super) calls: Vec<(CopyKey, LowerCall)>,
    pub(super) namespace_calls: Vec<(String, String)>,
    /// Namespaces that are to be retired.
    pub(super) retirements: Vec<String>,
    /// Events that the lower watch has not delivered yet, in order.
    pub(super) lower_events: VecDeque<Event>,
    /// Events that the upper watches have not delivered yet, in order.
    pub(super) upper_events: VecDeque<(CopyKey, UpperRef, Option<Value>)>,
    pub(super) warnings: Vec<(PodRef, &'static str, String)>,
    /// The writes that were executed.
    pub(super) log: Vec<String>,
    version: u64,
}

/// How long namespaces stay that nobody uses: longer than any test that is not about it.
pub(super) const RETENTION: Duration = Duration::from_hours(24);

pub(super) fn owner() -> OwnerId {
    OwnerId { origin: "upper".to_owned(), node: "vk".to_owned() }
}

pub(super) fn pod(name: &str) -> PodRef {
    PodRef::new("default", name, format!("uid-of-{name}"))
}

pub(super) fn key(kind: Kind, name: &str) -> CopyKey {
    CopyKey { kind, namespace: "default".to_owned(), name: name.to_owned() }
}

pub(super) fn needs(all: &[(Kind, &str)]) -> Dependencies {
    let mut needs = Dependencies::default();
    for (kind, name) in all {
        let name = (*name).to_owned();
        match kind {
            Kind::ConfigMap => needs.config_maps.extend([name]),
            Kind::Secret => needs.secrets.extend([name]),
            Kind::Claim => needs.claims.extend([name]),
            Kind::ServiceAccount => needs.service_account = Some(name),
        }
    }
    needs
}

/// Dependencies without which the pod can run, where the kind allows it.
pub(super) fn optional(all: &[(Kind, &str)]) -> Dependencies {
    let needs = needs(all);
    Dependencies {
        optional_config_maps: needs.config_maps.clone(),
        optional_secrets: needs.secrets.clone(),
        ..needs
    }
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
            state_machine: CopyStateMachine::new(owner(), namespaces.clone(), (GRACE, RETENTION), rng),
            now: Duration::from_secs(1000),
            owner: owner(),
            namespaces,
            upper: BTreeMap::new(),
            lower: BTreeMap::new(),
            lower_namespaces: BTreeSet::new(),
            used: BTreeSet::new(),
            watched: BTreeMap::new(),
            calls: Vec::new(),
            namespace_calls: Vec::new(),
            retirements: Vec::new(),
            lower_events: VecDeque::new(),
            upper_events: VecDeque::new(),
            warnings: Vec::new(),
            log: Vec::new(),
            version: 1,
        };
        clusters.list();
        clusters
    }

    /// Starts another process, which knows nothing. Answers to the old one are lost.
    pub(super) fn restart(&mut self, seed: u64) {
        let rng = StdRng::seed_from_u64(seed);
        self.state_machine =
            CopyStateMachine::new(self.owner.clone(), self.namespaces.clone(), (GRACE, RETENTION), rng);
        self.watched.clear();
        self.calls.clear();
        self.namespace_calls.clear();
        self.retirements.clear();
        self.lower_events.clear();
        self.upper_events.clear();
        self.list();
    }

    /// Breaks the lower watch: pending events are lost, and the new list lacks what was deleted.
    pub(super) fn break_watch(&mut self) {
        let lost: Vec<Event> = self.lower_events.drain(..).collect();
        self.list();
        let gone = lost.into_iter().filter_map(|event| match event {
            Event::LowerSeen(key, _) | Event::LowerDeleted(key, _) | Event::LowerMissing(key) => Some(key),
            _ => None,
        });
        let gone: BTreeSet<CopyKey> = gone.filter(|key| !self.lower.contains_key(key)).collect();
        let listed = self.lower_events.len().saturating_sub(Kind::ALL.len());
        for key in gone {
            self.lower_events.insert(listed, Event::LowerMissing(key));
        }
    }

    /// Queues a list of the lower watch.
    fn list(&mut self) {
        let all: Vec<CopyKey> = self.lower.keys().cloned().collect();
        for key in all {
            self.queue_lower(&key);
        }
        self.lower_events.extend(Kind::ALL.map(|kind| Event::Listed(kind, None)));
    }

    /// Queues an event of the lower watch, which only sees objects with our label.
    fn queue_lower(&mut self, key: &CopyKey) {
        let found = self.observed(key);
        if let Some(found) = found.filter(|it| it.labels.get(names::ORIGIN) == Some(&self.owner.origin)) {
            self.lower_events.push_back(Event::LowerSeen(key.clone(), found));
        }
    }

    pub(super) fn observed(&self, key: &CopyKey) -> Option<ObservedCopy> {
        let object = self.lower.get(key)?;
        Some(match key.kind {
            Kind::ConfigMap => build::observe::<ConfigMap>(&typed(object), &self.owner),
            Kind::Secret => build::observe::<Secret>(&typed(object), &self.owner),
            Kind::ServiceAccount => build::observe::<ServiceAccount>(&typed(object), &self.owner),
            Kind::Claim => build::observe::<PersistentVolumeClaim>(&typed(object), &self.owner),
        })
    }

    pub(super) fn desired(&self, key: &CopyKey, upper: &Value) -> Option<DesiredCopy> {
        fn made<K: CopiedObject>(upper: &Value, key: &CopyKey, owner: &OwnerId) -> Option<DesiredCopy> {
            let metadata = KeptMetadata {
                labels: ["team", "x", "y"].map(str::to_owned).into(),
                annotations: BTreeSet::new(),
            };
            let classes = BTreeMap::new();
            let context = CopyContext {
                storage_classes: &classes,
                has_volume: false,
                has_source: false,
                metadata: &metadata,
            };
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

    /// Creates or changes an upper object.
    pub(super) fn put(&mut self, kind: Kind, namespace: &str, name: &str, mut object: Value) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        let uid = self.upper.get(&key).map(|known| known["metadata"]["uid"].clone());
        let uid = uid.unwrap_or_else(|| json!(format!("upper-{}", self.next_version())));
        let metadata = &mut object["metadata"];
        (metadata["namespace"], metadata["name"], metadata["uid"]) = (json!(namespace), json!(name), uid);
        self.upper.insert(key.clone(), object);
        self.queue_upper(&key);
    }

    pub(super) fn delete(&mut self, kind: Kind, namespace: &str, name: &str) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        if self.upper.remove(&key).is_some() {
            self.queue_upper(&key);
        }
    }

    fn queue_upper(&mut self, (kind, namespace, name): &(Kind, String, String)) {
        let watched = self.watched.iter().filter(|(key, source)| {
            key.kind == *kind && source.namespace == *namespace && source.name == *name
        });
        let object = self.upper.get(&(*kind, namespace.clone(), name.clone()));
        let notified = watched.map(|(key, source)| (key.clone(), source.clone(), object.cloned()));
        self.upper_events.extend(notified.collect::<Vec<_>>());
    }

    /// Creates a lower object as somebody else.
    pub(super) fn put_lower(&mut self, key: &CopyKey, mut object: Value) {
        let version = self.next_version();
        let metadata = &mut object["metadata"];
        (metadata["namespace"], metadata["name"]) = (json!(key.namespace), json!(key.name));
        metadata["uid"] = json!(format!("lower-{version}"));
        metadata["resourceVersion"] = json!(version.to_string());
        self.lower.insert(key.clone(), object);
        self.queue_lower(key);
    }

    /// Deletes a lower object.
    pub(super) fn delete_lower(&mut self, key: &CopyKey) {
        if self.lower.remove(key).is_some() {
            let version = self.next_version();
            self.lower_events.push_back(Event::LowerDeleted(key.clone(), version));
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        for action in self.state_machine.handle(self.now, event) {
            match action {
                Action::Watch(key, source) => {
                    let upper = (key.kind, source.namespace.clone(), source.name.clone());
                    self.upper_events.push_back((
                        key.clone(),
                        source.clone(),
                        self.upper.get(&upper).cloned(),
                    ));
                    self.watched.insert(key, source);
                }
                Action::Unwatch(key) => {
                    assert!(self.watched.remove(&key).is_some(), "{key} was watched");
                    self.upper_events.retain(|(notified, ..)| *notified != key);
                }
                Action::Call(key, call) => {
                    assert!(self.calls.iter().all(|(other, _)| *other != key), "one at a time: {key}");
                    self.calls.push((key, call));
                }
                Action::EnsureNamespace { lower, upper } => self.namespace_calls.push((lower, upper)),
                Action::RetireNamespace(lower) => self.retirements.push(lower),
                Action::Warn { pod, reason, message } => self.warnings.push((pod, reason, message)),
            }
        }
    }

    /// Delivers the next event of the upper watches.
    pub(super) fn deliver_upper(&mut self) -> bool {
        let Some((key, _, object)) = self.upper_events.pop_front() else { return false };
        let uid = object.as_ref().map(|object| object["metadata"]["uid"].as_str().unwrap_or_default());
        let desired = object.as_ref().and_then(|object| self.desired(&key, object));
        self.handle(Event::upper_read(key, uid, desired));
        true
    }

    pub(super) fn deliver_lower(&mut self) -> bool {
        let Some(event) = self.lower_events.pop_front() else { return false };
        self.handle(event);
        true
    }

    pub(super) fn answer_namespace(&mut self) -> bool {
        if self.namespace_calls.is_empty() {
            return false;
        }
        let (below, _) = self.namespace_calls.remove(0);
        self.lower_namespaces.insert(below.clone());
        let name = owner_config_map::name(&self.owner);
        let owner_map = CopyKey { kind: Kind::ConfigMap, namespace: below.clone(), name: name.clone() };
        if !self.lower.contains_key(&owner_map) {
            let labels = json!({names::ORIGIN: self.owner.origin, names::NODE: self.owner.node_label()});
            self.put_lower(&owner_map, json!({"metadata": {"labels": labels}}));
        }
        let uid = self.lower[&owner_map]["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let reference = OwnerReference { name, uid, controller: Some(true), ..OwnerReference::default() };
        self.handle(Event::NamespaceEnsured(below, Ok(reference)));
        true
    }

    /// Removes a namespace with everything that is left in it.
    pub(super) fn answer_retirement(&mut self) -> bool {
        let Some(below) = self.retirements.pop() else { return false };
        let left: Vec<CopyKey> = self.lower.keys().filter(|key| key.namespace == below).cloned().collect();
        assert_eq!(left.len(), 1, "only the owner ConfigMap may be left: {left:?}");
        self.lower_namespaces.remove(&below);
        self.log.push(format!("retire {below}"));
        for key in &left {
            self.delete_lower(key);
        }
        self.handle(Event::NamespaceRetired(below, Ok(())));
        true
    }

    /// Executes a call as the lower API server. Only we call it, so a foreign object must not change.
    pub(super) fn serve(&mut self, key: &CopyKey, call: &LowerCall) -> Result<CallOutcome, Error> {
        let error = |kind: ErrorKind| Err(Error::new(kind, format!("{kind} {key}")));
        let found = |clusters: &Self| Ok(CallOutcome::Object(clusters.observed(key).map(Box::new)));
        let current = self.observed(key);
        let ours = current.as_ref().is_some_and(|found| found.source.is_some());
        match call {
            LowerCall::Read => return found(self),
            LowerCall::CheckUse(_) => return Ok(CallOutcome::InUse(self.used.contains(key))),
            LowerCall::Create(desired, owner_reference) => {
                if !self.lower_namespaces.contains(&key.namespace) {
                    return error(ErrorKind::NotFound);
                }
                if current.is_some() {
                    return error(ErrorKind::AlreadyExists);
                }
                let mut object: Value = serde_json::from_str(&desired.body).unwrap();
                object["metadata"]["ownerReferences"] =
                    owner_reference.iter().map(|owner| serde_json::to_value(owner).unwrap()).collect();
                self.put_lower(key, object);
                self.log.push(format!("create {key}"));
            }
            LowerCall::Patch(before, desired) => {
                let Some(current) = current else { return error(ErrorKind::NotFound) };
                if current.version != before.version {
                    return error(ErrorKind::Conflict);
                }
                if current.immutable && current.content != desired.content {
                    return error(ErrorKind::Invalid);
                }
                assert!(ours, "a foreign object is touched: {key}");
                let version = self.next_version();
                let object = self.lower.get_mut(key).unwrap();
                apply(object, &before.patch(key.kind, desired));
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                self.queue_lower(key);
                self.log.push(format!("patch {key}"));
            }
            LowerCall::Delete(Deletion { uid, unused_version }) => {
                let Some(current) = current else { return Ok(CallOutcome::Object(None)) };
                if current.uid != *uid || unused_version.is_some_and(|version| version != current.version) {
                    return error(ErrorKind::Conflict);
                }
                assert!(ours, "a foreign object is touched: {key}");
                self.log.push(format!("delete {key}"));
                self.delete_lower(key);
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
        self.handle(Event::CallFinished(key, answer));
        true
    }

    /// Runs until nothing is left to do, without time passing.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000 {
            let moved =
                self.deliver_lower() || self.deliver_upper() || self.answer_namespace() || self.answer_call();
            let moved = moved || self.answer_retirement();
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", &self.log[self.log.len().saturating_sub(10)..]);
    }

    /// Lets time pass and handles all deadlines.
    pub(super) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while let Some(due) = self.state_machine.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.handle(Event::Tick);
            self.run();
        }
        self.now = end;
    }

    pub(super) fn add_pod(&mut self, name: &str, all: &[(Kind, &str)]) {
        self.handle(Event::PodAdded(pod(name), needs(all)));
    }

    pub(super) fn remove_pod(&mut self, name: &str) {
        self.handle(Event::PodRemoved(pod(name)));
    }

    pub(super) fn data(&self, key: &CopyKey) -> Option<&Value> {
        self.lower.get(key).map(|object| &object["data"])
    }
}

/// Applies a JSON patch, as far as we use them.
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
