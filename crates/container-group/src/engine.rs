//! The engine: the [`Provider`] for a cloud.
//!
//! What is decided is in the [`reconciler`](crate::reconciler), which knows no I/O. The engine carries out its effects: it waits for the
//! budget, makes calls with a deadline, hands in the answers, and publishes what has changed. All state can be rebuilt from the cloud's tags and
//! from the core.

mod annotations;
mod call_metrics;
mod calls;
mod context;
mod events;
mod file_watch;
mod health;
mod inputs;
mod inventory;
mod logs;
mod publisher;
mod quota;
mod record;
mod session;
mod settings;
mod spec_sync;
mod stats;
mod stock;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::sync::oneshot;
use vk_provider::{
    Changes, ContainerRef, Error, MetricFamily, NodeChange, NodeTemplate, ObservedPod, PodBundle, PodRef,
    Provider, Result,
    ability::{Exec, ExecOptions, LogBody, LogOptions, Logs, Started, Stats, Summary},
    error::Kind,
};
use vk_supervisor::{Clock, Supervisor, task};

use self::{context::EngineContext, record::PodRecord};
pub use self::{
    health::CLOUD_REACHABLE,
    inventory::GroupInventory,
    settings::{FileUpdates, Settings},
};
use crate::{
    GroupBackend,
    backend::{Action, CallResult, GroupRef},
    budget::Budget,
    lifecycle::Request,
    reconciler::{Input, PodView},
};

/// How long a call of the core waits for its turn or for an answer.
const CALL_LIMIT: Duration = Duration::from_mins(5);
/// How long a call waits for the first list of the groups.
const SYNC_LIMIT: Duration = Duration::from_secs(45);
/// How much later than the session of this process a pod must have been created so that no earlier process can have seen it.
const CLOCK_MARGIN: jiff::SignedDuration = jiff::SignedDuration::from_mins(1);

/// Runs the pods of one node as groups of a cloud.
pub struct Engine<B: GroupBackend> {
    context: Arc<EngineContext<B>>,
}

// === impl Engine ===

impl<B: GroupBackend> Engine<B> {
    /// An engine for this cloud. Must be called in a tokio runtime: it starts its tasks on a child of the supervisor. They end when the
    /// engine is dropped; the groups continue. The nodes of one account share the budget.
    pub fn new(
        backend: Arc<B>,
        settings: Settings,
        budget: Budget,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Result<Self> {
        let rng = StdRng::from_rng(&mut rand::rng());
        let context =
            Arc::new(EngineContext::new(backend, settings, budget, clock, supervisor.child(), rng)?);
        let spawn = |name: &str, kind, run| context.supervisor.spawn(name.to_owned(), kind, run);
        spawn(
            "container groups",
            task::Kind::Critical,
            Box::pin(context::run(Arc::clone(&context))) as BoxedTask,
        );
        spawn("quota", task::Kind::Work, Box::pin(quota::run(Arc::clone(&context))));
        Ok(Self { context })
    }

    fn parse(bundle: &PodBundle) -> Result<PodRef> {
        bundle.reference().ok_or_else(|| Error::invalid("the pod has no namespace, name or uid"))
    }

    /// Waits until all groups of the cloud are known.
    async fn synced(&self) -> Result<()> {
        let mut synced = self.context.synced.subscribe();
        let waited = tokio::time::timeout(SYNC_LIMIT, synced.wait_for(|synced| *synced)).await;
        if matches!(waited, Ok(Ok(_))) {
            return Ok(());
        }
        let why = self.context.state.lock().health.last_error().map(ToOwned::to_owned);
        let why = why.unwrap_or_else(|| "the cloud has not answered".to_owned());
        Err(Error::unavailable(format!("list the container groups of the node: {why}")))
    }

    /// Asks the reconciler for something, and waits until it is done.
    async fn request(&self, pod: &PodRef, request: Request, input: Input) -> Result<()> {
        let (sender, done) = oneshot::channel();
        let context = &self.context;
        {
            let mut state = context.state.lock();
            state.record(pod).waiters.push((request, sender));
        }
        context.handle(input);
        let operation = match request {
            Request::Create => format!("create pod {pod}"),
            Request::Delete => format!("delete pod {pod}"),
        };
        match tokio::time::timeout(CALL_LIMIT, done).await {
            Ok(Ok(result)) => result.map_err(|error| error.for_operation(&operation)),
            Ok(Err(_)) => Err(Error::new(Kind::Cancelled, format!("{operation}: the process stops"))),
            Err(_) => {
                let action = if request == Request::Create { Action::Create } else { Action::Delete };
                let after = context.budget.estimated_wait(action);
                let text = format!("{operation}: it waits for its turn among the calls of this account");
                Err(Error::new(Kind::Throttled { after: Some(after) }, text))
            }
        }
    }

    /// Stores what the core wants. Returns the group that is there already.
    fn adopt(&self, pod: &PodRef, desired: &Arc<Pod>) -> Option<(GroupRef, bool)> {
        let context = &self.context;
        let mut state = context.state.lock();
        let view = state.reconciler.view(&pod.uid);
        let group = match view {
            PodView::Present(group) if group.is_kept() => Some((group.group().clone(), group.has_ended())),
            _ => None,
        };
        let owner_hash = match view {
            PodView::Present(group) => {
                group.observed().owner.as_ref().and_then(|owner| owner.spec_hash.clone())
            }
            _ => None,
        };
        if group.is_none() {
            // A pod that may yet be refused is not remembered.
            if let Some(record) = state.records.get_mut(&pod.uid) {
                record.set_pod(desired, None);
            }
            return None;
        }
        if state.record(pod).set_pod(desired, owner_hash.as_deref()) {
            context.publish(&mut state, pod);
        }
        group
    }

    fn is_inherited(&self, pod: &Pod) -> bool {
        let began = self.context.state.lock().session_began;
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        created.is_none_or(|created| created < began + CLOCK_MARGIN)
    }

    /// The running group and container for a session or a log.
    fn group_of(&self, container: &ContainerRef) -> Result<GroupRef> {
        let state = self.context.state.lock();
        match state.reconciler.view(&container.pod.uid) {
            PodView::Present(group) => {
                let observed = group.observed();
                let all = observed.containers.iter().chain(&observed.init_containers).flatten();
                let mut names = all.map(|one| one.name.as_str()).peekable();
                if names.peek().is_some() && !names.any(|name| name == container.container) {
                    return Err(Error::not_found(format!("{container} does not exist")));
                }
                Ok(group.group().clone())
            }
            PodView::Absent => Err(Error::not_found(format!("{container} does not exist"))),
            PodView::Creating | PodView::Unclear => {
                Err(Error::unavailable(format!("{container} has not started yet")))
            }
        }
    }
}

fn has_init_containers(pod: &Pod) -> bool {
    let containers = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
    containers.is_some_and(|all| !all.is_empty())
}

type BoxedTask = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl<B: GroupBackend> Drop for Engine<B> {
    fn drop(&mut self) {
        self.context.supervisor.stop();
    }
}

impl<B: GroupBackend> std::fmt::Debug for Engine<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("node", &self.context.settings.node).finish_non_exhaustive()
    }
}

