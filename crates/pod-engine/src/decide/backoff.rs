//! How long a container that has ended waits before it is started again.
//!
//! The first restart is immediate; the next ones wait 10 s, 20 s, 40 s and so on from the end of the instance before, up to a limit.
//! An instance that has lived for ten minutes since its start is forgiven everything before.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use crate::{
    parts::{Role, parts},
    snapshot::{Container, ContainerState, Snapshot},
};

/// The first wait.
const INITIAL: Duration = Duration::from_secs(10);
/// How long a start is remembered. A kubelet has this number whatever its longest wait is.
const MEMORY: SignedDuration = SignedDuration::from_mins(10);

/// Who waits how long. One for a pod or one for all.
#[derive(Clone, Debug)]
pub struct Backoffs {
    initial: Duration,
    max: Duration,
    entries: BTreeMap<Key, Entry>,
}

/// A container of a pod, as long as its image and its resources stay the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    uid: String,
    rest: String,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Whose.
    pub key: Key,
    /// When it was.
    pub finished: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    delay: Duration,
    /// When the last start was.
    updated: Timestamp,
}

/// A duration as Go writes it: `10s`, `1m20s`, `5m0s`.
pub(super) fn shown(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 {
        return if duration.is_zero() { "0s".to_owned() } else { format!("{}ms", duration.as_millis()) };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let millis = duration.subsec_millis();
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    let rest = format!("{}{}s", seconds % 60, fraction.trim_end_matches('0'));
    match (hours, minutes) {
        (0, 0) => rest,
        (0, _) => format!("{minutes}m{rest}"),
        _ => format!("{hours}h{minutes}m{rest}"),
    }
}

/// The wait that a status tells about, in the words that this module wrote.
fn told(message: &str) -> Option<Duration> {
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

// === impl Backoffs ===

impl Backoffs {
    /// Nobody waits longer than `max`.
    pub fn new(max: Duration) -> Self {
        Self { initial: INITIAL.min(max), max, entries: BTreeMap::new() }
    }

    /// The wait that a container is in after this end.
    pub(super) fn waiting(&self, crash: &Crash, now: Timestamp) -> Option<Duration> {
        let entry = self.entries.get(&crash.key)?;
        let delay = SignedDuration::try_from(entry.delay).unwrap_or(SignedDuration::MAX);
        let waits = !entry.is_forgiven(crash.finished) && now.duration_since(crash.finished) < delay;
        waits.then_some(entry.delay)
    }

    /// A start begins now: the next one will have to wait longer. A start that then fails, for want of an image for example, counts all
    /// the same.
    pub fn begin(&mut self, start: &super::Start, now: Timestamp) {
        let Some(crash) = &start.crash else { return };
        // A kubelet sweeps all the time: a start that is so long ago, with the wait after it, is forgotten.
        let delay = match self.entries.get(&crash.key).filter(|entry| !entry.is_forgiven(now)) {
            Some(entry) if !entry.is_forgiven(crash.finished) => self.after(entry.delay),
            _ => self.initial,
        };
        self.entries.insert(crash.key.clone(), Entry { delay, updated: now });
    }

    /// Goes on where the process before this one was, for a pod that was found running: from the waits that its status tells about, else
    /// from restart counts and from how far instances are apart. Where that leaves open how long a wait was, it is the longest that is
    /// possible. Containers that are known already stay as they are.
    pub fn adopt(&mut self, pod: &Pod, snapshot: &Snapshot, now: Timestamp) {
        for part in parts(pod).filter(|part| part.role != Role::Ephemeral) {
            let mut records = snapshot.containers.iter().filter(|record| record.name == part.container.name);
            let Some(newest) = records.next() else { continue };
            let key = Key::of(pod, &part.container);
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

    /// Forgets what does not count any more.
    pub fn sweep(&mut self, now: Timestamp) {
        self.entries.retain(|_, entry| !entry.is_forgiven(now));
    }

    /// Forgets a pod.
    pub fn forget(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.entries.retain(|key, _| key.uid != uid);
    }

    /// What was written down when the container began to wait, and one step more for each start since.
    fn delay_in_status(&self, pod: &Pod, newest: &Container) -> Option<Duration> {
        let status = pod.status.as_ref()?;
        let regular = status.container_statuses.as_deref().unwrap_or_default().iter();
        let inits = status.init_container_statuses.as_deref().unwrap_or_default().iter();
        let status = regular.chain(inits).find(|status| status.name == newest.name)?;
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let delay = told(waiting.message.as_deref()?)?;
        let since = newest.restart_count().checked_sub(status.restart_count.try_into().ok()?)?;
        // More than one start without a word in the status: nothing can be concluded from it.
        (since <= 1).then(|| if since == 1 { self.after(delay) } else { delay.min(self.max) })
    }

    fn delay_in_records(&self, newest: &Container, before: Option<&Container>) -> Option<Duration> {
        let restarts = newest.restart_count().checked_sub(1)?;
        let by_count = (0..restarts.min(32)).fold(self.initial, |delay, _| self.after(delay));
        let Some(before) = before.filter(|before| before.state == ContainerState::Exited) else {
            return Some(by_count);
        };
        let lived =
            before.finished.map_or(SignedDuration::ZERO, |finished| finished.duration_since(before.created));
        if lived > MEMORY {
            return Some(self.initial);
        }
        // Whatever it waited fits between the two.
        let apart = newest.created.duration_since(before.created);
        let mut by_time = self.initial;
        while by_time < self.max && SignedDuration::try_from(by_time).is_ok_and(|step| step <= apart) {
            by_time = self.after(by_time);
        }
        Some(by_count.min(by_time))
    }

    fn after(&self, delay: Duration) -> Duration {
        delay.saturating_mul(2).min(self.max)
    }
}

// === impl Entry ===

impl Entry {
    fn is_forgiven(&self, at: Timestamp) -> bool {
        at.duration_since(self.updated) > MEMORY
    }
}

// === impl Key ===

impl Key {
    pub(super) fn of(pod: &Pod, container: &Spec) -> Self {
        let metadata = &pod.metadata;
        let resources =
            container.resources.as_ref().map(|resources| serde_json::json!(resources).to_string());
        let rest = [
            metadata.namespace.as_deref(),
            metadata.name.as_deref(),
            Some(&*container.name),
            container.image.as_deref(),
            resources.as_deref(),
        ];
        let rest = rest.map(Option::unwrap_or_default).join("/");
        Self { uid: metadata.uid.clone().unwrap_or_default(), rest }
    }
}
