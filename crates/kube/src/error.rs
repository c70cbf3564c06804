//! Errors of calls to the API server, classified by how to react.

use std::{fmt, time::Duration};

/// The longest wait that a server can ask for, in seconds: a proxy's maintenance page must not make a node deaf for a day.
const MAX_RETRY_AFTER: u32 = 60;

/// Why a call failed. Cheap to clone, so that state machines can hold it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Determines the reaction.
    pub kind: Kind,
    /// The server's message, or the connection's error.
    pub message: String,
    /// How long to wait before another attempt, if the server said so.
    pub retry_after: Option<Duration>,
    /// The fields that the server rejects, such as `status.podIPs[1]`, if it named them.
    pub fields: Vec<String>,
    /// Whether the API server's validation rejects the object: 422 with the reason `Invalid`. Other answers of [`Kind::Invalid`] may
    /// be those of a proxy.
    pub failed_validation: bool,
}

/// The classes of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 404 of the API server: the object does not exist.
    NotFound,
    /// 404 of anything else: the API server does not have this API, or a proxy answers in its place. It says nothing about objects.
    NotServed,
    /// 405.
    MethodNotAllowed,
    /// 409 with reason AlreadyExists.
    AlreadyExists,
    /// Any other 409: the object was changed concurrently, or has another UID.
    Conflict,
    /// 422 on `metadata.uid`: the object with this UID is gone, and another has its name.
    Replaced,
    /// 400, other 422 and the like: the same request can never succeed.
    Invalid,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 410: the resource version is too old.
    Expired,
    /// 429.
    Throttled,
    /// Any 5xx.
    Server,
    /// No answer within the time limit.
    Timeout,
    /// No connection, or a broken one.
    Unreachable,
    /// Not sent, or cancelled: the node's [`Fence`](crate::Fence) is closed.
    Fenced,
}

impl Error {
    /// Creates an error of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            fields: Vec::new(),
            failed_validation: false,
        }
    }

    /// A call that exceeded its time limit.
    pub fn timeout(limit: Duration) -> Self {
        Self::new(Kind::Timeout, format!("the API server did not answer within {limit:?}"))
    }
}

impl Kind {
    /// A short stable name, for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::NotServed => "NotServed",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Replaced => "Replaced",
            Self::Invalid => "Invalid",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::Expired => "Expired",
            Self::Throttled => "Throttled",
            Self::Server => "Server",
            Self::Timeout => "Timeout",
            Self::Unreachable => "Unreachable",
            Self::Fenced => "Fenced",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            return Self::new(Kind::Unreachable, chain(&error));
        };
        let details = status.details.as_ref();
        let about_uid = || {
            details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
        };
        let kind = match status.code {
            401 => Kind::Unauthorized,
            403 => Kind::Forbidden,
            404 if status.reason == "NotFound" => Kind::NotFound,
            404 => Kind::NotServed,
            405 => Kind::MethodNotAllowed,
            408 => Kind::Timeout,
            409 if status.reason == "AlreadyExists" => Kind::AlreadyExists,
            409 => Kind::Conflict,
            410 => Kind::Expired,
            422 if about_uid() => Kind::Replaced,
            429 => Kind::Throttled,
            500.. => Kind::Server,
            _ => Kind::Invalid,
        };
        let seconds = details.map_or(0, |details| details.retry_after_seconds.min(MAX_RETRY_AFTER));
        let causes = details.into_iter().flat_map(|details| &details.causes);
        let fields = causes.map(|cause| cause.field.clone()).filter(|field| !field.is_empty()).collect();
        Self {
            kind,
            message: if status.message.is_empty() {
                format!("HTTP status {}", status.code)
            } else {
                status.message.clone()
            },
            retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
            fields,
            failed_validation: kind == Kind::Invalid && status.code == 422 && status.reason == "Invalid",
        }
    }
}

/// The outermost message and the innermost cause, which names the reason ("connection refused").
fn chain(error: &kube::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    let (outer, inner) = (error.to_string(), innermost.to_string());
    if outer.contains(&inner) { outer } else { format!("{outer}: {inner}") }
}

