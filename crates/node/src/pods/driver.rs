//! Drives the reconciler: feeds it with what happens, and executes its effects, each in a task of its own.
//!
//! A task that panics or does not end answers with an error, as if the other side had failed: nothing waits for ever.

use std::{collections::HashMap, fmt::Debug, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use rand::{SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, watch as latest},
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tracing::warn;
use vk_kube::{Client, Kind as ApiKind, Objects, Patch, Recorder, Slim, event::Severity};
use vk_provider::{Changes, Error, EventKind, PodBundle, PodEvent, PodRef, Provider, Resolver as _};
use vk_supervisor::{Clock, Now, Supervisor, task};

use super::{
    Controller, Policy,
    event_queue::{EventQueue, event_queue},
    pod_store::PodStore,
    reconciler::{
        Input, PodReconciler,
        effect::{Completion, EffectId, EffectResult, PodEffect, PodEventRecord, PodWrite, ProviderCall},
    },
    watch::{PodWatchEvent, trim},
    watch_audit::{AuditFailure, read_live},
    write_permits::WritePermits,
};
use crate::resolve::{PodResolver, ResolverFactory};

/// How long a lifecycle call may take: a backend that pulls images in it is slow, but one that never answers is broken.
const CALL_LIMIT: Duration = Duration::from_mins(15);

/// How long a read, a list or a write may take.
const REQUEST_LIMIT: Duration = Duration::from_mins(1);

/// How many changes are taken from a stream at once.
const CHUNK: usize = 256;

/// How long the driver sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// Executes the effects of a reconciler.
struct PodDriver {
    node: String,
    /// Counts the tasks: the controller has ended when they have.
    supervisor: Supervisor,
    provider: Arc<dyn Provider>,
    client: Client,
    pod_store: PodStore,
    resolvers: ResolverFactory,
    events: EventQueue,
    node_object: latest::Receiver<Option<Arc<Node>>>,
    clock: Clock,
    start: Instant,
    reconciler: PodReconciler,
    /// Effects to be executed; empty between two inputs.
    effects: Vec<PodEffect>,
    tasks: JoinSet<Completion>,
    /// Lifecycle calls in flight.
    calls: HashMap<EffectId, AbortHandle>,
    /// Waits for objects that pods need.
    waits: HashMap<EffectId, AbortHandle>,
    /// The resolvers of pods that the provider was given.
    open_resolvers: HashMap<Arc<str>, PodResolver>,
    permits: WritePermits,
    /// The permit for the first write of the effects at hand.
    granted: Option<OwnedSemaphorePermit>,
}

/// Why a task has no answer.
#[derive(Clone, Copy, Debug)]
enum TaskFailure {
    Panicked,
    TimedOut(Duration),
}

impl Controller {
    /// Runs until the supervisor stops, and then until the calls in flight have ended. Pods go on without it.
    pub async fn run(self, supervisor: Supervisor) {
        let mut policy = self.policy;
        let mut changes = match self.provider.changes() {
            Changes::Push(changes) => {
                let end = stream::iter([None]).chain(stream::pending());
                changes.ready_chunks(CHUNK).map(Some).chain(end).boxed()
            }
            Changes::Poll(period) => {
                policy.poll = Some(period);
                stream::pending().boxed()
            }
        };
        let mut pod_watch = self.pod_watch.ready_chunks(CHUNK);
        let mut trial_watch =
            self.trial_watch.unwrap_or_else(|| stream::pending().boxed()).ready_chunks(CHUNK);
        let mut resolver_events = self.resolvers.take_events();
        let mut node_object = self.node_object.clone();
        let events = start_event_writer(&self.client, &self.node, &policy, &supervisor);
        let mut driver = PodDriver {
            reconciler: PodReconciler::new(self.node.clone(), policy, StdRng::from_rng(&mut rand::rng())),
            permits: WritePermits::new(self.client.write_limiter()),
            node: self.node,
            supervisor: supervisor.clone(),
            provider: self.provider,
            client: self.client,
            pod_store: self.pod_store,
            resolvers: self.resolvers,
            events,
            node_object: self.node_object,
            clock: self.clock,
            start: Instant::now(),
            effects: Vec::new(),
            tasks: JoinSet::new(),
            calls: HashMap::new(),
            waits: HashMap::new(),
            open_resolvers: HashMap::new(),
            granted: None,
        };
        let node = driver.node_object.borrow_and_update().clone();
        driver.handle([Input::Node(node)]);
        loop {
            let wake = driver.wake();
            tokio::select! {
                Some(batch) = pod_watch.next() => {
                    publish_audit(&self.audit_failure, &batch);
                    driver.handle(batch.into_iter().map(Input::Watch));
                }
                Some(batch) = trial_watch.next() => driver.handle(batch.into_iter().map(Input::TrialWatch)),
                Some(batch) = changes.next() => match batch {
                    Some(batch) => driver.handle(batch.into_iter().map(Input::Provider)),
                    None => driver.handle([Input::ProviderStreamEnded]),
                },
                Some(completion) = driver.tasks.join_next(), if !driver.tasks.is_empty() => match completion {
                    Ok(completion) => driver.completed(completion),
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => warn!(%error, "a task panicked when it was dropped"),
                },
                Some(event) = next_event(&mut resolver_events) => driver.handle([Input::ResolverEvent(event)]),
                Ok(()) = node_object.changed() => driver.handle([]),
                permit = driver.permits.acquired() => {
                    driver.granted = Some(permit);
                    driver.handle([Input::WritePermit]);
                }
                () = tokio::time::sleep_until(wake) => driver.handle([Input::Tick]),
                () = supervisor.stopping() => break,
            }
        }
        driver.permits.cancel_request();
        driver.waits.values().for_each(AbortHandle::abort);
        while driver.tasks.join_next().await.is_some() {}
        // A provider may keep what it was given: nothing is read for it any more.
        driver.open_resolvers.values().for_each(PodResolver::close);
    }
}

/// Starts the task that writes events.
fn start_event_writer(client: &Client, node: &str, policy: &Policy, supervisor: &Supervisor) -> EventQueue {
    let recorder = Recorder::new(client.clone(), "virtual-kubelet", node);
    let (events, writer) = event_queue();
    let (writing, guard) = (writer.write(recorder, policy.events_per_second), supervisor.clone());
    supervisor.spawn(format!("pod events of {node}"), task::Kind::Work, async move {
        tokio::select! {
            () = writing => {}
            () = guard.stopping() => {}
        }
    });
    events
}

/// Publishes how the last audit of the watch went, if there was one.
fn publish_audit(failure: &latest::Sender<Option<Arc<AuditFailure>>>, events: &[PodWatchEvent]) {
    let last = events.iter().rev().find_map(|event| match event {
        PodWatchEvent::Versions(_) => Some(None),
        PodWatchEvent::AuditFailed(failure) => Some(Some(Arc::clone(failure))),
        _ => None,
    });
    if let Some(last) = last {
        failure.send_if_modified(|known| std::mem::replace(known, last.clone()) != last);
    }
}

/// The next event of the resolver, if there are any to come.
async fn next_event(events: &mut Option<mpsc::Receiver<PodEvent>>) -> Option<PodEvent> {
    match events {
        Some(events) => events.recv().await,
        None => std::future::pending().await,
    }
}

// === impl PodDriver ===

impl PodDriver {
    fn now(&self) -> Now {
        Now { elapsed: self.start.elapsed(), wall: self.clock.now() }
    }

    fn wake(&self) -> Instant {
        let longest = self.start.elapsed() + LONGEST_SLEEP;
        self.start + self.reconciler.next_deadline().map_or(longest, |deadline| deadline.min(longest))
    }

    /// Feeds the reconciler, and executes what it wants done.
    fn handle(&mut self, inputs: impl IntoIterator<Item = Input>) {
        let mut effects = std::mem::take(&mut self.effects);
        self.reconciler.set_available_permits(self.permits.available());
        // Decisions are made with the newest Node.
        if self.node_object.has_changed().is_ok_and(|changed| changed) {
            let node = self.node_object.borrow_and_update().clone();
            self.reconciler.handle(self.now(), Input::Node(node), &mut effects);
        }
        for input in inputs {
            self.reconciler.handle(self.now(), input, &mut effects);
        }
        for effect in effects.drain(..) {
            self.execute(effect);
        }
        self.granted = None;
        self.effects = effects;
    }

    fn completed(&mut self, completion: Completion) {
        match &completion.result {
            EffectResult::Call(_) => drop(self.calls.remove(&completion.id)),
            EffectResult::ReferenceAvailable => drop(self.waits.remove(&completion.id)),
            _ => {}
        }
        self.handle([Input::Completed(completion)]);
    }

    fn execute(&mut self, effect: PodEffect) {
        match effect {
            PodEffect::CallProvider { id, pod, call } => self.call_provider(id, pod, call),
            PodEffect::ReadStatus { id, pod } => {
                let (provider, uid) = (Arc::clone(&self.provider), Arc::clone(&pod.uid));
                let work = async move {
                    EffectResult::Status(provider.pod_status(&pod).await.map(Box::new).map_err(Into::into))
                };
                let failed = |why: TaskFailure| EffectResult::Status(Err(why.of_provider().into()));
                self.spawn(id, Some(uid), Some(REQUEST_LIMIT), work, failed);
            }
            PodEffect::ListProviderPods { id } => {
                let provider = Arc::clone(&self.provider);
                let work =
                    async move { EffectResult::ProviderPods(provider.pods().await.map_err(Into::into)) };
                let failed = |why: TaskFailure| EffectResult::ProviderPods(Err(why.of_provider().into()));
                self.spawn(id, None, Some(REQUEST_LIMIT), work, failed);
            }
            PodEffect::Write { id, pod, write } => self.write(id, pod, write),
            PodEffect::AcquireWritePermit => self.permits.request(),
            PodEffect::ReadNode { id, pod } => {
                let (nodes, name) = (Objects::<Node>::all(self.client.clone()), self.node.clone());
                let work = async move { EffectResult::Node(nodes.get(&name).await.map(Box::new)) };
                let failed = |why: TaskFailure| EffectResult::Node(Err(why.of_api_server()));
                self.spawn(id, Some(pod.uid), Some(REQUEST_LIMIT), work, failed);
            }
            PodEffect::ReadPod { id, pod } => {
                let (client, node, uid) = (self.client.clone(), self.node.clone(), Arc::clone(&pod.uid));
                let work = async move {
                    EffectResult::Pod(read_live(client, &node, &pod).await.map(|found| found.map(Box::new)))
                };
                let failed = |why: TaskFailure| EffectResult::Pod(Err(why.of_api_server()));
                self.spawn(id, Some(uid), Some(REQUEST_LIMIT), work, failed);
            }
            PodEffect::AwaitReference { id, pod, reference } => {
                let Some(resolver) = self.open_resolvers.get(&pod.uid).cloned() else { return };
                let work = async move {
                    resolver.appeared(&reference).await;
                    EffectResult::ReferenceAvailable
                };
                // If the wait fails, the call is repeated all the same.
                let failed = |_| EffectResult::ReferenceAvailable;
                let task = self.spawn(id, Some(pod.uid), None, work, failed);
                self.waits.insert(id, task);
            }
            PodEffect::Cancel(id) => {
                let task = self.calls.remove(&id).or_else(|| self.waits.remove(&id));
                task.iter().for_each(AbortHandle::abort);
            }
            PodEffect::CloseResolver(uid) => {
                self.open_resolvers.remove(&uid).iter().for_each(PodResolver::close);
            }
            PodEffect::PublishPod(pod) => {
                self.pod_store.renew(&pod);
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                self.open_resolvers.get(uid).into_iter().for_each(|resolver| resolver.update(&pod));
            }
            PodEffect::RecordEvent(record) => self.record_event(record),
        }
    }

    /// Runs a task whose answer always comes: also when it panics, and when it takes longer than the limit.
    fn spawn(
        &mut self,
        id: EffectId,
        uid: Option<Arc<str>>,
        limit: Option<Duration>,
        work: impl Future<Output = EffectResult> + Send + 'static,
        failed: impl FnOnce(TaskFailure) -> EffectResult + Send + 'static,
    ) -> AbortHandle {
        // On the heap: each future that holds another one by value has room for it more than once.
        let work = Box::pin(work);
        self.tasks.spawn(self.supervisor.track(async move {
            let result = run_guarded(limit, work).await.unwrap_or_else(failed);
            Completion { id, uid, result }
        }))
    }

    fn call_provider(&mut self, id: EffectId, pod: PodRef, call: ProviderCall) {
        let (provider, uid) = (Arc::clone(&self.provider), Arc::clone(&pod.uid));
        let fence = self.client.fence().cloned();
        let call = match call {
            ProviderCall::Create(pod) => {
                let bundle = self.bundle(pod);
                async move { provider.create_pod(bundle).await }.boxed()
            }
            ProviderCall::Update(pod) => {
                let bundle = self.bundle(pod);
                async move { provider.update_pod(bundle).await }.boxed()
            }
            ProviderCall::Delete { last_known, grace } => {
                async move { provider.delete_pod(&pod, last_known, grace).await }.boxed()
            }
        };
        let work = async move {
            // The pod may be another process' to touch by now: it is left alone until the lease says that it is not.
            if let Some(fence) = fence {
                fence.opened().await;
            }
            let result = tokio::time::timeout(CALL_LIMIT, call).await;
            let result = result.unwrap_or_else(|_| Err(TaskFailure::TimedOut(CALL_LIMIT).of_provider()));
            EffectResult::Call(result.map_err(Into::into))
        };
        let failed = |why: TaskFailure| EffectResult::Call(Err(why.of_provider().into()));
        let task = self.spawn(id, Some(uid), None, work, failed);
        self.calls.insert(id, task);
    }

    /// The pod with the resolver of its references.
    fn bundle(&mut self, pod: Arc<Pod>) -> PodBundle {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let resolver = match self.open_resolvers.get(uid) {
            Some(resolver) => resolver.clone(),
            None => {
                self.open_resolvers.entry(Arc::from(uid)).or_insert_with(|| self.resolvers.pod(&pod)).clone()
            }
        };
        PodBundle { resolver: Arc::new(resolver), pod }
    }

    fn write(&mut self, id: EffectId, pod: PodRef, write: PodWrite) {
        let pods: Objects<Slim<Pod>> = Objects::namespaced(self.client.clone(), pod.namespace.as_ref());
        let uid = Arc::clone(&pod.uid);
        let permit = self.granted.take().or_else(|| self.permits.try_acquire());
        let limiter = self.client.write_limiter();
        let work = async move {
            // Another node may have been quicker to take the permit that was free.
            let _permit = match permit {
                Some(permit) => Some(permit),
                None => limiter.acquire_owned().await.ok(),
            };
            let request = async {
                match write {
                    PodWrite::Status(patch) => patch_status(&pods, &pod.name, patch.as_ref()).await.map(Some),
                    PodWrite::Trial(patch) => patch_status(&pods, &pod.name, patch.as_ref()).await.map(Some),
                    PodWrite::Remove => {
                        pods.delete_with_grace(&pod.name, &pod.uid, Duration::ZERO).await.map(|()| None)
                    }
                }
            };
            // The limit is for the request, not for the wait for a permit.
            let answer = tokio::time::timeout(REQUEST_LIMIT, request).await;
            let late = |_| Err(TaskFailure::TimedOut(REQUEST_LIMIT).of_api_server());
            EffectResult::Write(answer.unwrap_or_else(late))
        };
        let failed = |why: TaskFailure| EffectResult::Write(Err(why.of_api_server()));
        self.spawn(id, Some(uid), None, work, failed);
    }

    fn record_event(&self, PodEventRecord { pod, field_path, kind, reason, message }: PodEventRecord) {
        let severity = match kind {
            EventKind::Normal => Severity::Normal,
            EventKind::Warning => Severity::Warning,
        };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            uid: Some(pod.uid.to_string()),
            field_path,
            ..ObjectReference::default()
        };
        self.events.push(about, severity, reason.into_owned(), message);
    }
}

