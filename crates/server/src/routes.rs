//! The routes, and the gate before them.

mod files;
mod health;
mod logs;
mod metrics;
mod pods;
mod profile;
mod query;
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
use http::{HeaderMap, StatusCode, header};
use tracing::{debug, error};

use crate::{Api, auth::Attributes, connection::Peer, metrics as counters, refusal::Refusal};

/// The routes as they are counted. Whatever else somebody asks for counts as one.
const ROUTES: [&str; 13] = [
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
];

/// The routes of every node: which one it is about, a request finds among its extensions. Whoever is refused learns nothing of
/// what there is: the gate stands before the routes that do not exist, too.
pub(crate) fn router() -> Router {
    static ROUTER: LazyLock<Router> = LazyLock::new(build);
    ROUTER.clone()
}

fn build() -> Router {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .route("/configz", get(health::configuration))
        .route("/pods", get(pods::known))
        .route("/pods/", get(pods::known))
        .route("/runningpods", get(pods::running))
        .route("/runningpods/", get(pods::running))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::read))
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
        .route("/metrics", get(metrics::own))
        .route("/metrics/resource", get(metrics::resource))
        .route("/metrics/resource/", get(metrics::resource))
        .route("/metrics/probes", get(metrics::probes))
        .route("/metrics/cadvisor", get(metrics::cadvisor))
        .route("/logs", get(files::show))
        .route("/logs/", get(files::show))
        .route("/logs/{*path}", get(files::show))
        .route("/debug/pprof/", get(profile::index))
        .route("/debug/pprof/{name}", get(profile::one))
        .fallback(async || Refusal::not_found("404 page not found\n"))
        .layer(middleware::from_fn(guard))
}

/// Lets a request through to its route, or not; and counts it.
async fn guard(Extension(api): Extension<Arc<Api>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().trim_start_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    let route = ROUTES.into_iter().find(|route| *route == first).unwrap_or("other");
    let (peer, attributes) = (request.extensions().get::<Peer>().cloned(), Attributes::of(&request));
    let response = match admit(&api, peer, request.headers(), attributes).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let code = response.status().as_u16();
    api.metrics.requests.get_or_create(&counters::Request { route, code }).inc();
    response
}

async fn admit(
    api: &Api,
    peer: Option<Peer>,
    headers: &HeaderMap,
    attributes: Attributes,
) -> Result<(), Refusal> {
    let unknown = || Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized");
    let peer = peer.ok_or_else(unknown)?;
    let user = api.gate.authenticate(&peer.chain, headers).await.ok_or_else(unknown)?;
    peer.admit();
    let verb = attributes.verb;
    match api.gate.authorize(&api.node, &user, &attributes).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            debug!(user = user.name, verb, subresources = ?attributes.subresources, "refused");
            Err(Refusal::new(StatusCode::FORBIDDEN, attributes.refusal(&user.name)))
        }
        Err(error) => {
            error!(%error, user = user.name, verb, "cannot ask the API server what a caller may do");
            let subresource = attributes.subresources.first().copied().unwrap_or_default();
            let message = format!(
                "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                user.name
            );
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
    }
}

/// A text of this type.
fn text(kind: &'static str, body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, kind)], body.into()).into_response()
}

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
