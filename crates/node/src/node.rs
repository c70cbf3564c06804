//! The node controller: registers a Node, keeps it as the provider describes it, says at once when the provider fails,
//! and renews its lease.
//!
//! [`machine`] decides, this file acts: it makes the calls, waits for what may happen next, and tells the machine.

pub mod adopt;
pub mod desired;
pub mod instance;
pub mod lease;
pub mod machine;
pub mod metrics;
pub mod ping;
pub mod settings;
pub mod template;
pub mod watch;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::Either, stream, stream::FuturesUnordered};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, ObjectReference},
};
use rand::{SeedableRng as _, rngs::StdRng};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{error, info, warn};
use vk_kube::{Client, Error, Kind, Objects, Patch, Recorder, event::Severity, fence};
use vk_provider::{EventKind, NodeChange, Provider};
use vk_supervisor::{Clock, Supervisor};

pub use self::{
    desired::Desired,
    instance::Instance,
    lease::{Taken, Terms},
    metrics::Metrics,
    settings::{OnStop, Settings},
    template::Base,
    watch::{Shared, Sights},
};
use self::{
    lease::LeaseCall,
    machine::{Action, Event, Machine, NodeCall},
    metrics::{NodeName, Outcome},
    ping::Pong,
};
use crate::now::Now;

/// How many hints of a provider that stand in line are taken at once.
const HINTS: usize = 64;

/// All that a node controller needs.
pub struct Controller {
    /// The node as the user configured it.
    pub base: Base,
    /// What runs its pods.
    pub provider: Arc<dyn Provider>,
    /// Times and policies.
    pub settings: Settings,
    /// The API server. Where it has a fence, this controller moves it: nothing is written for the node without the lease.
    pub client: Client,
    /// Whether we act as `system:node:NAME`, under NodeRestriction.
    pub restricted: bool,
    /// How changes of the Node arrive.
    pub sights: Sights,
    /// The wall clock.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// The process that runs it: [`Instance::this`], unless a test plays several.
    pub instance: Instance,
    /// How far the node is: a latest value for others to watch.
    pub progress: tokio::sync::watch::Sender<Progress>,
    /// The Node as it was seen last, for others to watch.
    pub facts: tokio::sync::watch::Sender<Option<Arc<Node>>>,
}

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Its status was written at least once.
    pub registered: bool,
    /// It was last posted as Ready.
    pub ready: bool,
    /// Another replica leads, and this one would take over.
    pub standing_by: bool,
}

type Pending = Pin<Box<dyn Future<Output = Option<Event>> + Send>>;

struct Shell {
    name: String,
    provider: Arc<dyn Provider>,
    ping_timeout: Duration,
    lease_limit: Duration,
    nodes: Objects<Node>,
    leases: Objects<Lease>,
    recorder: Recorder,
    metrics: Metrics,
    uid: Option<String>,
    facts: tokio::sync::watch::Sender<Option<Arc<Node>>>,
    pending: FuturesUnordered<Pending>,
}

// === impl Controller ===

impl Controller {
    /// Runs until the supervisor stops and the Node was left as configured, or until another process has the node.
    /// The caller bounds the time that stopping may take.
    pub async fn run(mut self, supervisor: Supervisor) -> Result<(), Taken> {
        let start = Instant::now();
        let desired = self.describe();
        if !desired.left_out.is_empty() {
            info!(labels = ?desired.left_out, "left out labels that a node identity may not set");
        }
        let name = self.base.name.clone();
        let rng = StdRng::from_rng(&mut rand::rng());
        let mut machine = Machine::new(&name, self.instance.clone(), self.settings.clone(), desired, rng);
        let mut shell = Shell {
            provider: Arc::clone(&self.provider),
            ping_timeout: self.settings.ping_timeout,
            // A server that hangs must leave time for another try.
            lease_limit: (self.settings.lease.renew_deadline / 3).max(Duration::from_secs(1)),
            nodes: Objects::all(self.client.clone()),
            leases: Objects::namespaced(self.client.unfenced(), "kube-node-lease"),
            recorder: Recorder::new(self.client.clone(), "virtual-kubelet", &name),
            metrics: self.metrics.clone(),
            name,
            uid: None,
            facts: self.facts.clone(),
            pending: FuturesUnordered::new(),
        };
        let mut hints = match self.provider.node_changes() {
            Some(changes) => Either::Left(changes.ready_chunks(HINTS).chain(stream::pending())),
            None => Either::Right(stream::pending()),
        };
        // Whatever ends this controller, nobody writes for the node after it.
        let _closing =
            self.client.fence().map_or_else(fence::CloseOnDrop::disabled, vk_kube::Fence::close_on_drop);
        let mut stopping = false;
        let mut event = Some(Event::Tick);
        loop {
            if let Some(event) = event.take() {
                let now = Now { elapsed: start.elapsed(), wall: self.clock.now() };
                shell.note(&event);
                let actions = machine.handle(now, event);
                if let Some(fence) = self.client.fence() {
                    let limit = |permit: lease::Permit| fence::Deadline {
                        steady: start + permit.elapsed,
                        wall: permit.wall,
                    };
                    fence.set(machine.permit().map(limit));
                }
                for action in actions {
                    match action {
                        Action::Finished => return Ok(()),
                        Action::GiveUp(taken) => {
                            if self.settings.lease.standby.is_none() {
                                error!(error = %taken, "giving up");
                            }
                            return Err(taken);
                        }
                        action => shell.act(action),
                    }
                }
                self.publish(&machine);
            }
            let deadline = machine.deadline().map(|deadline| start + deadline);
            event = tokio::select! {
                Some(event) = shell.pending.next(), if !shell.pending.is_empty() => event,
                // The Node of another process is none of our business.
                Some(sight) = self.sights.next(), if machine.leads() => Some(match sight {
                    watch::Sight::Seen(node) => Event::Seen(node),
                    watch::Sight::Missing => Event::Missing,
                }),
                Some(change) = hints.next() => self.hint(change, &mut shell),
                () = until(deadline) => Some(Event::Tick),
                () = supervisor.stopping(), if !stopping => {
                    stopping = true;
                    Some(Event::Stop)
                }
            };
        }
    }

