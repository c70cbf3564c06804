//! Faults: what goes wrong with which call.

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

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The call that it happens to; `None` is any.
    pub call: Option<Call>,
    /// How many of these calls pass before.
    pub after: u64,
    /// How many it happens to.
    pub times: u64,
    /// What happens.
    pub effect: Effect,
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails, and nothing was done.
    Fails(Kind, String),
    /// It is done, and then fails: the answer is lost.
    Lost,
    /// It does nothing for as long as a backend lets a call take, and then fails.
    Hangs,
    /// It takes so much longer.
    Delayed(Duration),
}

/// How long a call takes at most.
const LIMIT: Duration = Duration::from_mins(2);

/// The faults that are set, and how often what was called.
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

    /// The next call of this kind, and no other.
    pub fn once(call: Call, effect: Effect) -> Self {
        Self { call: Some(call), after: 0, times: 1, effect }
    }

    /// The call of this number from now on, whatever it is, counted from 0.
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

    /// Counts a call, and says what happens to it.
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

/// Lets happen what happens before a call; the error that is to come after it.
pub(super) async fn before(effect: Option<Effect>, call: Call) -> Result<Option<Error>, Error> {
    match effect {
        None => Ok(None),
        Some(Effect::Fails(kind, message)) => Err(error(kind, &message)),
        Some(Effect::Lost) => {
            Ok(Some(error(Kind::Unavailable, &format!("{call:?}: the connection was lost"))))
        }
        Some(Effect::Hangs) => {
            tokio::time::sleep(LIMIT).await;
            Err(error(Kind::Unavailable, &format!("{call:?}: context deadline exceeded")))
        }
        Some(Effect::Delayed(time)) => {
            tokio::time::sleep(time).await;
            Ok(None)
        }
    }
}

/// An error as a runtime on gRPC gives it.
pub(super) fn error(kind: Kind, message: &str) -> Error {
    let code = match kind {
        Kind::NotFound => "NotFound",
        Kind::AlreadyExists => "AlreadyExists",
        Kind::Invalid => "InvalidArgument",
        Kind::Unavailable => "Unavailable",
        _ => "Unknown",
    };
    let told = format!("rpc error: code = {code} desc = {message}");
    Error::new(kind, message.to_owned()).caused_by(told)
}
