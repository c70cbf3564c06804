//! The reconciler of one node's pods: inputs in, effects out.
//!
//! It owns a [`Worker`] per UID and what belongs to the node as a whole: timers, admission, the queue of writes, orphans, the
//! audit of the watch, the list of the provider's pods. It does no I/O and reads no clock: its driver executes the
//! effects and hands in their answers. Every effect that is answered has an id of its own; the one who asked remembers the id,
//! and an answer with another id is ignored.

pub(super) mod effect;
mod provider_list;
pub(super) mod write_queue;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use rand::rngs::StdRng;
use tracing::{debug, info, warn};
use vk_kube::Error as ApiError;
use vk_provider::{ObservedPod, PodChange, PodEvent, PodRef};
use vk_supervisor::Now;

use self::{
    effect::{Completion, EffectId, EffectIds, EffectResult, PodEffect, PodEventRecord},
    provider_list::ProviderList,
    write_queue::WriteQueue,
};
use super::{
    Policy,
    admission::NodeAdmission,
    container_events::ProviderEventReasons,
    orphans::Orphans,
    trial::Assignment,
    watch::PodWatchEvent,
    watch_audit::{AuditFinding, PodVersions, WatchAudit},
    worker::{Event, ProviderFailure, Worker, WorkerContext, version},
};

/// The polling period of a provider whose stream of changes has ended.
const POLL: Duration = Duration::from_secs(5);

/// Something that happened.
#[derive(Debug)]
pub(super) enum Input {
    /// The watch of the node's pods shows something.
    Watch(PodWatchEvent),
    /// The watch of the pods on trial on the node shows something.
    TrialWatch(PodWatchEvent),
    /// The provider reports a change.
    Provider(PodChange),
    /// The provider's stream of changes has ended.
    ProviderStreamEnded,
    /// The resolver of the pods' references has an event for people.
    ResolverEvent(PodEvent),
    /// The Node changed.
    Node(Option<Arc<Node>>),
    /// An effect was answered.
    Completed(Completion),
    /// The write permit that was requested is there.
    WritePermit,
    /// Time passed.
    Tick,
}

/// A worker and its timer.
struct Entry {
    worker: Worker,
    timer: Option<Duration>,
}

/// Boxed, because half of a large table is empty. The hasher has no random state, so that a seed of the simulation always has
/// the same outcome; UIDs are the API server's own.
type Workers = HashMap<Arc<str>, Box<Entry>, BuildHasherDefault<DefaultHasher>>;

/// The pods of one node.
pub(super) struct PodReconciler {
    node: String,
    policy: Policy,
    rng: StdRng,
    ids: EffectIds,
    workers: Workers,
    timers: BTreeSet<(Duration, Arc<str>)>,
    admission: NodeAdmission,
    writes: WriteQueue,
    provider_events: ProviderEventReasons,
    orphans: Orphans,
    audit: WatchAudit,
    provider_list: ProviderList,
    /// The API server's pods were listed once: before that, every pod of the provider would look like an orphan.
    synced: bool,
    /// Pods that were seen since the list in progress began.
    in_list: Option<HashSet<Arc<str>>>,
    /// The same for pods on trial.
    in_trial_list: Option<HashSet<Arc<str>>>,
}

// === impl PodReconciler ===

impl PodReconciler {
    pub(super) fn new(node: String, policy: Policy, rng: StdRng) -> Self {
        Self {
            node,
            admission: NodeAdmission::new(policy.checks, policy.daemon_sets),
            policy,
            rng,
            ids: EffectIds::default(),
            workers: Workers::default(),
            timers: BTreeSet::new(),
            writes: WriteQueue::default(),
            provider_events: ProviderEventReasons::default(),
            orphans: Orphans::default(),
            audit: WatchAudit::default(),
            provider_list: ProviderList::new(),
            synced: false,
            in_list: None,
            in_trial_list: None,
        }
    }

