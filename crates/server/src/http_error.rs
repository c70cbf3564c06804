//! Error responses in plain text, like the kubelet's.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) message: Cow<'static, str>,
}

// === impl HttpError ===

impl HttpError {
    pub(crate) fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The provider does not support this.
    pub(crate) fn not_implemented(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("the provider of this node does not offer {what}"))
    }
}

impl From<vk_provider::Error> for HttpError {
    fn from(error: vk_provider::Error) -> Self {
        let status = StatusCode::from_u16(error.kind().http_status());
        Self::new(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error.report())
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], self.message.into_owned())
            .into_response()
    }
}
