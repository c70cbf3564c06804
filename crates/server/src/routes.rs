//! The routes, and their authentication and authorization.

mod container_logs;
mod health;
mod metrics;
mod node_logs;
mod placement;
mod pods;
mod pprof;
mod run;
mod session;
mod stats;

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    extract::{Extension, Request},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, Uri, header};
use tracing::{debug, error};
use vk_provider::placement::FIT_PATH;

use crate::{
    Api, auth::RequestAttributes, connection::ClientConnection, http_error::HttpError, metrics as counters,
};

/// The route labels of metrics. Everything else counts as `other`.
const ROUTES: [&str; 14] = [
    "healthz",
    "pods",
    "runningpods",
    "containerLogs",
    "exec",
    "attach",
    "portForward",
    "run",
    "stats",
    "metrics",
    "configz",
    "logs",
    "debug",
    "placement",
];

/// The routes of every node; the node's API is in the request's extensions. Authorization comes before routing, so that
/// unauthorized callers do not learn which routes exist.
pub(crate) fn router() -> Router {
    static ROUTER: LazyLock<Router> = LazyLock::new(build);
    ROUTER.clone()
}

fn build() -> Router {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .route("/configz", get(health::configuration))
        .route("/pods", get(pods::bound))
        .route("/pods/", get(pods::bound))
        .route("/runningpods", get(pods::running))
        .route("/runningpods/", get(pods::running))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs::get))
        .route("/exec/{namespace}/{pod}/{container}", get(session::exec).post(session::exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", get(session::exec).post(session::exec))
        .route("/attach/{namespace}/{pod}/{container}", get(session::attach).post(session::attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", get(session::attach).post(session::attach))
        .route("/portForward/{namespace}/{pod}", get(session::port_forward).post(session::port_forward))
        .route("/portForward/{namespace}/{pod}/{uid}", get(session::port_forward).post(session::port_forward))
        .route("/run/{namespace}/{pod}/{container}", post(run::run))
        .route("/run/{namespace}/{pod}/{uid}/{container}", post(run::run))
        .route("/stats/summary", get(stats::summary).post(stats::summary))
        .route("/stats/summary/", get(stats::summary).post(stats::summary))
        .route("/metrics", get(metrics::process))
        .route("/metrics/resource", get(metrics::resource))
        .route("/metrics/resource/", get(metrics::resource))
        .route("/metrics/probes", get(metrics::probes))
        .route("/metrics/cadvisor", get(metrics::cadvisor))
        .route("/logs", get(node_logs::get))
        .route("/logs/", get(node_logs::get))
        .route("/logs/{*path}", get(node_logs::get))
        .route("/debug/pprof/", get(pprof::index))
        .route("/debug/pprof/{name}", get(pprof::one))
        .route(FIT_PATH, post(placement::fit))
        .fallback(async || HttpError::not_found("404 page not found\n"))
        .layer(middleware::from_fn(authorize_and_count))
}

/// Authorizes a request, runs its route, and counts it.
async fn authorize_and_count(Extension(api): Extension<Arc<Api>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().trim_start_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    let route = ROUTES.into_iter().find(|route| *route == first).unwrap_or("other");
    let (peer, attributes) =
        (request.extensions().get::<ClientConnection>().cloned(), RequestAttributes::from_request(&request));
    let response = match authorize(&api, peer, request.headers(), attributes).await {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let code = response.status().as_u16();
    api.metrics.requests.get_or_create(&counters::RequestLabels { route, code }).inc();
    response
}

async fn authorize(
    api: &Api,
    peer: Option<ClientConnection>,
    headers: &HeaderMap,
    attributes: RequestAttributes,
) -> Result<(), HttpError> {
    let unauthorized = || HttpError::new(StatusCode::UNAUTHORIZED, "Unauthorized");
    let peer = peer.ok_or_else(unauthorized)?;
    let user = api.authenticator.authenticate(&peer.chain, headers, attributes.token_audience()).await;
    let user = user.ok_or_else(unauthorized)?;
    let verb = attributes.verb;
    match api.authorizer.authorize(&api.node, &user, &attributes).await {
        Ok(true) => {
            peer.mark_authorized();
            Ok(())
        }
        Ok(false) => {
            debug!(user = user.name, verb, subresources = ?attributes.subresources, "refused");
            Err(HttpError::new(StatusCode::FORBIDDEN, attributes.forbidden_message(&user.name)))
        }
        Err(error) => {
            error!(%error, user = user.name, verb, "cannot review the access of a caller");
            let subresource = attributes.subresources.first().copied().unwrap_or_default();
            let message = format!(
                "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                user.name
            );
            Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
    }
}

/// Query parameters, in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct QueryParams(Vec<(String, String)>);

// === impl QueryParams ===

impl QueryParams {
    fn from_uri(uri: &Uri) -> Self {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The first value of a parameter.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A flag: any value except `false` and `0` sets it, as in Kubernetes.
    fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// A whole number, if present and not empty.
    fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let Some(value) = self.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| format!("{name}: {value:?} is not a whole number"))
    }
}

/// A response with this content type.
fn text(kind: &'static str, body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, kind)], body.into()).into_response()
}

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
