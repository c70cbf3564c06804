//! Errors of images, with the texts of containerd.

use std::{io, path::Path};

use vk_provider::error::Kind as ProviderKind;

use crate::backend::error::GrpcStatus;

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error on one line, starting with the operation.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
}

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such image, or none for this platform.
    NotFound,
    /// An invalid name or archive.
    Invalid,
    /// The registry refused the credentials.
    Denied,
    /// The registry cannot be reached, or the transfer was interrupted.
    Unavailable,
    /// The disk is full.
    Exhausted,
    /// A container uses it.
    Held,
    /// The content does not match its digest, or is malicious.
    Corrupt,
    /// Anything else.
    Internal,
}

// === impl Error ===

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// For `map_err`: an operation on a path failed.
    pub(crate) fn system<E: Into<io::Error>>(operation: &str, path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Self::io(&format!("{operation} {}", path.display()), error.into())
    }

    /// An operation failed. An [`Error`] that was passed through a reader is returned unchanged.
    pub(crate) fn io(operation: &str, error: io::Error) -> Self {
        let code = error.raw_os_error();
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::Exhausted,
            // Without an errno it comes from an archive reader, not from the system.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
                if code.is_none() =>
            {
                Kind::Corrupt
            }
            _ => Kind::Internal,
        };
        let text = vk_provider::go_text::io_error(&error);
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(_) => Self::new(kind, format!("{operation}: {text}")),
        }
    }

    /// Prefixes the error with an operation.
    #[must_use]
    pub(crate) fn within(mut self, operation: &str) -> Self {
        self.message = format!("{operation}: {}", self.message);
        self
    }

    /// The class of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The text of the error.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}

impl From<Error> for vk_provider::Error {
    fn from(error: Error) -> Self {
        // The codes are those that containerd uses.
        let (kind, code) = match error.kind {
            Kind::NotFound => (ProviderKind::NotFound, "NotFound"),
            Kind::Invalid => (ProviderKind::Invalid, "InvalidArgument"),
            Kind::Denied => (ProviderKind::Denied, "Unknown"),
            Kind::Unavailable => (ProviderKind::Unavailable, "Unknown"),
            Kind::Exhausted => (ProviderKind::Exhausted, "Unknown"),
            Kind::Held => (ProviderKind::Internal, "FailedPrecondition"),
            Kind::Corrupt | Kind::Internal => (ProviderKind::Internal, "Unknown"),
        };
        let cause = GrpcStatus { code, desc: error.message.clone() };
        Self::new(kind, error.message).caused_by(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_went_through_a_reader_is_unchanged() {
        let through = io::Error::from(Error::corrupt("the layer does not match its digest"));
        let out = Error::io("read archive", through);
        assert_eq!(out.kind(), Kind::Corrupt);
        assert_eq!(out.message(), "the layer does not match its digest");
    }

    #[test]
    fn a_full_disk_has_the_text_of_go() {
        let error = Error::io("write bin/sh", io::Error::from_raw_os_error(28));
        assert_eq!(error.kind(), Kind::Exhausted);
        assert_eq!(error.message(), "write bin/sh: no space left on device");
    }

    #[test]
    fn the_provider_error_has_the_grpc_text_as_cause() {
        let error: vk_provider::Error = Error::new(Kind::NotFound, "x: not found").into();
        assert_eq!(*error.kind(), ProviderKind::NotFound);
        assert_eq!(
            vk_pod_engine::backend::full_message(&error),
            "rpc error: code = NotFound desc = x: not found"
        );
    }
}
