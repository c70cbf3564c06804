//! Whether the runtime is there and well, as the node shows it.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, future::ready, stream, stream::BoxStream};
use parking_lot::Mutex;
use tokio::{
    sync::{broadcast, watch},
    time::Instant,
};
use tokio_stream::wrappers::BroadcastStream;
use tracing::{info, warn};
use vk_provider::{Error, NodeChange, Result};

use super::shared::Shared;
use crate::backend::{Runtime, told};

/// How often the runtime is asked how it is.
const PERIOD: Duration = Duration::from_secs(5);
/// How long an answer says how the runtime is: less than between two pings, so that each finds one that died.
const FRESH: Duration = Duration::from_secs(3);
/// How long the runtime may not have been listed.
const RELIST_LIMIT: Duration = Duration::from_mins(3);

/// How many events of the node may wait.
const NEWS: usize = 16;

/// What is known of the runtime.
#[derive(Debug)]
pub(super) struct Health {
    /// As it answered last, and what is wrong with it.
    state: watch::Sender<State>,
    listed: Mutex<Instant>,
    /// When it was well last, unless something spoke against it since.
    well: Mutex<Option<Instant>>,
    /// What happened to the node; lost where nobody listens.
    news: broadcast::Sender<NodeChange>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    runtime: Option<Arc<Runtime>>,
    trouble: Option<String>,
}

// === impl Health ===

impl Default for Health {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(State::default()),
            listed: Mutex::new(Instant::now()),
            well: Mutex::default(),
            news: broadcast::Sender::new(NEWS),
        }
    }
}

impl Health {
    /// The runtime as it answered last.
    pub(super) fn runtime(&self) -> Option<Arc<Runtime>> {
        self.state.borrow().runtime.clone()
    }

    /// The runtime was listed.
    pub(super) fn listed(&self) {
        *self.listed.lock() = Instant::now();
    }

    /// The runtime did not answer somebody: what is known of it is not to be relied on.
    pub(super) fn doubt(&self) {
        *self.well.lock() = None;
    }

    /// What is wrong with the runtime. It is not asked when it was well a moment ago.
    pub(super) async fn check(&self, shared: &Shared) -> Result<()> {
        let well = self.well.lock().is_some_and(|well| well.elapsed() < FRESH);
        if well { Ok(()) } else { self.ask(shared).await }
    }

    /// Asks the runtime, and answers what is wrong.
    pub(super) async fn ask(&self, shared: &Shared) -> Result<()> {
        let asked = Instant::now();
        let answer = shared.backend.runtime().await;
        let (runtime, mut troubles) = match answer {
            Ok(runtime) => {
                let troubles = troubles(&runtime);
                (Some(Arc::new(runtime)), troubles)
            }
            Err(error) => (None, vec![format!("container runtime is down: {}", told(&error))]),
        };
        let silent = self.listed.lock().elapsed();
        if silent > RELIST_LIMIT {
            troubles.push(format!(
                "PLEG is not healthy: pleg was last seen active {}s ago; threshold is {}m0s",
                silent.as_secs(),
                RELIST_LIMIT.as_secs() / 60
            ));
        }
        let trouble = (!troubles.is_empty()).then(|| troubles.join(", "));
        *self.well.lock() = trouble.is_none().then_some(asked);
        self.state.send_if_modified(|state| {
            let next = State { runtime: runtime.or_else(|| state.runtime.take()), trouble: trouble.clone() };
            match (&state.trouble, &next.trouble) {
                (None, Some(trouble)) => warn!(trouble, "the container runtime is not well"),
                (Some(_), None) => info!("the container runtime is well again"),
                _ => {}
            }
            let changed = *state != next;
            *state = next;
            changed
        });
        trouble.map_or(Ok(()), |trouble| Err(Error::unavailable(trouble)))
    }

    /// Tells when something about it is another than before.
    pub(super) fn changes(&self) -> BoxStream<'static, NodeChange> {
        let looks = stream::unfold(self.state.subscribe(), |mut state| async move {
            state.changed().await.ok()?;
            Some((NodeChange::Refresh, state))
        });
        let events = BroadcastStream::new(self.news.subscribe()).filter_map(|event| ready(event.ok()));
        stream::select(looks, events).boxed()
    }

    /// Tells of something that happened to the node.
    pub(super) fn tell(&self, change: NodeChange) {
        let _ = self.news.send(change);
    }
}

/// What is wrong with a runtime that answers, in the kubelet's words.
fn troubles(runtime: &Runtime) -> Vec<String> {
    let conditions = [
        ("container runtime not ready", "RuntimeReady", &runtime.ready),
        ("container runtime network not ready", "NetworkReady", &runtime.network),
    ];
    let bad = conditions.into_iter().filter(|(_, _, condition)| !condition.ok);
    bad.map(|(what, kind, condition)| {
        format!("{what}: {kind}=false reason:{} message:{}", condition.reason, condition.message)
    })
    .collect()
}

/// What is wrong with the network, for pods that need one.
pub(super) fn network_trouble(runtime: &Runtime) -> Option<String> {
    let condition = &runtime.network;
    (!condition.ok).then(|| {
        format!(
            "network is not ready: container runtime network not ready: NetworkReady=false reason:{} message:{}",
            condition.reason, condition.message
        )
    })
}

/// Asks the runtime from time to time.
pub(super) async fn run(shared: Arc<Shared>) {
    let work = async {
        loop {
            // What is wrong is kept and told.
            let _ = shared.health.ask(&shared).await;
            tokio::time::sleep(PERIOD).await;
        }
    };
    tokio::select! {
        () = shared.supervisor.stopping() => {}
        () = work => {}
    }
}
