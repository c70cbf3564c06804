//! `/placement/fit`: whether the node would take pods.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::Extension,
    response::Response,
};
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::Semaphore;
use vk_provider::{
    Provider,
    placement::{FitQuery, MAX_QUERY_BYTES},
};

use super::{JSON, text};
use crate::{Api, http_error::HttpError};

/// Time limit to receive a query, which may be long and come over a slow line.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Queries that are evaluated at the same time in this process. While it is evaluated, a query takes much more memory than its text.
static EVALUATIONS: Semaphore = Semaphore::const_new(2);

pub(super) async fn fit(Extension(api): Extension<Arc<Api>>, body: Body) -> Result<Response, HttpError> {
    if api.provider.fit().is_none() {
        return Err(not_offered());
    }
    let permit = Arc::clone(&api.fit_queries).try_acquire_owned().map_err(|_| {
        let message = "too many fit queries are evaluated on this node: try again later";
        HttpError::new(StatusCode::TOO_MANY_REQUESTS, message)
    })?;
    let body = receive(body).await?;
    if let Some(limit) = FitQuery::exceeded_size(&body) {
        return Err(too_long(&limit));
    }
    let evaluating = EVALUATIONS.acquire().await;
    let provider = Arc::clone(&api.provider);
    // Evaluating a large query takes milliseconds: not on a thread that serves connections.
    let evaluation = tokio::task::spawn_blocking(move || {
        let answer = evaluate(provider.as_ref(), &body);
        drop((permit, evaluating));
        answer
    });
    let answer = evaluation.await.map_err(|error| {
        HttpError::from(vk_provider::Error::internal("evaluate whether pods fit").caused_by(error))
    })??;
    Ok(text(JSON, answer))
}

async fn receive(body: Body) -> Result<Bytes, HttpError> {
    match tokio::time::timeout(QUERY_TIMEOUT, to_bytes(body, MAX_QUERY_BYTES)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if is_too_long(&error) => Err(too_long(&format!("{} MiB", MAX_QUERY_BYTES >> 20))),
        Ok(Err(error)) => Err(HttpError::bad_request(format!("cannot read the query: {error}"))),
        Err(_) => {
            let message = format!("the query did not arrive within {} s", QUERY_TIMEOUT.as_secs());
            Err(HttpError::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

fn too_long(limit: &str) -> HttpError {
    let message = format!("the query has more than {limit}: ask about fewer pods at a time");
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

fn is_too_long(error: &axum::Error) -> bool {
    let cause = std::error::Error::source(error);
    cause.is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>)
}

fn evaluate(provider: &dyn Provider, body: &[u8]) -> Result<String, HttpError> {
    let fit = provider.fit().ok_or_else(not_offered)?;
    let answer = parse(body)?.evaluate(fit);
    serde_json::to_string(&answer).map_err(|error| {
        HttpError::from(vk_provider::Error::internal("serialize the verdicts").caused_by(error))
    })
}

/// Parses a query. The error says where it is wrong, such as `pods[2].spec.containers[0].name`.
fn parse(body: &[u8]) -> Result<FitQuery, HttpError> {
    serde_json::from_slice(body).map_err(|error| {
        // Again with the path, which costs time that valid queries need not spend.
        let mut json = serde_json::Deserializer::from_slice(body);
        let place = serde_path_to_error::deserialize::<_, FitQuery>(&mut json).err();
        let place = place.map(|error| error.path().to_string()).filter(|path| path != ".");
        let place = place.map(|path| format!("{path}: ")).unwrap_or_default();
        HttpError::bad_request(format!("the query is not valid: {place}{error}"))
    })
}

fn not_offered() -> HttpError {
    HttpError::not_implemented("answers to whether pods fit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_query_is_refused_with_the_place_and_the_reason() {
        for (body, words) in [
            ("", &["EOF"][..]),
            ("1", &["invalid type: integer `1`", "FitQuery"]),
            ("{}", &["missing field `pods`"]),
            (r#"{"pods": [], "witout": []}"#, &["unknown field `witout`", "`without`"]),
            (
                r#"{"pods": [{"spec": {"containers": [{"name": 1}]}}]}"#,
                &["pods[0].spec.containers[0].name: ", "integer"],
            ),
            (r#"{"pods": []} {}"#, &["trailing"]),
        ] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{body}");
            for word in words {
                assert!(error.message.contains(word), "{body}: {}", error.message);
            }
        }
    }
}
