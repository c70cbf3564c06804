//! The observed runtime state of a pod. Details are fetched only for objects that changed or may still change.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;
use vk_provider::{Error, Result, error::Kind};
use vk_supervisor::Backoff;

use super::{
    actor::RETRY_AFTER_FAILURE, checkpoint::PodCheckpoint, context::PodScope, pod_handle::PodListing,
};
use crate::{
    backend::{ContainerEntry, RuntimeInfo, SandboxEntry, full_message},
    containers::find_container,
    snapshot::{Container, ContainerState, Sandbox, Snapshot},
    volume::termination_message,
};

/// How long after its exit a killed container is inspected again, because its exit reason may still change.
const EXIT_REASON_WINDOW: Duration = Duration::from_secs(3);
/// How often it is inspected in that window.
pub(super) const EXIT_REASON_POLL: Duration = Duration::from_secs(1);
/// How long a pod is not finished after a container was killed and the runtime may still learn of an out-of-memory kill.
const OOM_WINDOW: Duration = Duration::from_secs(1);
/// The exit code of a process that was killed by SIGKILL.
const KILLED: i32 = 137;

/// The first delay after a failed observation.
const RETRY: Duration = Duration::from_secs(1);
/// Timeout of an inspection if the list is sufficient.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Exit code, reason and message of a container whose exit was not observed: those of a kubelet for a lost container.
const LOST: (i32, &str, &str) =
    (137, "ContainerStatusUnknown", "The container could not be inspected when the pod was terminated");

/// How complete an observation must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// All details: required to start containers.
    Full,
    /// The list, and details where available: sufficient to stop a pod and to show it. An object that cannot be inspected must not block
    /// the deletion of its pod.
    Listed,
}

/// Observes the runtime state of a pod.
pub(super) struct PodObserver {
    scope: PodScope,
    snapshot: Arc<Snapshot>,
    /// Ids of objects that are only listed, without details.
    partial: HashSet<String>,
    /// When the exit of each exited container was first observed.
    exits: HashMap<String, Instant>,
    /// The last refresh failed.
    has_failed: bool,
    retry: Backoff,
}

// === impl PodObserver ===

impl PodObserver {
    pub(super) fn new(scope: PodScope) -> Self {
        Self {
            scope,
            snapshot: Arc::default(),
            partial: HashSet::new(),
            exits: HashMap::new(),
            has_failed: false,
            retry: Backoff::new(RETRY, RETRY_AFTER_FAILURE),
        }
    }

    /// The state at the last refresh.
    pub(super) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Whether details of some object are missing.
    pub(super) fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The delay before the next attempt, if the last refresh failed. All pods are woken earlier when the runtime answers again.
    pub(super) fn retry_delay(&mut self) -> Option<Duration> {
        self.has_failed.then(|| self.retry.next(None, &mut rand::rng()))
    }

    /// Lists and inspects the pod. The checkpoint supplies the pod if it is not known otherwise.
    pub(super) async fn refresh(&mut self, depth: Depth, checkpoint: &mut PodCheckpoint) -> Result<()> {
        let observed = match self.runtime().await {
            Ok(_) => self.observe(depth, checkpoint).await,
            Err(error) => Err(error),
        };
        let handle = Arc::clone(&self.scope.handle);
        self.has_failed = observed.is_err();
        match observed {
            Ok((snapshot, partial)) => {
                self.retry.reset();
                if !partial.is_empty() {
                    handle.mark_stale();
                }
                self.partial = partial;
                self.snapshot = Arc::new(snapshot);
                self.record_exits();
                handle.view.send_modify(|view| {
                    view.snapshot = Arc::clone(&self.snapshot);
                    view.error = None;
                });
                Ok(())
            }
            Err(error) => {
                // The last snapshot stays valid.
                let message = format!("the container runtime does not answer: {}", full_message(&error));
                handle.view.send_modify(|view| view.error = Some(message));
                handle.mark_stale();
                Err(error)
            }
        }
    }

