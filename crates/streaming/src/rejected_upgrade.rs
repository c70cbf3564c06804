//! Responses to requests that are not upgraded.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use vk_provider::{Error, error::Kind};

/// A response instead of an upgrade: the client's mistake, or the provider's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedUpgrade {
    /// The status code.
    pub status: StatusCode,
    /// Additional headers.
    pub headers: Box<HeaderMap>,
    /// The error message.
    pub body: String,
}

impl RejectedUpgrade {
    /// A response without additional headers.
    pub fn new(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, headers: Box::default(), body: body.into() }
    }

    pub(crate) fn bad_request(body: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, body)
    }

    /// The response to a provider's error before the upgrade.
    pub fn from_error(error: &Error) -> Self {
        let status =
            StatusCode::from_u16(error.kind().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut rejected = Self::new(status, error.report());
        if let Kind::Throttled { after: Some(after) } = error.kind() {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            rejected.headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        rejected
    }

    /// Builds the response, in plain text.
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
    fn a_providers_error_determines_the_status_and_the_body() {
        let missing = Error::not_found("exec in default/web: no container \"app\"");
        let response = RejectedUpgrade::from_error(&missing).into_response();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.body(), "exec in default/web: no container \"app\"");
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    }

    #[test]
    fn a_throttled_caller_gets_retry_after() {
        let kind = Kind::Throttled { after: Some(Duration::from_millis(1500)) };
        let rejected = RejectedUpgrade::from_error(&Error::new(kind, "exec"));
        assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.headers["retry-after"], "2");
    }
}
