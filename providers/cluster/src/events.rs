//! Relays lower events about our pods and their claims to the upper pods.
//!
//! Lower events are untrusted input: their texts are truncated, their rate is limited, and nothing in them is interpreted. Events from
//! before this process started are not relayed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Event;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tracing::debug;
use vk_kube::{Slim, WatchEvent};
use vk_provider::{PodEvent, PodRef};
use vk_supervisor::{Supervisor, task};

use self::{lower_event::LowerEvent, relay::EventRelay};
use crate::{
    lower_cluster::{EventListener, LowerCluster},
    names::OwnerId,
};

mod lower_event;
mod relay;

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
    /// The lower cluster, whose watches all virtual nodes share.
    pub lower: LowerCluster,
    /// The owner of the pods.
    pub owner: OwnerId,
    /// Finds the upper pods.
    pub pods: Arc<dyn PodLookup>,
    /// Owns the task.
    pub supervisor: Supervisor,
    /// Receives the events for the upper pods.
    pub events: mpsc::Sender<PodEvent>,
}

/// Passes lower events on.
struct Relayer {
    relay: Mutex<EventRelay>,
    pods: Arc<dyn PodLookup>,
    events: mpsc::Sender<PodEvent>,
    begun: Instant,
    /// The deadline of the relay may have changed.
    changed: Notify,
}

/// Starts the relay, which runs until the supervisor stops.
pub fn start(options: EventOptions) {
    let (supervisor, stopping) = (options.supervisor.clone(), options.supervisor.clone());
    // Not critical: nothing that is written in the lower cluster may end this process.
    supervisor.spawn("event relay", task::Kind::Work, async move {
        tokio::select! {
            () = run(options) => {}
            () = stopping.stopping() => {}
        }
    });
}

async fn run(options: EventOptions) {
    let relayer = Arc::new(Relayer {
        relay: Mutex::new(EventRelay::new(options.lower.event_scopes())),
        pods: options.pods,
        events: options.events,
        begun: Instant::now(),
        changed: Notify::new(),
    });
    let listener: Arc<dyn EventListener> = Arc::<Relayer>::clone(&relayer);
    options.lower.listen_to_events(&listener);
    loop {
        let deadline = relayer.relay.lock().deadline();
        let due = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(relayer.begun + deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {
                let events = relayer.relay.lock().tick(relayer.begun.elapsed(), &*relayer.pods);
                relayer.send(events);
            }
            () = relayer.changed.notified() => {}
        }
    }
}

// === impl Relayer ===

impl Relayer {
    fn send(&self, events: Vec<PodEvent>) {
        for event in events {
            // Events are best effort: a slow receiver must not block the relay.
            if let Err(lost) = self.events.try_send(event) {
                debug!(%lost, "dropped an event of a pod");
            }
        }
    }
}

impl EventListener for Relayer {
    fn event_change(&self, scope: usize, change: &WatchEvent<Slim<Event>>) {
        let now = self.begun.elapsed();
        let events = {
            let mut relay = self.relay.lock();
            match change {
                WatchEvent::Restarted => relay.begin_listing(scope),
                WatchEvent::Applied(Slim(event)) => LowerEvent::read(event)
                    .map(|event| relay.handle_event(now, scope, event, &*self.pods))
                    .unwrap_or_default(),
                WatchEvent::Listed => relay.finish_listing(scope),
                WatchEvent::Deleted(_) | WatchEvent::Error(_) => Vec::new(),
            }
        };
        self.send(events);
        self.changed.notify_one();
    }
}

impl std::fmt::Debug for EventOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventOptions").field("owner", &self.owner).finish_non_exhaustive()
    }
}
