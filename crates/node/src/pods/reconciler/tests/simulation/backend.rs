//! A model of a backend: instances by UID, whose state is a function of time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::{RngExt as _, rngs::StdRng};
use serde_json::json;
use vk_provider::{ObservedPod, PodRef, error::Kind, placement::SCHEDULED_CONDITION, pod::STILL_RUNNING};

use super::server::{self, Fate};
use crate::pods::worker::ProviderFailure;

/// The UID of a pod of another owner.
pub(super) const STRANGER: &str = "stranger";
/// The UID of a pod that is on trial on this node and not bound yet.
pub(super) const ON_TRIAL: &str = "on-trial";
/// The UID of a pod that is not bound, and whose trial on this node has ended.
pub(super) const TRIAL_ENDED: &str = "trial-ended";
/// The UID of a pod that was on trial on this node and is bound to another one.
pub(super) const BOUND_ELSEWHERE: &str = "bound-elsewhere";
/// Pods that the backend has from the start.
const FOUND: [&str; 4] = [STRANGER, ON_TRIAL, TRIAL_ENDED, BOUND_ELSEWHERE];

/// A size that the backend refuses.
pub(super) const UNWELCOME: u32 = 5;

/// How long an instance stays visible after it was stopped.
const KEPT: Duration = Duration::from_secs(4);

#[derive(Default)]
pub(super) struct Backend {
    instances: BTreeMap<Arc<str>, Instance>,
    /// UIDs that were stopped at our request: they may never come back.
    stopped: BTreeSet<Arc<str>>,
    /// UIDs that were lost: they may.
    pub(super) lost: u32,
    /// Calls by the controller.
    pub(super) lifecycle_calls: u64,
    pub(super) reads: u64,
}

struct Instance {
    pod: PodRef,
    node: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    size: u32,
    never: bool,
    starts: Duration,
    /// When it completes.
    completes: Option<Duration>,
    /// From when to when its container is down between two runs.
    down: Option<(Duration, Duration)>,
    stop: Option<(Duration, Duration)>,
    /// How long it takes to stop; longer than any grace when it ignores the signal.
    stop_delay: Duration,
    /// How long after the end of its grace it is dead.
    kill_lag: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    /// Its container has ended, and starts again.
    Down,
    Completed,
    Stopped,
    Gone,
}

impl Instance {
    fn stop_end(&self) -> Option<Duration> {
        let (since, kill) = self.stop?;
        Some((since + self.stop_delay).min(kill + self.kill_lag))
    }

    fn state(&self, now: Duration) -> State {
        let completed = self.completes.is_some_and(|at| now >= at);
        match self.stop_end() {
            Some(end) if now >= end + KEPT => State::Gone,
            Some(end) if now >= end => State::Stopped,
            _ if completed => State::Completed,
            _ if now < self.starts => State::Waiting,
            None if self.down.is_some_and(|(from, to)| from <= now && now < to) => State::Down,
            _ => State::Running,
        }
    }

    fn status(&self, now: Duration) -> PodStatus {
        let since = server::wall(self.starts).to_string();
        let ended = |code: i32| json!({"terminated": {"exitCode": code, "startedAt": since}});
        // Every other pod has a helper that is not reported, and stops last.
        let helped = self.state(now) == State::Running && self.stop.is_some() && self.size.is_multiple_of(2);
        let (phase, state) = match self.state(now) {
            State::Running if helped => ("Running", ended(143)),
            State::Waiting => ("Pending", json!({"waiting": {"reason": "ContainerCreating"}})),
            State::Running => ("Running", json!({"running": {"startedAt": since}})),
            State::Down => ("Running", ended(1)),
            State::Completed => ("Succeeded", ended(0)),
            State::Stopped | State::Gone => (if self.never { "Failed" } else { "Running" }, ended(137)),
        };
        let running = state["running"].is_object();
        let own = if running { server::AT_WORK } else { server::AT_REST };
        let status = json!({
            "phase": phase,
            "podIP": "10.1.0.1",
            "conditions": [
                {"type": SCHEDULED_CONDITION, "status": if running { "True" } else { "False" }},
                {"type": own, "status": "True"},
                {"type": STILL_RUNNING, "status": if helped { "True" } else { "False" }},
            ],
            "containerStatuses": [{"name": "app", "image": "app:1", "imageID": "", "ready": running,
                                   "started": running, "restartCount": 0, "state": state}],
        });
        serde_json::from_value(status).expect("a status")
    }
}

