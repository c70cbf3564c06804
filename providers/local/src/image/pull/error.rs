//! Errors of registries, with the texts of containerd.

use std::error::Error as StdError;

use super::registry::RegistryError;
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
    pub(super) fn registry_error(&self, fault: RegistryError) -> Error {
        let unavailable = |text: String| Error::new(Kind::Unavailable, text);
        self.wrap(match fault {
            RegistryError::Denied => self.denied(),
            RegistryError::NotFound => Error::new(Kind::NotFound, format!("{}: not found", self.name)),
            RegistryError::Status { url, code, message } => {
                let message = message.map_or_else(String::new, |text| format!(" - Server message: {text}"));
                unavailable(format!("unexpected status from GET request to {url}: {}{message}", status(code)))
            }
            RegistryError::Request { url, error } => {
                let request = url.map_or_else(String::new, |url| format!("Get \"{url}\": "));
                unavailable(format!("failed to do request: {request}{}", error_chain(&error)))
            }
            RegistryError::TooLarge { url, most } => {
                Error::corrupt(format!("the answer to {url} is larger than the maximum of {most} bytes"))
            }
            RegistryError::TooSlow(limit) => {
                unavailable(format!("the registry did not answer completely within {limit:?}"))
            }
            RegistryError::Invalid(why) => Error::corrupt(why),
        })
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

    #[test]
    fn registry_errors_have_the_texts_of_containerd() {
        let name = ImageName::parse("127.0.0.1:5000/x:1").unwrap();
        let operation = PullOperation::resolve(&name, false);
        let head = "failed to pull and unpack image \"127.0.0.1:5000/x:1\": failed to resolve image: ";
        let busy = RegistryError::Status {
            url: "http://r/v2/x".into(),
            code: 503,
            message: Some("unavailable: come back later".into()),
        };
        for (fault, kind, text) in [
            (RegistryError::NotFound, Kind::NotFound, "127.0.0.1:5000/x:1: not found"),
            (
                busy,
                Kind::Unavailable,
                "unexpected status from GET request to http://r/v2/x: 503 Service Unavailable - Server message: \
                 unavailable: come back later",
            ),
            (
                RegistryError::Denied,
                Kind::Denied,
                "pull access denied, repository does not exist or may require authorization: \
                authorization failed: no basic auth credentials",
            ),
        ] {
            let error = operation.registry_error(fault);
            assert_eq!(error.kind(), kind);
            assert_eq!(error.message(), format!("{head}{text}"));
        }
    }
}
