//! The error type of the contract: a kind that decides how the core reacts, and a message for users.

use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

use crate::resolve::Reference;

/// The result of a provider call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a provider call.
///
/// A provider may use any error types internally; it maps each to a [`Kind`] once, at this boundary.
/// The message is shown to users on pods, events and the node, so it names the operation and the object and
/// contains no secrets.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: Cow<'static, str>,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`]. It alone decides how the core, the HTTP server and gRPC react:
///
/// | kind | the core | HTTP | gRPC |
/// |---|---|---|---|
/// | `NotFound` | treats the pod as gone; a delete has succeeded | 404 | `NOT_FOUND` 5 |
/// | `AlreadyExists` | treats a create as success and reads the status | 409 | `ALREADY_EXISTS` 6 |
/// | `Invalid` | fails the pod permanently (create), or records an event and a condition (update) | 400 | `INVALID_ARGUMENT` 3 |
/// | `Unsupported` | same as `Invalid` | 501 | `UNIMPLEMENTED` 12 |
/// | `Unresolved` | waits for the object; the pod shows `CreateContainerConfigError` | 424 | `FAILED_PRECONDITION` 9 |
/// | `Unavailable` | retries with back-off and jitter, without a limit | 503 | `UNAVAILABLE` 14 |
/// | `Throttled` | retries, not before the given time | 429 | `RESOURCE_EXHAUSTED` 8 |
/// | `Exhausted` | keeps the pod Pending with the reason; retries slowly | 507 | `RESOURCE_EXHAUSTED` 8 |
/// | `Denied` | records an event on the pod; retries slowly | 502 | `PERMISSION_DENIED` 7 |
/// | `Blocked` | keeps the pod Pending and shows the reason on it, with an event; retries slowly | 503 | `UNAVAILABLE` 14 |
/// | `Cancelled` | retries silently unless the process is stopping | 499 | `CANCELLED` 1 |
/// | `Internal` | retries with back-off and jitter, without a limit | 500 | `INTERNAL` 13 |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The backend has no such pod, container or port.
    NotFound,
    /// The backend already has the object.
    AlreadyExists,
    /// The request can never succeed in this form.
    Invalid,
    /// The backend does not support the request.
    Unsupported,
    /// A mandatory object that the pod refers to is missing. Created only by the resolver; providers pass it on.
    Unresolved(Reference),
    /// The backend cannot be reached or is not ready.
    Unavailable,
    /// The backend limits the rate of requests.
    Throttled {
        /// The minimum delay before the next attempt, if the backend gave one.
        after: Option<Duration>,
    },
    /// The backend has no capacity left for this pod.
    Exhausted,
    /// The backend rejected the credentials or denied access.
    Denied,
    /// Something that is neither the pod's fault nor a failure keeps the pod from starting, for this CamelCase reason.
    Blocked(&'static str),
    /// The call was cancelled.
    Cancelled,
    /// Any other failure: a bug of the provider or its backend.
    Internal,
}

/// The core's reaction to a failed call: see [`Kind::reaction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Treat the pod as gone.
    Gone,
    /// Treat the call as successful and read the status.
    Done,
    /// Fail the pod (from `create_pod`), or report the error and continue (from other calls). No retry.
    Refuse,
    /// Wait until the missing object appears.
    Await,
    /// Retry with back-off and jitter, without a limit.
    Retry,
    /// Retry slowly: only a change outside of this process can help.
    RetrySlowly,
}

impl Error {
    /// Creates an error. The message starts in lower case, with the operation.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Adds the cause. Do not repeat its text in the message.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// [`Kind::NotFound`].
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// [`Kind::Invalid`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// [`Kind::Unsupported`].
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// [`Kind::Unavailable`].
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// [`Kind::Internal`].
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// The kind of this error.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The message without its causes; see [`Error::report`].
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The message and all its causes on one line, for users.
    pub fn report(&self) -> String {
        let mut text = self.message.to_string();
        let mut cause = StdError::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl Kind {
    /// The core's reaction. This is the only place that decides whether a call is retried.
    pub fn reaction(&self) -> Reaction {
        match self {
            Self::NotFound => Reaction::Gone,
            Self::AlreadyExists => Reaction::Done,
            Self::Invalid | Self::Unsupported => Reaction::Refuse,
            Self::Unresolved(_) => Reaction::Await,
            Self::Unavailable | Self::Throttled { .. } | Self::Cancelled | Self::Internal => Reaction::Retry,
            Self::Exhausted | Self::Denied | Self::Blocked(_) => Reaction::RetrySlowly,
        }
    }

    /// The time that the backend asked us to wait, if it did.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after } => *after,
            _ => None,
        }
    }