    fn describe(&self) -> Desired {
        Desired::new(&self.base, self.base.describe(self.provider.as_ref()), self.restricted)
    }

    /// The provider says that something changed. Many hints in a row count as one: the node is described anew and pinged.
    fn hint(&self, changes: Vec<NodeChange>, shell: &mut Shell) -> Option<Event> {
        let mut look = false;
        for change in changes {
            match change {
                NodeChange::Refresh => look = true,
                NodeChange::Event { kind, reason, message } => shell.announce(kind, reason, message),
            }
        }
        look.then(|| Event::Described(Box::new(self.describe())))
    }

    fn publish(&self, machine: &Machine) {
        let progress = Progress {
            registered: machine.is_registered(),
            ready: machine.is_ready(),
            standing_by: machine.is_standing_by(),
        };
        self.progress.send_if_modified(|known| std::mem::replace(known, progress) != progress);
        let label = NodeName { node: self.base.name.clone() };
        self.metrics.ready.get_or_create(&label).set(i64::from(progress.ready));
        self.metrics.leader.get_or_create(&label).set(i64::from(machine.leads()));
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

// === impl Shell ===

impl Shell {
    /// Remembers and counts what the machine is about to hear.
    fn note(&mut self, event: &Event) {
        let outcome =
            |error: Option<&Error>| Outcome { result: error.map_or("ok", |error| error.kind.name()) };
        match event {
            Event::NodeAnswer(call, answer) => {
                if let Ok(Some(node)) = answer {
                    self.uid.clone_from(&node.metadata.uid);
                    self.facts.send_replace(Some(Arc::clone(node)));
                }
                if matches!(call, NodeCall::Status(_)) {
                    self.metrics.status_writes.get_or_create(&outcome(answer.as_ref().err())).inc();
                }
            }
            Event::Seen(node) => drop(self.facts.send_replace(Some(Arc::clone(node)))),
            Event::LeaseAnswer(LeaseCall::Create(_) | LeaseCall::Renew(_), answer) => {
                self.metrics.lease_renewals.get_or_create(&outcome(answer.as_ref().err())).inc();
            }
            Event::Pong(pong) => {
                let result = match pong {
                    Pong::Well => "ok",
                    Pong::Unwell(_) => "failed",
                    Pong::Silent => "timeout",
                };
                self.metrics.pings.get_or_create(&Outcome { result }).inc();
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
                let (leases, name, limit) = (self.leases.clone(), self.name.clone(), self.lease_limit);
                self.start(async move {
                    let answer = tokio::time::timeout(limit, lease_call(&leases, &name, &call)).await;
                    let answer = answer.unwrap_or_else(|_| Err(Error::timeout(limit)));
                    Some(Event::LeaseAnswer(call, answer.map(|lease| lease.map(Box::new))))
                });
            }
            Action::Announce(kind, reason, message) => self.announce(kind, reason.to_owned(), message),
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
            let begun = Instant::now();
            let pong = match tokio::time::timeout(timeout, provider.ping()).await {
                Ok(Ok(())) => Pong::Well,
                Ok(Err(error)) => Pong::Unwell(error.report()),
                Err(_) => Pong::Silent,
            };
            seconds.observe(begun.elapsed().as_secs_f64());
            Some(Event::Pong(pong))
        });
    }

    fn announce(&mut self, kind: EventKind, reason: String, message: String) {
        let severity = match kind {
            EventKind::Normal => Severity::Normal,
            EventKind::Warning => Severity::Warning,
        };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            // As kubelets do, and as `kubectl describe node` looks for: the name stands in for an unknown UID.
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
        NodeCall::Create(body) => nodes.create(&object(body)?).await?,
        NodeCall::Adopt(operations) => nodes.patch(name, Patch::Json(operations)).await?,
        NodeCall::Metadata(body) => nodes.patch(name, Patch::Apply(body)).await?,
        NodeCall::Spec(body) => nodes.patch(name, Patch::Merge(body)).await?,
        NodeCall::Status(body) => nodes.patch_status(name, Patch::Apply(body)).await?,
        NodeCall::Addresses(body) => nodes.patch_status(name, Patch::Strategic(body)).await?,
        NodeCall::Delete { uid } => return nodes.delete(name, uid).await.map(|()| None),
    };
    Ok(Some(node))
}

async fn lease_call(leases: &Objects<Lease>, name: &str, call: &LeaseCall) -> Result<Option<Lease>, Error> {
    let lease = match call {
        LeaseCall::Read => leases.get(name).await?,
        LeaseCall::Create(body) => leases.create(&object(body)?).await?,
        LeaseCall::Renew(body) | LeaseCall::Release(body) => leases.patch(name, Patch::Merge(body)).await?,
        LeaseCall::Delete { uid } => return leases.delete(name, uid).await.map(|()| None),
    };
    Ok(Some(lease))
}

fn object<K: DeserializeOwned>(body: &Value) -> Result<K, Error> {
    K::deserialize(body).map_err(|error| {
        warn!(%error, "a body of ours is not an object of its kind");
        Error::new(Kind::Invalid, error.to_string())
    })
}
