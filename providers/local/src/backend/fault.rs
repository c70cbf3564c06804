//! What went wrong, in the words in which a kubelet's users know it.

use std::{io, path::Path};

use vk_provider::{Error, error::Kind};

/// A refusal as a gRPC client in Go prints it: there is no gRPC here, but this is how it looks on pods everywhere else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {desc}")]
pub(crate) struct Rpc {
    code: &'static str,
    desc: String,
}

/// An error of this kind, with its origin as its cause.
pub(crate) fn told(kind: Kind, message: impl Into<String>) -> Error {
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
    Error::new(kind, message.clone()).caused_by(Rpc { code, desc: message })
}

/// What is not there.
pub(super) fn no_container(id: &str) -> Error {
    told(Kind::NotFound, format!("an error occurred when try to find container {id:?}: not found"))
}

/// What is not there.
pub(super) fn no_sandbox(id: &str) -> Error {
    told(Kind::NotFound, format!("an error occurred when try to find sandbox {id:?}: not found"))
}

/// What failed with the system.
pub(super) fn system(what: &str, error: &io::Error) -> Error {
    told(Kind::Internal, format!("{what}: {}", words(error)))
}

/// The same about a path.
pub(super) fn at(what: &str, path: &Path, error: &io::Error) -> Error {
    system(&format!("{what} {}", path.display()), error)
}

/// An error with what was being done before it. It stays of its kind.
pub(super) fn within(what: &str, error: &Error) -> Error {
    told(error.kind().clone(), format!("{what}: {}", error.message()))
}

/// A call that took too long.
pub(super) fn overdue() -> Error {
    told(Kind::Unavailable, "context deadline exceeded")
}

/// A system's error as Go says it.
pub(crate) fn words(error: &io::Error) -> String {
    let Some(number) = error.raw_os_error() else { return error.to_string() };
    let text = io::Error::from_raw_os_error(number).to_string();
    let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text);
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase()).into_iter();
    first.chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_systems_error_is_said_as_go_says_it() {
        assert_eq!(words(&io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(words(&io::Error::other("as it is")), "as it is");
    }

    #[test]
    fn an_error_keeps_its_kind_and_tells_its_origin_beside() {
        let error = within("failed to do", &no_container("x"));
        assert_eq!(*error.kind(), Kind::NotFound);
        assert_eq!(
            vk_pod_engine::backend::full_message(&error),
            "rpc error: code = NotFound desc = failed to do: an error occurred when try to find container \"x\": not found"
        );
    }
}
