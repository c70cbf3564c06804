//! Relays lower events about our pods and their claims to the upper pods.
//!
//! Lower events are untrusted input: their texts are truncated, their rate is limited, and nothing in them is interpreted. Events from
//! before this process started are not relayed.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Event;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tracing::{debug, error, warn};
use vk_kube::{Client, Kind as ErrorKind, Objects, Selector, Slim, WatchEvent};
use vk_provider::{PodEvent, PodRef};
use vk_supervisor::{Backoff, Supervisor, task};

use self::{lower_event::LowerEvent, relay::EventRelay};
use crate::names::{NamespaceMapping, OwnerId};

mod lower_event;
mod relay;

/// The kinds of objects whose events are watched.
const KINDS: [&str; 2] = ["Pod", "PersistentVolumeClaim"];
/// Capacity of the channel between the watches and the relay.
const CHANNEL_CAPACITY: usize = 256;
/// Delay before a forbidden watch is retried.
const FORBIDDEN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// Finds the upper pods of lower objects. It is called for each lower event, so it must answer from memory. The relay retries objects that
/// are not known yet.
pub trait PodLookup: Send + Sync {
    /// The upper pod of a lower pod, by the namespace, name and UID of the lower pod.
    fn upper_pod(&self, namespace: &str, name: &str, uid: &str) -> Option<PodRef>;

    /// The upper pods whose lower pods use a claim, by the lower namespace and name of the claim.
    fn claim_users(&self, namespace: &str, claim: &str) -> Vec<PodRef>;
}

/// What the relay needs.
pub struct EventOptions {
    /// A client of the lower cluster.
    pub lower: Client,
    /// The owner of the pods.
    pub owner: OwnerId,
    /// Maps upper namespaces to lower ones. With explicit names, only those namespaces are watched.
    pub namespaces: NamespaceMapping,
    /// Finds the upper pods.
    pub pods: Arc<dyn PodLookup>,
    /// Owns the task.
    pub supervisor: Supervisor,
    /// Receives the events for the upper pods.
    pub events: mpsc::Sender<PodEvent>,
}

/// The index of a watch scope, and an event of its watch.
type ScopedEvent = (usize, WatchEvent<Slim<Event>>);

/// Starts the relay, which runs until the supervisor stops.
pub fn start(options: EventOptions) {
    let (supervisor, stopping) = (options.supervisor.clone(), options.supervisor.clone());
    // Not critical: nothing that is written in the lower cluster may end this process.
    supervisor.spawn("lower events", task::Kind::Work, async move {
        tokio::select! {
            () = run(options) => {}
            () = stopping.stopping() => {}
        }
    });
}

async fn run(options: EventOptions) {
    let (sender, mut scoped_events) = mpsc::channel(CHANNEL_CAPACITY);
    let mut readers = JoinSet::new();
    let scopes = scopes(&options.namespaces);
    for (number, (namespace, kind)) in scopes.iter().enumerate() {
        readers.spawn(read(options.lower.clone(), namespace.clone(), kind, number, sender.clone()));
    }
    drop(sender);
    let begun = Instant::now();
    let mut relay = EventRelay::new(scopes.len());
    loop {
        let due = async {
            match relay.deadline() {
                Some(deadline) => tokio::time::sleep_until(begun + deadline).await,
                None => std::future::pending().await,
            }
        };
        let events = tokio::select! {
            Some((scope, change)) = scoped_events.recv() => {
                let now = begun.elapsed();
                match change {
                    WatchEvent::Restarted => relay.begin_listing(scope),
                    WatchEvent::Applied(Slim(event)) => {
                        let events = LowerEvent::read(&event).map(|event| relay.handle_event(now, scope, event, &*options.pods));
                        events.unwrap_or_default()
                    }
                    WatchEvent::Listed => relay.finish_listing(scope),
                    WatchEvent::Deleted(_) | WatchEvent::Error(_) => Vec::new(),
                }
            }
            () = due => relay.tick(begun.elapsed(), &*options.pods),
            Some(ended) = readers.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    error!(%error, owner = ?options.owner, "a watch of lower events panicked");
                }
                Vec::new()
            }
        };
        for event in events {
            // Events are best effort: a slow receiver must not block the relay.
            if let Err(lost) = options.events.try_send(event) {
                debug!(%lost, "dropped an event of a pod");
            }
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

/// Watches the events of one kind of objects. Never returns. A missing permission is logged once and retried with a growing delay.
async fn read(
    lower: Client,
    namespace: Option<String>,
    kind: &'static str,
    number: usize,
    scoped_events: mpsc::Sender<ScopedEvent>,
) {
    let events: Objects<Slim<Event>> = match &namespace {
        Some(namespace) => Objects::namespaced(lower, namespace),
        None => Objects::all(lower),
    };
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
            if scoped_events.send((number, change)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(refused.next(None, &mut rng)).await;
    }
}

impl std::fmt::Debug for EventOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventOptions").field("owner", &self.owner).finish_non_exhaustive()
    }
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
