//! What all parts of the engine share, and how effects are carried out.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::{debug, info, warn};
use vk_provider::{EventKind, NodeTemplate, Outbox, PodEvent, PodRef, Result, resolve::FileSet};
use vk_supervisor::{Clock, Supervisor};

use super::{
    PodRecord, Settings,
    annotations::AnnotationQueue,
    call_metrics::{CallMetrics, Costs},
    health::CloudHealth,
    quota::Quota,
    stats::StatsCache,
    stock::Stock,
};
use crate::{
    GroupBackend,
    backend::{CallResult, Class, Plan, Price, Scope},
    budget::Budget,
    identity::Identity,
    lifecycle::Request,
    reconciler::{Effect, Input, Policy, Reconciler},
};

/// How long the driver sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// What all parts of the engine share.
pub(super) struct EngineContext<B: GroupBackend> {
    pub(super) backend: Arc<B>,
    pub(super) settings: Settings,
    pub(super) identity: Identity,
    pub(super) scope: Scope,
    pub(super) budget: Budget,
    pub(super) clock: Clock,
    pub(super) started: Timestamp,
    start: Instant,
    pub(super) supervisor: Supervisor,
    pub(super) state: Mutex<State<B::Request>>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) annotations: Arc<AnnotationQueue>,
    pub(super) stats: StatsCache,
    pub(super) call_metrics: CallMetrics,
    pub(super) synced: watch::Sender<bool>,
    /// Whether a poll has ended, well or not.
    pub(super) polled: watch::Sender<bool>,
    /// Counts changes of the node.
    pub(super) node_changed: watch::Sender<u64>,
    /// Held while the quota is read because a create was refused.
    pub(super) quota_read: tokio::sync::Mutex<()>,
    /// A create was refused for the quota.
    pub(super) quota_changed: Notify,
    sessions: AtomicU64,
    wake: Notify,
}

/// What changes, under one lock that is never held while a call is awaited.
pub(super) struct State<R> {
    pub(super) reconciler: Reconciler,
    pub(super) records: HashMap<Arc<str>, PodRecord<R>>,
    pub(super) health: CloudHealth,
    pub(super) quota: Quota,
    pub(super) stock: Stock,
    /// Prices by size; `None` while the cloud is asked.
    pub(super) prices: HashMap<String, Option<Price>>,
    pub(super) duplicates: u64,
    /// When this process began to own the node last.
    pub(super) session_began: Timestamp,
    pub(super) costs: Costs,
}

// === impl State ===

impl<R> State<R> {
    pub(super) fn record(&mut self, pod: &PodRef) -> &mut PodRecord<R> {
        self.records.entry(Arc::clone(&pod.uid)).or_default()
    }
}

// === impl EngineContext ===

