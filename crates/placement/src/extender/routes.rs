//! The HTTP routes that kube-scheduler calls.

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::SemaphorePermit, time::Instant};
use tracing::{debug, warn};

use super::{Extender, ExtenderError};
use crate::metrics::{CallLabel, VerbLabel};

/// How a call ended.
#[derive(Clone, Copy)]
enum CallOutcome {
    /// All nodes have answered.
    Answered,
    /// Some have not.
    Partial,
    Refused,
}

/// The routes of the extender. Calls change what it expects and makes it ask nodes, so serve it to kube-scheduler only: to clients whose
/// certificate has one of the names in [`CLIENT_NAMES`](super::CLIENT_NAMES).
pub fn router(extender: Extender) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/preempt", post(preempt))
        .route("/healthz", get(healthz))
        .with_state(extender)
}

async fn filter(State(extender): State<Extender>, body: Body) -> Response {
    let started = Instant::now();
    let result = match read(&extender, body).await {
        Ok((args, _permit)) => extender.filter(args).await.map_err(|error| refusal(&error)),
        Err(refused) => Err(refused),
    };
    finish(&extender, "filter", started, result)
}

async fn prioritize(State(extender): State<Extender>, body: Body) -> Response {
    let started = Instant::now();
    let result = match read(&extender, body).await {
        Ok((args, _permit)) => {
            extender.prioritize(args).map(|scores| (scores, 0)).map_err(|error| refusal(&error))
        }
        Err(refused) => Err(refused),
    };
    finish(&extender, "prioritize", started, result)
}

async fn preempt(State(extender): State<Extender>, body: Body) -> Response {
    let started = Instant::now();
    let result = match read(&extender, body).await {
        Ok((args, _permit)) => extender.preempt(args).await.map_err(|error| refusal(&error)),
        Err(refused) => Err(refused),
    };
    finish(&extender, "preempt", started, result)
}

async fn healthz(State(extender): State<Extender>) -> Response {
    if extender.is_ready() {
        return "ok".into_response();
    }
    let (code, message) = refusal(&ExtenderError::NotReady);
    (code, message).into_response()
}

/// The arguments of a call. The permit limits how many calls hold theirs in memory.
async fn read<T: DeserializeOwned>(
    extender: &Extender,
    body: Body,
) -> Result<(T, SemaphorePermit<'_>), (StatusCode, String)> {
    let (body, permit) = extender.0.bodies.read(body).await?;
    let args = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the request is not what kube-scheduler sends to extenders: {error}");
        (StatusCode::BAD_REQUEST, message)
    })?;
    Ok((args, permit))
}

fn refusal(error: &ExtenderError) -> (StatusCode, String) {
    let code = match error {
        ExtenderError::NotReady => StatusCode::SERVICE_UNAVAILABLE,
        ExtenderError::NoNodeNames(_) => StatusCode::BAD_REQUEST,
        ExtenderError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
    };
    (code, error.to_string())
}

/// Counts the call and writes its answer. `result` has the number of nodes that have not answered.
fn finish<T: Serialize>(
    extender: &Extender,
    verb: &'static str,
    started: Instant,
    result: Result<(T, usize), (StatusCode, String)>,
) -> Response {
    let metrics = &extender.0.metrics;
    let outcome = match &result {
        Ok((_, 0)) => CallOutcome::Answered,
        Ok((_, unanswered)) => {
            debug!(verb, unanswered, "nodes have not answered in time");
            CallOutcome::Partial
        }
        Err((code, message)) => {
            warn!(verb, %code, message, "refused a call of a scheduler");
            CallOutcome::Refused
        }
    };
    if result.is_ok() {
        extender.0.called.send_replace(());
    }
    metrics.extender_calls.get_or_create(&CallLabel { verb, outcome: outcome.name() }).inc();
    metrics.extender_seconds.get_or_create(&VerbLabel { verb }).observe(started.elapsed().as_secs_f64());
    match result.map(|(answer, _)| serde_json::to_string(&answer)) {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(refused) => refused.into_response(),
    }
}

// === impl CallOutcome ===

impl CallOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Partial => "partial",
            Self::Refused => "refused",
        }
    }
}
