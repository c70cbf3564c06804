//! A node of the suite: an engine, and what a core does with it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use vk_provider::{
    Changes, Error, NodeTemplate, PodBundle, PodChange, PodEvent, PodRef, Provider, Quantity, Resolver,
    Result, error::Kind, resolve::FileSet,
};
use vk_supervisor::{Supervisor, task};

use super::{CaseContext, TestCloud, pod::reference, resolver::FixedResolver};
use crate::{
    backend::Rate,
    budget::{Budget, Limits},
    engine::{Engine, Settings},
};

/// How long a case waits for something on its virtual clock.
const LIMIT: Duration = Duration::from_mins(30);
/// How often it looks.
const TICK: Duration = Duration::from_millis(500);

/// What the core was told.
#[derive(Debug, Default)]
pub struct Journal {
    /// The newest status by UID.
    pub statuses: BTreeMap<Arc<str>, PodStatus>,
    /// All statuses in the order in which they came.
    pub history: Vec<(Arc<str>, PodStatus)>,
    /// All events.
    pub events: Vec<PodEvent>,
    /// The annotations by UID.
    pub annotations: BTreeMap<Arc<str>, BTreeMap<String, Option<String>>>,
}

/// An engine, and what a core does with it.
pub struct Node<C: TestCloud> {
    /// The engine.
    pub engine: Arc<Engine<C::Backend>>,
    /// What it said.
    pub journal: Arc<Mutex<Journal>>,
    /// The files of all volumes.
    pub files: watch::Sender<FileSet>,
    /// Whether the objects behind them exist.
    pub found: watch::Sender<bool>,
    supervisor: Supervisor,
    reader: Supervisor,
}

// === impl Node ===

impl<C: TestCloud> Node<C> {
    /// A node called `vk`, with a budget that does not matter.
    pub fn start(context: &CaseContext<C>) -> Self {
        let supervisor = Supervisor::new();
        let budget = Self::budget(&supervisor, 1000.0, 1000.0);
        Self::start_as(context, "vk", budget, supervisor)
    }

    /// A node with its name and budget.
    pub fn start_as(context: &CaseContext<C>, name: &str, budget: Budget, supervisor: Supervisor) -> Self {
        Self::start_with(context, name, budget, supervisor, |_| {})
    }

    /// A node with its name, budget and other settings.
    pub fn start_with(
        context: &CaseContext<C>,
        name: &str,
        budget: Budget,
        supervisor: Supervisor,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let node = Self::stand_by(context, name, budget, supervisor, change);
        node.lead();
        node
    }

    /// A node that another process owns, for the time being.
    pub fn stand_by(
        context: &CaseContext<C>,
        name: &str,
        budget: Budget,
        supervisor: Supervisor,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings::new("cluster", name, "fake");
        settings.prices = true;
        settings.node_ips = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        settings.capacity = [("cpu".to_owned(), Quantity::units(2000))].into();
        change(&mut settings);
        let engine =
            Engine::new(context.cloud.backend(), settings, budget, context.clock.clone(), &supervisor);
        let engine = Arc::new(engine.unwrap_or_else(|error| panic!("start the engine: {error}")));
        Self {
            engine,
            journal: Arc::default(),
            files: watch::Sender::new(FileSet::default()),
            found: watch::Sender::new(true),
            supervisor,
            reader: Supervisor::new(),
        }
    }

    /// A budget on a supervisor of its own.
    pub fn budget(supervisor: &Supervisor, per_second: f64, burst: f64) -> Budget {
        let limits = Limits { total: Rate { per_second, burst }, actions: BTreeMap::new() };
        Budget::new(&limits, supervisor)
    }

