//! Faults: calls that fail, are slow or hang, from the configuration or set by a test.

use std::{
    collections::HashMap,
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error as _};
use tokio::sync::watch;
use vk_provider::{Error, Result, config::nearest, duration, error::Kind};

/// A provider call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// `create_pod`.
    Create,
    /// `update_pod`.
    Update,
    /// `delete_pod`.
    Delete,
    /// `pod_status`.
    Status,
    /// `pods`.
    List,
    /// `ping`.
    Ping,
    /// Opening a log.
    Logs,
    /// Starting a command.
    Exec,
    /// Attaching.
    Attach,
    /// Dialling a port.
    PortForward,
    /// Reading usage figures.
    Stats,
}

/// What goes wrong with a call, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Fault {
    /// The kind of the returned error.
    #[serde(deserialize_with = "kind")]
    pub error: Option<Kind>,
    /// The error's message.
    pub message: Option<String>,
    /// The number of calls that it affects; `None` for all.
    pub times: Option<u64>,
    /// Affects only every n-th call.
    pub every: Option<NonZeroU64>,
    /// The number of calls before the first affected one.
    pub after: u64,
    /// Additional duration of the call.
    #[serde(with = "duration")]
    pub delay: Duration,
    /// The call hangs until the fault is cleared.
    pub hang: bool,
    /// The call succeeds in the backend before the error is returned.
    pub after_success: bool,
}

/// The faults of one mock, and the number of calls. Clones share the state.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    set: Mutex<HashMap<Call, Active>>,
    calls: [AtomicU64; Call::ALL.len()],
    /// Counts changes, to notify hanging calls and the node's watcher.
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct Active {
    fault: Fault,
    seen: u64,
    touched: u64,
}

/// A call under way, which ends with [`FaultGuard::finish`].
#[derive(Debug)]
pub(crate) struct FaultGuard(Option<Error>);

// === impl Call ===

impl Call {
    /// All calls.
    pub const ALL: [Self; 11] = [
        Self::Create,
        Self::Update,
        Self::Delete,
        Self::Status,
        Self::List,
        Self::Ping,
        Self::Logs,
        Self::Exec,
        Self::Attach,
        Self::PortForward,
        Self::Stats,
    ];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Status => "status",
            Self::List => "list",
            Self::Ping => "ping",
            Self::Logs => "logs",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portForward",
            Self::Stats => "stats",
        }
    }

    /// The call of this name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|call| call.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name);
            match nearest(name, known) {
                Some(guess) => format!("unknown call `{name}` (did you mean `{guess}`?)"),
                None => format!("unknown call `{name}`, expected one of {}", known.join(", ")),
            }
        })
    }
}

// === impl Fault ===

impl Fault {
    /// Returns an error.
    pub fn error(kind: Kind, message: impl Into<String>) -> Self {
        Self { error: Some(kind), message: Some(message.into()), ..Self::default() }
    }

    /// Hangs until the fault is cleared.
    pub fn hang() -> Self {
        Self { hang: true, ..Self::default() }
    }

    /// Delays the call.
    pub fn slow(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Affects only this number of calls.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Affects only every n-th call; zero means every call.
    #[must_use]
    pub fn every(self, every: u64) -> Self {
        Self { every: NonZeroU64::new(every), ..self }
    }

    /// Skips this number of calls.
    #[must_use]
    pub fn after(self, after: u64) -> Self {
        Self { after, ..self }
    }

    /// Delays the call too.
    #[must_use]
    pub fn delayed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Returns the error only after the call has succeeded in the backend.
    #[must_use]
    pub fn after_success(self) -> Self {
        Self { after_success: true, ..self }
    }

    /// Rejects a fault that does nothing.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.error.is_none() && !self.hang && self.delay.is_zero() {
            return Err("does nothing: give it an error, a delay or hang");
        }
        if self.error.is_none() && (self.after_success || self.message.is_some()) {
            return Err("afterSuccess and message need an error");
        }
        Ok(())
    }

    fn to_error(&self, call: Call) -> Option<Error> {
        let kind = self.error.clone()?;
        let message = self.message.clone();
        Some(Error::new(kind, message.unwrap_or_else(|| format!("{} fails as configured", call.name()))))
    }
}

