//! Errors of registries, with the texts of containerd.

use std::{error::Error as StdError, io};

use oci_client::errors::{DigestError, OciDistributionError as Fault, OciErrorCode};

use crate::image::{Error, Kind, Name};

/// The operation that failed.
pub(super) struct Step {
    head: String,
    /// What is reported as not found.
    name: String,
    /// Whether credentials were sent.
    shown: bool,
}

impl Step {
    /// Resolving a name.
    pub(super) fn resolve(name: &Name, shown: bool) -> Self {
        let head = format!("failed to pull and unpack image \"{name}\": failed to resolve image");
        Self { head, name: name.to_string(), shown }
    }

    /// Downloading content.
    pub(super) fn copy() -> Self {
        Self { head: "failed to copy".to_owned(), name: "content".to_owned(), shown: true }
    }

    pub(super) fn failed(&self, error: Error) -> Error {
        error.within(&self.head)
    }

    /// Converts an error of the registry or the connection.
    pub(super) fn fault(&self, fault: &Fault) -> Error {
        let unexpected = |url: &str, status: &str| {
            Error::new(Kind::Unavailable, format!("unexpected status from GET request to {url}: {status}"))
        };
        let error = match fault {
            _ if is_denied(fault) => self.denied(),
            _ if is_absent(fault) => Error::new(Kind::NotFound, format!("{}: not found", self.name)),
            Fault::ServerError { code, url, .. } => unexpected(url, &status(*code)),
            Fault::RegistryError { envelope, url } => {
                let busy = envelope.errors.iter().any(|error| error.code == OciErrorCode::Toomanyrequests);
                let said = if busy { status(429) } else { envelope.to_string() };
                unexpected(url, &said)
            }
            Fault::RequestError(error) => {
                Error::new(Kind::Unavailable, format!("failed to do request: {}", told(error)))
            }
            Fault::IoError(error) => Error::new(Kind::Unavailable, told(error)),
            Fault::DigestError(error) => Error::corrupt(error.to_string()),
            other => Error::new(Kind::Internal, other.to_string()),
        };
        self.failed(error)
    }

    /// Converts an error of an interrupted download.
    pub(super) fn broken(&self, error: &io::Error) -> Error {
        let wrong = error.get_ref().is_some_and(<dyn StdError + Send + Sync>::is::<DigestError>);
        let kind = if wrong { Kind::Corrupt } else { Kind::Unavailable };
        self.failed(Error::new(kind, told(error)))
    }

    fn denied(&self) -> Error {
        let why = if self.shown { "" } else { ": no basic auth credentials" };
        Error::new(
            Kind::Denied,
            format!(
                "pull access denied, repository does not exist or may require authorization: authorization failed{why}"
            ),
        )
    }
}

/// Whether other credentials could help.
pub(super) fn is_denied(fault: &Fault) -> bool {
    match fault {
        Fault::UnauthorizedError { .. } | Fault::AuthenticationFailure(_) => true,
        Fault::ServerError { code, .. } => matches!(code, 401 | 403),
        Fault::RegistryError { envelope, .. } => envelope
            .errors
            .iter()
            .any(|error| matches!(error.code, OciErrorCode::Unauthorized | OciErrorCode::Denied)),
        _ => false,
    }
}

fn is_absent(fault: &Fault) -> bool {
    match fault {
        Fault::ImageManifestNotFoundError(_) => true,
        Fault::ServerError { code, .. } => *code == 404,
        Fault::RegistryError { envelope, .. } => envelope.errors.iter().any(|error| {
            matches!(
                error.code,
                OciErrorCode::ManifestUnknown
                    | OciErrorCode::NameUnknown
                    | OciErrorCode::NotFound
                    | OciErrorCode::BlobUnknown
                    | OciErrorCode::ManifestBlobUnknown
            )
        }),
        _ => false,
    }
}

/// An HTTP status as Go prints it.
fn status(code: u16) -> String {
    let words = match code {
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    };
    format!("{code} {words}").trim_end().to_owned()
}

/// The text of an error with its causes.
fn told(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: u16) -> Fault {
        Fault::ServerError { code, url: "http://r/v2/x".into(), message: String::new() }
    }

    #[test]
    fn registry_errors_have_the_texts_of_containerd() {
        let name = Name::parse("127.0.0.1:5000/x:1").unwrap();
        let step = Step::resolve(&name, false);
        let head = "failed to pull and unpack image \"127.0.0.1:5000/x:1\": failed to resolve image: ";
        for (code, kind, words) in [
            (404, Kind::NotFound, "127.0.0.1:5000/x:1: not found"),
            (
                503,
                Kind::Unavailable,
                "unexpected status from GET request to http://r/v2/x: 503 Service Unavailable",
            ),
            (
                401,
                Kind::Denied,
                "pull access denied, repository does not exist or may require authorization: \
                authorization failed: no basic auth credentials",
            ),
        ] {
            let error = step.fault(&fault(code));
            assert_eq!(error.kind(), kind);
            assert_eq!(error.message(), format!("{head}{words}"));
        }
    }
}
