//! The health of the runtime, as the node reports it.

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

use super::context::EngineContext;
use crate::backend::{RuntimeInfo, full_message};

/// How often the runtime is probed.
const PERIOD: Duration = Duration::from_secs(5);
/// How long a successful probe counts: less than the interval of pings, so that each ping notices a dead runtime.
const FRESH: Duration = Duration::from_secs(3);
/// The maximum time since the last list of the runtime.
const RELIST_LIMIT: Duration = Duration::from_mins(3);

/// Capacity of the queue of node events.
const EVENT_CAPACITY: usize = 16;

/// The health of the runtime.
#[derive(Debug)]
pub(super) struct RuntimeHealth {
    /// The last description of the runtime and its problem.
    state: watch::Sender<State>,
    listed: Mutex<Instant>,
    /// The last successful probe, unless a call failed since.
    healthy: Mutex<Option<Instant>>,
    /// Events of the node; lost if nobody subscribed.
    events: broadcast::Sender<NodeChange>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    runtime: Option<Arc<RuntimeInfo>>,
    problem: Option<String>,
}

// === impl Health ===

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(State::default()),
            listed: Mutex::new(Instant::now()),
            healthy: Mutex::default(),
            events: broadcast::Sender::new(EVENT_CAPACITY),
        }
    }
}

impl RuntimeHealth {
    /// The last description of the runtime.
    pub(super) fn runtime(&self) -> Option<Arc<RuntimeInfo>> {
        self.state.borrow().runtime.clone()
    }

    /// Records a successful list.
    pub(super) fn record_list(&self) {
        *self.listed.lock() = Instant::now();
    }

    /// Records a failed call: the last successful probe no longer counts.
    pub(super) fn record_failure(&self) {
        *self.healthy.lock() = None;
    }

    /// The health of the runtime. It is not probed if the last successful probe still counts.
    pub(super) async fn check(&self, context: &EngineContext) -> Result<()> {
        let healthy = self.healthy.lock().is_some_and(|healthy| healthy.elapsed() < FRESH);
        if healthy { Ok(()) } else { self.probe(context).await }
    }

    /// Probes the runtime. The error is its problem.
    pub(super) async fn probe(&self, context: &EngineContext) -> Result<()> {
        let began = Instant::now();
        let answer = context.backend.runtime().await;
        let (runtime, mut problems) = match answer {
            Ok(runtime) => {
                let problems = problems(&runtime);
                (Some(Arc::new(runtime)), problems)
            }
            Err(error) => (None, vec![format!("container runtime is down: {}", full_message(&error))]),
        };
        let silent = self.listed.lock().elapsed();
        if silent > RELIST_LIMIT {
            problems.push(format!(
                "PLEG is not healthy: pleg was last seen active {}s ago; threshold is {}m0s",
                silent.as_secs(),
                RELIST_LIMIT.as_secs() / 60
            ));
        }
        let problem = (!problems.is_empty()).then(|| problems.join(", "));
        *self.healthy.lock() = problem.is_none().then_some(began);
        self.state.send_if_modified(|state| {
            let next = State { runtime: runtime.or_else(|| state.runtime.take()), problem: problem.clone() };
            match (&state.problem, &next.problem) {
                (None, Some(problem)) => warn!(problem, "the container runtime is not healthy"),
                (Some(_), None) => info!("the container runtime is healthy again"),
                _ => {}
            }
            let changed = *state != next;
            *state = next;
            changed
        });
        problem.map_or(Ok(()), |problem| Err(Error::unavailable(problem)))
    }

    /// Changes of the health, and events of the node.
    pub(super) fn changes(&self) -> BoxStream<'static, NodeChange> {
        let refreshes = stream::unfold(self.state.subscribe(), |mut state| async move {
            state.changed().await.ok()?;
            Some((NodeChange::Refresh, state))
        });
        let events = BroadcastStream::new(self.events.subscribe()).filter_map(|event| ready(event.ok()));
        stream::select(refreshes, events).boxed()
    }

    /// Records an event of the node.
    pub(super) fn record_event(&self, change: NodeChange) {
        let _ = self.events.send(change);
    }
}

/// The problems of a runtime that answers, with the kubelet's texts.
fn problems(runtime: &RuntimeInfo) -> Vec<String> {
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

/// The problem of the network, for pods that need one.
pub(super) fn network_problem(runtime: &RuntimeInfo) -> Option<String> {
    let condition = &runtime.network;
    (!condition.ok).then(|| {
        format!(
            "network is not ready: container runtime network not ready: NetworkReady=false reason:{} message:{}",
            condition.reason, condition.message
        )
    })
}

/// Probes the runtime periodically.
pub(super) async fn run(context: Arc<EngineContext>) {
    let work = async {
        loop {
            // A problem is recorded.
            let _ = context.health.probe(&context).await;
            tokio::time::sleep(PERIOD).await;
        }
    };
    tokio::select! {
        () = context.supervisor.stopping() => {}
        () = work => {}
    }
}