/// Patches the status of a pod. Returns the pod as it is then.
async fn patch_status(
    pods: &Objects<Slim<Pod>>,
    name: &str,
    patch: &(impl Serialize + Debug),
) -> Result<Arc<Pod>, vk_kube::Error> {
    let Slim(mut pod) = pods.patch_status(name, Patch::Strategic(patch)).await?;
    trim(&mut pod);
    Ok(Arc::new(pod))
}

/// Runs a future. A panic in it, also while it is dropped, is an error, and so is an end that does not come in time.
async fn run_guarded<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Result<T, TaskFailure> {
    let limited = async move {
        match limit {
            Some(limit) => tokio::time::timeout(limit, work).await.map_err(|_| TaskFailure::TimedOut(limit)),
            None => Ok(work.await),
        }
    };
    AssertUnwindSafe(limited).catch_unwind().await.unwrap_or(Err(TaskFailure::Panicked))
}

// === impl TaskFailure ===

impl TaskFailure {
    /// As an error of the provider.
    fn of_provider(self) -> Error {
        match self {
            Self::Panicked => Error::internal("the provider panicked"),
            Self::TimedOut(limit) => {
                Error::unavailable(format!("the provider did not answer within {limit:?}"))
            }
        }
    }

    /// As an error of a request to the API server.
    fn of_api_server(self) -> vk_kube::Error {
        match self {
            Self::Panicked => vk_kube::Error::new(ApiKind::Server, "the request panicked"),
            Self::TimedOut(limit) => {
                vk_kube::Error::new(ApiKind::Timeout, format!("no answer within {limit:?}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_hangs_answers_with_an_error() {
        let limit = Some(Duration::from_secs(1));
        assert!(matches!(run_guarded(limit, async { 7 }).await, Ok(7)));
        let hung = run_guarded(limit, std::future::pending::<()>()).await;
        assert!(matches!(hung, Err(TaskFailure::TimedOut(_))), "{hung:?}");
        let panicked = run_guarded(limit, async { panic!("as planned") }).await;
        assert!(matches!(panicked, Err::<(), _>(TaskFailure::Panicked)), "{panicked:?}");
    }

    #[tokio::test]
    async fn a_task_that_panics_while_it_is_dropped_answers_with_an_error() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("as planned");
            }
        }
        let bomb = Bomb;
        let work = async move {
            let _bomb = &bomb;
            7
        };
        let result = run_guarded(None, work).await;
        assert!(matches!(result, Err(TaskFailure::Panicked)), "{result:?}");
    }
}
