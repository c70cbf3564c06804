//! Runs the state machine of placement: watches the upper cluster, asks nodes, and makes calls.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference, Pod};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use vk_kube::{Client, Kind, Objects, Partial, Recorder, Selector, Slim, WatchEvent};
use vk_provider::PodRef;
use vk_supervisor::{Backoff, Clock, Now, Supervisor};

use crate::{
    api_calls::ApiCalls,
    ask::FitClient,
    avoid::AvoidTable,
    cluster_state::trim_node,
    effect::{ApiCall, Effect, Input, Method, Outcome, TrialOutcome},
    metrics::{CauseLabel, Metrics, PlacementLabel, ResultLabel, TrialLabel},
    names,
    pod_state::trim_succeeded_pod,
    policy::NAME,
    state_machine::{PlacementStateMachine, Settings},
    watched_pod::WatchedPod,
};

/// Pods that can run or be placed.
pub(crate) const ACTIVE_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Pods that have done their work.
const SUCCEEDED_PODS: &str = "status.phase=Succeeded";
/// Events of a watch that are handled together.
const EVENTS_PER_BATCH: usize = 256;
/// Events that are written at the same time. More are dropped: the conditions of the pods say the same.
const CONCURRENT_EVENTS: usize = 64;
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// The component that events name.
const COMPONENT: &str = "placement";

/// Places pods, as long as it runs: only the leader may run it.
pub struct Controller {
    /// Writes are fenced by the lease.
    pub client: Client,
    /// Asks nodes.
    pub fit_client: FitClient,
    /// What placement does.
    pub settings: Settings,
    /// The namespace of the ConfigMap.
    pub namespace: String,
    /// The wall clock.
    pub clock: Clock,
    /// The metrics.
    pub metrics: Metrics,
}

type Pending = Pin<Box<dyn Future<Output = Option<Input>> + Send>>;

struct EffectRunner {
    calls: ApiCalls,
    fit_client: FitClient,
    recorder: Recorder,
    metrics: Metrics,
    pending: FuturesUnordered<Pending>,
    events: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

// === impl Controller ===

impl Controller {
    /// Runs until the supervisor stops. All that matters is on the pods and in the ConfigMap: another process can go on at any moment.
    pub async fn run(self, supervisor: Supervisor) {
        let start = Instant::now();
        let rng = StdRng::from_rng(&mut rand::rng());
        let avoid = tokio::select! {
            avoid = self.read_avoid_table() => avoid,
            () = supervisor.stopping() => return,
        };
        let mut machine = PlacementStateMachine::new(self.settings.clone(), avoid, rng);
        let mut runner = EffectRunner {
            calls: ApiCalls {
                client: self.client.clone(),
                namespace: self.namespace.clone(),
                clock: self.clock.clone(),
            },
            fit_client: self.fit_client.clone(),
            recorder: Recorder::new(self.client.clone(), COMPONENT, COMPONENT),
            metrics: self.metrics.clone(),
            pending: FuturesUnordered::new(),
            events: FuturesUnordered::new(),
        };
        let nodes = Objects::<Slim<Node>>::all(self.client.clone());
        let nodes = nodes.watch_trimmed(&Selector::default(), |node| trim_node(&mut node.0));
        let pods = Objects::<WatchedPod>::all(self.client.clone());
        let active = Selector { fields: Some(ACTIVE_PODS.to_owned()), ..Selector::default() };
        let pods = pods.watch(&active);
        let succeeded = Objects::<WatchedPod>::all(self.client.clone());
        let of_groups =
            Selector { fields: Some(SUCCEEDED_PODS.to_owned()), labels: Some(names::GROUP.to_owned()) };
        let succeeded = succeeded.watch_trimmed(&of_groups, |pod| trim_succeeded_pod(&mut pod.0));
        let mut succeeded = Box::pin(succeeded.ready_chunks(EVENTS_PER_BATCH));
        let mut nodes = Box::pin(nodes.ready_chunks(EVENTS_PER_BATCH));
        let mut pods = Box::pin(pods.ready_chunks(EVENTS_PER_BATCH));
        // Nodes, and pods that have succeeded, of the list in progress.
        let (mut listed, mut listed_succeeded) = (None, None);
        let mut inputs = Vec::new();
        loop {
            let now = Now { elapsed: start.elapsed(), wall: self.clock.now() };
            for effect in machine.handle(now, inputs.drain(..)) {
                runner.run(effect);
            }
            self.publish(&machine);
            let deadline = machine.next_deadline().map(|deadline| start + deadline);
            tokio::select! {
                Some(events) = nodes.next() => {
                    inputs.extend(events.into_iter().filter_map(|event| node_input(event, &mut listed)));
                }
                Some(events) = pods.next() => inputs.extend(events.into_iter().filter_map(pod_input)),
                Some(events) = succeeded.next() => {
                    let events = events.into_iter();
                    inputs.extend(events.filter_map(|event| succeeded_input(event, &mut listed_succeeded)));
                }
                Some(input) = runner.pending.next(), if !runner.pending.is_empty() => inputs.extend(input),
                Some(()) = runner.events.next(), if !runner.events.is_empty() => {}
                () = sleep_until(deadline) => {}
                () = supervisor.stopping() => return,
            }
        }
    }

