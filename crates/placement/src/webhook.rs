//! The webhook that converts pods, for API servers that have no admission policies which change objects.
//!
//! It serves two paths. At [`PODS_PATH`], which is also that of tensile-kube's webhook, only pods with the label are converted, whatever the API
//! server sends. The API server knows the labels of namespaces, and the webhook does not: what it sends to [`NAMESPACES_PATH`] is converted.

mod review;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use tracing::warn;

pub use self::review::{MalformedReview, OptIn, respond};
use crate::{convert::Settings, request_body::BodyReader};

/// Converts pods with the label.
pub const PODS_PATH: &str = "/mutate";
/// Converts all pods: for namespaces with the label.
pub const NAMESPACES_PATH: &str = "/mutate/namespace";

/// The largest request. The API server accepts objects of up to 3 MiB, and a review contains one.
pub const MAX_BODY: usize = 8 << 20;
/// The most JSON objects of a request. An empty one takes two bytes of it, and in memory the size of all the fields that it may have.
const MAX_OBJECTS: usize = 100_000;
/// The time to receive a request. An API server waits this long for the answer, unless its configuration says otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Webhook {
    settings: Settings,
    bodies: BodyReader,
}

/// The routes of the webhook.
pub fn router(settings: Settings) -> Router {
    let review = |opt_in: OptIn| {
        post(move |State(webhook): State<Arc<Webhook>>, body: Body| async move {
            webhook.handle(body, opt_in).await
        })
    };
    let webhook = Webhook { settings, bodies: BodyReader::new(MAX_BODY, REQUEST_TIMEOUT) };
    Router::new()
        .route(PODS_PATH, review(OptIn::Label))
        .route(NAMESPACES_PATH, review(OptIn::Namespace))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(Arc::new(webhook))
}

// === impl Webhook ===

impl Webhook {
    async fn handle(&self, body: Body, opt_in: OptIn) -> Response {
        let (body, _permit) = match self.bodies.read(body).await {
            Ok(read) => read,
            Err(refused) => return refused.into_response(),
        };
        let has_more_objects = body.split(|byte| *byte == b'{').nth(MAX_OBJECTS + 1).is_some();
        if has_more_objects {
            let message = format!("the request has more than {MAX_OBJECTS} JSON objects");
            return (StatusCode::PAYLOAD_TOO_LARGE, message).into_response();
        }
        match respond(&body, opt_in, &self.settings) {
            Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response(),
            Err(error) => {
                warn!(%error, "refused a request to the webhook");
                (StatusCode::BAD_REQUEST, error.to_string()).into_response()
            }
        }
    }
}
