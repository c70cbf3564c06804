//! The webhook that converts pods, for API servers that have no admission policies which change objects.
//!
//! It serves two paths. At [`PODS_PATH`], which is also that of tensile-kube's webhook, only pods with the label are converted, whatever the API
//! server sends. The API server knows the labels of namespaces, and the webhook does not: what it sends to [`NAMESPACES_PATH`] is converted.

mod review;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    body::{self, Body},
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use tracing::warn;

pub use self::review::{MalformedReview, OptIn, respond};
use crate::convert::Settings;

/// Converts pods with the label.
pub const PODS_PATH: &str = "/mutate";
/// Converts all pods: for namespaces with the label.
pub const NAMESPACES_PATH: &str = "/mutate/namespace";

/// The largest request. The API server accepts objects of up to 3 MiB, and a review contains one.
pub const MAX_BODY: usize = 8 << 20;

/// The routes of the webhook.
pub fn router(settings: Settings) -> Router {
    let review = |opt_in: OptIn| {
        post(move |State(settings): State<Arc<Settings>>, body: Body| async move {
            handle(body, opt_in, &settings).await
        })
    };
    Router::new()
        .route(PODS_PATH, review(OptIn::Label))
        .route(NAMESPACES_PATH, review(OptIn::Namespace))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(Arc::new(settings))
}

async fn handle(body: Body, opt_in: OptIn, settings: &Settings) -> Response {
    let Ok(body) = body::to_bytes(body, MAX_BODY).await else {
        let message = format!("the request cannot be read, or has more than {MAX_BODY} bytes");
        return (StatusCode::PAYLOAD_TOO_LARGE, message).into_response();
    };
    match respond(&body, opt_in, settings) {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response(),
        Err(error) => {
            warn!(%error, "refused a request to the webhook");
            (StatusCode::BAD_REQUEST, error.to_string()).into_response()
        }
    }
}