// === impl Faults ===

impl Default for Faults {
    fn default() -> Self {
        let calls = Call::ALL.map(|_| AtomicU64::new(0));
        Self(Arc::new(Inner { set: Mutex::default(), calls, version: watch::Sender::new(0) }))
    }
}

impl Faults {
    /// Sets the fault of a call, replacing an earlier one.
    pub fn set(&self, call: Call, fault: Fault) {
        self.0.set.lock().insert(call, Active { fault, seen: 0, touched: 0 });
        self.0.version.send_modify(|version| *version += 1);
    }

    /// Clears the fault of a call; hanging calls continue.
    pub fn clear(&self, call: Call) {
        self.0.set.lock().remove(&call);
        self.0.version.send_modify(|version| *version += 1);
    }

    /// Clears all faults.
    pub fn clear_all(&self) {
        self.0.set.lock().clear();
        self.0.version.send_modify(|version| *version += 1);
    }

    /// The number of times a call was made, successfully or not.
    pub fn calls(&self, call: Call) -> u64 {
        self.0.calls[call as usize].load(Ordering::Relaxed)
    }

    /// Notifies of every change of the faults.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Counts a call and applies its fault.
    pub(crate) async fn enter(&self, call: Call) -> Result<FaultGuard> {
        self.0.calls[call as usize].fetch_add(1, Ordering::Relaxed);
        // Before the fault is read, so that no change is missed.
        let mut version = self.watch();
        let Some(fault) = self.hit(call) else { return Ok(FaultGuard(None)) };
        if !fault.delay.is_zero() {
            tokio::time::sleep(fault.delay).await;
        }
        while fault.hang && self.current(call).is_some_and(|now| now == fault) {
            if version.changed().await.is_err() {
                break;
            }
        }
        match fault.to_error(call) {
            Some(error) if !fault.after_success => Err(error),
            later => Ok(FaultGuard(later)),
        }
    }

    fn current(&self, call: Call) -> Option<Fault> {
        self.0.set.lock().get(&call).map(|active| active.fault.clone())
    }

    /// The fault, if it affects this call.
    fn hit(&self, call: Call) -> Option<Fault> {
        let mut set = self.0.set.lock();
        let active = set.get_mut(&call)?;
        active.seen += 1;
        let position = active.seen.checked_sub(active.fault.after).filter(|position| *position > 0)?;
        if active.fault.every.is_some_and(|every| position % every != 0)
            || active.fault.times.is_some_and(|times| active.touched >= times)
        {
            return None;
        }
        active.touched += 1;
        Some(active.fault.clone())
    }
}

// === impl FaultGuard ===

impl FaultGuard {
    /// Returns the result of the call, or the error after a success.
    pub(crate) fn finish<T>(self, answer: Result<T>) -> Result<T> {
        match self.0 {
            Some(error) => answer.and(Err(error)),
            None => answer,
        }
    }
}

/// The error kind of this name.
pub(crate) fn parse_kind(name: &str) -> Result<Kind, String> {
    let known = [
        Kind::NotFound,
        Kind::AlreadyExists,
        Kind::Invalid,
        Kind::Unsupported,
        Kind::Unavailable,
        Kind::Throttled { after: None },
        Kind::Exhausted,
        Kind::Denied,
        Kind::Cancelled,
        Kind::Internal,
    ];
    let names: Vec<&str> = known.iter().map(Kind::name).collect();
    let found = known.iter().find(|kind| kind.name() == name).cloned();
    found.ok_or_else(|| match nearest(name, names.iter().copied()) {
        Some(guess) => format!("{name:?} is not a kind of error (did you mean {guess}?)"),
        None => format!("{name:?} is not a kind of error: write one of {}", names.join(", ")),
    })
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Kind>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| parse_kind(&name)).transpose().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests;