    fn record_exits(&mut self) {
        let now = Instant::now();
        let exited = self.snapshot.containers.iter().filter(|one| one.state == ContainerState::Exited);
        let seen = |id: &String| self.exits.get(id).copied().unwrap_or(now);
        self.exits = exited.map(|container| (container.id.clone(), seen(&container.id))).collect();
    }

    /// The runtime's description. It is requested if it is unknown, because its name is part of every container id.
    pub(super) async fn runtime(&self) -> Result<Arc<RuntimeInfo>> {
        let context = &self.scope.context;
        if context.health.runtime().is_none() {
            // A failure is reported by the node.
            let _ = context.health.probe(context).await;
        }
        let missing = || {
            let pod = self.scope.pod();
            Error::unavailable(format!("observe pod {pod}: the container runtime has not answered yet"))
        };
        context.health.runtime().ok_or_else(missing)
    }

    /// Whether the runtime may still change the exit reason of a container: it may learn of an out-of-memory kill after it learns of the
    /// exit.
    pub(super) fn may_change(&self, container: &Container) -> bool {
        let killed = container.state == ContainerState::Exited && container.exit_code == KILLED;
        killed && container.reason != "OOMKilled" && self.exited_within(container, EXIT_REASON_WINDOW)
    }

    /// Whether the exit reason of any container may still change.
    pub(super) fn has_changing_exit(&self) -> bool {
        self.snapshot.containers.iter().any(|container| self.may_change(container))
    }

    /// Whether a container was killed just now, so that the runtime may still learn of an out-of-memory kill.
    pub(super) fn awaits_oom_reason(&self) -> bool {
        let mut containers = self.snapshot.containers.iter();
        containers.any(|container| self.may_change(container) && self.exited_within(container, OOM_WINDOW))
    }

    /// Whether a container exited this short time ago. The wall clock alone is not enough: if it was set back since, the exit is in
    /// the future, perhaps for hours.
    fn exited_within(&self, container: &Container, window: Duration) -> bool {
        let now = self.scope.now();
        let recent = container.finished.is_some_and(|finished| {
            Duration::try_from(now.duration_since(finished)).unwrap_or_default() < window
        });
        recent && self.exits.get(&container.id).is_none_or(|seen| seen.elapsed() < window)
    }

    /// The current state, and the ids of objects that are only listed.
    async fn observe(
        &self,
        depth: Depth,
        checkpoint: &mut PodCheckpoint,
    ) -> Result<(Snapshot, HashSet<String>)> {
        let (context, handle) = (&self.scope.context, &self.scope.handle);
        let labels = context.pod_labels(&handle.pod);
        let listing = context.backend.list(&labels).await?;
        // The next list is compared with this one.
        *handle.listed.lock() = PodListing::new(&listing);
        let sandboxes =
            join_all(listing.sandboxes.iter().map(|entry| self.inspect_sandbox(entry, depth))).await;
        let containers =
            join_all(listing.containers.iter().map(|entry| self.inspect_container(entry, depth))).await;
        let (mut snapshot, mut partial) = (Snapshot::default(), HashSet::new());
        for (entry, inspected) in listing.sandboxes.iter().zip(sandboxes) {
            match inspected {
                Ok(sandbox) => snapshot.sandboxes.extend(sandbox),
                Err(error) if depth == Depth::Full => return Err(error),
                Err(error) => {
                    self.scope.warn("cannot inspect a sandbox of the pod", &error);
                    partial.insert(entry.id.clone());
                    let known = self.snapshot.sandboxes.iter().find(|known| known.id == entry.id);
                    snapshot.sandboxes.push(listed_sandbox(known, entry, &labels, self.scope.now()));
                }
            }
        }
        let desired = handle.desired_pod();
        for (entry, inspected) in listing.containers.iter().zip(containers) {
            match inspected {
                Ok(container) => snapshot.containers.extend(container),
                Err(error) if depth == Depth::Full => return Err(error),
                Err(error) => {
                    self.scope.warn("cannot inspect a container of the pod", &error);
                    partial.insert(entry.id.clone());
                    let pod = match &desired {
                        Some(pod) => Some(Arc::clone(pod)),
                        None => checkpoint.load().await,
                    };
                    let known = self.snapshot.container(&entry.id);
                    let now = self.scope.now();
                    snapshot.containers.push(listed_container(known, entry, pod.as_deref(), &labels, now));
                }
            }
        }
        snapshot.sort();
        Ok((snapshot, partial))
    }

