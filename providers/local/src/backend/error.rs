//! Errors with the texts that containerd and the kubelet use.

use std::{io, path::Path};

use vk_provider::{Error, error::Kind, go_text};

/// An error as a gRPC client in Go prints it. There is no gRPC here, but users know this form from other nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {desc}")]
pub(crate) struct GrpcStatus {
    pub(crate) code: &'static str,
    pub(crate) desc: String,
}

/// An error of this kind, whose cause has the text of a CRI runtime's error.
pub(crate) fn cri_error(kind: Kind, message: impl Into<String>) -> Error {
    let message = message.into();
    let code = match kind {
        Kind::NotFound => "NotFound",
        Kind::Invalid => "InvalidArgument",
        Kind::Unsupported => "Unimplemented",
        Kind::Unavailable => "Unavailable",
        Kind::Exhausted => "ResourceExhausted",
        Kind::Denied => "PermissionDenied",
        _ => "Unknown",
    };
    Error::new(kind, message.clone()).caused_by(GrpcStatus { code, desc: message })
}

/// The container does not exist.
pub(super) fn no_container(id: &str) -> Error {
    cri_error(Kind::NotFound, format!("an error occurred when try to find container {id:?}: not found"))
}

/// The sandbox does not exist.
pub(super) fn no_sandbox(id: &str) -> Error {
    cri_error(Kind::NotFound, format!("an error occurred when try to find sandbox {id:?}: not found"))
}

/// A system call failed.
pub(super) fn io_error(what: &str, error: &io::Error) -> Error {
    cri_error(Kind::Internal, format!("{what}: {}", go_text::io_error(error)))
}

/// A system call on a path failed.
pub(super) fn path_error(what: &str, path: &Path, error: &io::Error) -> Error {
    io_error(&format!("{what} {}", path.display()), error)
}

/// Prefixes an error with the operation that failed; its kind stays the same.
pub(super) fn with_context(what: &str, error: &Error) -> Error {
    cri_error(error.kind().clone(), format!("{what}: {}", error.message()))
}

/// A call exceeded its time limit.
pub(super) fn deadline_exceeded() -> Error {
    cri_error(Kind::Unavailable, "context deadline exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_and_has_the_runtimes_text_as_cause() {
        let error = with_context("failed to do", &no_container("x"));
        assert_eq!(*error.kind(), Kind::NotFound);
        assert_eq!(
            vk_pod_engine::backend::full_message(&error),
            "rpc error: code = NotFound desc = failed to do: an error occurred when try to find container \"x\": not found"
        );
    }
}
