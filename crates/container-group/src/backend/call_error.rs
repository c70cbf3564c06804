//! The error of a call to the cloud.

use std::{borrow::Cow, time::Duration};

use vk_provider::{Error, error::Kind};

/// The result of a call to the cloud.
pub type CallResult<T> = Result<T, CallError>;

/// Why a call failed.
///
/// The message is shown to users: the cloud's own error code and text, the request's id, and nothing secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// What the engine does about it.
    pub class: Class,
    /// The cloud's words.
    pub message: Cow<'static, str>,
}

/// The class of a failed call. It alone decides how the engine reacts.
///
/// | class | was a write carried out? | reaction |
/// |---|---|---|
/// | `NotFound` | no: there is no such group | the group may be gone; it is looked up again before that is believed |
/// | `Conflict` | no: the group is changing, or another request has this token | the group is looked up, then the call repeated |
/// | `Invalid` | no, and never will be | fails the pod |
/// | `Unsupported` | no | the feature is not offered |
/// | `QuotaExceeded` | no | the pod waits; no creates until the quota was read again |
/// | `OutOfStock` | no | the next placement; then the pod waits |
/// | `ZoneOutOfStock` | no | the same, for pods of all sizes |
/// | `Throttled` | no | the rate of the action is halved |
/// | `Denied` | no | credentials or permissions: retried slowly, shown on the node |
/// | `Unavailable` | certainly not: it was never sent, or was refused before it began | retried |
/// | `Ambiguous` | perhaps: time-out, reset, 5xx, truncated response | the group is looked up before anything else |
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// There is no such group or container.
    NotFound,
    /// The group is in a state that does not allow the call now, or the idempotency token was used for another request.
    Conflict,
    /// The request can never succeed in this form.
    Invalid,
    /// The cloud has no such feature.
    Unsupported,
    /// The account's quota is used up.
    QuotaExceeded,
    /// The cloud has no capacity for this size in this place.
    OutOfStock,
    /// The cloud has no capacity in this zone, or does not sell it.
    ZoneOutOfStock,
    /// Too many calls.
    Throttled {
        /// The minimum delay that the cloud asked for.
        after: Option<Duration>,
    },
    /// The credentials or their permissions do not suffice, or the account is overdrawn.
    Denied,
    /// The call was certainly not carried out.
    Unavailable,
    /// It is not known whether the call was carried out. For reads the same as `Unavailable`.
    Ambiguous,
}

// === impl CallError ===

impl CallError {
    /// Creates an error.
    pub fn new(class: Class, message: impl Into<Cow<'static, str>>) -> Self {
        Self { class, message: message.into() }
    }

    /// [`Class::Unsupported`].
    pub fn unsupported(what: &str) -> Self {
        Self::new(Class::Unsupported, format!("this cloud does not offer {what}"))
    }

    /// [`Class::Ambiguous`].
    pub fn ambiguous(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Class::Ambiguous, message)
    }

    /// [`Class::Unavailable`].
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Class::Unavailable, message)
    }

    /// The error for the core, for an operation such as `create pod shop/web`.
    pub fn for_operation(&self, operation: &str) -> Error {
        let text = format!("{operation}: {}", self.message);
        Error::new(self.class.kind(), text)
    }
}

// === impl Class ===

impl Class {
    /// The kind of error that the core gets.
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound => Kind::NotFound,
            Self::Invalid => Kind::Invalid,
            Self::Unsupported => Kind::Unsupported,
            Self::QuotaExceeded | Self::OutOfStock | Self::ZoneOutOfStock => Kind::Exhausted,
            Self::Throttled { after } => Kind::Throttled { after: *after },
            Self::Denied => Kind::Denied,
            Self::Conflict | Self::Unavailable | Self::Ambiguous => Kind::Unavailable,
        }
    }

    /// A stable name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::Conflict => "Conflict",
            Self::Invalid => "Invalid",
            Self::Unsupported => "Unsupported",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::OutOfStock => "OutOfStock",
            Self::ZoneOutOfStock => "ZoneOutOfStock",
            Self::Throttled { .. } => "Throttled",
            Self::Denied => "Denied",
            Self::Unavailable => "Unavailable",
            Self::Ambiguous => "Ambiguous",
        }
    }
}
