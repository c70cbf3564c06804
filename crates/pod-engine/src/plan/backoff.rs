//! Crash back-off: how long a container that has exited waits before it is restarted.
//!
//! The first restart is immediate; the next ones wait 10 s, 20 s, 40 s and so on from the end of the previous instance, up to a limit.
//! After an instance that ran for ten minutes the back-off starts again.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use crate::{
    containers::{Role, pod_containers},
    snapshot::{Container, ContainerState, Snapshot},
};

/// The first delay.
const INITIAL: Duration = Duration::from_secs(10);
/// How long a start counts. A kubelet uses this number whatever its maximum delay is.
const RESET_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// The crash back-off of containers, for one pod or for many.
#[derive(Clone, Debug)]
pub struct CrashBackoffs {
    initial: Duration,
    max: Duration,
    entries: BTreeMap<BackoffKey, Entry>,
}

/// A container of a pod, as long as its image and its resources stay the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackoffKey(String);

/// The end of a container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The container.
    pub key: BackoffKey,
    /// When it ended.
    pub finished: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    delay: Duration,
    /// Time of the last start.
    updated: Timestamp,
}

/// The delay in a waiting message that this module wrote.
fn parse_delay(message: &str) -> Option<Duration> {
    let mut rest = message.strip_prefix("back-off ")?.split_once(" restarting failed container=")?.0;
    let mut duration = Duration::ZERO;
    while !rest.is_empty() {
        let number = rest.find(|char: char| char.is_ascii_alphabetic())?;
        let end = rest[number..]
            .find(|char: char| !char.is_ascii_alphabetic())
            .map_or(rest.len(), |end| number + end);
        let unit = match &rest[number..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        let seconds = rest[..number].parse::<f64>().ok()? * unit;
        duration = duration.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = &rest[end..];
    }
    Some(duration)
}

// === impl CrashBackoffs ===

impl CrashBackoffs {
    /// A back-off with this maximum delay.
    pub fn new(max: Duration) -> Self {
        Self { initial: INITIAL.min(max), max, entries: BTreeMap::new() }
    }

    /// The delay that a container is waiting for after this crash, if it still is.
    pub(super) fn current_delay(&self, crash: &Crash, now: Timestamp) -> Option<Duration> {
        let entry = self.entries.get(&crash.key)?;
        let delay = SignedDuration::try_from(entry.delay).unwrap_or(SignedDuration::MAX);
        // An exit in the future means that the clock was set back: waiting for that time could take hours.
        let waited = now.duration_since(crash.finished);
        let waits = !entry.is_expired(crash.finished) && !waited.is_negative() && waited < delay;
        waits.then_some(entry.delay)
    }

    /// Records a start: the next one waits longer. A start that then fails, for example because the image cannot be pulled, counts too.
    pub fn begin(&mut self, start: &super::StartContainer, now: Timestamp) {
        let Some(crash) = &start.crash else { return };
        // A kubelet prunes continuously: a start that is long ago is forgotten.
        let delay = match self.entries.get(&crash.key).filter(|entry| !entry.is_expired(now)) {
            Some(entry) if !entry.is_expired(crash.finished) => self.next_delay(entry.delay),
            _ => self.initial,
        };
        self.entries.insert(crash.key.clone(), Entry { delay, updated: now });
    }

    /// Rebuilds the back-off of a pod that an earlier process started: from the waiting messages of its status, else from restart counts and
    /// the time between instances. If several delays are possible, the longest is taken. Containers that are already known are not changed.
    pub fn adopt(&mut self, pod: &Pod, snapshot: &Snapshot, now: Timestamp) {
        for container in pod_containers(pod).filter(|container| container.role != Role::Ephemeral) {
            let mut records = snapshot.containers.iter().filter(|record| record.name == container.spec.name);
            let Some(newest) = records.next() else { continue };
            let key = BackoffKey::of(pod, &container.spec);
            if self.entries.contains_key(&key) {
                continue;
            }
            let delay =
                self.delay_in_status(pod, newest).or_else(|| self.delay_in_records(newest, records.next()));
            if let Some(delay) = delay {
                self.entries.insert(key, Entry { delay, updated: newest.created.min(now) });
            }
        }
    }

    /// Removes entries that no longer count.
    pub fn prune(&mut self, now: Timestamp) {
        self.entries.retain(|_, entry| !entry.is_expired(now));
    }

    /// The delay in the container status, and one step more if the container was started since.
    fn delay_in_status(&self, pod: &Pod, newest: &Container) -> Option<Duration> {
        let status = pod.status.as_ref()?;
        let regular = status.container_statuses.as_deref().unwrap_or_default().iter();
        let inits = status.init_container_statuses.as_deref().unwrap_or_default().iter();
        let status = regular.chain(inits).find(|status| status.name == newest.name)?;
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let delay = parse_delay(waiting.message.as_deref()?)?;
        let since = newest.restart_count().checked_sub(status.restart_count.try_into().ok()?)?;
        // More than one start since then: the status says nothing about the current delay.
        (since <= 1).then(|| if since == 1 { self.next_delay(delay) } else { delay.min(self.max) })
    }

    fn delay_in_records(&self, newest: &Container, before: Option<&Container>) -> Option<Duration> {
        let restarts = newest.restart_count().checked_sub(1)?;
        let by_count = (0..restarts.min(32)).fold(self.initial, |delay, _| self.next_delay(delay));
        let Some(before) = before.filter(|before| before.state == ContainerState::Exited) else {
            return Some(by_count);
        };
        let lived =
            before.finished.map_or(SignedDuration::ZERO, |finished| finished.duration_since(before.created));
        if lived > RESET_AFTER {
            return Some(self.initial);
        }
        // The delay fits between the two creations.
        let apart = newest.created.duration_since(before.created);
        let mut by_time = self.initial;
        while by_time < self.max && SignedDuration::try_from(by_time).is_ok_and(|step| step <= apart) {
            by_time = self.next_delay(by_time);
        }
        Some(by_count.min(by_time))
    }

    fn next_delay(&self, delay: Duration) -> Duration {
        delay.saturating_mul(2).min(self.max)
    }
}

// === impl Entry ===

impl Entry {
    fn is_expired(&self, at: Timestamp) -> bool {
        at.duration_since(self.updated) > RESET_AFTER
    }
}

// === impl Key ===

impl BackoffKey {
    pub(super) fn of(pod: &Pod, container: &Spec) -> Self {
        let metadata = &pod.metadata;
        let resources =
            container.resources.as_ref().map(|resources| serde_json::json!(resources).to_string());
        let parts = [
            metadata.uid.as_deref(),
            metadata.namespace.as_deref(),
            metadata.name.as_deref(),
            Some(&*container.name),
            container.image.as_deref(),
            resources.as_deref(),
        ];
        Self(parts.map(Option::unwrap_or_default).join("/"))
    }
}
