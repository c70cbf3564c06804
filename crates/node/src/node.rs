//! The node controller: registers a Node, keeps it as the provider describes it, reports provider failures at once, and
//! renews the node's lease.
//!
//! [`state_machine`] makes the decisions. This file performs the actions, waits for the next event, and feeds it back.

pub mod desired;
pub mod go_migration;
pub mod metrics;
pub mod ping;
pub mod settings;
pub mod state_machine;
pub mod template;
pub mod watch;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::Either, stream, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tracing::{error, info};
use vk_kube::{
    Client, Error, Instance, Objects, Patch, Recorder,
    event::Severity,
    fence,
    lease::{LeaseCall, LeaseClient, LeaseConflict, LeaseLock},
};
use vk_provider::{
    EventKind, NodeChange, Provider,
    node::{Condition, ConditionStatus},
};
use vk_supervisor::{Clock, Now, Supervisor};

pub use self::{
    desired::DesiredNode,
    metrics::Metrics,
    settings::{OnStop, Settings},
    template::NodeConfig,
    watch::{NodeObservations, SharedNodeWatch},
};
use self::{
    metrics::{NodeLabel, ResultLabel},
    ping::PingResult,
    state_machine::{Action, Event, NodeCall, NodeStateMachine},
    template::declare_placement,
};
use crate::pods::{trial::takes_trials, watch_audit::AuditFailure};

/// Number of queued provider change notifications that are handled together.
const CHANGES_PER_BATCH: usize = 64;

/// The node controller and its dependencies.
pub struct Controller {
    /// The node as the user configured it.
    pub config: NodeConfig,
    /// The provider that runs the node's pods.
    pub provider: Arc<dyn Provider>,
    /// Intervals and policies.
    pub settings: Settings,
    /// The API client. If it has a fence, this controller moves it: nothing is written for the node without the lease.
    pub client: Client,
    /// We authenticate as `system:node:NAME`, so the NodeRestriction admission plugin applies.
    pub restricted: bool,
    /// Changes of the Node object.
    pub observations: NodeObservations,
    /// The wall clock.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// The process that runs the node: [`Instance::current`], except in tests with several instances.
    pub instance: Instance,
    /// Failures of the audit of the node's pod watch.
    pub audit_failure: tokio::sync::watch::Receiver<Option<Arc<AuditFailure>>>,
    /// The fingerprint of the key with which the node's kubelet API is served; `None` without a kubelet API.
    pub serving_key: tokio::sync::watch::Receiver<Option<Arc<str>>>,
    /// Publishes the node's progress.
    pub progress: tokio::sync::watch::Sender<Progress>,
    /// Publishes the last observed Node object.
    pub observed_node: tokio::sync::watch::Sender<Option<Arc<Node>>>,
}

/// Progress of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The status was written at least once.
    pub registered: bool,
    /// The last posted status was Ready.
    pub ready: bool,
    /// Another replica is the leader and this one waits to take over.
    pub on_standby: bool,
}

type Pending = Pin<Box<dyn Future<Output = Option<Event>> + Send>>;

struct ActionRunner {
    name: String,
    provider: Arc<dyn Provider>,
    ping_timeout: Duration,
    nodes: Objects<Node>,
    lease: LeaseClient,
    recorder: Recorder,
    metrics: Metrics,
    uid: Option<String>,
    observed_node: tokio::sync::watch::Sender<Option<Arc<Node>>>,
    pending: FuturesUnordered<Pending>,
}

// === impl Controller ===

