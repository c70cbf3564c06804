//! `/healthz` and `/configz`.

use std::sync::Arc;

use axum::{
    extract::{Extension, Path},
    response::Response,
};
use http::Uri;
use serde_json::json;

use super::{JSON, PLAIN, QueryParams, text};
use crate::{Api, http_error::HttpError};

/// The kubelet's checks. They pass whenever the server answers; the node's conditions show its health.
const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

pub(super) async fn all(uri: Uri) -> Response {
    if !QueryParams::from_uri(&uri).is_on("verbose") {
        return text(PLAIN, "ok");
    }
    let lines = CHECKS.map(|check| format!("[+]{check} ok\n")).concat();
    text(PLAIN, format!("{lines}healthz check passed\n"))
}

pub(super) async fn one(Path(check): Path<String>) -> Result<Response, HttpError> {
    if CHECKS.contains(&check.as_str()) {
        return Ok(text(PLAIN, "ok"));
    }
    Err(HttpError::not_found(format!("no check {check:?}: there are {}\n", CHECKS.join(", "))))
}

pub(super) async fn configuration(Extension(api): Extension<Arc<Api>>) -> Response {
    text(JSON, json!({ "kubeletconfig": api.configuration }).to_string())
}
