//! What pods need of their namespace, to_copy to the lower cluster: ConfigMaps, Secrets, service accounts and claims.
//!
//! [`state_machine`] decides, and this makes it happen: it watches above by name, as a node may, and below by label, and makes the calls.

pub mod build;
mod calls;
mod copy_state;
pub mod diff;
pub mod kind;
pub mod state_machine;
mod watches;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tracing::{debug, error};
use vk_kube::{Client, Kind as ErrorKind};
use vk_provider::{Error, EventKind, PodEvent, PodRef, Result, error};
use vk_supervisor::{Supervisor, task};

pub(crate) use self::calls::{has_ended, references};
pub use self::{
    copy_state::{Call, Readiness},
    kind::Kind,
};
use self::{
    diff::CopyKey,
    state_machine::{Action, CopyStateMachine, Event},
};
use crate::{
    dependencies::Dependencies,
    names::{NamespaceMapping, Owner},
};

/// How long copies stay after the last pod that needs them.
pub const GRACE: Duration = Duration::from_mins(1);
/// How long a pod waits for what it needs, before it is tried again later.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a [`Copier`] is made of.
pub struct CopierOptions {
    /// The upper cluster. To read single objects by name suffices.
    pub upper: Client,
    /// The upper cluster as one who may read claims also when no pod on the node names them any more, as a node may not; `None` if there is
    /// nobody.
    pub claims: Option<Client>,
    /// The lower cluster.
    pub lower: Client,
    /// Whose the copies are.
    pub owner: Owner,
    /// What namespaces are called below.
    pub namespaces: NamespaceMapping,
    /// What StorageClasses are called below; others keep their names.
    pub storage_classes: BTreeMap<String, String>,
    /// Owns the tasks.
    pub supervisor: Supervisor,
    /// Takes what users of pods should know.
    pub events: mpsc::Sender<PodEvent>,
    /// How long copies stay after the last pod that needs them: [`GRACE`], but for tests.
    pub grace: Duration,
}

/// Copies what pods need to the lower cluster, and takes it away when no pod needs it any more. Clones are the same.
#[derive(Clone)]
pub struct Copier(Arc<Inner>);

/// What the tasks have in common.
struct Inner {
    upper: Client,
    claims: Option<Client>,
    lower: Client,
    owner: Owner,
    namespaces: NamespaceMapping,
    storage_classes: BTreeMap<String, String>,
    state: Mutex<State>,
    /// Counts what happened.
    changed: watch::Sender<u64>,
    started: Instant,
}

struct State {
    state_machine: CopyStateMachine,
    /// What is to be done and was not started.
    actions: Vec<Action>,
}

/// Does what the state_machine says.
struct Executor {
    inner: Arc<Inner>,
    events: mpsc::Sender<PodEvent>,
    readers: HashMap<CopyKey, AbortHandle>,
    tasks: JoinSet<()>,
}

// === impl Copier ===

impl Copier {
    /// Begins: what is below already is looked at, and what no pod turns out to need goes.
    pub fn new(options: CopierOptions) -> Self {
        let rng = StdRng::from_rng(&mut rand::rng());
        let state_machine =
            CopyStateMachine::new(options.owner.clone(), options.namespaces.clone(), options.grace, rng);
        let inner = Arc::new(Inner {
            upper: options.upper,
            claims: options.claims,
            lower: options.lower,
            owner: options.owner,
            namespaces: options.namespaces,
            storage_classes: options.storage_classes,
            state: Mutex::new(State { state_machine, actions: Vec::new() }),
            changed: watch::Sender::new(0),
            started: Instant::now(),
        });
        let mut executor = Executor {
            inner: Arc::clone(&inner),
            events: options.events,
            readers: HashMap::new(),
            tasks: JoinSet::new(),
        };
        let supervisor = options.supervisor.clone();
        options.supervisor.spawn("reflect", task::Kind::Critical, async move {
            tokio::select! {
                () = executor.run() => {}
                () = supervisor.stopping() => {}
            }
        });
        Self(inner)
    }

