//! The lower events about pods and claims: one watch per kind and scope, which all virtual nodes share.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Event;
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use tracing::warn;
use vk_kube::{Kind as ErrorKind, Objects, Selector, Slim, WatchEvent};
use vk_supervisor::{Backoff, task};

use super::{Inner, LowerCluster};
use crate::names::NamespaceMapping;

/// The kinds of objects whose events are watched.
const KINDS: [&str; 2] = ["Pod", "PersistentVolumeClaim"];
/// Delay before a forbidden watch is retried.
const FORBIDDEN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// Receives the changes of the watches. Called from the watches, so it must not block.
pub(crate) trait EventListener: Send + Sync {
    /// A change of the watch with this number.
    fn event_change(&self, scope: usize, change: &WatchEvent<Slim<Event>>);
}

/// The watches, which start with the first listener. No event is kept.
#[derive(Default)]
pub(super) struct EventWatch {
    state: Mutex<EventWatchState>,
}

#[derive(Default)]
struct EventWatchState {
    /// Whether each watch has listed; empty before the start.
    listed: Vec<bool>,
    listeners: Vec<Weak<dyn EventListener>>,
}

// === impl LowerCluster ===

impl LowerCluster {
    /// The number of watches.
    pub(crate) fn event_scopes(&self) -> usize {
        scopes(&self.0.namespaces).len()
    }

    /// Registers a listener, for which every event from now on is new. It is dropped when its owner is.
    pub(crate) fn listen_to_events(&self, listener: &Arc<dyn EventListener>) {
        let mut state = self.0.events.state.lock();
        if state.listed.is_empty() {
            let scopes = scopes(&self.0.namespaces);
            state.listed = vec![false; scopes.len()];
            for (number, (namespace, kind)) in scopes.into_iter().enumerate() {
                self.watch_events(number, namespace, kind);
            }
        }
        for (scope, _) in state.listed.iter().enumerate().filter(|(_, listed)| **listed) {
            listener.event_change(scope, &WatchEvent::Restarted);
            listener.event_change(scope, &WatchEvent::Listed);
        }
        state.listeners.push(Arc::downgrade(listener));
    }

    /// Watches the events of one kind of objects. A missing permission is logged once and retried with a growing delay.
    fn watch_events(&self, number: usize, namespace: Option<String>, kind: &'static str) {
        let client = self.0.client.clone();
        let events: Objects<Slim<Event>> = match &namespace {
            Some(namespace) => Objects::namespaced(client, namespace),
            None => Objects::all(client),
        };
        let (inner, guard) = (Arc::downgrade(&self.0), self.0.supervisor.clone());
        let work = async move {
            let selector = Selector { fields: Some(format!("involvedObject.kind={kind}")), labels: None };
            let mut rng = StdRng::from_rng(&mut rand::rng());
            let mut refused = FORBIDDEN_BACKOFF;
            let mut warned = false;
            loop {
                let mut changes = std::pin::pin!(events.watch(&selector));
                while let Some(change) = changes.next().await {
                    if let WatchEvent::Error(error) = &change
                        && error.kind == ErrorKind::Forbidden
                    {
                        if !std::mem::replace(&mut warned, true) {
                            let namespace = namespace.as_deref().unwrap_or("*");
                            warn!(
                                namespace, of = kind, %error,
                                "not allowed to read lower events, so upper pods do not show them: allow list and watch on events in the lower cluster"
                            );
                        }
                        break;
                    }
                    if matches!(change, WatchEvent::Listed) {
                        refused.reset();
                        warned = false;
                    }
                    let Some(inner) = inner.upgrade() else { return };
                    inner.handle_event(number, &change);
                }
                tokio::time::sleep(refused.next(None, &mut rng)).await;
            }
        };
        // Not critical: nothing that is written in the lower cluster may end this process.
        self.0.supervisor.spawn("lower events", task::Kind::Work, async move {
            tokio::select! {
                () = work => {}
                () = guard.stopping() => {}
            }
        });
    }
}

impl Inner {
    fn handle_event(&self, scope: usize, change: &WatchEvent<Slim<Event>>) {
        let mut state = self.events.state.lock();
        if matches!(change, WatchEvent::Listed) {
            state.listed[scope] = true;
        }
        state.listeners.retain(|listener| listener.strong_count() > 0);
        for listener in state.listeners.iter().filter_map(Weak::upgrade) {
            listener.event_change(scope, change);
        }
    }
}

/// The scopes of all watches: namespace (`None` for all) and kind of the involved object.
fn scopes(namespaces: &NamespaceMapping) -> Vec<(Option<String>, &'static str)> {
    namespaces
        .scopes()
        .into_iter()
        .flat_map(|namespace| KINDS.map(|kind| (namespace.clone(), kind)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_namespaces_are_watched() {
        let all = [(None, "Pod"), (None, "PersistentVolumeClaim")];
        assert_eq!(scopes(&NamespaceMapping::Same), all);
        assert_eq!(scopes(&NamespaceMapping::Suffix("-x".to_owned())), all);
        let map = [("a", "x"), ("b", "y")].map(|(above, below)| (above.to_owned(), below.to_owned()));
        let named = scopes(&NamespaceMapping::Map(map.into()));
        let named: Vec<_> = named.iter().map(|(namespace, kind)| (namespace.as_deref(), *kind)).collect();
        assert_eq!(
            named,
            [
                (Some("x"), "Pod"),
                (Some("x"), "PersistentVolumeClaim"),
                (Some("y"), "Pod"),
                (Some("y"), "PersistentVolumeClaim")
            ]
        );
    }
}
