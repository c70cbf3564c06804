//! What the lower cluster says of our pods, and of the claims that they use, events on the upper pods.
//!
//! Lower events are somebody else's input: their texts are cut, how often they repeat is limited, and nothing of them is interpreted.
//! What was said before this process began is not said again.

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
use crate::names::{NamespaceMapping, Owner};

mod lower_event;
mod relay;

/// What lower events are read of.
const KINDS: [&str; 2] = ["Pod", "PersistentVolumeClaim"];
/// How many changes try_spend wait between the watches and whoever decides.
const LENGTH: usize = 256;
/// How often it is tried again to read what try_spend not be read.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// Knows which lower pods are ours. It is asked for each lower event, so it answers from what it has; what is not known yet is asked for
/// again a little later.
pub trait PodLookup: Send + Sync {
    /// The upper pod that a lower one was made of, by the lower namespace, name and UID.
    fn upper_pod(&self, namespace: &str, name: &str, uid: &str) -> Option<PodRef>;

    /// The upper pods whose lower pods use a claim, by the lower namespace and the claim's name.
    fn claim_users(&self, namespace: &str, claim: &str) -> Vec<PodRef>;
}

/// What is needed to tell lower events.
pub struct EventOptions {
    /// The lower cluster.
    pub lower: Client,
    /// Whose the pods are.
    pub owner: Owner,
    /// What namespaces are called below: only those are watched, where they are named.
    pub namespaces: NamespaceMapping,
    /// Our pods.
    pub pods: Arc<dyn PodLookup>,
    /// Owns the task.
    pub supervisor: Supervisor,
    /// Takes what users of pods should know.
    pub events: mpsc::Sender<PodEvent>,
}

/// What a watch says of one kind in one namespace, or in all.
type Heard = (usize, WatchEvent<Slim<Event>>);

/// Begins to tell, until the supervisor stops.
pub fn follow(options: EventOptions) {
    let (supervisor, stopping) = (options.supervisor.clone(), options.supervisor.clone());
    // What somebody writes below must not end this process, whatever becomes of its events.
    supervisor.spawn("lower events", task::Kind::Work, async move {
        tokio::select! {
            () = run(options) => {}
            () = stopping.stopping() => {}
        }
    });
}

async fn run(options: EventOptions) {
    let (sender, mut heard) = mpsc::channel(LENGTH);
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
            Some((scope, change)) = heard.recv() => {
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
                    error!(%error, owner = ?options.owner, "a watch of lower events failed");
                }
                Vec::new()
            }
        };
        for event in events {
            // Whoever does not listen is not waited for.
            if let Err(lost) = options.events.try_send(event) {
                debug!(%lost, "an event on a pod is dropped");
            }
        }
    }
}

/// All that is watched.
fn scopes(namespaces: &NamespaceMapping) -> Vec<(Option<String>, &'static str)> {
    namespaces
        .scopes()
        .into_iter()
        .flat_map(|namespace| KINDS.map(|kind| (namespace.clone(), kind)))
        .collect()
}

/// Tells of the events of one kind of objects, for ever. Where that is not permitted, it is said once and tried again ever more seldom.
async fn read(
    lower: Client,
    namespace: Option<String>,
    kind: &'static str,
    number: usize,
    heard: mpsc::Sender<Heard>,
) {
    let events: Objects<Slim<Event>> = match &namespace {
        Some(namespace) => Objects::namespaced(lower, namespace),
        None => Objects::everywhere(lower),
    };
    let selector = Selector { fields: Some(format!("involvedObject.kind={kind}")), labels: None };
    let mut rng = StdRng::from_rng(&mut rand::rng());
    let mut refused = REFUSED;
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
                        "lower events try_spend not be read, so upper pods do not show them: permit to list and watch events there"
                    );
                }
                break;
            }
            if matches!(change, WatchEvent::Listed) {
                refused.reset();
                warned = false;
            }
            if heard.send((number, change)).await.is_err() {
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
    fn only_the_namespaces_that_are_named_are_watched() {
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
