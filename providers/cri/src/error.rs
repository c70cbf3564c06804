//! Converts gRPC errors of the runtime to errors of the contract.

use std::{error::Error as StdError, io, path::Path};

use tonic::{Code, Status};
use vk_provider::{Error, error::Kind, go_text::io_error};

/// A gRPC error in the format of Go clients, which users know from pods and events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {desc}")]
pub struct RpcError {
    /// The code as Go prints it.
    pub code: &'static str,
    /// The runtime's message.
    pub desc: String,
}

/// Connecting to the socket failed. The text equals that of Go clients.
#[derive(Debug, thiserror::Error)]
#[error("connection error: desc = \"transport: Error while dialing: dial unix {path}: connect: {why}\"")]
pub(crate) struct DialError {
    path: String,
    why: String,
}

// === impl DialError ===

impl DialError {
    pub(crate) fn new(path: &Path, error: &io::Error) -> Self {
        Self { path: path.display().to_string(), why: io_error(error) }
    }
}

/// Converts a status. A status that was created on our side has a cause; the runtime's has none.
pub(crate) fn from_status(status: &Status) -> Error {
    let Some(cause) = StdError::source(status) else {
        return rpc_error(status.code(), status.message());
    };
    if let Some(dial) = find_cause::<DialError>(cause) {
        return rpc_error(Code::Unavailable, &dial.to_string());
    }
    if is_timeout(status) {
        return deadline_exceeded();
    }
    // Go's text for a server that closes the connection during a call.
    tracing::debug!(%status, %cause, "the connection to the runtime was lost during a call");
    rpc_error(Code::Unavailable, "error reading from server: EOF")
}

/// Whether the call was abandoned on our side because its timeout expired.
pub(crate) fn is_timeout(status: &Status) -> bool {
    StdError::source(status).is_some_and(|cause| find_cause::<tonic::TimeoutExpired>(cause).is_some())
}

/// The error of a call whose timeout expired.
pub(crate) fn deadline_exceeded() -> Error {
    rpc_error(Code::DeadlineExceeded, "context deadline exceeded")
}

/// The error of a response without a mandatory field.
pub(crate) fn missing_field(call: &str, what: &str) -> Error {
    Error::internal(format!("the runtime's response to {call} has no {what}"))
}

fn rpc_error(code: Code, desc: &str) -> Error {
    let cause = RpcError { code: go_name(code), desc: desc.to_owned() };
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

/// The name of a code in Go, where `Canceled` has one `l`.
fn go_name(code: Code) -> &'static str {
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

fn find_cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
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
    fn an_error_keeps_the_message_of_the_runtime_and_its_code() {
        let error =
            from_status(&Status::not_found("an error occurred when try to find container \"x\": not found"));
        assert_eq!(*error.kind(), Kind::NotFound);
        assert_eq!(error.message(), "an error occurred when try to find container \"x\": not found");
        assert_eq!(
            full_message(&error),
            "rpc error: code = NotFound desc = an error occurred when try to find container \"x\": not found"
        );
    }

    #[test]
    fn codes_are_mapped_to_kinds() {
        for (status, expected) in [
            (Status::unimplemented("unknown service"), Kind::Unsupported),
            (Status::deadline_exceeded("late"), Kind::Unavailable),
            (Status::unavailable("away"), Kind::Unavailable),
            (Status::unknown("anything"), Kind::Internal),
            (Status::failed_precondition("name is reserved"), Kind::Internal),
            (Status::invalid_argument("bad"), Kind::Invalid),
            (Status::permission_denied("no"), Kind::Denied),
        ] {
            assert_eq!(*from_status(&status).kind(), expected, "{status}");
        }
        assert!(full_message(&from_status(&Status::cancelled("x"))).contains("code = Canceled"));
    }

    #[test]
    fn a_failed_connection_has_the_text_of_go_clients() {
        let io = io::Error::from_raw_os_error(2);
        let status = Status::from_error(Box::new(DialError::new(Path::new("/run/x.sock"), &io)));
        let error = from_status(&status);
        assert_eq!(*error.kind(), Kind::Unavailable);
        assert_eq!(
            error.message(),
            "connection error: desc = \"transport: Error while dialing: dial unix /run/x.sock: connect: \
             no such file or directory\""
        );
    }
}
