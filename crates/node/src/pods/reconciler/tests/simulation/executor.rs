//! Executes the effects of the reconciler on the models of the API server and the backend, with faults.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::RngExt as _;
use vk_kube::{Error as ApiError, Kind as ApiKind};
use vk_provider::{
    PodRef,
    error::Kind,
    resolve::{Reference, ReferenceKind},
};
use vk_supervisor::Now;

use super::{Scheduled, World, server, server::Fate};
use crate::pods::{
    reconciler::{
        Input,
        effect::{Completion, EffectId, EffectResult, PodEffect, PodWrite, ProviderCall},
    },
    trial::TrialChange,
    watch::PodWatchEvent,
    worker::ProviderFailure,
};

/// A lifecycle call on the backend.
pub(super) struct CallInFlight {
    pub(super) pod: PodRef,
    pub(super) hangs: bool,
    call: ProviderCall,
    /// The backend's answer, once the call has taken effect.
    effect: Option<Result<(), ProviderFailure>>,
    /// The error that the caller sees whatever became of it.
    error: Option<ProviderFailure>,
    /// Whether it takes effect at all.
    effective: bool,
}

// === impl CallInFlight ===

impl CallInFlight {
    pub(super) fn is_delete(&self) -> bool {
        matches!(self.call, ProviderCall::Delete { .. })
    }

    fn completion(self, id: EffectId) -> Completion {
        let answer = self.error.map_or_else(|| self.effect.unwrap_or(Ok(())), Err);
        Completion { id, uid: Some(self.pod.uid), result: EffectResult::Call(answer) }
    }
}

// === impl World ===

impl World {
    /// Feeds the reconciler, and executes its effects.
    pub(super) fn feed(&mut self, input: Input) {
        let wall = server::wall(self.now) + self.clock_error;
        let now = Now { elapsed: self.now, wall };
        self.note(|| format!("<- {}", describe_input(&input)));
        self.deletions.observe(&input, self.now);
        let permits = if self.in_storm() { self.rng.random_range(0..3) } else { 4 };
        let mut effects = Vec::new();
        self.reconciler.set_available_permits(permits);
        self.reconciler.handle(now, input, &mut effects);
        for effect in effects {
            self.note(|| format!("-> {}", describe_effect(&effect)));
            self.execute(effect);
        }
        let deadline = self.reconciler.next_deadline();
        if deadline != self.wake_at {
            self.wake_at = deadline;
            if let Some(deadline) = deadline {
                self.schedule(deadline.max(self.now), Scheduled::Wake(self.process, deadline));
            }
        }
    }

    pub(super) fn wake(&mut self, at: Duration) {
        if self.wake_at == Some(at) {
            self.wake_at = None;
            self.feed(Input::Tick);
        }
    }

    fn execute(&mut self, effect: PodEffect) {
        match effect {
            PodEffect::CallProvider { id, pod, call } => self.call(id, pod, call),
            PodEffect::Cancel(id) => self.cancel(id),
            PodEffect::ReadStatus { id, pod } => {
                self.backend.reads += 1;
                let fails = self.in_storm() && self.rng.random_bool(0.2);
                let answer = if fails { Err(unavailable()) } else { self.backend.status(&pod, self.now) };
                self.answer(id, Some(pod.uid), EffectResult::Status(answer));
            }
            PodEffect::ListProviderPods { id } => {
                // The answer is as of now, and may be old when it comes.
                let fails = self.in_storm() && self.rng.random_bool(0.3);
                let answer = if fails { Err(unavailable()) } else { Ok(self.backend.list(self.now)) };
                self.answer(id, None, EffectResult::ProviderPods(answer));
            }
            PodEffect::Write { id, pod, write } => self.write(id, &pod, &write),
            PodEffect::AcquireWritePermit => {
                let (process, delay) = (self.process, self.delay());
                self.later(delay, Scheduled::WritePermit(process));
            }
            PodEffect::ReadNode { id, pod } => {
                let node = Box::new(self.node.clone());
                self.answer(id, Some(pod.uid), EffectResult::Node(Ok(node)));
            }
            PodEffect::ReadPod { id, pod } => {
                let (process, delay) = (self.process, self.delay());
                self.later(delay, Scheduled::ReadPod(process, id, pod));
            }
            // The object appears soon, or has existed all the time.
            PodEffect::AwaitReference { id, pod, .. } => {
                self.answer(id, Some(pod.uid), EffectResult::ReferenceAvailable);
            }
            PodEffect::CloseResolver(_) | PodEffect::PublishPod(_) | PodEffect::RecordEvent(_) => {}
        }
    }

