//! What went wrong, in the runtime's words and in the contract's.

use std::{error::Error as StdError, io, path::Path};

use tonic::{Code, Status};
use vk_provider::{Error, error::Kind};

/// A refusal as a gRPC client in Go prints it, which is how users know it from pods and events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {desc}")]
pub struct RpcError {
    /// The code in Go's spelling.
    pub code: &'static str,
    /// The runtime's words.
    pub desc: String,
}

/// That nobody answers at a socket.
#[derive(Debug, thiserror::Error)]
#[error("connection error: desc = \"transport: Error while dialing: dial unix {path}: connect: {why}\"")]
pub(crate) struct Undialled {
    path: String,
    why: String,
}

// === impl Undialled ===

impl Undialled {
    pub(crate) fn new(path: &Path, error: &io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "no such file or directory".to_owned(),
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        Self { path: path.display().to_string(), why }
    }
}

/// The contract's error for a status. One that our side made has a cause; the runtime's has none.
pub(crate) fn error(status: &Status) -> Error {
    let Some(cause) = StdError::source(status) else {
        return told(status.code(), status.message());
    };
    if let Some(undialled) = find::<Undialled>(cause) {
        return told(Code::Unavailable, &undialled.to_string());
    }
    if expired(status) {
        return overdue();
    }
    // What Go says when the other side is gone in the middle of a call. The details are the transport's own.
    tracing::debug!(%status, %cause, "a call to the runtime broke off");
    told(Code::Unavailable, "error reading from server: EOF")
}

/// Whether our own side gave the call up, because its limit was over.
pub(crate) fn expired(status: &Status) -> bool {
    StdError::source(status).is_some_and(|cause| find::<tonic::TimeoutExpired>(cause).is_some())
}

/// A call that took too long.
pub(crate) fn overdue() -> Error {
    told(Code::DeadlineExceeded, "context deadline exceeded")
}

/// An answer that no runtime should give.
pub(crate) fn nonsense(call: &str, what: &str) -> Error {
    Error::internal(format!("the runtime's answer to {call} has no {what}"))
}

fn told(code: Code, desc: &str) -> Error {
    let cause = RpcError { code: spelled(code), desc: desc.to_owned() };
    Error::new(kind(code), desc.to_owned()).caused_by(cause)
}

fn kind(code: Code) -> Kind {
    match code {
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::AlreadyExists,
        Code::InvalidArgument | Code::OutOfRange => Kind::Invalid,
        Code::Unimplemented => Kind::Unsupported,
        Code::Unavailable | Code::DeadlineExceeded => Kind::Unavailable,
        Code::ResourceExhausted => Kind::Exhausted,
        Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
        Code::Cancelled => Kind::Cancelled,
        Code::Ok
        | Code::Unknown
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss => Kind::Internal,
    }
}

/// Go's spelling, which has one `l` in `Canceled`.
fn spelled(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use vk_pod_engine::backend::full_message;

    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_runtimes_words_and_with_its_origin_as_its_cause() {
        let error =
            error(&Status::not_found("an error occurred when try to find container \"x\": not found"));
        assert_eq!(*error.kind(), Kind::NotFound);
        assert_eq!(error.message(), "an error occurred when try to find container \"x\": not found");
        assert_eq!(
            full_message(&error),
            "rpc error: code = NotFound desc = an error occurred when try to find container \"x\": not found"
        );
    }

    #[test]
    fn every_code_has_the_kind_that_says_what_to_do() {
        for (status, expected) in [
            (Status::unimplemented("unknown service"), Kind::Unsupported),
            (Status::deadline_exceeded("late"), Kind::Unavailable),
            (Status::unavailable("away"), Kind::Unavailable),
            (Status::unknown("anything"), Kind::Internal),
            (Status::failed_precondition("name is reserved"), Kind::Internal),
            (Status::invalid_argument("bad"), Kind::Invalid),
            (Status::permission_denied("no"), Kind::Denied),
        ] {
            assert_eq!(*error(&status).kind(), expected, "{status}");
        }
        assert!(full_message(&error(&Status::cancelled("x"))).contains("code = Canceled"));
    }

    #[test]
    fn nobody_at_the_socket_is_said_as_a_go_client_says_it() {
        let io = io::Error::from_raw_os_error(2);
        let status = Status::from_error(Box::new(Undialled::new(Path::new("/run/x.sock"), &io)));
        let error = error(&status);
        assert_eq!(*error.kind(), Kind::Unavailable);
        assert_eq!(
            error.message(),
            "connection error: desc = \"transport: Error while dialing: dial unix /run/x.sock: connect: \
             no such file or directory\""
        );
    }
}