impl Controller {
    /// Runs until the supervisor stops and the configured shutdown action is done, or until another process owns the node.
    /// The caller limits how long the shutdown may take.
    pub async fn run(mut self, supervisor: Supervisor) -> Result<(), LeaseConflict> {
        let start = Instant::now();
        let desired = self.describe();
        if !desired.refused_labels.is_empty() {
            info!(labels = ?desired.refused_labels, "skipped labels that a node identity may not set");
        }
        let name = self.config.name.clone();
        let rng = StdRng::from_rng(&mut rand::rng());
        let mut machine =
            NodeStateMachine::new(&name, self.instance.clone(), self.settings.clone(), desired, rng);
        let mut shell = ActionRunner {
            provider: Arc::clone(&self.provider),
            ping_timeout: self.settings.ping_timeout,
            nodes: Objects::all(self.client.clone()),
            lease: LeaseClient::new(&self.client, &LeaseLock::Node(name.clone()), &self.settings.lease),
            recorder: Recorder::new(self.client.clone(), "virtual-kubelet", &name),
            metrics: self.metrics.clone(),
            name,
            uid: None,
            observed_node: self.observed_node.clone(),
            pending: FuturesUnordered::new(),
        };
        let mut changes = match self.provider.node_changes() {
            Some(stream) => Either::Left(stream.ready_chunks(CHANGES_PER_BATCH).chain(stream::pending())),
            None => Either::Right(stream::pending()),
        };
        // However this controller ends, nothing may be written for the node afterwards.
        let _fence_guard =
            self.client.fence().map_or_else(fence::CloseOnDrop::disabled, vk_kube::Fence::close_on_drop);
        let mut stopping = false;
        let mut event = Some(Event::Tick);
        loop {
            if let Some(event) = event.take() {
                let now = Now { elapsed: start.elapsed(), wall: self.clock.now() };
                shell.record(&event);
                let actions = machine.handle(now, event);
                if let Some(fence) = self.client.fence() {
                    fence.set(machine.write_deadline().map(|deadline| deadline.for_fence(start)));
                }
                for action in actions {
                    match action {
                        Action::Finished => return Ok(()),
                        Action::GiveUp(conflict) => {
                            if self.settings.lease.standby.is_none() {
                                error!(error = %conflict, "giving up the node");
                            }
                            return Err(conflict);
                        }
                        action => shell.act(action),
                    }
                }
                self.publish(&machine);
            }
            let deadline = machine.next_deadline().map(|deadline| start + deadline);
            event = tokio::select! {
                Some(event) = shell.pending.next(), if !shell.pending.is_empty() => event,
                // While another process owns the Node, we ignore it.
                Some(observation) = self.observations.next(), if machine.is_leader() => Some(match observation {
                    watch::NodeObservation::Present(node) => Event::Seen(node),
                    watch::NodeObservation::Absent => Event::Missing,
                }),
                Some(batch) = changes.next() => self.on_node_changes(batch, &mut shell),
                Ok(()) = self.audit_failure.changed() => Some(Event::Described(Box::new(self.describe()))),
                Ok(()) = self.serving_key.changed() => Some(Event::Described(Box::new(self.describe()))),
                () = sleep_until(deadline) => Some(Event::Tick),
                () = supervisor.stopping(), if !stopping => {
                    stopping = true;
                    Some(Event::Stop)
                }
            };
        }
    }

    fn describe(&self) -> DesiredNode {
        let mut template = self.config.describe(self.provider.as_ref());
        let serving_key = self.serving_key.borrow().clone();
        let provider = self.provider.as_ref();
        let takes_trials = takes_trials(provider, &self.config.name, self.restricted);
        declare_placement(&mut template, provider.fit().is_some(), takes_trials, serving_key.as_deref());
        template.conditions.extend(self.audit_failure.borrow().as_deref().and_then(audit_condition));
        DesiredNode::new(&self.config, template, self.restricted)
    }

    /// Handles changes reported by the provider. A batch counts as one: the node is described again and pinged.
    fn on_node_changes(&self, changes: Vec<NodeChange>, shell: &mut ActionRunner) -> Option<Event> {
        let mut refresh = false;
        for change in changes {
            match change {
                NodeChange::Refresh => refresh = true,
                NodeChange::Event { kind, reason, message } => shell.record_event(kind, reason, message),
            }
        }
        refresh.then(|| Event::Described(Box::new(self.describe())))
    }

    fn publish(&self, machine: &NodeStateMachine) {
        let progress = Progress {
            registered: machine.is_registered(),
            ready: machine.is_ready(),
            on_standby: machine.is_on_standby(),
        };
        self.progress.send_if_modified(|known| std::mem::replace(known, progress) != progress);
        let label = NodeLabel { node: self.config.name.clone() };
        self.metrics.ready.get_or_create(&label).set(i64::from(progress.ready));
        self.metrics.leader.get_or_create(&label).set(i64::from(machine.is_leader()));
        let failures = self.audit_failure.borrow().as_ref().map_or(0, |failure| failure.in_a_row);
        self.metrics.audit_failures.get_or_create(&label).set(failures.into());
    }
}

