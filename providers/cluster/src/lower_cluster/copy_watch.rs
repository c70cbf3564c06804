//! The copies in the lower cluster: one watch per kind and scope, which all virtual nodes share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use parking_lot::Mutex;
use vk_kube::{Selector, WatchEvent};

use super::{
    Inner, LowerCluster, Mirror, ObjectKey,
    version_audit::{self, Versioned},
    watches::{LagFinder, MirrorWatch},
};
use crate::{
    copies::{
        Kind,
        build::observe,
        diff::{CopyKey, ObservedCopy},
        kind::CopiedObject,
        state_machine::Event,
    },
    names::{ORIGIN, OwnerId},
};

/// Receives events about copies. Called from the watches, so it must not block.
pub(crate) trait CopyListener: Send + Sync {
    fn copy_event(&self, event: Event);
}

/// The copies of this upper cluster. The watches start with the first listener: a standby process needs none.
#[derive(Default)]
pub(super) struct CopyWatch {
    state: Mutex<CopyWatchState>,
}

#[derive(Default)]
struct CopyWatchState {
    started: bool,
    /// One mirror per kind and scope.
    mirrors: BTreeMap<(Kind, Option<String>), Mirror<ObservedCopy>>,
    listeners: Vec<Weak<dyn CopyListener>>,
}

impl Versioned for ObservedCopy {
    fn version(&self) -> u64 {
        self.version
    }
}

// === impl LowerCluster ===

impl LowerCluster {
    /// Registers a listener, which first gets everything that is known, as if it had its own watch. It is dropped when its owner is.
    pub(crate) fn listen_to_copies(&self, listener: &Arc<dyn CopyListener>) {
        let mut state = self.0.copies.state.lock();
        if !std::mem::replace(&mut state.started, true) {
            for scope in self.0.namespaces.scopes() {
                self.watch_copies::<ConfigMap>(scope.clone());
                self.watch_copies::<Secret>(scope.clone());
                self.watch_copies::<ServiceAccount>(scope.clone());
                self.watch_copies::<PersistentVolumeClaim>(scope);
            }
        }
        for ((kind, scope), mirror) in &state.mirrors {
            for (key, copy) in mirror.iter() {
                listener.copy_event(Event::LowerSeen(copy_key(*kind, key), copy.clone()));
            }
            if mirror.is_synced() {
                listener.copy_event(Event::Listed(*kind, scope.clone()));
            }
        }
        state.listeners.push(Arc::downgrade(listener));
    }

    fn watch_copies<K: CopiedObject>(&self, scope: Option<String>) {
        let objects = K::objects(self.0.client.clone(), scope.as_deref());
        let ours = Selector { fields: None, labels: Some(format!("{ORIGIN}={}", self.0.origin)) };
        let mut watch = MirrorWatch::new("copies", objects, ours, None);
        watch.trim = K::trim;
        let place = (K::COPY_KIND, scope.clone());
        let lagging: LagFinder = Box::new(move |inner, list| {
            let state = inner.copies.state.lock();
            state.mirrors.get(&place).map(|mirror| version_audit::lagging(mirror, list)).unwrap_or_default()
        });
        watch.audit = Some((version_audit::COPY_PERIOD, lagging));
        watch
            .spawn(self, &self.0.supervisor, move |inner, change| handle::<K>(inner, scope.as_ref(), change));
    }
}

/// Updates the mirror and tells the listeners, in the order of the watch.
fn handle<K: CopiedObject>(inner: &Inner, scope: Option<&String>, change: WatchEvent<K>) {
    let any_node = OwnerId { origin: inner.origin.clone(), node: String::new() };
    let key = |object: &K| -> Option<ObjectKey> {
        Some((object.metadata().namespace.clone()?, object.metadata().name.clone()?))
    };
    let state = &mut *inner.copies.state.lock();
    let mirror = state.mirrors.entry((K::COPY_KIND, scope.cloned())).or_default();
    let mut events = Vec::new();
    match change {
        WatchEvent::Restarted => mirror.begin_listing(),
        WatchEvent::Applied(object) => {
            let Some(key) = key(&object) else { return };
            let found = observe(&object, &any_node);
            events.push(Event::LowerSeen(copy_key(K::COPY_KIND, &key), found.clone()));
            if let Some(claim) = object.as_claim() {
                inner.mirrors.write().snapshot.apply_claim(claim);
            }
            mirror.upsert(key, found);
        }
        WatchEvent::Deleted(object) => {
            let Some(key) = key(&object) else { return };
            let version = observe(&object, &any_node).version;
            events.push(Event::LowerDeleted(copy_key(K::COPY_KIND, &key), version));
            remove_claim(inner, K::COPY_KIND, &key);
            mirror.remove(&key);
        }
        WatchEvent::Listed => {
            for (key, _) in mirror.finish_listing() {
                remove_claim(inner, K::COPY_KIND, &key);
                events.push(Event::LowerMissing(copy_key(K::COPY_KIND, &key)));
            }
            events.push(Event::Listed(K::COPY_KIND, scope.cloned()));
        }
        WatchEvent::Error(error) => mirror.record_error(error),
    }
    state.listeners.retain(|listener| listener.strong_count() > 0);
    for listener in state.listeners.iter().filter_map(Weak::upgrade) {
        for event in &events {
            listener.copy_event(event.clone());
        }
    }
}

fn remove_claim(inner: &Inner, kind: Kind, (namespace, name): &ObjectKey) {
    if kind == Kind::Claim {
        inner.mirrors.write().snapshot.remove_claim(namespace, name);
    }
}

fn copy_key(kind: Kind, (namespace, name): &ObjectKey) -> CopyKey {
    CopyKey { kind, namespace: namespace.clone(), name: name.clone() }
}
