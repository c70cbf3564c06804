//! Errors of registries, with the texts of containerd.

use std::{error::Error as StdError, io};

use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};

use crate::image::{Error, ImageName, Kind};

/// The operation that failed.
pub(super) struct PullOperation {
    head: String,
    /// What is reported as not found.
    name: String,
    /// Whether credentials were sent.
    has_credentials: bool,
}

impl PullOperation {
    /// Resolving a name.
    pub(super) fn resolve(name: &ImageName, has_credentials: bool) -> Self {
        let head = format!("failed to pull and unpack image \"{name}\": failed to resolve image");
        Self { head, name: name.to_string(), has_credentials }
    }

    /// Downloading content.
    pub(super) fn copy() -> Self {
        Self { head: "failed to copy".to_owned(), name: "content".to_owned(), has_credentials: true }
    }

    pub(super) fn wrap(&self, error: Error) -> Error {
        error.within(&self.head)
    }

    /// Converts an error of the registry or the connection.
    pub(super) fn registry_error(&self, fault: &OciDistributionError) -> Error {
        let unexpected = |url: &str, status: &str| {
            Error::new(Kind::Unavailable, format!("unexpected status from GET request to {url}: {status}"))
        };
        let error = match fault {
            _ if is_denied(fault) => self.denied(),
            _ if is_absent(fault) => Error::new(Kind::NotFound, format!("{}: not found", self.name)),
            OciDistributionError::ServerError { code, url, .. } => unexpected(url, &status(*code)),
            OciDistributionError::RegistryError { envelope, url } => {
                let busy = envelope.errors.iter().any(|error| error.code == OciErrorCode::Toomanyrequests);
                let part = if busy { status(429) } else { envelope.to_string() };
                unexpected(url, &part)
            }
            OciDistributionError::RequestError(error) => {
                Error::new(Kind::Unavailable, format!("failed to do request: {}", error_chain(error)))
            }
            OciDistributionError::IoError(error) => Error::new(Kind::Unavailable, error_chain(error)),
            OciDistributionError::DigestError(error) => Error::corrupt(error.to_string()),
            other => Error::new(Kind::Internal, other.to_string()),
        };
        self.wrap(error)
    }

    /// Converts an error of an interrupted download.
    pub(super) fn download_error(&self, error: &io::Error) -> Error {
        let wrong = error.get_ref().is_some_and(<dyn StdError + Send + Sync>::is::<DigestError>);
        let kind = if wrong { Kind::Corrupt } else { Kind::Unavailable };
        self.wrap(Error::new(kind, error_chain(error)))
    }

    fn denied(&self) -> Error {
        let why = if self.has_credentials { "" } else { ": no basic auth credentials" };
        Error::new(
            Kind::Denied,
            format!(
                "pull access denied, repository does not exist or may require authorization: authorization failed{why}"
            ),
        )
    }
}

/// Whether other credentials could help.
pub(super) fn is_denied(fault: &OciDistributionError) -> bool {
    match fault {
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => {
            true
        }
        OciDistributionError::ServerError { code, .. } => matches!(code, 401 | 403),
        OciDistributionError::RegistryError { envelope, .. } => envelope
            .errors
            .iter()
            .any(|error| matches!(error.code, OciErrorCode::Unauthorized | OciErrorCode::Denied)),
        _ => false,
    }
}

fn is_absent(fault: &OciDistributionError) -> bool {
    match fault {
        OciDistributionError::ImageManifestNotFoundError(_) => true,
        OciDistributionError::ServerError { code, .. } => *code == 404,
        OciDistributionError::RegistryError { envelope, .. } => envelope.errors.iter().any(|error| {
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
    let text = match code {
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    };
    format!("{code} {text}").trim_end().to_owned()
}

/// The text of an error with its causes.
fn error_chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: u16) -> OciDistributionError {
        OciDistributionError::ServerError { code, url: "http://r/v2/x".into(), message: String::new() }
    }

    #[test]
    fn registry_errors_have_the_texts_of_containerd() {
        let name = ImageName::parse("127.0.0.1:5000/x:1").unwrap();
        let operation = PullOperation::resolve(&name, false);
        let head = "failed to pull and unpack image \"127.0.0.1:5000/x:1\": failed to resolve image: ";
        for (code, kind, text) in [
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
            let error = operation.registry_error(&fault(code));
            assert_eq!(error.kind(), kind);
            assert_eq!(error.message(), format!("{head}{text}"));
        }
    }
}
