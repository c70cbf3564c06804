//! Copies of the ConfigMaps, Secrets, service accounts and claims that pods refer to, in the lower cluster.
//!
//! [`state_machine`] makes the decisions. This module feeds it with watches and executes its actions. Upper objects are watched by
//! namespace where the process may list them, else by name, as a node may. Copies are watched by label, once for all virtual nodes.

pub mod build;
mod calls;
mod copy_state;
pub mod diff;
pub mod kind;
mod namespace_watch;
pub mod state_machine;
mod watches;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ServiceAccount;
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tracing::{debug, error};
use vk_kube::{Client, Kind as ErrorKind};
use vk_provider::{
    Error, EventKind, PodEvent, PodRef, Result, error,
    resolve::{Reference, ReferenceKind},
};
use vk_supervisor::{Clock, Supervisor, task};

pub(crate) use self::{calls::references, kind::referenced_objects};
pub use self::{
    copy_state::{Deletion, LowerCall, Readiness, UseCheck},
    kind::{KeptMetadata, Kind},
    namespace_watch::UpperWatches,
    state_machine::GRACE,
};
use self::{
    diff::{CopyKey, UpperRef},
    state_machine::{Action, CopyStateMachine, Event},
};
use crate::{
    dependencies::Dependencies,
    lower_cluster::{CopyListener, LowerCluster},
    names::{NamespaceMapping, OwnerId},
    retirement_marks::RetirementMarks,
};

/// The reason of pods that wait because an object of somebody else has a name that they need.
pub const NAME_CONFLICT: &str = "NameConflict";
/// How long a pod waits for its copies before the call fails and is retried later.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a [`Copier`] needs.
pub struct CopierOptions {
    /// A client of the upper cluster. Read access to single objects by name is enough.
    pub upper: Client,
    /// A client of the upper cluster that may read claims which no pod on the node refers to any more; a node may not. `None` if there is
    /// no such client.
    pub claims: Option<Client>,
    /// The watches of whole upper namespaces, which the process may have the permission for. `None` to watch objects one by one.
    pub upper_watches: Option<Arc<UpperWatches>>,
    /// A client of the lower cluster, for writes.
    pub lower: Client,
    /// The lower cluster, whose watches all virtual nodes share.
    pub lower_cluster: LowerCluster,
    /// The owner of the copies.
    pub owner: OwnerId,
    /// Names of upper namespaces in the lower cluster.
    pub namespaces: NamespaceMapping,
    /// Names of StorageClasses in the lower cluster; classes that are not listed keep their names.
    pub storage_classes: BTreeMap<String, String>,
    /// The labels and annotations that copies keep.
    pub metadata: KeptMetadata,
    /// Owns the tasks.
    pub supervisor: Supervisor,
    /// Receives warnings for the upper pods.
    pub events: mpsc::Sender<PodEvent>,
    /// How long copies stay after the last pod that needs them. Always [`GRACE`] outside of tests.
    pub grace: Duration,
    /// How long a lower namespace stays after the last pod and copy in it.
    pub namespace_retention: Duration,
    /// The clock of the marks on namespaces that are being removed.
    pub clock: Clock,
}

/// Copies the dependencies of pods to the lower cluster, and deletes them when no pod needs them any more. Clones share state.
#[derive(Clone)]
pub struct Copier(Arc<Inner>);

struct Inner {
    upper: Client,
    claims: Option<Client>,
    upper_watches: Option<Arc<UpperWatches>>,
    lower: Client,
    lower_cluster: LowerCluster,
    owner: OwnerId,
    namespaces: NamespaceMapping,
    storage_classes: BTreeMap<String, String>,
    metadata: KeptMetadata,
    state: Mutex<State>,
    /// Incremented with each event.
    changed: watch::Sender<u64>,
    started: Instant,
    marks: RetirementMarks,
}

struct State {
    state_machine: CopyStateMachine,
    /// Actions that the executor has not taken yet.
    actions: Vec<Action>,
}

/// Executes the actions of the state machine.
struct Executor {
    inner: Arc<Inner>,
    events: mpsc::Sender<PodEvent>,
    watches_by_key: HashMap<CopyKey, AbortHandle>,
    tasks: JoinSet<()>,
    /// Counts the tasks: a session has ended when they have.
    supervisor: Supervisor,
}