fn refusal(kind: Kind) -> ProviderFailure {
    ProviderFailure { message: format!("{kind:?}"), kind }
}

impl Backend {
    /// A backend that has a pod of another owner, and pods of this one that are not bound to it.
    pub(super) fn with_strangers(owner: Option<&str>) -> Self {
        let found = FOUND.map(|uid| {
            let node = if uid == STRANGER { owner } else { Some("vk") };
            let instance = Instance {
                pod: PodRef::new("default", uid, uid),
                node: node.map(str::to_owned),
                labels: BTreeMap::new(),
                size: 0,
                never: false,
                starts: Duration::ZERO,
                completes: None,
                down: None,
                stop: None,
                stop_delay: Duration::ZERO,
                kill_lag: Duration::ZERO,
            };
            (Arc::from(uid), instance)
        });
        Self { instances: found.into(), ..Self::default() }
    }

    /// Whether nobody may stop the pod: it is another owner's, or on trial here.
    pub(super) fn is_untouchable(uid: &str) -> bool {
        [STRANGER, ON_TRIAL].contains(&uid)
    }

    fn tidy(&mut self, now: Duration) {
        self.instances.retain(|_, one| one.state(now) != State::Gone);
    }

    pub(super) fn state(&self, uid: &str, now: Duration) -> State {
        self.instances.get(uid).map_or(State::Gone, |one| one.state(now))
    }

    /// Whether anything of the pod runs, or will without a call.
    pub(super) fn runs(&self, uid: &str, now: Duration) -> bool {
        matches!(self.state(uid, now), State::Waiting | State::Running | State::Down)
    }

    pub(super) fn uids(&self, now: Duration) -> Vec<Arc<str>> {
        let there = self.instances.iter().filter(|(_, one)| one.state(now) != State::Gone);
        there.map(|(uid, _)| Arc::clone(uid)).collect()
    }

    pub(super) fn size(&self, uid: &str) -> u32 {
        self.instances.get(uid).map_or(0, |one| one.size)
    }

    pub(super) fn labels(&self, uid: &str) -> Option<&BTreeMap<String, String>> {
        self.instances.get(uid).map(|one| &one.labels)
    }

    /// When the instance changes without a call, after now.
    pub(super) fn changes(&self, uid: &str, now: Duration) -> Vec<Duration> {
        let Some(one) = self.instances.get(uid) else { return Vec::new() };
        let end = one.stop_end();
        let down = one.down.map(|(from, _)| from);
        let up = one.down.map(|(_, to)| to);
        let all = [Some(one.starts), one.completes, down, up, end, end.map(|end| end + KEPT)];
        all.into_iter().flatten().filter(|at| *at > now).collect()
    }