    /// The answer to an effect comes some time later.
    fn answer(&mut self, id: EffectId, uid: Option<Arc<str>>, result: EffectResult) {
        let (process, delay) = (self.process, self.delay());
        self.later(delay, Scheduled::Answer(process, Completion { id, uid, result }));
    }

    /// The API server reads a pod now, and answers later.
    pub(super) fn read_pod(&mut self, id: EffectId, pod: PodRef) {
        let found = self.server.read(&pod.name).map(|found| Box::new(found.clone()));
        let fails = self.in_storm() && self.rng.random_bool(0.25);
        let answer = if fails { Err(ApiError::new(ApiKind::Timeout, "as scheduled")) } else { Ok(found) };
        self.answer(id, Some(pod.uid), EffectResult::Pod(answer));
    }

    /// A lifecycle call begins. In the storm it may fail before or after it took effect, be slow, or hang.
    fn call(&mut self, id: EffectId, pod: PodRef, call: ProviderCall) {
        let clash = self.calls.values().any(|call| call.pod.uid == pod.uid);
        assert!(!clash, "two lifecycle calls on {pod} at a time");
        if let ProviderCall::Delete { grace, .. } = &call
            && let Some(wanted) = self.server.by_uid(&pod.uid)
        {
            let expires = server::fate(wanted) == Fate::Expires;
            // It may be bound while its trial ends.
            let tried = server::is_tried(wanted);
            assert!(expires || tried || !self.server.wants(&pod.uid), "{pod} is wanted and is stopped");
            // Others may have been stopped before they were deleted.
            if server::fate(wanted) == Fate::Runs && !tried {
                self.deletions.check(wanted, *grace, self.now);
            }
        }
        self.backend.lifecycle_calls += 1;
        let fails = self.in_storm() && self.rng.random_bool(0.3);
        let hangs = self.in_storm() && self.rng.random_bool(0.1);
        let missing = Reference::new(ReferenceKind::Secret, "default", "missing");
        let slow = Kind::Throttled { after: Some(Duration::from_secs(2)) };
        let kinds = [Kind::Unavailable, Kind::Internal, slow, Kind::Unresolved(missing)];
        let kind = kinds[self.rng.random_range(0..kinds.len())].clone();
        let error =
            (fails || hangs).then(|| ProviderFailure { message: format!("{kind:?}, as scheduled"), kind });
        let effective = error.is_none() || self.rng.random_bool(0.5);
        self.calls.insert(id, CallInFlight { pod, hangs, call, effect: None, error, effective });
        if self.rng.random_bool(0.5) {
            self.take_effect(id);
        }
        if !hangs {
            let (process, delay) = (self.process, self.delay());
            self.later(delay, Scheduled::CallEnd(process, id));
        }
    }

    fn take_effect(&mut self, id: EffectId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if !call.effective || call.effect.is_some() {
            return;
        }
        let answer = match &call.call {
            ProviderCall::Create(pod) => self.backend.create(pod, self.now, &mut self.rng),
            ProviderCall::Update(pod) => self.backend.update(pod, self.now),
            ProviderCall::Delete { grace, .. } => self.backend.delete(&call.pod, *grace, self.now),
        };
        call.effect = Some(answer);
        let uid = Arc::clone(&call.pod.uid);
        self.follow_instance(&uid);
        self.instance_changed(&uid);
    }

    pub(super) fn call_ends(&mut self, id: EffectId) {
        self.take_effect(id);
        if let Some(call) = self.calls.remove(&id) {
            self.feed(Input::Completed(call.completion(id)));
        }
    }

    /// Nobody waits for the call any more. It may have ended just before, and then its answer still comes.
    fn cancel(&mut self, id: EffectId) {
        let ended = self.rng.random_bool(0.5);
        if let Some(call) = self.abandon(id, ended)
            && ended
            && !call.hangs
        {
            let (process, delay) = (self.process, self.delay());
            self.later(delay, Scheduled::Answer(process, call.completion(id)));
        }
    }

    /// The call ends without an answer; it may take effect all the same.
    pub(super) fn abandon(&mut self, id: EffectId, takes_effect: bool) -> Option<CallInFlight> {
        if takes_effect {
            self.take_effect(id);
        }
        self.calls.remove(&id)
    }