// === impl Copier ===

impl Copier {
    /// Starts watching and copying. Copies found in the lower cluster that no pod needs are deleted after the grace period.
    pub fn new(options: CopierOptions) -> Self {
        let rng = StdRng::from_rng(&mut rand::rng());
        let times = (options.grace, options.namespace_retention);
        let state_machine =
            CopyStateMachine::new(options.owner.clone(), options.namespaces.clone(), times, rng);
        let inner = Arc::new(Inner {
            upper: options.upper,
            claims: options.claims,
            upper_watches: options.upper_watches,
            lower: options.lower,
            lower_cluster: options.lower_cluster,
            owner: options.owner,
            namespaces: options.namespaces,
            storage_classes: options.storage_classes,
            metadata: options.metadata,
            state: Mutex::new(State { state_machine, actions: Vec::new() }),
            changed: watch::Sender::new(0),
            started: Instant::now(),
            marks: RetirementMarks::new(options.clock),
        });
        let mut executor = Executor {
            inner: Arc::clone(&inner),
            events: options.events,
            watches_by_key: HashMap::new(),
            tasks: JoinSet::new(),
            supervisor: options.supervisor.clone(),
        };
        let supervisor = options.supervisor.clone();
        options.supervisor.spawn("copier", task::Kind::Critical, async move {
            tokio::select! {
                () = executor.run() => {}
                () = supervisor.stopping() => {}
            }
        });
        Self(inner)
    }