/// The condition of a node whose pod watch is not audited any more. It exists only while that is so.
fn audit_condition(failure: &AuditFailure) -> Option<Condition> {
    (failure.in_a_row >= AuditFailure::WORTH_REPORTING).then(|| Condition {
        kind: "PodWatchAuditFailed".to_owned(),
        status: ConditionStatus::True,
        reason: "ListFailed".to_owned(),
        message: format!(
            "the pods cannot be listed to audit the pod watch, so a change that the watch loses is not noticed: {}",
            failure.message
        ),
    })
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

// === impl ActionRunner ===

impl ActionRunner {
    /// Updates metrics and the observed Node from an event before the state machine handles it.
    fn record(&mut self, event: &Event) {
        let outcome =
            |error: Option<&Error>| ResultLabel { result: error.map_or("ok", |error| error.kind.name()) };
        match event {
            Event::NodeAnswer(call, answer) => {
                if let Ok(Some(node)) = answer {
                    self.uid.clone_from(&node.metadata.uid);
                    self.observed_node.send_replace(Some(Arc::clone(node)));
                }
                if matches!(call, NodeCall::Status(_)) {
                    self.metrics.status_writes.get_or_create(&outcome(answer.as_ref().err())).inc();
                }
            }
            Event::Seen(node) => drop(self.observed_node.send_replace(Some(Arc::clone(node)))),
            Event::LeaseAnswer(LeaseCall::Create(_) | LeaseCall::Renew(_), answer) => {
                self.metrics.lease_renewals.get_or_create(&outcome(answer.as_ref().err())).inc();
            }
            Event::Pinged(result) => {
                let result = match result {
                    PingResult::Ok => "ok",
                    PingResult::Failed(_) => "failed",
                    PingResult::TimedOut => "timeout",
                };
                self.metrics.pings.get_or_create(&ResultLabel { result }).inc();
            }
            _ => {}
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Ping => self.ping(),
            Action::Node(call) => {
                let (nodes, name) = (self.nodes.clone(), self.name.clone());
                self.start(async move {
                    let answer = node_call(&nodes, &name, &call).await;
                    Some(Event::NodeAnswer(call, answer.map(|node| node.map(Arc::new))))
                });
            }
            Action::Lease(call) => {
                let client = self.lease.clone();
                self.start(async move {
                    let answer = client.send(&call).await;
                    Some(Event::LeaseAnswer(call, answer.map(|lease| lease.map(Box::new))))
                });
            }
            Action::RecordEvent(kind, reason, message) => self.record_event(kind, reason.to_owned(), message),
            Action::Finished | Action::GiveUp(_) => {}
        }
    }

    fn start(&mut self, future: impl Future<Output = Option<Event>> + Send + 'static) {
        self.pending.push(Box::pin(future));
    }

    fn ping(&mut self) {
        let (provider, timeout) = (Arc::clone(&self.provider), self.ping_timeout);
        let seconds = self.metrics.ping_seconds.clone();
        self.start(async move {
            let started = Instant::now();
            let result = match tokio::time::timeout(timeout, provider.ping()).await {
                Ok(Ok(())) => PingResult::Ok,
                Ok(Err(error)) => PingResult::Failed(error.report()),
                Err(_) => PingResult::TimedOut,
            };
            seconds.observe(started.elapsed().as_secs_f64());
            Some(Event::Pinged(result))
        });
    }

    fn record_event(&mut self, kind: EventKind, reason: String, message: String) {
        let severity = match kind {
            EventKind::Normal => Severity::Normal,
            EventKind::Warning => Severity::Warning,
        };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            // Like the kubelet: use the name if the UID is unknown. `kubectl describe node` searches for it.
            uid: self.uid.clone().or_else(|| Some(self.name.clone())),
            ..ObjectReference::default()
        };
        let recorder = self.recorder.clone();
        self.start(async move {
            recorder.publish(&about, severity, &reason, &message).await;
            None
        });
    }
}

async fn node_call(nodes: &Objects<Node>, name: &str, call: &NodeCall) -> Result<Option<Node>, Error> {
    let node = match call {
        NodeCall::Read => nodes.get(name).await?,
        NodeCall::Create(body) => nodes.create_value(body).await?,
        NodeCall::Migrate(operations) => nodes.patch(name, Patch::Json(operations)).await?,
        NodeCall::Metadata(body) => nodes.patch(name, Patch::Apply(body)).await?,
        NodeCall::Spec(body) => nodes.patch(name, Patch::Merge(body)).await?,
        NodeCall::Status(body) => nodes.patch_status(name, Patch::Apply(body)).await?,
        NodeCall::Addresses(body) => nodes.patch_status(name, Patch::Strategic(body)).await?,
        NodeCall::Delete { uid } => return nodes.delete(name, uid).await.map(|()| None),
    };
    Ok(Some(node))
}
