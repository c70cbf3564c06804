//! Answers that are given instead of an upgrade.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use vk_provider::{Error, error::Kind};

/// An answer instead of an upgrade: what a client did wrong, or why the provider cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// Headers that belong to it.
    pub headers: Box<HeaderMap>,
    /// What is wrong, for people.
    pub body: String,
}

impl Refusal {
    /// A refusal without headers of its own.
    pub fn new(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, headers: Box::default(), body: body.into() }
    }

    pub(crate) fn bad_request(body: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, body)
    }

    /// What a provider's error is answered with before an upgrade.
    pub fn of(error: &Error) -> Self {
        let status =
            StatusCode::from_u16(error.kind().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut refusal = Self::new(status, error.report());
        if let Kind::Throttled { after: Some(after) } = error.kind() {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            refusal.headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        refusal
    }

    /// The answer, in plain text.
    pub fn into_response(self) -> Response<String> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = *self.headers;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_providers_error_is_answered_by_its_kind_and_with_its_whole_report() {
        let missing = Error::not_found("exec in default/web: no container \"app\"");
        let response = Refusal::of(&missing).into_response();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.body(), "exec in default/web: no container \"app\"");
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    }

    #[test]
    fn a_throttled_caller_is_told_when_to_come_back() {
        let kind = Kind::Throttled { after: Some(Duration::from_millis(1500)) };
        let refusal = Refusal::of(&Error::new(kind, "exec"));
        assert_eq!(refusal.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refusal.headers["retry-after"], "2");
    }
}