    pub(super) fn create(
        &mut self,
        pod: &Pod,
        now: Duration,
        rng: &mut StdRng,
    ) -> Result<(), ProviderFailure> {
        self.tidy(now);
        if server::fate(pod) == Fate::Refused {
            return Err(refusal(Kind::Invalid));
        }
        let labels = server::labels(pod);
        let reference = PodRef::of(pod).expect("a stored pod");
        if let Some(there) = self.instances.get_mut(&reference.uid) {
            there.labels = labels;
            there.size = server::size(pod);
            return Ok(());
        }
        // A clock that jumps back gives a pod its time again, unless its end was written.
        let may = server::fate(pod) == Fate::Expires || server::is_tried(pod);
        let again = self.stopped.contains(&reference.uid) && !may;
        assert!(!again, "{reference} was stopped for good and is created again");
        let starts = now + Duration::from_millis(rng.random_range(0..5000));
        let never = server::fate(pod) == Fate::Completes;
        let stop_delay = if rng.random_bool(0.3) { 1_000_000 } else { rng.random_range(0..20_000) };
        let instance = Instance {
            pod: reference.clone(),
            node: Some("vk".to_owned()),
            labels,
            size: server::size(pod),
            never,
            starts,
            completes: never.then(|| starts + Duration::from_millis(rng.random_range(1000..40_000))),
            down: None,
            stop: None,
            stop_delay: Duration::from_millis(stop_delay),
            kill_lag: Duration::from_millis(rng.random_range(0..12_000)),
        };
        self.instances.insert(reference.uid, instance);
        Ok(())
    }

    pub(super) fn update(&mut self, pod: &Pod, now: Duration) -> Result<(), ProviderFailure> {
        self.tidy(now);
        let there = self.instances.get_mut(server::uid(pod)).ok_or_else(|| refusal(Kind::NotFound))?;
        if server::size(pod) == UNWELCOME && there.size != UNWELCOME {
            return Err(refusal(Kind::Unsupported));
        }
        there.labels = server::labels(pod);
        there.size = server::size(pod);
        Ok(())
    }

    pub(super) fn delete(
        &mut self,
        pod: &PodRef,
        grace: Duration,
        now: Duration,
    ) -> Result<(), ProviderFailure> {
        self.tidy(now);
        assert!(!Self::is_untouchable(&pod.uid), "{pod} is another owner's or on trial here, and is stopped");
        let there = self.instances.get_mut(&pod.uid).ok_or_else(|| refusal(Kind::NotFound))?;
        self.stopped.insert(Arc::clone(&pod.uid));
        // A container that is down stays down.
        if there.state(now) == State::Down {
            there.stop_delay = Duration::ZERO;
        }
        let kill = now + grace;
        there.stop = Some(match there.stop {
            Some((since, before)) => (since, before.min(kill)),
            None => (now, kill),
        });
        if matches!(there.state(now), State::Stopped | State::Completed) {
            self.instances.remove(&pod.uid);
            return Err(refusal(Kind::NotFound));
        }
        Ok(())
    }

    pub(super) fn status(&mut self, pod: &PodRef, now: Duration) -> Result<Box<PodStatus>, ProviderFailure> {
        self.tidy(now);
        let there = self.instances.get(&pod.uid).ok_or_else(|| refusal(Kind::NotFound))?;
        Ok(Box::new(there.status(now)))
    }

    pub(super) fn list(&mut self, now: Duration) -> Vec<ObservedPod> {
        self.tidy(now);
        let observe = |one: &Instance| ObservedPod {
            pod: one.pod.clone(),
            node: one.node.clone(),
            status: one.status(now),
        };
        self.instances.values().map(observe).collect()
    }

    fn any(&mut self, rng: &mut StdRng) -> Option<Arc<str>> {
        let uids: Vec<&Arc<str>> = self.instances.keys().filter(|uid| !FOUND.contains(&&***uid)).collect();
        (!uids.is_empty()).then(|| Arc::clone(uids[rng.random_range(0..uids.len())]))
    }

    /// Loses one of its pods.
    pub(super) fn lose(&mut self, rng: &mut StdRng) -> Option<PodRef> {
        let uid = self.any(rng)?;
        self.lost += 1;
        self.instances.remove(&uid).map(|one| one.pod)
    }

    /// Lets a container of one of its pods crash, to start again later.
    pub(super) fn crash(&mut self, now: Duration, rng: &mut StdRng) -> Option<PodRef> {
        let uid = self.any(rng)?;
        let one = self.instances.get_mut(&uid)?;
        if !one.never && one.state(now) == State::Running {
            one.down = Some((now, now + Duration::from_millis(rng.random_range(1000..20_000))));
        }
        Some(one.pod.clone())
    }
}