impl<B: GroupBackend> EngineContext<B> {
    pub(super) fn new(
        backend: Arc<B>,
        settings: Settings,
        budget: Budget,
        clock: Clock,
        supervisor: Supervisor,
        rng: StdRng,
    ) -> Result<Self> {
        let caps = backend.caps();
        let identity = Identity::new(settings.tags.clone(), caps.tags)?;
        let scope = Scope::of_node(settings.cluster.as_str(), settings.node.as_str());
        let state = State {
            reconciler: Reconciler::new(Policy::new(scope.clone(), caps), rng),
            records: HashMap::new(),
            health: CloudHealth::default(),
            quota: Quota::default(),
            stock: Stock::default(),
            prices: HashMap::new(),
            duplicates: 0,
            session_began: clock.now(),
            costs: Costs::default(),
        };
        Ok(Self {
            backend,
            settings,
            identity,
            scope,
            budget,
            started: clock.now(),
            clock,
            start: Instant::now(),
            supervisor,
            state: Mutex::new(state),
            outbox: Arc::default(),
            annotations: Arc::default(),
            stats: StatsCache::default(),
            call_metrics: CallMetrics::default(),
            synced: watch::Sender::new(false),
            polled: watch::Sender::new(false),
            node_changed: watch::Sender::new(0),
            quota_read: tokio::sync::Mutex::default(),
            quota_changed: Notify::new(),
            sessions: AtomicU64::new(0),
            wake: Notify::new(),
        })
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Hands an input to the reconciler, and carries out what follows.
    pub(super) fn handle(self: &Arc<Self>, input: Input) {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        let leads = matches!(input, Input::Leading(true));
        state.reconciler.handle(self.now(), input, &mut effects);
        if leads {
            self.synced.send_replace(state.reconciler.is_synced());
        }
        for effect in effects {
            self.execute(&mut state, effect);
        }
        drop(state);
        self.wake.notify_one();
    }

    fn execute(self: &Arc<Self>, state: &mut State<B::Request>, effect: Effect) {
        match effect {
            Effect::Create { id, pod, attempt } => self.spawn_create(id, pod, attempt),
            Effect::Delete { id, pod, group, grace } => self.spawn_delete(id, &pod, group, grace),
            Effect::Poll { id, call } => self.spawn_poll(id, call),
            Effect::Settled(pod, request, result) => {
                if let Some(record) = state.records.get_mut(&pod.uid) {
                    record.settle(request, &result);
                }
            }
            Effect::Changed(pod) => self.publish(state, &pod),
            Effect::Events(pod, events) => self.publish_events(state, &pod, events),
            Effect::Malformed(pod, what) => {
                // The cloud repeats itself with every poll.
                let record = state.record(&pod);
                if record.malformed == what {
                    return;
                }
                record.malformed.clone_from(&what);
                warn!(%pod, ?what, "the cloud's answer is malformed");
                let message = format!("the cloud's answer could not be understood: {}", what.join("; "));
                self.event(&pod, EventKind::Warning, "MalformedStatus", message);
            }
            Effect::Duplicate { pod, kept, removed } => {
                state.duplicates += 1;
                warn!(%pod, %kept, %removed, "the pod has two groups: deleting the younger one");
                let message = format!("the pod has two container groups; {kept} stays, {removed} is deleted");
                self.event(&pod, EventKind::Warning, "DuplicateGroup", message);
            }
            Effect::Forgotten(pod) => {
                debug!(%pod, "nothing is left of the pod");
                // Whoever still waits, waits for something else than this pod's groups.
                if state.records.get(&pod.uid).is_some_and(|record| record.waiters.is_empty()) {
                    state.records.remove(&pod.uid);
                }
            }
            Effect::Polled(result) => {
                self.polled.send_replace(true);
                self.add_costs(state);
                self.publish_waiting(state);
                self.record_health(state, result);
            }
            Effect::Sight(why) => {
                if let Some(why) = &why {
                    warn!(%why, "groups are missing: nothing is concluded from that");
                } else {
                    info!("all groups are visible again");
                }
                state.health.set_blind(why);
                self.node_has_changed();
            }
            Effect::Synced => {
                self.synced.send_replace(true);
            }
        }
    }

    /// Publishes the pods that wait for something that the cloud may never say: that they have other resources, or why they ended.
    fn publish_waiting(self: &Arc<Self>, state: &mut State<B::Request>) {
        let is_resizing =
            |pod: &PodRef| state.records.get(&pod.uid).is_some_and(|record| record.resize.is_some());
        let present = state.reconciler.present();
        let pods = present.filter(|(pod, group)| group.is_unexplained() || is_resizing(pod));
        for pod in pods.map(|(pod, _)| pod.clone()).collect::<Vec<_>>() {
            self.publish(state, &pod);
        }
    }

    fn record_health(&self, state: &mut State<B::Request>, result: CallResult<()>) {
        if let Err(error) = &result {
            warn!(class = error.class.name(), %error, "the poll of the container groups failed");
        }
        if state.health.record(result) {
            self.node_has_changed();
        }
    }

    pub(super) fn node_has_changed(&self) {
        self.node_changed.send_modify(|count| *count += 1);
    }

    pub(super) fn event(&self, pod: &PodRef, kind: EventKind, reason: &str, message: String) {
        let event = PodEvent { pod: pod.clone(), container: None, kind, reason: reason.to_owned(), message };
        self.outbox.event(event);
    }

    /// Stores the request for the next group of a pod, and the files in it.
    pub(super) fn set_plan(
        &self,
        pod: &PodRef,
        desired: &Arc<Pod>,
        plan: Plan<B::Request>,
        files: BTreeMap<String, FileSet>,
    ) {
        if !plan.warnings.is_empty() && self.state.lock().record(pod).plan.is_none() {
            let texts: Vec<String> =
                plan.warnings.iter().map(|one| format!("{}: {}", one.field, one.message)).collect();
            self.event(pod, EventKind::Warning, "FieldsNotHonored", texts.join("; "));
        }
        self.state.lock().record(pod).set_plan(desired, plan, files);
    }

    /// A new session owns the node: everything is published again.
    pub(super) fn begin_session(self: &Arc<Self>) -> u64 {
        let number = self.sessions.fetch_add(1, Ordering::SeqCst) + 1;
        self.outbox.clear();
        self.annotations.clear();
        {
            let mut state = self.state.lock();
            state.session_began = self.clock.now();
            for record in state.records.values_mut() {
                record.published = None;
                record.annotations.clear();
            }
        }
        self.handle(Input::Leading(true));
        let mut state = self.state.lock();
        let pods: Vec<PodRef> = state.reconciler.present().map(|(pod, _)| pod.clone()).collect();
        for pod in pods {
            self.publish(&mut state, &pod);
        }
        number
    }

    pub(super) fn is_session(&self, number: u64) -> bool {
        self.sessions.load(Ordering::SeqCst) == number
    }

    /// Whether the node can take pods.
    pub(super) async fn ping(&self) -> Result<()> {
        // The first poll answers the first question.
        let mut polled = self.polled.subscribe();
        if polled.wait_for(|polled| *polled).await.is_err() {
            return Ok(());
        }
        let state = self.state.lock();
        match state.health.outage() {
            None => Ok(()),
            Some(error) if error.class == Class::Denied => {
                Err(error.for_operation("the cloud refuses the credentials or permissions"))
            }
            Some(error) => Err(error.for_operation("the cloud does not answer")),
        }
    }

    pub(super) fn configure_node(&self, node: &mut NodeTemplate) {
        let state = self.state.lock();
        node.capacity.extend(self.settings.capacity.iter().map(|(name, amount)| (name.clone(), *amount)));
        for (name, amount) in state.quota.allocatable(&self.settings.capacity) {
            node.allocatable.insert(name, amount);
        }
        node.set_condition(state.health.condition());
        drop(state);
        if let Some(configure) = &self.settings.configure_node {
            configure(node);
        }
    }
}

/// Sends ticks, until the supervisor stops.
pub(super) async fn run<B: GroupBackend>(context: Arc<EngineContext<B>>) {
    loop {
        let woken = context.wake.notified();
        let deadline = context.state.lock().reconciler.next_deadline();
        let wait = deadline.map_or(LONGEST_SLEEP, |at| at.saturating_sub(context.now()));
        tokio::select! {
            () = tokio::time::sleep(wait) => context.handle(Input::Tick),
            () = woken => {}
            () = context.supervisor.stopping() => break,
        }
    }
    // Whoever waits gets no answer any more.
    for record in context.state.lock().records.values_mut() {
        record.waiters.retain(|(request, _)| !matches!(request, Request::Create | Request::Delete));
    }
}