    /// Says what a pod needs, and nothing else any more, until it is [released](Self::release). Answers when all of it that is there
    /// above is there below, so that the pod can be made; what is missing above comes when it is there. To ask again is harmless.
    pub async fn ensure(&self, pod: &PodRef, dependencies: Dependencies) -> Result<()> {
        let namespace = &pod.namespace;
        if self.0.namespaces.to_lower(namespace).is_none() {
            return Err(Error::invalid(format!("the namespace {namespace} has no key in the lower cluster")));
        }
        let mut changed = self.0.changed.subscribe();
        self.0.handle(Event::PodAdded(pod.clone(), dependencies));
        let ready = async {
            loop {
                changed.mark_unchanged();
                match self.0.state.lock().state_machine.readiness(pod) {
                    Readiness::Ready => return Ok(()),
                    Readiness::Failed(error) => return Err(error),
                    Readiness::Waiting => {}
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let answer = tokio::time::timeout(PATIENCE, ready).await;
        let what = || {
            let state = self.0.state.lock();
            let pending_copy = state.state_machine.pending_copy(pod);
            pending_copy.map_or_else(|| "the lower namespace".to_owned(), ToString::to_string)
        };
        match answer {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                Err(Error::new(kind_of(&failure), format!("copy what the pod needs: {}: {failure}", what())))
            }
            Err(_) => Err(Error::unavailable(format!(
                "copy what the pod needs: {} is not there after {PATIENCE:?}",
                what()
            ))),
        }
    }

    /// A pod is gone or has ended, and needs nothing any more.
    pub fn release(&self, pod: &PodRef) {
        self.0.handle(Event::PodRemoved(pod.clone()));
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

/// What it means for the pod that a call failed. Nothing of it is for ever: objects change.
fn kind_of(error: &vk_kube::Error) -> error::Kind {
    match error.kind {
        ErrorKind::Forbidden | ErrorKind::Unauthorized | ErrorKind::Invalid => error::Kind::Denied,
        ErrorKind::Throttled => error::Kind::Throttled { after: error.retry_after },
        _ => error::Kind::Unavailable,
    }
}

// === impl Inner ===

impl Inner {
    /// Tells the state_machine. What it says is done by the executor.
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
        self.watch_copies();
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
                        error!(%error, "a task of the copier failed");
                    }
                }
            }
        }
    }

    /// Watches our copies, in all namespaces or in those that there are.
    fn watch_copies(&mut self) {
        for scope in self.inner.namespaces.scopes() {
            let inner = || Arc::clone(&self.inner);
            self.tasks.spawn(watches::watch_lower::<ConfigMap>(inner(), scope.clone()));
            self.tasks.spawn(watches::watch_lower::<Secret>(inner(), scope.clone()));
            self.tasks.spawn(watches::watch_lower::<ServiceAccount>(inner(), scope.clone()));
            self.tasks.spawn(watches::watch_lower::<PersistentVolumeClaim>(inner(), scope));
        }
    }

    fn act(&mut self, action: Action) {
        let inner = Arc::clone(&self.inner);
        match action {
            Action::Watch(key, source) => {
                let (watched, tasks) = (key.clone(), &mut self.tasks);
                let reader = match key.kind {
                    Kind::ConfigMap => tasks.spawn(watches::watch_upper::<ConfigMap>(inner, key, source)),
                    Kind::Secret => tasks.spawn(watches::watch_upper::<Secret>(inner, key, source)),
                    Kind::ServiceAccount => {
                        tasks.spawn(watches::watch_upper::<ServiceAccount>(inner, key, source))
                    }
                    Kind::Claim => {
                        tasks.spawn(watches::watch_upper::<PersistentVolumeClaim>(inner, key, source))
                    }
                };
                if let Some(before) = self.readers.insert(watched, reader) {
                    before.abort();
                }
            }
            Action::Unwatch(key) => {
                if let Some(reader) = self.readers.remove(&key) {
                    reader.abort();
                }
            }
            Action::Call(key, call) => {
                debug!(%key, ?call, "a call below");
                self.tasks.spawn(calls::execute(inner, key, call));
            }
            Action::EnsureNamespace { lower, upper } => {
                self.tasks.spawn(calls::ensure_namespace(inner, lower, upper));
            }
            Action::Warn { pod, reason, message } => {
                let event = PodEvent {
                    pod,
                    container: None,
                    kind: EventKind::Warning,
                    reason: reason.to_owned(),
                    message,
                };
                // Whoever does not listen is not waited for.
                if let Err(lost) = self.events.try_send(event) {
                    debug!(%lost, "an event on a pod is dropped");
                }
            }
        }
    }
}