    /// A sandbox with details; `None` if it is gone.
    async fn inspect_sandbox(&self, entry: &SandboxEntry, depth: Depth) -> Result<Option<Sandbox>> {
        let unchanged = |known: &&Sandbox| {
            known.id == entry.id
                && known.state == entry.state
                && (known.host_network || !known.ips.is_empty())
                && !self.partial.contains(&known.id)
        };
        match self.snapshot.sandboxes.iter().find(unchanged) {
            Some(known) => Ok(Some(known.clone())),
            None => optional(with_timeout(depth, self.scope.context.backend.sandbox(&entry.id)).await),
        }
    }

    /// A container with details; `None` if it is gone.
    async fn inspect_container(&self, entry: &ContainerEntry, depth: Depth) -> Result<Option<Container>> {
        let unchanged = |known: &&Container| {
            known.id == entry.id
                && known.state == entry.state
                && !self.partial.contains(&known.id)
                && !self.may_change(known)
        };
        if let Some(known) = self.snapshot.containers.iter().find(unchanged) {
            return Ok(Some(known.clone()));
        }
        let inspected = with_timeout(depth, self.scope.context.backend.container(&entry.id)).await;
        let Some(mut container) = optional(inspected)? else { return Ok(None) };
        if container.state == ContainerState::Exited {
            termination_message::append_to(&mut container).await;
        }
        Ok(Some(container))
    }
}

/// Applies a timeout if details are optional.
async fn with_timeout<T>(depth: Depth, inspection: impl Future<Output = Result<T>>) -> Result<T> {
    if depth == Depth::Full {
        return inspection.await;
    }
    let timed_out = |_| Error::unavailable("inspect an object of the container runtime: timed out");
    tokio::time::timeout(INSPECT_TIMEOUT, inspection).await.map_err(timed_out)?
}

/// Turns `NotFound` into `None`.
fn optional<T>(inspected: Result<T>) -> Result<Option<T>> {
    match inspected {
        Ok(object) => Ok(Some(object)),
        Err(error) if *error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A sandbox without details: from its list entry and its last known state.
fn listed_sandbox(
    known: Option<&Sandbox>,
    entry: &SandboxEntry,
    labels: &BTreeMap<String, String>,
    now: Timestamp,
) -> Sandbox {
    if let Some(known) = known {
        return Sandbox { state: entry.state, ..known.clone() };
    }
    Sandbox {
        id: entry.id.clone(),
        attempt: entry.attempt,
        state: entry.state,
        created: now,
        ips: Vec::new(),
        host_network: false,
        handler: String::new(),
        labels: labels.clone(),
        annotations: BTreeMap::new(),
    }
}

/// A container without details: from its list entry, its last known state, and the pod if that is known.
fn listed_container(
    known: Option<&Container>,
    entry: &ContainerEntry,
    pod: Option<&Pod>,
    labels: &BTreeMap<String, String>,
    now: Timestamp,
) -> Container {
    let image = || {
        let container = pod.and_then(|pod| find_container(pod, &entry.name))?;
        container.spec.image.clone()
    };
    let mut container = known.cloned().unwrap_or_else(|| Container {
        id: entry.id.clone(),
        name: entry.name.clone(),
        attempt: entry.attempt,
        sandbox: entry.sandbox.clone(),
        // Any other state is a change.
        state: ContainerState::Created,
        created: now,
        started: (entry.state != ContainerState::Created).then_some(now),
        finished: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: image().unwrap_or_default(),
        image_ref: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        user: None,
        mounts: Vec::new(),
        labels: labels.clone(),
        annotations: BTreeMap::new(),
    });
    if entry.state == ContainerState::Exited && container.state != ContainerState::Exited {
        let (code, reason, message) = LOST;
        container.exit_code = code;
        reason.clone_into(&mut container.reason);
        message.clone_into(&mut container.message);
        container.finished = Some(now);
    }
    container.state = entry.state;
    container
}
