//! Why a registry did not answer as it should.

use std::time::Duration;

use reqwest::{Response, Url};
use serde::Deserialize;

/// Maximum number of bytes that are read of an answer that reports an error.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Maximum length of a registry's message.
const MAX_MESSAGE: usize = 200;

/// Why a registry did not answer as it should.
#[derive(Debug)]
pub(in super::super) enum RegistryError {
    /// Other credentials could help.
    Denied,
    /// It does not exist.
    NotFound,
    /// Another HTTP status, with the registry's message.
    Status { url: String, code: u16, message: Option<String> },
    /// The request failed, or the answer was interrupted. The error does not contain the URL.
    Request { url: Option<String>, error: reqwest::Error },
    /// The answer is larger than allowed.
    TooLarge { url: String, most: u64 },
    /// The answer was not complete in time.
    TooSlow(Duration),
    /// The answer is malformed.
    Invalid(String),
}

/// The error document of the distribution specification.
#[derive(Deserialize)]
struct Envelope {
    errors: Vec<EnvelopeError>,
}

#[derive(Deserialize)]
struct EnvelopeError {
    code: String,
    #[serde(default)]
    message: String,
}

impl RegistryError {
    /// The error that an answer reports.
    pub(super) async fn of(response: Response) -> Self {
        let (url, code) = (without_query(response.url()), response.status().as_u16());
        let errors = read_errors(response).await;
        let is = |codes: &[&str]| errors.iter().any(|error| codes.contains(&error.code.as_str()));
        if matches!(code, 401 | 403) || is(&["UNAUTHORIZED", "DENIED"]) {
            return Self::Denied;
        }
        if code == 404
            || is(&["MANIFEST_UNKNOWN", "NAME_UNKNOWN", "NOT_FOUND", "BLOB_UNKNOWN", "MANIFEST_BLOB_UNKNOWN"])
        {
            return Self::NotFound;
        }
        let code = if is(&["TOOMANYREQUESTS"]) { 429 } else { code };
        let message = errors.first().map(|error| {
            let text = format!("{}: {}", error.code.to_lowercase(), error.message);
            text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
        });
        Self::Status { url, code, message }
    }
}

impl From<reqwest::Error> for RegistryError {
    fn from(error: reqwest::Error) -> Self {
        Self::Request { url: error.url().map(without_query), error: error.without_url() }
    }
}

/// A URL for events and logs. Its query is a secret: registries redirect to signed URLs, which give access to everyone who has them.
pub(super) fn without_query(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Fails only for URLs that can have neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

/// The errors in the body of an answer, if it is short and well-formed.
async fn read_errors(mut response: Response) -> Vec<EnvelopeError> {
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > MAX_ERROR_BYTES {
            return Vec::new();
        }
    }
    serde_json::from_slice::<Envelope>(&body).map_or_else(|_| Vec::new(), |envelope| envelope.errors)
}