    /// How many write permits are free, as of now.
    pub(super) fn set_available_permits(&mut self, permits: usize) {
        self.writes.set_available(permits);
    }

    /// When to send [`Input::Tick`], if nothing else happens before.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let list = self.provider_list.deadline().filter(|_| self.synced);
        timer.into_iter().chain(list).min()
    }

    /// Handles an input, and adds what is to be done to the effects.
    pub(super) fn handle(&mut self, now: Now, input: Input, effects: &mut Vec<PodEffect>) {
        let mut pass = Pass { reconciler: self, now, effects };
        match input {
            Input::Watch(event) => pass.watch_event(event),
            Input::TrialWatch(event) => pass.trial_event(event),
            Input::Provider(change) => pass.provider_changed(change),
            Input::ProviderStreamEnded => pass.poll_provider(),
            Input::ResolverEvent(event) => pass.record_event(event),
            Input::Node(node) => pass.reconciler.admission.set_node(node),
            Input::Completed(completion) => pass.completed(completion),
            Input::WritePermit => pass.write_permit(),
            Input::Tick => pass.tick(),
        }
        pass.finish();
    }

    /// The pods that have a worker.
    #[cfg(test)]
    fn uids(&self) -> Vec<Arc<str>> {
        self.workers.keys().cloned().collect()
    }
}

/// The handling of one input.
struct Pass<'a> {
    reconciler: &'a mut PodReconciler,
    now: Now,
    effects: &'a mut Vec<PodEffect>,
}

// === impl Pass ===