    /// Declares all dependencies of a pod, which replace those of an earlier call, until it is [released](Self::release). Returns when
    /// every name that the pod refers to is an up-to-date copy of ours in the lower cluster. Fails with [`NAME_CONFLICT`] if an object of
    /// somebody else has such a name, and as unresolved if an object is missing that the pod needs. Idempotent.
    pub async fn ensure(&self, pod: &PodRef, dependencies: Dependencies) -> Result<()> {
        let namespace = &pod.namespace;
        if self.0.namespaces.to_lower(namespace).is_none() {
            return Err(Error::invalid(format!(
                "the namespace {namespace} is not mapped to the lower cluster: see `namespaces` in the configuration of the provider"
            )));
        }
        let mut changed = self.0.changed.subscribe();
        self.0.handle(Event::PodAdded(pod.clone(), dependencies));
        let ready = async {
            loop {
                changed.mark_unchanged();
                match self.0.state.lock().state_machine.readiness(pod) {
                    Readiness::Waiting => {}
                    readiness => return readiness,
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let readiness = tokio::time::timeout(TIMEOUT, ready).await;
        let state = self.0.state.lock();
        let pending = state.state_machine.pending_copy(pod);
        let name = pending.map_or_else(|| "the lower namespace".to_owned(), |(key, _)| key.to_string());
        match readiness {
            Ok(Readiness::Ready) => Ok(()),
            Ok(Readiness::Conflict) => Err(Error::new(
                error::Kind::Blocked(NAME_CONFLICT),
                format!(
                    "{NAME_CONFLICT}: the lower cluster has a {name} that is not a copy of ours: it stays, and the pod waits until it is \
                     gone"
                ),
            )),
            Ok(Readiness::Missing) => Err(missing(pending)),
            Ok(Readiness::Failed(failure)) => {
                let message = format!("copy the dependencies of the pod: {name}: {failure}");
                Err(Error::new(error_kind(&failure), message))
            }
            Ok(Readiness::Waiting) | Err(_) => Err(Error::unavailable(format!(
                "copy the dependencies of the pod: {name} is missing after {TIMEOUT:?}"
            ))),
        }
    }

    /// Drops the dependencies of a pod that was deleted or has ended.
    pub fn release(&self, pod: &PodRef) {
        self.0.handle(Event::PodRemoved(pod.clone()));
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

/// The error for a pod that needs an object which does not exist in the upper cluster: the core waits for it.
fn missing(pending: Option<(&CopyKey, &UpperRef)>) -> Error {
    let Some((key, source)) = pending else { return Error::unavailable("the copies of the pod changed") };
    let kind = match key.kind {
        Kind::ConfigMap => ReferenceKind::ConfigMap,
        Kind::Secret => ReferenceKind::Secret,
        Kind::ServiceAccount => ReferenceKind::ServiceAccount,
        Kind::Claim => ReferenceKind::PersistentVolumeClaim,
    };
    let reference = Reference::new(kind, source.namespace.clone(), source.name.clone());
    let message = format!(
        "{} {}/{} does not exist, or must not be copied: the pod is created in the lower cluster when it does",
        key.kind, source.namespace, source.name
    );
    Error::new(error::Kind::Unresolved(reference), message)
}

/// The provider error kind for a failed call. None of them is permanent, because objects change.
fn error_kind(error: &vk_kube::Error) -> error::Kind {
    match error.kind {
        ErrorKind::Forbidden | ErrorKind::Unauthorized | ErrorKind::Invalid => error::Kind::Denied,
        ErrorKind::Throttled => error::Kind::Throttled { after: error.retry_after },
        _ => error::Kind::Unavailable,
    }
}

/// Reports one upper object. Never returns.
async fn watch_upper(inner: Arc<Inner>, key: CopyKey, source: UpperRef) {
    let shared = inner.upper_watches.clone();
    let shared = shared.as_deref();
    match key.kind {
        Kind::ConfigMap => watches::watch_upper(inner, shared.map(|all| &all.config_maps), key, source).await,
        Kind::Secret => watches::watch_upper(inner, shared.map(|all| &all.secrets), key, source).await,
        Kind::Claim => watches::watch_upper(inner, shared.map(|all| &all.claims), key, source).await,
        Kind::ServiceAccount => watches::watch_upper::<ServiceAccount>(inner, None, key, source).await,
    }
}

// === impl Inner ===

impl CopyListener for Inner {
    fn copy_event(&self, event: Event) {
        self.handle(event);
    }
}

impl Inner {
    /// Passes an event to the state machine. The executor picks up the resulting actions.
    fn handle(&self, event: Event) {
        let now = self.started.elapsed();
        {
            let mut state = self.state.lock();
            let actions = state.state_machine.handle(now, event);
            state.actions.extend(actions);
        }
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}

// === impl Executor ===

impl Executor {
    async fn run(&mut self) {
        let listener: Arc<dyn CopyListener> = Arc::<Inner>::clone(&self.inner);
        self.inner.lower_cluster.listen_to_copies(&listener);
        let mut changed = self.inner.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let (actions, deadline) = {
                let mut state = self.inner.state.lock();
                (std::mem::take(&mut state.actions), state.state_machine.deadline())
            };
            for action in actions {
                self.act(action);
            }
            let deadline = deadline.map(|deadline| self.inner.started + deadline);
            let due = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changed.changed() => {}
                () = due => self.inner.handle(Event::Tick),
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        error!(%error, "a task of the copier panicked");
                    }
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        let inner = Arc::clone(&self.inner);
        match action {
            Action::Watch(key, source) => {
                let (watched, tasks, supervisor) = (key.clone(), &mut self.tasks, &self.supervisor);
                let reader = tasks.spawn(supervisor.track(watch_upper(inner, key, source)));
                if let Some(before) = self.watches_by_key.insert(watched, reader) {
                    before.abort();
                }
            }
            Action::Unwatch(key) => {
                if let Some(reader) = self.watches_by_key.remove(&key) {
                    reader.abort();
                }
            }
            Action::Call(key, call) => {
                debug!(%key, ?call, "call the lower cluster");
                self.tasks.spawn(self.supervisor.track(calls::execute(inner, key, call)));
            }
            Action::EnsureNamespace { lower, upper } => {
                self.tasks.spawn(self.supervisor.track(calls::ensure_namespace(inner, lower, upper)));
            }
            Action::RetireNamespace(lower) => {
                self.tasks.spawn(self.supervisor.track(calls::retire_namespace(inner, lower)));
            }
            Action::Warn { pod, reason, message } => {
                let event = PodEvent {
                    pod,
                    container: None,
                    kind: EventKind::Warning,
                    reason: reason.to_owned(),
                    message,
                };
                // Events are best effort: a slow receiver must not block the copier.
                if let Err(lost) = self.events.try_send(event) {
                    debug!(%lost, "dropped an event of a pod");
                }
            }
        }
    }
}
