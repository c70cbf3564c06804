//! Faults of calls to the fake runtime.

use std::{collections::BTreeMap, time::Duration};

use vk_provider::{Error, error::Kind};

/// The calls of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is a method of ContainerBackend")]
pub enum Call {
    Runtime,
    RunSandbox,
    StopSandbox,
    RemoveSandbox,
    Sandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    Container,
    List,
    Run,
    Exec,
    Attach,
    PortForward,
    ReopenLog,
    Image,
    Images,
    Pull,
    RemoveImage,
    UsedImages,
    ImageFs,
    Usage,
}

/// A fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The call that it affects; `None` is any.
    pub call: Option<Call>,
    /// Number of these calls that succeed first.
    pub after: u64,
    /// Number of affected calls.
    pub times: u64,
    /// Its effect.
    pub effect: Effect,
}

/// The effect of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call fails without an effect.
    Fails(Kind, String),
    /// The call takes effect, but its response is lost.
    Lost,
    /// The call hangs until its timeout, and then fails.
    Hangs,
    /// The call takes this much longer.
    Delayed(Duration),
    /// The call panics.
    Panics,
}

/// The timeout of a call.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The faults, and the numbers of calls.
#[derive(Debug, Default)]
pub(super) struct Faults {
    set: Vec<(Fault, u64)>,
    counts: BTreeMap<Call, u64>,
    total: u64,
}

// === impl Fault ===

impl Fault {
    /// Every call of this kind fails from now on.
    pub fn always(call: Call, kind: Kind, message: impl Into<String>) -> Self {
        Self { call: Some(call), after: 0, times: u64::MAX, effect: Effect::Fails(kind, message.into()) }
    }

    /// Only the next call of this kind fails.
    pub fn once(call: Call, effect: Effect) -> Self {
        Self { call: Some(call), after: 0, times: 1, effect }
    }

    /// The call with this number, counted from now on and from 0.
    pub fn nth(number: u64, effect: Effect) -> Self {
        Self { call: None, after: number, times: 1, effect }
    }
}

// === impl Faults ===

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.set.push((fault, 0));
    }

    pub(super) fn clear(&mut self) {
        self.set.clear();
    }

    pub(super) fn count(&self, call: Call) -> u64 {
        self.counts.get(&call).copied().unwrap_or(0)
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Counts a call, and returns the effect of its fault.
    pub(super) fn hit(&mut self, call: Call) -> Option<Effect> {
        *self.counts.entry(call).or_default() += 1;
        self.total += 1;
        let mut hit = None;
        for (fault, seen) in self.set.iter_mut().filter(|(fault, _)| fault.call.is_none_or(|it| it == call)) {
            let position = *seen;
            *seen += 1;
            let within = position >= fault.after && position - fault.after < fault.times;
            if within && hit.is_none() {
                hit = Some(fault.effect.clone());
            }
        }
        hit
    }
}

/// Applies an effect before a call. Returns the error to return after it.
pub(super) async fn before(effect: Option<Effect>, call: Call) -> Result<Option<Error>, Error> {
    match effect {
        None => Ok(None),
        Some(Effect::Fails(kind, message)) => Err(error(kind, &message)),
        Some(Effect::Lost) => {
            Ok(Some(error(Kind::Unavailable, &format!("{call:?}: the connection was lost"))))
        }
        Some(Effect::Hangs) => {
            tokio::time::sleep(TIMEOUT).await;
            Err(error(Kind::Unavailable, &format!("{call:?}: context deadline exceeded")))
        }
        Some(Effect::Delayed(time)) => {
            tokio::time::sleep(time).await;
            Ok(None)
        }
        Some(Effect::Panics) => panic!("{call:?}: a fault of a test"),
    }
}

/// An error of a gRPC runtime.
pub(super) fn error(kind: Kind, message: &str) -> Error {
    let code = match kind {
        Kind::NotFound => "NotFound",
        Kind::AlreadyExists => "AlreadyExists",
        Kind::Invalid => "InvalidArgument",
        Kind::Unavailable => "Unavailable",
        _ => "Unknown",
    };
    let text = format!("rpc error: code = {code} desc = {message}");
    Error::new(kind, message.to_owned()).caused_by(text)
}
