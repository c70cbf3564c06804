//! That the node's API answers, and how it is configured.

use std::sync::Arc;

use axum::{
    extract::{Extension, Path},
    response::Response,
};
use http::Uri;
use serde_json::json;

use super::{JSON, PLAIN, query::Query, text};
use crate::{Api, refusal::Refusal};

/// The kubelet's checks. Whoever gets an answer finds them passed: what the node is able to do shows in its conditions.
const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

pub(super) async fn all(uri: Uri) -> Response {
    if !Query::of(&uri).is_on("verbose") {
        return text(PLAIN, "ok");
    }
    let lines = CHECKS.map(|check| format!("[+]{check} ok\n")).concat();
    text(PLAIN, format!("{lines}healthz check passed\n"))
}

pub(super) async fn one(Path(check): Path<String>) -> Result<Response, Refusal> {
    if CHECKS.contains(&check.as_str()) {
        return Ok(text(PLAIN, "ok"));
    }
    Err(Refusal::not_found(format!("no check {check:?}: there are {}\n", CHECKS.join(", "))))
}

pub(super) async fn configuration(Extension(api): Extension<Arc<Api>>) -> Response {
    text(JSON, json!({ "kubeletconfig": api.configuration }).to_string())
}