    /// Reads what an earlier process has recorded.
    async fn read_avoid_table(&self) -> AvoidTable {
        let mut table = AvoidTable::default();
        let (mut backoff, mut rng) =
            (Backoff::new(FIRST_RETRY, LAST_RETRY), StdRng::from_rng(&mut rand::rng()));
        let maps = Objects::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        loop {
            match maps.get(NAME).await {
                Ok(map) => {
                    table.load(&map.data.unwrap_or_default());
                    return table;
                }
                Err(error) if matches!(error.kind, Kind::NotFound | Kind::Forbidden) => {
                    warn!(%error, "cannot read the ConfigMap of placement: nodes to avoid are not known");
                    return table;
                }
                Err(error) => {
                    debug!(%error, "cannot read the ConfigMap of placement: will retry");
                    tokio::time::sleep(backoff.next(error.retry_after, &mut rng)).await;
                }
            }
        }
    }

    fn publish(&self, machine: &PlacementStateMachine) {
        for (cause, pods) in machine.waiting() {
            let gauge = self.metrics.waiting_pods.get_or_create(&CauseLabel { cause });
            gauge.set(i64::try_from(pods).unwrap_or(i64::MAX));
        }
        self.metrics.snapshot_repairs.set(i64::try_from(machine.repairs()).unwrap_or(i64::MAX));
    }
}

fn node_input(event: WatchEvent<Slim<Node>>, listed: &mut Option<Vec<Arc<str>>>) -> Option<Input> {
    match event {
        WatchEvent::Restarted => {
            *listed = Some(Vec::new());
            None
        }
        WatchEvent::Applied(Slim(node)) => {
            if let Some(listed) = listed {
                listed.push(node.metadata.name.as_deref().unwrap_or_default().into());
            }
            Some(Input::Node(Box::new(node)))
        }
        WatchEvent::Deleted(Slim(node)) => {
            let name = node.metadata.name.unwrap_or_default();
            if let Some(listed) = listed {
                listed.retain(|listed| **listed != *name);
            }
            Some(Input::NodeGone(name))
        }
        WatchEvent::Listed => Some(Input::NodesListed(listed.take().unwrap_or_default())),
        WatchEvent::Error(_) => None,
    }
}

fn pod_input(event: WatchEvent<WatchedPod>) -> Option<Input> {
    Some(match event {
        WatchEvent::Restarted => Input::PodsRestarted,
        WatchEvent::Applied(Partial(pod)) => Input::Pod(Arc::new(pod)),
        WatchEvent::Deleted(Partial(pod)) => Input::PodGone(Arc::new(pod)),
        WatchEvent::Listed => Input::PodsListed,
        WatchEvent::Error(_) => return None,
    })
}

fn succeeded_input(event: WatchEvent<WatchedPod>, listed: &mut Option<Vec<Arc<str>>>) -> Option<Input> {
    let uid = |pod: &Pod| pod.metadata.uid.as_deref().map(Arc::<str>::from);
    match event {
        WatchEvent::Restarted => {
            *listed = Some(Vec::new());
            None
        }
        WatchEvent::Applied(Partial(pod)) => {
            if let Some(listed) = listed {
                listed.extend(uid(&pod));
            }
            Some(Input::PodSucceeded(Arc::new(pod)))
        }
        WatchEvent::Deleted(Partial(pod)) => {
            let uid = uid(&pod)?;
            if let Some(listed) = listed {
                listed.retain(|listed| *listed != uid);
            }
            Some(Input::SucceededPodGone(uid))
        }
        WatchEvent::Listed => Some(Input::SucceededPodsListed(listed.take().unwrap_or_default())),
        WatchEvent::Error(_) => None,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

// === impl EffectRunner ===

impl EffectRunner {
    fn run(&mut self, effect: Effect) {
        match effect {
            Effect::Ask(id, node, query) => {
                let (client, metrics) = (self.fit_client.clone(), self.metrics.clone());
                self.pending.push(Box::pin(async move {
                    let answer = metrics.observe_query(&client, &node, &query).await;
                    Some(Input::FitAnswered(id, answer.map_err(|error| error.to_string())))
                }));
            }
            Effect::Call(id, call) => {
                let calls = self.calls.clone();
                self.pending.push(Box::pin(async move {
                    let answer = calls.send(call.clone()).await;
                    log(&call, answer.as_ref().err());
                    Some(Input::Answered(id, answer))
                }));
            }
            Effect::RecordEvent(pod, severity, reason, message) => {
                if self.events.len() >= CONCURRENT_EVENTS {
                    return debug!(%pod, reason, message, "too many events: not recorded");
                }
                let recorder = self.recorder.clone();
                self.events.push(Box::pin(async move {
                    recorder.publish(&reference(&pod), severity, reason, &message).await;
                }));
            }
            Effect::Count(outcome) => self.count(&outcome),
        }
    }

    fn count(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Placed { method, waited } => {
                let (method, answer) = match method {
                    Method::Fits => ("estimate", "fits"),
                    Method::Unknown => ("estimate", "unknown"),
                    Method::Trial => ("trial", "accepted"),
                };
                self.metrics.placements.get_or_create(&PlacementLabel { method, answer }).inc();
                self.metrics.placement_seconds.observe(waited.as_secs_f64());
            }
            Outcome::Trial(outcome) => {
                let outcome = match outcome {
                    TrialOutcome::Accepted => "accepted",
                    TrialOutcome::Refused => "refused",
                    TrialOutcome::NotScheduled => "not_scheduled",
                    TrialOutcome::NotConfirmed => "not_confirmed",
                };
                self.metrics.trials.get_or_create(&TrialLabel { outcome }).inc();
            }
            Outcome::NotBound => drop(self.metrics.not_bound.inc()),
            Outcome::Evicted { dry_run } => {
                let result = if *dry_run { "dry_run" } else { "evicted" };
                self.metrics.evictions.get_or_create(&ResultLabel { result }).inc();
            }
            Outcome::EvictionRefused => {
                self.metrics.evictions.get_or_create(&ResultLabel { result: "refused" }).inc();
            }
        }
    }
}

fn log(call: &ApiCall, error: Option<&vk_kube::Error>) {
    match (call, error) {
        (ApiCall::Ungate { pod, .. }, None) => debug!(%pod, "removed the scheduling gate"),
        (ApiCall::Evict { pod, .. }, None) => info!(%pod, "evicted"),
        (_, None) => {}
        (call, Some(error)) if error.kind == Kind::Conflict => {
            debug!(?call, %error, "the object has changed");
        }
        (call, Some(error)) if crate::effect::is_gone(error) => debug!(?call, %error, "the object is gone"),
        (call, Some(error)) => warn!(?call, %error, "call failed"),
    }
}

fn reference(pod: &PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.to_string()),
        name: Some(pod.name.to_string()),
        uid: Some(pod.uid.to_string()),
        ..ObjectReference::default()
    }
}

/// Runs the controller whenever this process leads, and stops it when it does not any more.
pub async fn run_while_leading(
    make: impl Fn() -> Controller,
    mut leading: tokio::sync::watch::Receiver<bool>,
    supervisor: Supervisor,
) {
    /// How long a session may take to end.
    const SESSION_END: Duration = Duration::from_secs(5);
    loop {
        tokio::select! {
            led = leading.wait_for(|leads| *leads) => if led.is_err() { return },
            () = supervisor.stopping() => return,
        }
        info!("placing pods");
        let session = supervisor.child();
        let controller = make();
        controller.metrics.leader.set(1);
        let metrics = controller.metrics.clone();
        tokio::select! {
            () = controller.run(session.clone()) => {}
            // Any change: a loss may be over already.
            _ = leading.changed() => {}
        }
        metrics.leader.set(0);
        session.shut_down(SESSION_END).await;
        if supervisor.is_stopping() {
            return;
        }
        warn!("another process may place pods now: standing by");
    }
}