impl Pass<'_> {
    /// Hands an event to the worker of a pod, if there is one.
    fn dispatch(&mut self, uid: &str, event: Event) {
        let PodReconciler {
            node, policy, rng, ids, workers, timers, admission, writes, provider_events, ..
        } = &mut *self.reconciler;
        let Some(entry) = workers.get_mut(uid) else { return };
        let publish = matches!(event, Event::Applied(_) | Event::WriteCompleted(..));
        let (now, effects) = (self.now, &mut *self.effects);
        let mut cx =
            WorkerContext { now, node, policy, rng, ids, admission, writes, provider_events, effects };
        let before = cx.effects.len();
        entry.worker.handle(&mut cx, event);
        if let Some(pod) = entry.worker.desired().filter(|_| publish) {
            // A resolver that is opened or closed by these effects sees the newest version.
            cx.effects.insert(before, PodEffect::PublishPod(Arc::clone(pod)));
        }
        let done = entry.worker.is_done();
        if done {
            debug!(pod = %entry.worker.pod(), "nothing is left of the pod");
            entry.worker.finish(&mut cx);
        }
        let deadline = entry.worker.deadline(self.now.elapsed, policy).filter(|_| !done);
        if deadline != entry.timer {
            let uid = &entry.worker.pod().uid;
            if let Some(old) = entry.timer.take() {
                timers.remove(&(old, Arc::clone(uid)));
            }
            timers.extend(deadline.map(|deadline| (deadline, Arc::clone(uid))));
            entry.timer = deadline;
        }
        if done {
            workers.remove(uid);
        }
    }

    /// Does what follows from the input for the node as a whole.
    fn finish(&mut self) {
        loop {
            let waiting = self.reconciler.admission.take_waiting();
            if waiting.is_empty() {
                break;
            }
            for uid in waiting {
                self.dispatch(&uid, Event::RoomFreed);
            }
        }
        if self.reconciler.writes.needs_request() {
            self.effects.push(PodEffect::AcquireWritePermit);
        }
        let reconciler = &mut *self.reconciler;
        if reconciler.synced
            && let Some(id) = reconciler.provider_list.start(self.now.elapsed, &mut reconciler.ids)
        {
            self.effects.push(PodEffect::ListProviderPods { id });
        }
    }

    fn tick(&mut self) {
        let now = self.now.elapsed;
        while let Some((_, uid)) = self.reconciler.timers.first().filter(|(at, _)| *at <= now).cloned() {
            self.reconciler.timers.pop_first();
            if let Some(entry) = self.reconciler.workers.get_mut(&uid) {
                entry.timer = None;
            }
            self.dispatch(&uid, Event::Tick);
        }
    }

    fn watch_event(&mut self, event: PodWatchEvent) {
        match event {
            PodWatchEvent::Restarted => {
                self.reconciler.in_list = Some(HashSet::new());
                self.reconciler.audit.restarted();
            }
            PodWatchEvent::Applied(pod) => {
                let outdated = |uid| self.reconciler.audit.applied(uid);
                if !pod.metadata.uid.as_deref().is_some_and(outdated) {
                    self.apply(pod);
                }
            }
            PodWatchEvent::Deleted(pod) => {
                if let Some(uid) = pod.metadata.uid.as_deref() {
                    self.reconciler.audit.deleted(uid);
                    self.dispatch(uid, Event::Gone);
                }
            }
            PodWatchEvent::Versions(versions) => self.audit_watch(&versions),
            // The driver publishes it.
            PodWatchEvent::AuditFailed(_) => {}
            PodWatchEvent::Listed => {
                self.reconciler.synced = true;
                self.reconciler.audit.listed();
                let Some(listed) = self.reconciler.in_list.take() else { return };
                for uid in self.workers_not_in(&listed, Worker::is_bound) {
                    self.dispatch(&uid, Event::Gone);
                }
            }
        }
    }

    /// An event of the watch by the trial label. Pods that are bound are the other watch's.
    fn trial_event(&mut self, event: PodWatchEvent) {
        match event {
            PodWatchEvent::Restarted => self.reconciler.in_trial_list = Some(HashSet::new()),
            PodWatchEvent::Applied(pod) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                if let Some((listed, uid)) =
                    self.reconciler.in_trial_list.as_mut().zip(pod.metadata.uid.as_deref())
                {
                    listed.insert(uid.into());
                }
                match Assignment::of(&pod, &self.reconciler.node, self.now) {
                    Assignment::Bound => {}
                    Assignment::NotOurs => self.dispatch(uid, Event::Released(version(&pod))),
                    Assignment::OnTrial { .. } | Assignment::TrialOver => self.apply(pod),
                }
            }
            PodWatchEvent::Deleted(pod) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                if self.reconciler.workers.get(uid).is_some_and(|entry| entry.worker.is_trial()) {
                    self.dispatch(uid, Event::Released(version(&pod)));
                }
            }
            PodWatchEvent::Listed => {
                let Some(listed) = self.reconciler.in_trial_list.take() else { return };
                for uid in self.workers_not_in(&listed, Worker::is_trial) {
                    self.dispatch(&uid, Event::Released(None));
                }
            }
            PodWatchEvent::Versions(_) | PodWatchEvent::AuditFailed(_) => {}
        }
    }

    /// The pods with a worker that a list does not have, of those that belong to it.
    fn workers_not_in(&self, listed: &HashSet<Arc<str>>, belongs: impl Fn(&Worker) -> bool) -> Vec<Arc<str>> {
        let workers = self.reconciler.workers.iter();
        let missing = workers.filter(|(uid, entry)| belongs(&entry.worker) && !listed.contains(*uid));
        missing.map(|(uid, _)| Arc::clone(uid)).collect()
    }

    /// A version of a pod of this node.
    fn apply(&mut self, pod: Arc<Pod>) {
        let Some(reference) = PodRef::of(&pod) else { return };
        let uid = Arc::clone(&reference.uid);
        if let Some(listed) = &mut self.reconciler.in_list {
            listed.insert(Arc::clone(&uid));
        }
        let adopted = self.ensure_worker(reference);
        self.dispatch(&uid, Event::Applied(pod));
        if let Some(status) = adopted {
            self.dispatch(&uid, Event::Adopted(status));
        }
    }

    /// Sees to it that the pod has a worker. Returns the status of a new one, if the last list of the provider's pods has it.
    fn ensure_worker(&mut self, pod: PodRef) -> Option<Box<PodStatus>> {
        let reconciler = &mut *self.reconciler;
        if reconciler.workers.contains_key(&pod.uid) {
            return None;
        }
        let adopted = reconciler.orphans.claim(&pod.uid);
        let uid = Arc::clone(&pod.uid);
        let worker = Worker::new(pod, reconciler.provider_list.is_complete() && adopted.is_none());
        reconciler.workers.insert(uid, Box::new(Entry { worker, timer: None }));
        adopted
    }

    fn provider_changed(&mut self, change: PodChange) {
        match change {
            PodChange::Refresh(pod) => self.dispatch(&pod.uid, Event::StatusChanged),
            PodChange::Status(pod, status) => self.dispatch(&pod.uid, Event::StatusReported(status)),
            PodChange::Annotations(pod, annotations) => {
                self.dispatch(&pod.uid, Event::Annotations(annotations));
            }
            PodChange::Labels(pod, labels) => self.dispatch(&pod.uid, Event::Labels(labels)),
            PodChange::Event(event) => {
                self.reconciler.provider_events.observe(&event.reason);
                self.record_event(event);
            }
        }
    }

    /// Records an event of the provider or of the resolver.
    fn record_event(&mut self, PodEvent { pod, container, kind, reason, message }: PodEvent) {
        let field_path = container.map(|container| format!("spec.containers{{{container}}}"));
        let reason = reason.into();
        if let Some(entry) = self.reconciler.workers.get_mut(&pod.uid) {
            entry.worker.record(self.now.elapsed, self.effects, field_path, kind, reason, message);
        } else {
            let record = PodEventRecord { pod, field_path, kind, reason, message };
            self.effects.push(PodEffect::RecordEvent(record));
        }
    }

    /// The provider does not push any more: it is polled.
    fn poll_provider(&mut self) {
        warn!(period = ?POLL, "the provider's stream of changes has ended: its pods are polled");
        self.reconciler.policy.poll = Some(POLL);
        let all: Vec<Arc<str>> = self.reconciler.workers.keys().cloned().collect();
        for uid in all {
            self.dispatch(&uid, Event::StatusChanged);
        }
    }

    /// A write permit came: the first pod in the queue that has something to write uses it.
    fn write_permit(&mut self) {
        self.reconciler.writes.grant();
        while let Some(uid) = self.reconciler.writes.next_granted() {
            self.dispatch(&uid, Event::WritePermit);
        }
    }

    fn completed(&mut self, Completion { id, uid, result }: Completion) {
        let uid = uid.as_deref().unwrap_or_default();
        match result {
            EffectResult::Call(result) => self.dispatch(uid, Event::CallCompleted(id, result)),
            EffectResult::Status(result) => self.dispatch(uid, Event::StatusRead(id, result)),
            EffectResult::Write(result) => self.dispatch(uid, Event::WriteCompleted(id, result)),
            EffectResult::Node(result) => self.dispatch(uid, Event::NodeRead(id, result)),
            EffectResult::ReferenceAvailable => self.dispatch(uid, Event::ReferenceAvailable(id)),
            EffectResult::ProviderPods(result) => self.provider_listed(id, result),
            EffectResult::Pod(result) => self.pod_read(id, result),
        }
    }

    /// Compares the provider's pods with the workers.
    fn provider_listed(&mut self, id: EffectId, result: Result<Vec<ObservedPod>, ProviderFailure>) {
        let reconciler = &mut *self.reconciler;
        let (list, now) = (&mut reconciler.provider_list, self.now.elapsed);
        let Some(requested_at) = list.complete(id) else { return };
        let pods = match result {
            Ok(pods) => pods,
            Err(failure) => {
                let delay = list.failed(now, failure.kind.retry_after(), &mut reconciler.rng);
                return warn!(
                    error = failure.message,
                    ?delay,
                    "cannot list the provider's pods: trying again"
                );
            }
        };
        if list.succeeded(now, reconciler.policy.compare) {
            info!(pods = pods.len(), "the provider's pods are known");
        }
        let mut listed: BTreeMap<Arc<str>, ObservedPod> =
            pods.into_iter().map(|pod| (Arc::clone(&pod.pod.uid), pod)).collect();
        let mut known: Vec<Arc<str>> = reconciler.workers.keys().cloned().collect();
        // Pods that the provider has come first; the rest is served in the order in which it came.
        known.sort_by_cached_key(|uid| {
            let precedence = reconciler.workers.get(uid).map(|entry| entry.worker.precedence());
            (!listed.contains_key(uid), precedence)
        });
        for uid in known {
            let status = listed.remove(&uid).map(|pod| Box::new(pod.status));
            self.dispatch(&uid, Event::Listed { requested_at, status });
        }
        let reconciler = &mut *self.reconciler;
        let checks = reconciler.orphans.listed(listed.into_values(), &reconciler.node, &mut reconciler.ids);
        self.effects.extend(checks.into_iter().map(|(id, pod)| PodEffect::ReadPod { id, pod }));
    }

    /// Compares the versions that the API server's cache has with those of the workers. A list in progress shows more.
    fn audit_watch(&mut self, versions: &PodVersions) {
        let reconciler = &mut *self.reconciler;
        if reconciler.synced && reconciler.in_list.is_none() {
            let known = reconciler.workers.values().filter(|entry| entry.worker.is_bound());
            let known = known.map(|entry| (entry.worker.pod(), entry.worker.known_version()));
            reconciler.audit.compare(versions, known);
            self.read_audited();
        }
    }

    fn read_audited(&mut self) {
        let reconciler = &mut *self.reconciler;
        while let Some((id, pod)) = reconciler.audit.next_read(&mut reconciler.ids) {
            self.effects.push(PodEffect::ReadPod { id, pod });
        }
    }

    /// A pod was read from the API server: a possible orphan, or one that the audit found.
    fn pod_read(&mut self, id: EffectId, result: Result<Option<Box<Pod>>, ApiError>) {
        if let Some(pod) = self.reconciler.orphans.take_check(id) {
            self.orphan_checked(pod, result);
        } else if let Some(pod) = self.reconciler.audit.take_read(id) {
            self.audited(&pod, result);
            self.read_audited();
        }
    }

    fn orphan_checked(&mut self, pod: PodRef, result: Result<Option<Box<Pod>>, ApiError>) {
        let reconciler = &mut *self.reconciler;
        let found = match result {
            Ok(found) => found,
            Err(error) => return debug!(%pod, %error, "cannot check whether the pod is this node's"),
        };
        if let Some(reason) = reconciler.orphans.checked(&pod, &reconciler.node, found.as_deref()) {
            warn!(%pod, %reason, "cleaning up a pod that the provider has and this node should not run");
            let uid = Arc::clone(&pod.uid);
            let adopted = self.ensure_worker(pod);
            self.dispatch(&uid, Event::Adopted(adopted.unwrap_or_default()));
        }
    }

    fn audited(&mut self, pod: &PodRef, result: Result<Option<Box<Pod>>, ApiError>) {
        let reconciler = &mut *self.reconciler;
        let known = reconciler.workers.get(&pod.uid).map(|entry| entry.worker.known_version());
        let finding = match result {
            Ok(found) => reconciler.audit.read(pod, found.map(|found| *found), known),
            Err(error) => {
                debug!(%pod, %error, "cannot read a pod whose version differs between the watch and the API server's cache");
                return reconciler.audit.read_failed(pod);
            }
        };
        match finding {
            Some(AuditFinding::Gone) => {
                warn!(%pod, "the watch missed the deletion of the pod: found by the audit");
                self.dispatch(&pod.uid, Event::Gone);
            }
            Some(AuditFinding::Newer(found)) => {
                let node = found.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                if node == Some(&reconciler.node) {
                    warn!(%pod, "the watch missed the pod or a change of it: found by the audit");
                    self.apply(found);
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