#[async_trait]
impl<B: GroupBackend> Provider for Engine<B> {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = Self::parse(&bundle)?;
        self.synced().await?;
        let input = Input::Create {
            pod: pod.clone(),
            inherited: self.is_inherited(&bundle.pod),
            init: has_init_containers(&bundle.pod),
        };
        let context = &self.context;
        if let Some((group, ended)) = self.adopt(&pod, &bundle.pod) {
            self.request(&pod, Request::Create, input).await?;
            if ended {
                return Ok(());
            }
            context.watch_files(&pod, &bundle);
            return context.sync_adopted(&pod, &group, &bundle).await;
        }
        let pending = matches!(context.state.lock().reconciler.view(&pod.uid), PodView::Creating);
        if !pending {
            let resolved = inputs::resolve(&bundle, &context.settings.node_ips).await?;
            let plan = context.backend.translate(&resolved)?;
            context.set_plan(&pod, &bundle.pod, plan, resolved.files);
        }
        self.request(&pod, Request::Create, input).await?;
        context.watch_files(&pod, &bundle);
        Ok(())
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = Self::parse(&bundle)?;
        self.synced().await?;
        match self.adopt(&pod, &bundle.pod) {
            Some((_, true)) => Ok(()),
            Some((group, false)) => self.context.sync_spec(&pod, &group, &bundle).await,
            None => match self.context.state.lock().reconciler.view(&pod.uid) {
                PodView::Absent => {
                    Err(Error::not_found(format!("update pod {pod}: it has no container group")))
                }
                _ => Err(Error::unavailable(format!(
                    "update pod {pod}: its container group does not exist yet"
                ))),
            },
        }
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        if let Some(last_known) = last_known {
            self.context.state.lock().record(pod).set_pod(&last_known, None);
        }
        self.request(pod, Request::Delete, Input::Delete { pod: pod.clone(), grace }).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.context.status(pod)
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.synced().await?;
        Ok(self.context.observed_pods())
    }

    fn changes(&self) -> Changes {
        Changes::Push(session::changes(&self.context))
    }

    async fn ping(&self) -> Result<()> {
        self.context.ping().await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        self.context.configure_node(node);
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        let changes = tokio::sync::watch::Sender::subscribe(&self.context.node_changed);
        let next = |mut changes: tokio::sync::watch::Receiver<u64>| async move {
            changes.changed().await.ok()?;
            Some((NodeChange::Refresh, changes))
        };
        Some(futures::stream::unfold(changes, next).boxed())
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        self.context.metrics()
    }

    fn logs(&self) -> Option<&dyn Logs> {
        self.context.backend.caps().logs.map(|_| self as &dyn Logs)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        self.context.backend.caps().exec.map(|_| self as &dyn Exec)
    }

    fn stats(&self) -> Option<&dyn Stats> {
        self.context.backend.caps().stats_batch.map(|_| self as &dyn Stats)
    }
}

#[async_trait]
impl<B: GroupBackend> Logs for Engine<B> {
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        let group = self.group_of(container)?;
        logs::open(&self.context, container, &group, options).await
    }
}

#[async_trait]
impl<B: GroupBackend> Exec for Engine<B> {
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started> {
        let context = &self.context;
        if let Some(limits) = context.backend.caps().exec {
            if command.len() > limits.arguments {
                return Err(Error::invalid(format!(
                    "run a command in {container}: it has {} words; this cloud allows {}",
                    command.len(),
                    limits.arguments
                )));
            }
            let long = command.iter().position(|word| word.chars().count() > limits.characters);
            if let Some(at) = long {
                return Err(Error::invalid(format!(
                    "run a command in {container}: word {} is longer than the {} characters that this cloud allows",
                    at + 1,
                    limits.characters
                )));
            }
        }
        let group = self.group_of(container)?;
        let call = context.backend.exec(&group, &container.container, command, options);
        let started: CallResult<Started> = context.call(Action::Exec, call).await;
        started.map_err(|error| error.for_operation(&format!("run a command in {container}")))
    }
}

#[async_trait]
impl<B: GroupBackend> Stats for Engine<B> {
    async fn summary(&self) -> Result<Summary> {
        stats::summary(&self.context).await
    }
}