    fn write(&mut self, id: EffectId, pod: &PodRef, write: &PodWrite) {
        let fails = self.in_storm() && self.rng.random_bool(0.3);
        let effective = !fails || self.rng.random_bool(0.5);
        let mut answer = Ok(None);
        if effective {
            answer = match write {
                PodWrite::Status(patch) => {
                    let body = serde_json::to_value(patch.as_ref()).expect("a patch");
                    self.server.patch_status(&pod.name, &body).map(Some)
                }
                PodWrite::Trial(patch) => {
                    if *patch.change() == TrialChange::End {
                        let runs = self.backend.runs(&pod.uid, self.now);
                        assert!(!runs, "{pod} loses the label of its trial and runs");
                        assert!(
                            self.calls.values().all(|call| call.pod.uid != pod.uid),
                            "{pod} is being changed"
                        );
                    }
                    self.server.patch_trial(&pod.name, patch).map(Some)
                }
                PodWrite::Remove => {
                    let known = self.server.by_uid(&pod.uid).is_some();
                    let runs = self.backend.runs(&pod.uid, self.now);
                    assert!(!known || !runs, "{pod} leaves the API server and runs");
                    self.server.remove(&pod.name, &pod.uid, self.now).map(|()| None)
                }
            };
        }
        if fails {
            let kinds = [ApiKind::Timeout, ApiKind::Server, ApiKind::Unreachable, ApiKind::Throttled];
            answer = Err(ApiError::new(kinds[self.rng.random_range(0..kinds.len())], "as scheduled"));
        }
        self.answer(id, Some(Arc::clone(&pod.uid)), EffectResult::Write(answer));
    }
}

fn unavailable() -> ProviderFailure {
    ProviderFailure { kind: Kind::Unavailable, message: "as scheduled".to_owned() }
}

fn describe_pod(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let (version, grace) = (meta.resource_version.as_deref(), meta.deletion_grace_period_seconds);
    format!("{}, version {version:?}, {}, grace {grace:?}", server::uid(pod), server::phase(pod))
}

fn describe_status(status: &PodStatus) -> String {
    let states = status.container_statuses.iter().flatten().map(|one| {
        let state = one.state.clone().unwrap_or_default();
        let states = [("waiting", state.waiting.is_some()), ("running", state.running.is_some())];
        states.into_iter().find(|(_, is)| *is).map_or("terminated", |(name, _)| name)
    });
    format!("{:?} {:?}", status.phase, states.collect::<Vec<_>>())
}

fn describe_input(input: &Input) -> String {
    match input {
        Input::Watch(PodWatchEvent::Applied(pod)) => format!("Applied {}", describe_pod(pod)),
        Input::TrialWatch(PodWatchEvent::Applied(pod)) => format!("Trial applied {}", describe_pod(pod)),
        Input::TrialWatch(PodWatchEvent::Deleted(pod)) => format!("Trial deleted {}", describe_pod(pod)),
        Input::Watch(PodWatchEvent::Deleted(pod)) => format!("Deleted {}", describe_pod(pod)),
        Input::Watch(PodWatchEvent::Versions(versions)) => format!("Versions {:?}", versions.version),
        Input::Provider(vk_provider::PodChange::Status(pod, status)) => {
            format!("Status of {}: {}", pod.uid, describe_status(status))
        }
        Input::Completed(Completion { id, uid, result }) => {
            let result = match result {
                EffectResult::Status(Ok(status)) => describe_status(status),
                EffectResult::Write(Ok(Some(pod))) => format!("written {}", describe_pod(pod)),
                EffectResult::Pod(Ok(Some(pod))) => format!("read {}", describe_pod(pod)),
                EffectResult::ProviderPods(Ok(pods)) => {
                    format!("listed {:?}", pods.iter().map(|pod| &pod.pod.uid).collect::<Vec<_>>())
                }
                other => format!("{other:?}"),
            };
            format!("{id:?} {uid:?}: {result}")
        }
        other => format!("{other:?}"),
    }
}

fn describe_effect(effect: &PodEffect) -> String {
    match effect {
        PodEffect::CallProvider { id, pod, call } => {
            let call = match call {
                ProviderCall::Create(pod) => format!("Create {}", describe_pod(pod)),
                ProviderCall::Update(pod) => format!("Update {}", describe_pod(pod)),
                ProviderCall::Delete { grace, .. } => format!("Delete within {grace:?}"),
            };
            format!("{id:?} {}: {call}", pod.uid)
        }
        PodEffect::Write { id, pod, write: PodWrite::Status(patch) } => {
            format!("{id:?} {}: write status {:?}", pod.uid, patch.status().phase)
        }
        PodEffect::PublishPod(pod) => format!("Publish {}", describe_pod(pod)),
        other => format!("{other:?}"),
    }
}
