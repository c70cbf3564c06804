//! `/debug/pprof/`: information about the process, if enabled. There are no goroutines, and no sampling profiler is compiled in: use
//! `perf`.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    extract::{Extension, Path},
    response::Response,
};
use http::StatusCode;

use super::{PLAIN, text};
use crate::{Api, http_error::HttpError};

const PROFILES: [&str; 3] = ["cmdline", "memory", "tasks"];

pub(super) async fn index(Extension(api): Extension<Arc<Api>>) -> Result<Response, HttpError> {
    enabled(&api)?;
    Ok(text(PLAIN, format!("{}\n", PROFILES.join("\n"))))
}

pub(super) async fn one(
    Extension(api): Extension<Arc<Api>>,
    Path(name): Path<String>,
) -> Result<Response, HttpError> {
    enabled(&api)?;
    let body = match name.as_str() {
        "cmdline" => Some(std::env::args().collect::<Vec<_>>().join("\0")),
        "memory" => std::fs::read_to_string("/proc/self/status").ok(),
        "tasks" => Some(tasks()),
        _ => None,
    };
    let missing =
        || HttpError::not_found(format!("no profile {name:?}: there are {}\n", PROFILES.join(", ")));
    body.map(|body| text(PLAIN, body)).ok_or_else(missing)
}

fn enabled(api: &Api) -> Result<(), HttpError> {
    let disabled = || HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "profiling endpoint is disabled.\n");
    api.debug_handlers.profiling.then_some(()).ok_or_else(disabled)
}

/// Runtime metrics.
fn tasks() -> String {
    let metrics = tokio::runtime::Handle::current().metrics();
    let mut body = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(body, "workers {}", metrics.num_workers());
    let _ = writeln!(body, "alive_tasks {}", metrics.num_alive_tasks());
    let _ = writeln!(body, "queued_tasks {}", metrics.global_queue_depth());
    body
}