    /// The node belongs to this process from now on.
    pub fn lead(&self) {
        let Changes::Push(mut changes) = self.engine.changes() else { panic!("the engine pushes changes") };
        let (journal, reader) = (Arc::clone(&self.journal), self.reader.clone());
        self.reader.spawn("changes", task::Kind::Work, async move {
            loop {
                let change = tokio::select! {
                    change = changes.next() => change,
                    () = reader.stopping() => return,
                };
                let mut journal = journal.lock();
                match change {
                    Some(PodChange::Status(pod, status)) => {
                        journal.history.push((Arc::clone(&pod.uid), (*status).clone()));
                        journal.statuses.insert(pod.uid, *status);
                    }
                    Some(PodChange::Event(event)) => journal.events.push(event),
                    Some(PodChange::Annotations(pod, values)) => {
                        journal.annotations.entry(pod.uid).or_default().extend(values);
                    }
                    Some(PodChange::Refresh(_) | PodChange::Labels(..)) => {}
                    None => return,
                }
            }
        });
    }

    /// Stops to read the changes: the node belongs to another process.
    pub async fn end_session(&self) {
        self.reader.shut_down(Duration::from_secs(1)).await;
    }

    /// The process is killed.
    pub async fn kill(self) {
        self.reader.shut_down(Duration::from_secs(1)).await;
        self.supervisor.shut_down(Duration::ZERO).await;
    }

    /// The pod as the core hands it over.
    pub fn bundle(&self, pod: &Pod) -> PodBundle {
        let resolver: Arc<dyn Resolver> =
            Arc::new(FixedResolver { files: self.files.clone(), found: self.found.clone() });
        PodBundle { pod: Arc::new(pod.clone()), resolver }
    }

    /// Creates a pod, with the core's patience.
    pub async fn create(&self, pod: &Pod) {
        let start = Instant::now();
        loop {
            match self.engine.create_pod(self.bundle(pod)).await {
                Ok(()) => return,
                Err(error) => self.retry(start, &error).await,
            }
        }
    }

    /// Deletes a pod, and waits until nothing of it runs.
    pub async fn delete(&self, pod: &Pod) {
        let (pod, start) = (reference(pod), Instant::now());
        loop {
            match self.engine.delete_pod(&pod, None, Duration::from_secs(5)).await {
                Ok(()) => break,
                Err(error) if *error.kind() == Kind::NotFound => return,
                Err(error) => self.retry(start, &error).await,
            }
        }
        self.absent(&pod).await;
    }

    async fn retry(&self, start: Instant, error: &Error) {
        assert!(start.elapsed() < LIMIT, "it fails again and again: {}", error.report());
        sleep(error.kind().retry_after().unwrap_or_default() + Duration::from_secs(2)).await;
    }

    /// Waits until the pod is certainly gone.
    pub async fn absent(&self, pod: &PodRef) {
        self.until("the pod is absent", async || {
            self.engine.pod_status(pod).await.is_err_and(|error| *error.kind() == Kind::NotFound)
        })
        .await;
    }

    /// Waits until the core was told this phase.
    pub async fn phase(&self, pod: &Pod, phase: &str) -> PodStatus {
        let uid = reference(pod).uid;
        let status = || self.journal.lock().statuses.get(&uid).cloned();
        self.until(phase, async || status().is_some_and(|status| status.phase.as_deref() == Some(phase)))
            .await;
        status().unwrap_or_default()
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        self.until_within(LIMIT, what, holds).await;
    }

    /// Waits for so long until something is so.
    pub async fn until_within(&self, limit: Duration, what: &str, holds: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !holds().await {
            assert!(start.elapsed() < limit, "never: {what}");
            sleep(TICK).await;
        }
    }

    /// The reasons of the events of a pod.
    pub fn reasons(&self, pod: &Pod) -> Vec<String> {
        let uid = reference(pod).uid;
        let journal = self.journal.lock();
        let events = journal.events.iter().filter(|event| event.pod.uid == uid);
        events.map(|event| event.reason.clone()).collect()
    }

    /// The pods that the engine reports.
    pub async fn pods(&self) -> Result<Vec<PodRef>> {
        Ok(self.engine.pods().await?.into_iter().map(|one| one.pod).collect())
    }

    /// The node as the core sees it.
    pub fn template(&self) -> NodeTemplate {
        let mut node = NodeTemplate::default();
        self.engine.configure_node(&mut node);
        node
    }
}

impl<C: TestCloud> std::fmt::Debug for Node<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("engine", &self.engine).finish_non_exhaustive()
    }
}
