//! `/containerLogs`.

mod filter;
mod options;

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension, Path},
    response::Response,
};
use http::{StatusCode, Uri};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::{
    Error,
    ability::{LogBody, LogOptions, Since},
    error::Kind,
};

use self::filter::LogFilter;
use super::{PLAIN, QueryParams, text};
use crate::{Api, api::has_container, http_error::HttpError};

pub(super) async fn get(
    Extension(api): Extension<Arc<Api>>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    uri: Uri,
) -> Result<Response, HttpError> {
    let options = options::parse(&QueryParams::from_uri(&uri))?;
    let (reference, pod) = api
        .pod(&namespace, &name, None)
        .ok_or_else(|| HttpError::not_found(format!("pod {name:?} does not exist")))?;
    if !has_container(&pod, &container) {
        return Err(HttpError::not_found(format!("container {container:?} not found in pod {name:?}")));
    }
    let logs = api.provider.logs().ok_or_else(|| HttpError::not_implemented("logs"))?;
    let now = api.clock.now();
    let opened = logs.open(&reference.container(&container), &options).await;
    let body = opened.map_err(|error| provider_error(&error, &pod, &name, &container, options.previous))?;
    let stream = match body {
        LogBody::Final(stream) => Body::from_stream(stream),
        LogBody::Stamped(stream) => {
            Body::from_stream(filter::stream(stream, LogFilter::new(&options, true, now)))
        }
        LogBody::Plain(stream) => {
            if options.since.is_some() || options.timestamps {
                let message = "the logs of this node carry no times: sinceSeconds, sinceTime and timestamps are not supported";
                return Err(HttpError::bad_request(message));
            }
            Body::from_stream(filter::stream(stream, LogFilter::new(&options, false, now)))
        }
    };
    Ok(text(PLAIN, stream))
}

/// The time of the oldest line to return.
fn since(options: &LogOptions, now: Timestamp) -> Option<Timestamp> {
    match options.since? {
        Since::Time(time) => Some(time),
        Since::Ago(ago) => Some(now.checked_sub(ago).unwrap_or(Timestamp::MIN)),
    }
}

/// Converts a provider's error to the kubelet's message, which people search for.
fn provider_error(error: &Error, pod: &Pod, name: &str, container: &str, previous: bool) -> HttpError {
    let which = format!("container {container:?} in pod {name:?}");
    match error.kind() {
        Kind::NotFound if previous => {
            HttpError::bad_request(format!("previous terminated {which} not found"))
        }
        Kind::NotFound | Kind::Unavailable => {
            let reason = waiting_reason(pod, container);
            match reason {
                Some(reason) => HttpError::bad_request(format!("{which} is waiting to start: {reason}")),
                None if *error.kind() == Kind::NotFound => {
                    HttpError::bad_request(format!("{which} is not available"))
                }
                None => HttpError::new(StatusCode::SERVICE_UNAVAILABLE, error.report()),
            }
        }
        kind => {
            let status =
                StatusCode::from_u16(kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            HttpError::new(status, error.report())
        }
    }
}

/// Why a container is waiting, from the pod's status.
fn waiting_reason(pod: &Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let status_of = lists.into_iter().flatten().flatten().find(|status| status.name == container);
    let Some(status) = status_of else { return Some("ContainerCreating".to_owned()) };
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    Some(waiting.reason.clone().unwrap_or_else(|| "ContainerCreating".to_owned()))
}
