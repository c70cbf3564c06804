//! What pods need of their namespace, copied to the lower cluster: ConfigMaps, Secrets, service accounts and claims.
//!
//! [`machine`] decides, and this makes it happen: it watches above by name, as a node may, and below by label, and makes the calls.

mod calls;
mod entry;
pub mod forge;
pub mod kind;
pub mod machine;
mod reader;
pub mod twin;

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

pub(crate) use self::calls::{has_ended, names};
pub use self::{
    entry::{Call, Standing},
    kind::Kind,
};
use self::{
    machine::{Action, Event, Machine},
    twin::Place,
};
use crate::{
    dependencies::Dependencies,
    names::{Namespaces, Owner},
};

/// How long copies stay after the last pod that needs them.
pub const GRACE: Duration = Duration::from_mins(1);
/// How long a pod waits for what it needs, before it is tried again later.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a [`Reflector`] is made of.
pub struct Setup {
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
    pub namespaces: Namespaces,
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
pub struct Reflector(Arc<Shared>);

/// What the tasks have in common.
struct Shared {
    upper: Client,
    claims: Option<Client>,
    lower: Client,
    owner: Owner,
    namespaces: Namespaces,
    storage_classes: BTreeMap<String, String>,
    state: Mutex<State>,
    /// Counts what happened.
    changed: watch::Sender<u64>,
    begun: Instant,
}

struct State {
    machine: Machine,
    /// What is to be done and was not begun.
    actions: Vec<Action>,
}

/// Does what the machine says.
struct Shell {
    shared: Arc<Shared>,
    events: mpsc::Sender<PodEvent>,
    readers: HashMap<Place, AbortHandle>,
    tasks: JoinSet<()>,
}

// === impl Reflector ===

impl Reflector {
    /// Begins: what is below already is looked at, and what no pod turns out to need goes.
    pub fn new(setup: Setup) -> Self {
        let rng = StdRng::from_rng(&mut rand::rng());
        let machine = Machine::new(setup.owner.clone(), setup.namespaces.clone(), setup.grace, rng);
        let shared = Arc::new(Shared {
            upper: setup.upper,
            claims: setup.claims,
            lower: setup.lower,
            owner: setup.owner,
            namespaces: setup.namespaces,
            storage_classes: setup.storage_classes,
            state: Mutex::new(State { machine, actions: Vec::new() }),
            changed: watch::Sender::new(0),
            begun: Instant::now(),
        });
        let mut shell = Shell {
            shared: Arc::clone(&shared),
            events: setup.events,
            readers: HashMap::new(),
            tasks: JoinSet::new(),
        };
        let supervisor = setup.supervisor.clone();
        setup.supervisor.spawn("reflect", task::Kind::Critical, async move {
            tokio::select! {
                () = shell.run() => {}
                () = supervisor.stopping() => {}
            }
        });
        Self(shared)
    }

    /// Says what a pod needs, and nothing else any more, until it is [released](Self::release). Answers when all of it that is there
    /// above is there below, so that the pod can be made; what is missing above comes when it is there. To ask again is harmless.
    pub async fn want(&self, pod: &PodRef, dependencies: Dependencies) -> Result<()> {
        let namespace = &pod.namespace;
        if self.0.namespaces.below(namespace).is_none() {
            return Err(Error::invalid(format!(
                "the namespace {namespace} has no place in the lower cluster"
            )));
        }
        let mut changed = self.0.changed.subscribe();
        self.0.tell(Event::Wanted(pod.clone(), dependencies));
        let ready = async {
            loop {
                changed.mark_unchanged();
                match self.0.state.lock().machine.standing(pod) {
                    Standing::Ready => return Ok(()),
                    Standing::Failed(error) => return Err(error),
                    Standing::Waiting => {}
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let answer = tokio::time::timeout(PATIENCE, ready).await;
        let what = || {
            let state = self.0.state.lock();
            let awaited = state.machine.awaited(pod);
            awaited.map_or_else(|| "the lower namespace".to_owned(), ToString::to_string)
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
        self.0.tell(Event::Unwanted(pod.clone()));
    }
}

impl std::fmt::Debug for Reflector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reflector").field("owner", &self.0.owner).finish_non_exhaustive()
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

// === impl Shared ===

impl Shared {
    /// Tells the machine. What it says is done by the shell.
    fn tell(&self, event: Event) {
        let now = self.begun.elapsed();
        {
            let mut state = self.state.lock();
            let actions = state.machine.handle(now, event);
            state.actions.extend(actions);
        }
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}

// === impl Shell ===

impl Shell {
    async fn run(&mut self) {
        self.watch_below();
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let (actions, deadline) = {
                let mut state = self.shared.state.lock();
                (std::mem::take(&mut state.actions), state.machine.deadline())
            };
            for action in actions {
                self.act(action);
            }
            let deadline = deadline.map(|deadline| self.shared.begun + deadline);
            let due = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changed.changed() => {}
                () = due => self.shared.tell(Event::Tick),
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        error!(%error, "a task of the reflector failed");
                    }
                }
            }
        }
    }

    /// Watches our copies, in all namespaces or in those that there are.
    fn watch_below(&mut self) {
        for scope in self.shared.namespaces.scopes() {
            let shared = || Arc::clone(&self.shared);
            self.tasks.spawn(reader::below::<ConfigMap>(shared(), scope.clone()));
            self.tasks.spawn(reader::below::<Secret>(shared(), scope.clone()));
            self.tasks.spawn(reader::below::<ServiceAccount>(shared(), scope.clone()));
            self.tasks.spawn(reader::below::<PersistentVolumeClaim>(shared(), scope));
        }
    }

    fn act(&mut self, action: Action) {
        let shared = Arc::clone(&self.shared);
        match action {
            Action::Watch(place, source) => {
                let (key, tasks) = (place.clone(), &mut self.tasks);
                let reader = match place.kind {
                    Kind::ConfigMap => tasks.spawn(reader::above::<ConfigMap>(shared, place, source)),
                    Kind::Secret => tasks.spawn(reader::above::<Secret>(shared, place, source)),
                    Kind::ServiceAccount => {
                        tasks.spawn(reader::above::<ServiceAccount>(shared, place, source))
                    }
                    Kind::Claim => tasks.spawn(reader::above::<PersistentVolumeClaim>(shared, place, source)),
                };
                if let Some(before) = self.readers.insert(key, reader) {
                    before.abort();
                }
            }
            Action::Unwatch(place) => {
                if let Some(reader) = self.readers.remove(&place) {
                    reader.abort();
                }
            }
            Action::Call(place, call) => {
                debug!(%place, ?call, "a call below");
                self.tasks.spawn(calls::run(shared, place, call));
            }
            Action::Settle { below, above } => {
                self.tasks.spawn(calls::settle(shared, below, above));
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
