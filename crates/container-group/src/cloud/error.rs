//! Errors of calls to a cloud.

#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use vk_provider::error::Kind;

use super::request::Effect;
use crate::backend::{self, CallError};

/// The result of a call to a cloud.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call to a cloud.
///
/// The text is for users: it names the operation, what failed and what to do. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    class: Class,
    operation: String,
    message: String,
    code: Option<String>,
    request_id: Option<String>,
}

/// What a failed call means. It alone decides how the engine goes on:
///
/// | class | meaning | kind of the contract |
/// |---|---|---|
/// | `NotFound` | what the call is about does not exist | `NotFound` |
/// | `Conflict` | something else is in progress, or is there already under that name or token | `Unavailable` |
/// | `Invalid` | the cloud will never accept this request | `Invalid` |
/// | `Quota` | a limit of the account is reached | `Exhausted` |
/// | `Capacity` | the cloud has no stock of this kind in this place | `Exhausted` |
/// | `Throttled` | too many calls | `Throttled` |
/// | `Auth` | credentials, permissions or the state of the account do not allow it | `Denied` |
/// | `ExpiredToken` | temporary credentials have expired | `Denied` |
/// | `ClockSkew` | the clock of this host is wrong | `Denied` |
/// | `Transient` | no usable answer; the call may be repeated | `Unavailable` |
/// | `Ambiguous` | no usable answer to a create: it must be looked up before the next attempt | `Unavailable` |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// What the call is about does not exist.
    NotFound,
    /// Something else is in progress, or is there already under that name or token.
    Conflict,
    /// The cloud will never accept this request.
    Invalid {
        /// The parameter that is refused, in the words of the cloud.
        field: Option<String>,
    },
    /// A limit of the account is reached.
    Quota,
    /// The cloud has no stock.
    Capacity(Shortage),
    /// Too many calls.
    Throttled {
        /// The minimum delay before the next attempt, if the cloud gave one.
        after: Option<Duration>,
    },
    /// Credentials, permissions or the state of the account do not allow it.
    Auth,
    /// Temporary credentials have expired.
    ExpiredToken,
    /// The clock of this host is wrong.
    ClockSkew,
    /// No usable answer. The call may be repeated.
    Transient,
    /// No usable answer to a create, which may have succeeded.
    Ambiguous,
}

/// What the cloud is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The whole zone takes no more groups.
    Zone,
    /// There are no more groups of this size or type in the zone.
    InstanceType,
}

// === impl Error ===

impl Error {
    /// An error of this operation. The message is in lower case and does not repeat the operation.
    pub fn new(class: Class, operation: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class, operation: operation.into(), message: message.into(), code: None, request_id: None }
    }

    /// No usable answer: ambiguous if the request creates something, which may have been done.
    pub(super) fn without_answer(operation: &str, effect: Effect, message: impl Into<String>) -> Self {
        let class = match effect {
            Effect::Repeatable => Class::Transient,
            Effect::Create => Class::Ambiguous,
        };
        Self::new(class, operation, message)
    }

    /// Adds the cloud's own code and the id of the request, which its support asks for.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>, request_id: Option<String>) -> Self {
        self.code = Some(code.into());
        self.request_id = request_id;
        self
    }

    /// Adds something that helps to find the cause.
    #[must_use]
    pub(super) fn with_hint(mut self, hint: &str) -> Self {
        self.message = format!("{}; {hint}", self.message);
        self
    }

    /// The same failure as one of the credentials: it must not say that a pod is invalid, or that a group does not exist.
    #[must_use]
    pub(super) fn of_credentials(self) -> Self {
        let class = match self.class {
            Class::ClockSkew => Class::ClockSkew,
            Class::Transient | Class::Ambiguous | Class::Throttled { .. } => Class::Transient,
            _ => Class::Auth,
        };
        Self { class, ..self }
    }

    /// Names the larger operation in which this one has failed.
    #[must_use]
    pub fn within(mut self, operation: &str) -> Self {
        self.message = format!("{}: {}", self.operation, self.message);
        operation.clone_into(&mut self.operation);
        self
    }

    /// What the failure means.
    pub fn class(&self) -> &Class {
        &self.class
    }

    /// The cloud's own code.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The cloud's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.message)?;
        match (&self.code, &self.request_id) {
            (Some(code), Some(id)) => write!(f, " ({code}, request {id})"),
            (Some(code), None) => write!(f, " ({code})"),
            (None, Some(id)) => write!(f, " (request {id})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for vk_provider::Error {
    fn from(error: Error) -> Self {
        Self::new(error.class.kind(), error.to_string())
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::new(error.class.of_call(), error.to_string())
    }
}

// === impl Class ===

impl Class {
    /// The kind of the contract.
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound => Kind::NotFound,
            Self::Invalid { .. } => Kind::Invalid,
            Self::Quota | Self::Capacity(_) => Kind::Exhausted,
            Self::Throttled { after } => Kind::Throttled { after: *after },
            Self::Auth | Self::ExpiredToken | Self::ClockSkew => Kind::Denied,
            Self::Conflict | Self::Transient | Self::Ambiguous => Kind::Unavailable,
        }
    }

    /// What the engine does about it.
    pub fn of_call(&self) -> backend::Class {
        match self {
            Self::NotFound => backend::Class::NotFound,
            Self::Conflict => backend::Class::Conflict,
            Self::Invalid { .. } => backend::Class::Invalid,
            Self::Quota => backend::Class::QuotaExceeded,
            Self::Capacity(Shortage::Zone) => backend::Class::ZoneOutOfStock,
            Self::Capacity(Shortage::InstanceType) => backend::Class::OutOfStock,
            Self::Throttled { after } => backend::Class::Throttled { after: *after },
            Self::Auth | Self::ExpiredToken | Self::ClockSkew => backend::Class::Denied,
            Self::Transient => backend::Class::Unavailable,
            Self::Ambiguous => backend::Class::Ambiguous,
        }
    }

    /// A stable name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::Conflict => "Conflict",
            Self::Invalid { .. } => "Invalid",
            Self::Quota => "Quota",
            Self::Capacity(_) => "Capacity",
            Self::Throttled { .. } => "Throttled",
            Self::Auth => "Auth",
            Self::ExpiredToken => "ExpiredToken",
            Self::ClockSkew => "ClockSkew",
            Self::Transient => "Transient",
            Self::Ambiguous => "Ambiguous",
        }
    }
}