#[cfg(test)]
mod tests {
    use kube::core::{Status, response::StatusDetails};

    use super::*;

    fn status(code: u16, reason: &str) -> Status {
        Status { code, reason: reason.into(), message: "no".into(), ..Status::default() }
    }

    fn details(value: serde_json::Value) -> StatusDetails {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_status_code_has_one_kind() {
        let table = [
            (400, "BadRequest", Kind::Invalid),
            (401, "Unauthorized", Kind::Unauthorized),
            (403, "Forbidden", Kind::Forbidden),
            (404, "NotFound", Kind::NotFound),
            (405, "MethodNotAllowed", Kind::MethodNotAllowed),
            (408, "Timeout", Kind::Timeout),
            (409, "AlreadyExists", Kind::AlreadyExists),
            (409, "Conflict", Kind::Conflict),
            (410, "Expired", Kind::Expired),
            (422, "Invalid", Kind::Invalid),
            (429, "TooManyRequests", Kind::Throttled),
            (500, "InternalError", Kind::Server),
            (503, "ServiceUnavailable", Kind::Server),
            (504, "Timeout", Kind::Server),
        ];
        for (code, reason, kind) in table {
            assert_eq!(
                Error::from(kube::Error::Api(status(code, reason).boxed())).kind,
                kind,
                "{code} {reason}"
            );
        }
    }

    #[test]
    fn a_changed_uid_is_not_an_invalid_object() {
        let mut uid = status(422, "Invalid");
        let cause = serde_json::json!({"reason": "FieldValueInvalid", "field": "metadata.uid"});
        uid.details = Some(details(serde_json::json!({"causes": [cause]})));
        assert_eq!(Error::from(kube::Error::Api(uid.boxed())).kind, Kind::Replaced);
    }

    /// A pod must not be taken for deleted because an ingress has lost its backend.
    #[test]
    fn a_404_that_is_not_of_the_api_server_says_nothing_about_the_object() {
        for reason in ["", "Failed to parse error data"] {
            let error = Error::from(kube::Error::Api(status(404, reason).boxed()));
            assert_eq!(error.kind, Kind::NotServed, "{reason:?}");
        }
        let mut denied = status(422, "Invalid");
        denied.message = "denied by policy: object.metadata.uid == oldObject.metadata.uid".to_owned();
        assert_eq!(Error::from(kube::Error::Api(denied.boxed())).kind, Kind::Invalid);
    }

    #[test]
    fn only_the_validation_of_the_api_server_fails_validation() {
        let failed =
            |code, reason| Error::from(kube::Error::Api(status(code, reason).boxed())).failed_validation;
        assert!(failed(422, "Invalid"));
        for (code, reason) in
            [(400, "BadRequest"), (400, "Invalid"), (413, ""), (415, ""), (422, ""), (503, "Invalid")]
        {
            assert!(!failed(code, reason), "{code} {reason}");
        }
    }

    #[test]
    fn the_fields_that_are_rejected_are_kept() {
        let mut invalid = status(422, "Invalid");
        let cause = serde_json::json!({"reason": "FieldValueInvalid", "field": "status.podIPs"});
        let unnamed = serde_json::json!({"reason": "FieldValueInvalid"});
        invalid.details = Some(details(serde_json::json!({"causes": [cause, unnamed]})));
        assert_eq!(Error::from(kube::Error::Api(invalid.boxed())).fields, ["status.podIPs"]);
    }

    #[test]
    fn the_time_to_wait_is_kept() {
        let mut busy = status(429, "TooManyRequests");
        busy.details = Some(details(serde_json::json!({"retryAfterSeconds": 7})));
        assert_eq!(Error::from(kube::Error::Api(busy.boxed())).retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn nobody_can_make_us_wait_for_longer_than_a_minute() {
        let mut maintenance = status(503, "ServiceUnavailable");
        maintenance.details = Some(details(serde_json::json!({"retryAfterSeconds": 86_400})));
        let error = Error::from(kube::Error::Api(maintenance.boxed()));
        assert_eq!(error.retry_after, Some(Duration::from_mins(1)));
    }
}
