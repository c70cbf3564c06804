//! An answer of a cloud.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header, response::Parts};
use serde::de::DeserializeOwned;

use super::{Endpoint, Request};
use crate::cloud::{
    error::{Error, Result},
    request::Effect,
};

/// A whole answer, whatever its status is.
pub struct Response {
    endpoint: Endpoint,
    operation: String,
    effect: Effect,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

// === impl Response ===

impl Response {
    pub(super) fn new(endpoint: Endpoint, request: &Request, head: &Parts, body: Bytes) -> Self {
        Self {
            endpoint,
            operation: request.operation().to_owned(),
            effect: request.effect(),
            status: head.status,
            headers: head.headers.clone(),
            body,
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// A header that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The delay that the server asks for: `Retry-After` in seconds, which most clouds send.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.header("retry-after")?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// The body as JSON. Errors show where it is wrong, and nothing of what it says, which may be secret.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        let kind = self.header(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let first = self.body.iter().find(|byte| !byte.is_ascii_whitespace());
        if !kind.contains("json") && !matches!(first, Some(b'{' | b'[')) {
            return Err(self.unexpected(&format!(
                "{} answered with status {} and {}, not with JSON: check that the endpoint is right and that no proxy answers \
                 in its place",
                self.endpoint,
                self.status.as_u16(),
                content_type(kind),
            )));
        }
        let mut input = serde_json::Deserializer::from_slice(&self.body);
        let parsed = serde_path_to_error::deserialize(&mut input);
        parsed.map_err(|error| {
            let (path, cause) = (error.path().to_string(), error.inner());
            let (line, column) = (cause.line(), cause.column());
            let place = format!("at {path} (line {line}, column {column})");
            let text = match cause.classify() {
                serde_json::error::Category::Eof => "was cut short",
                serde_json::error::Category::Data => "has a value of an unexpected type",
                serde_json::error::Category::Syntax | serde_json::error::Category::Io => "is not valid JSON",
            };
            self.unexpected(&format!("the answer of {} {text} {place}", self.endpoint))
        })
    }

    /// An error about an answer that cannot be used.
    pub(in crate::cloud) fn unexpected(&self, text: &str) -> Error {
        Error::without_answer(&self.operation, self.effect, text)
    }

    pub(in crate::cloud) fn operation(&self) -> &str {
        &self.operation
    }

    pub(in crate::cloud) fn effect(&self) -> Effect {
        self.effect
    }
}

/// Names the type, which the server chose.
fn content_type(kind: &str) -> String {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_plausible = kind.len() <= 60 && kind.bytes().all(|byte| byte.is_ascii_graphic());
    match kind {
        "" => "no content type".to_owned(),
        _ if is_plausible => kind.to_owned(),
        _ => "an odd content type".to_owned(),
    }
}

/// Without the body, which may contain secrets.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("operation", &self.operation)
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
