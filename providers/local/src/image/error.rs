//! What goes wrong with images, in the words that users know from containerd.

use std::{io, path::Path};

use vk_provider::error::Kind as Contract;

/// What an operation of the store answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something about an image failed: everything on one line, the operation first.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
}

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such image, or none for this machine.
    NotFound,
    /// What was asked for makes no sense: a name, an archive that is none.
    Invalid,
    /// The registry wants other credentials.
    Denied,
    /// The registry cannot be reached, or broke off.
    Unavailable,
    /// No room: the disk is full.
    Exhausted,
    /// A container has it.
    Held,
    /// The content is not what it says to be, or was made to do harm.
    Corrupt,
    /// Anything else.
    Internal,
}

/// The same as a kubelet shows it, which has it from a client of containerd.
#[derive(Debug, thiserror::Error)]
#[error("rpc error: code = {code} desc = {desc}")]
struct Told {
    code: &'static str,
    desc: String,
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

    /// An operation failed. An error of ours that went through a reader comes out as it was.
    pub(crate) fn io(operation: &str, error: io::Error) -> Self {
        let code = error.raw_os_error();
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::Exhausted,
            // Without a number it is not the system that says so, but who reads an archive.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
                if code.is_none() =>
            {
                Kind::Corrupt
            }
            _ => Kind::Internal,
        };
        let said = match (error.kind(), code) {
            (io::ErrorKind::StorageFull, Some(_)) => "no space left on device".to_owned(),
            (io::ErrorKind::QuotaExceeded, Some(_)) => "disk quota exceeded".to_owned(),
            _ => error.to_string(),
        };
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(_) => Self::new(kind, format!("{operation}: {said}")),
        }
    }

    /// The same error, said as part of something larger.
    #[must_use]
    pub(crate) fn within(mut self, operation: &str) -> Self {
        self.message = format!("{operation}: {}", self.message);
        self
    }

    /// Its class.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What went wrong.
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
        // What a kubelet shows is the gRPC error, and without its head where containerd knows no better code.
        let (kind, code) = match error.kind {
            Kind::NotFound => (Contract::NotFound, "NotFound"),
            Kind::Invalid => (Contract::Invalid, "InvalidArgument"),
            Kind::Denied => (Contract::Denied, "Unknown"),
            Kind::Unavailable => (Contract::Unavailable, "Unknown"),
            Kind::Exhausted => (Contract::Exhausted, "Unknown"),
            Kind::Held => (Contract::Internal, "FailedPrecondition"),
            Kind::Corrupt | Kind::Internal => (Contract::Internal, "Unknown"),
        };
        let cause = Told { code, desc: error.message.clone() };
        Self::new(kind, error.message).caused_by(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_went_through_a_reader_keeps_its_class_and_words() {
        let through = io::Error::from(Error::corrupt("the layer is not what it says to be"));
        let out = Error::io("read archive", through);
        assert_eq!(out.kind(), Kind::Corrupt);
        assert_eq!(out.message(), "the layer is not what it says to be");
    }

    #[test]
    fn a_full_disk_is_said_in_plain_words() {
        let error = Error::io("write bin/sh", io::Error::from_raw_os_error(28));
        assert_eq!(error.kind(), Kind::Exhausted);
        assert_eq!(error.message(), "write bin/sh: no space left on device");
    }

    #[test]
    fn the_engine_gets_the_words_and_a_grpc_error_as_their_cause() {
        let error: vk_provider::Error = Error::new(Kind::NotFound, "x: not found").into();
        assert_eq!(*error.kind(), Contract::NotFound);
        assert_eq!(
            vk_pod_engine::backend::full_message(&error),
            "rpc error: code = NotFound desc = x: not found"
        );
    }
}
