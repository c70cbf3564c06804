//! Log of what happened in the backend, in order. The API server shows what was reported about pods; this shows what was done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use vk_provider::{PodChange, PodRef};

/// Clones share the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackendLog(Arc<Mutex<Vec<LogEntry>>>);

/// A state change of a pod.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(crate) pod: PodRef,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Waiting,
    Running,
    Ready,
    /// All containers have exited; the largest exit code.
    Ended(i32),
    Gone,
}

// === impl BackendLog ===

impl BackendLog {
    /// Logs the changes of a node's pods.
    pub(crate) async fn write(self, mut changes: BoxStream<'static, PodChange>) {
        while let Some(change) = changes.next().await {
            let turn = match change {
                PodChange::Status(pod, status) => LogEntry { state: State::of(&status), pod },
                PodChange::Refresh(pod) => LogEntry { pod, state: State::Gone },
                _ => continue,
            };
            self.0.lock().push(turn);
        }
    }

    /// The current position, for later queries.
    pub(crate) fn now(&self) -> usize {
        self.0.lock().len()
    }

    /// Number of pods of this application in a matching state, after each entry from `since` on.
    fn counts(&self, app: &str, since: usize, is: impl Fn(State) -> bool) -> Vec<usize> {
        let mut pods = BTreeSet::new();
        let mut counts = Vec::new();
        for (index, turn) in self.0.lock().iter().enumerate() {
            if index == since {
                counts.push(pods.len());
            }
            let uid = Arc::clone(&turn.pod.uid);
            if is(turn.state) && turn.pod.name.starts_with(app) {
                pods.insert(uid);
            } else {
                pods.remove(&uid);
            }
            if index >= since {
                counts.push(pods.len());
            }
        }
        counts
    }

    /// The minimum number of ready pods of this application from `since` on.
    pub(crate) fn fewest_ready(&self, app: &str, since: usize) -> usize {
        self.counts(app, since, |state| state == State::Ready).into_iter().min().unwrap_or(0)
    }

    /// The maximum number of live pods of this application from `since` on.
    pub(crate) fn most_alive(&self, app: &str, since: usize) -> usize {
        self.counts(app, since, State::is_alive).into_iter().max().unwrap_or(0)
    }

    /// The maximum number of started but not ready pods of this application from `since` on.
    pub(crate) fn most_starting(&self, app: &str, since: usize) -> usize {
        let starting = |state: State| state.is_alive() && state != State::Ready;
        self.counts(app, since, starting).into_iter().max().unwrap_or(0)
    }

    /// Names of pods that were alive twice at the same time.
    pub(crate) fn overlaps(&self) -> BTreeSet<String> {
        let mut alive: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
        let mut overlaps = BTreeSet::new();
        for turn in self.0.lock().iter() {
            let PodRef { namespace, name, uid } = turn.pod.clone();
            let same = alive.entry(format!("{namespace}/{name}")).or_default();
            if turn.state.is_alive() {
                same.insert(uid);
            } else {
                same.remove(&uid);
            }
            if same.len() > 1 {
                overlaps.insert(name.to_string());
            }
        }
        overlaps
    }

    /// Names of pods in the order in which they first reached this state (or a similar one) from `since` on.
    pub(crate) fn order(&self, since: usize, is: impl Fn(State) -> bool) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let turns = self.0.lock();
        let turns = turns.iter().skip(since).filter(|turn| is(turn.state));
        turns
            .filter(|turn| seen.insert(Arc::clone(&turn.pod.uid)))
            .map(|turn| turn.pod.name.to_string())
            .collect()
    }

    /// The exit codes of pods of this application.
    pub(crate) fn codes(&self, app: &str) -> BTreeSet<i32> {
        let turns = self.0.lock();
        let of = turns.iter().filter(|turn| turn.pod.name.starts_with(app));
        of.filter_map(|turn| if let State::Ended(code) = turn.state { Some(code) } else { None }).collect()
    }
}

// === impl State ===

impl State {
    fn of(status: &PodStatus) -> Self {
        let all = status.container_statuses.iter().flatten();
        let (mut codes, mut alive, mut ready, mut running) = (Vec::new(), false, true, false);
        for one in all {
            ready &= one.ready;
            let state = one.state.clone().unwrap_or_default();
            running |= state.running.is_some();
            match state.terminated {
                Some(ended) => codes.push(ended.exit_code),
                None => alive = true,
            }
        }
        match (alive, ready, running) {
            (false, ..) => Self::Ended(codes.into_iter().max().unwrap_or(0)),
            (true, true, _) => Self::Ready,
            (true, false, true) => Self::Running,
            (true, false, false) => Self::Waiting,
        }
    }

    pub(crate) fn is_alive(self) -> bool {
        matches!(self, Self::Waiting | Self::Running | Self::Ready)
    }
}