    /// The HTTP status of the kubelet API for this kind.
    pub fn http_status(&self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::AlreadyExists => 409,
            Self::Invalid => 400,
            Self::Unsupported => 501,
            Self::Unresolved(_) => 424,
            Self::Unavailable | Self::Blocked(_) => 503,
            Self::Throttled { .. } => 429,
            Self::Exhausted => 507,
            Self::Denied => 502,
            Self::Cancelled => 499,
            Self::Internal => 500,
        }
    }

    /// The gRPC status code for this kind, used by remote providers.
    pub fn grpc_code(&self) -> i32 {
        match self {
            Self::Cancelled => 1,
            Self::Invalid => 3,
            Self::NotFound => 5,
            Self::AlreadyExists => 6,
            Self::Denied => 7,
            Self::Throttled { .. } | Self::Exhausted => 8,
            Self::Unresolved(_) => 9,
            Self::Unsupported => 12,
            Self::Internal => 13,
            Self::Unavailable | Self::Blocked(_) => 14,
        }
    }

    /// A stable name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Invalid => "Invalid",
            Self::Unsupported => "Unsupported",
            Self::Unresolved(_) => "Unresolved",
            Self::Unavailable => "Unavailable",
            Self::Throttled { .. } => "Throttled",
            Self::Exhausted => "Exhausted",
            Self::Denied => "Denied",
            Self::Blocked(_) => "Blocked",
            Self::Cancelled => "Cancelled",
            Self::Internal => "Internal",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::{Reference, ReferenceKind};

    fn all() -> Vec<Kind> {
        vec![
            Kind::NotFound,
            Kind::AlreadyExists,
            Kind::Invalid,
            Kind::Unsupported,
            Kind::Unresolved(Reference::new(ReferenceKind::Secret, "default", "token")),
            Kind::Unavailable,
            Kind::Throttled { after: Some(Duration::from_secs(3)) },
            Kind::Exhausted,
            Kind::Denied,
            Kind::Blocked("NameConflict"),
            Kind::Cancelled,
            Kind::Internal,
        ]
    }

    /// The code must match the table in the doc comment of `Kind`.
    #[test]
    fn the_documented_table_matches_the_code() {
        let source = include_str!("error.rs");
        for kind in all() {
            let row = source
                .lines()
                .find(|line| line.starts_with(&format!("/// | `{}` |", kind.name())))
                .unwrap_or_else(|| panic!("no row for {kind}"));
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!(cells[3], kind.http_status().to_string(), "HTTP status of {kind}");
            assert!(cells[4].ends_with(&format!(" {}", kind.grpc_code())), "gRPC code of {kind}: {row}");
            let core = cells[2];
            match kind.reaction() {
                Reaction::Gone => assert!(core.contains("gone"), "{row}"),
                Reaction::Done => assert!(core.contains("success"), "{row}"),
                Reaction::Refuse => {
                    assert!(core.contains("fails the pod") || core == "same as `Invalid`", "{row}");
                }
                Reaction::Await => assert!(core.contains("waits for the object"), "{row}"),
                Reaction::Retry => assert!(core.contains("retries"), "{row}"),
                Reaction::RetrySlowly => assert!(core.contains("retries slowly"), "{row}"),
            }
        }
    }

    #[test]
    fn a_report_contains_the_message_and_every_cause_once() {
        let inner = std::io::Error::other("connection reset");
        let middle = Error::unavailable("query the backend").caused_by(inner);
        let error = Error::internal("create pod default/web").caused_by(middle);
        assert_eq!(error.report(), "create pod default/web: query the backend: connection reset");
        assert_eq!(error.to_string(), "create pod default/web");
    }

    #[test]
    fn only_throttled_has_a_retry_delay() {
        for kind in all() {
            assert_eq!(kind.retry_after().is_some(), matches!(kind, Kind::Throttled { .. }), "{kind}");
        }
    }
}
