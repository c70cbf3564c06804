//! exec, attach and portForward: the connection is upgraded to another protocol and serves the session.

use std::{collections::HashMap, sync::Arc};

use axum::{
    body::Body,
    extract::{Extension, Path, Request},
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::{debug, warn};
use vk_provider::{Error, ability::Started};
use vk_streaming::{
    SessionOutcome, client,
    exec::{self, reject_early},
    forward,
    proxy::{self, Upstream},
};
use vk_supervisor::task;

use crate::{Api, api::SessionGuard, http_error::HttpError};

type PathParams = HashMap<String, String>;

pub(super) async fn exec(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<PathParams>,
    request: Request,
) -> Response {
    remote_command(api, path, request, RemoteCommand::Exec).await.into_response()
}

pub(super) async fn attach(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<PathParams>,
    request: Request,
) -> Response {
    remote_command(api, path, request, RemoteCommand::Attach).await.into_response()
}

/// Why a session was not started.
enum SessionError {
    Http(HttpError),
    Upgrade(vk_streaming::RejectedUpgrade),
}

#[derive(Clone, Copy)]
enum RemoteCommand {
    Exec,
    Attach,
}

/// Serves exec or attach.
async fn remote_command(
    api: Arc<Api>,
    path: PathParams,
    request: Request,
    command: RemoteCommand,
) -> Result<Response, SessionError> {
    let (mut head, _) = request.into_parts();
    let session_request = match command {
        RemoteCommand::Exec => exec::Request::parse(&head),
        RemoteCommand::Attach => exec::Request::parse_attach(&head),
    };
    let session_request = session_request?;
    let part = |name: &str| path.get(name).map_or("", String::as_str);
    let uid = path.get("uid").map(String::as_str);
    let container = api.container(part("namespace"), part("pod"), uid, part("container"))?;
    let (kind, what) = match command {
        RemoteCommand::Exec => ("exec", "commands in containers"),
        RemoteCommand::Attach => ("attach", "attaching to containers"),
    };
    let guard = api.begin_session(kind)?;
    let missing = || HttpError::not_implemented(what);
    let started = match command {
        RemoteCommand::Exec => {
            let ability = api.provider.exec().ok_or_else(missing)?;
            ability.start(&container, &session_request.command, &session_request.options).await
        }
        RemoteCommand::Attach => {
            let ability = api.provider.attach().ok_or_else(missing)?;
            ability.attach(&container, &session_request.options).await
        }
    };
    let upgrade = upgrade(&mut head)?;
    let limits = api.streaming.clone();
    let session = match started {
        Ok(Started::Session(session)) => Ok(session),
        Ok(Started::Url(url)) if session_request.passes_through() => {
            return match proxy::open(&url, &head, &limits).await {
                Err(error) => Err(vk_streaming::RejectedUpgrade::from_error(&error).into()),
                Ok(Upstream::Answered(response)) => Ok(response.map(Body::from)),
                Ok(Upstream::Switched { response, io }) => {
                    spawn_session(&api, kind, guard, upgrade, async move |client| {
                        proxy::splice(client, io, &limits).await
                    });
                    Ok(response.map(|()| Body::empty()))
                }
            };
        }
        Ok(Started::Url(url)) => client::exec(&url, &session_request.options, &limits).await,
        Err(error) => match reject_early(&error) {
            Some(error) => return Err(error.into()),
            None => Err(error),
        },
    };
    let response = session_request.switching().map(|()| Body::empty());
    spawn_session(&api, kind, guard, upgrade, async move |client| {
        exec::serve(client, &session_request, session, &limits).await
    });
    Ok(response)
}

pub(super) async fn port_forward(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<PathParams>,
    request: Request,
) -> Response {
    forward_ports(&api, &path, request).into_response()
}

fn forward_ports(api: &Arc<Api>, path: &PathParams, request: Request) -> Result<Response, SessionError> {
    let (mut head, _) = request.into_parts();
    let session_request = forward::Request::parse(&head)?;
    let part = |name: &str| path.get(name).map_or("", String::as_str);
    let uid = path.get("uid").map(String::as_str);
    let (pod, _) = api
        .pod(part("namespace"), part("pod"), uid)
        .ok_or_else(|| HttpError::not_found("pod does not exist"))?;
    if api.provider.port_forward().is_none() {
        return Err(HttpError::not_implemented("port-forwarding").into());
    }
    let guard = api.begin_session("portForward")?;
    let upgrade = upgrade(&mut head)?;
    let limits = api.streaming.clone();
    let provider = Arc::clone(&api.provider);
    let dial = move |port: u16| {
        let (provider, pod) = (Arc::clone(&provider), pod.clone());
        async move {
            let missing = || Error::unsupported("the provider of this node does not forward ports");
            provider.port_forward().ok_or_else(missing)?.dial(&pod, port).await
        }
        .boxed()
    };
    let response = session_request.switching().map(|()| Body::empty());
    spawn_session(api, "portForward", guard, upgrade, async move |client| {
        forward::serve(client, &session_request, dial, &limits).await
    });
    Ok(response)
}

// === impl SessionError ===

impl From<HttpError> for SessionError {
    fn from(error: HttpError) -> Self {
        Self::Http(error)
    }
}

impl From<vk_streaming::RejectedUpgrade> for SessionError {
    fn from(error: vk_streaming::RejectedUpgrade) -> Self {
        Self::Upgrade(error)
    }
}

impl axum::response::IntoResponse for SessionError {
    fn into_response(self) -> Response {
        match self {
            Self::Http(error) => error.into_response(),
            Self::Upgrade(error) => error.into_response().map(Body::from),
        }
    }
}

/// The pending upgrade of the connection. HTTP/2 does not support it.
fn upgrade(head: &mut http::request::Parts) -> Result<OnUpgrade, SessionError> {
    let message = "this connection cannot be upgraded: use HTTP/1.1";
    head.extensions.remove::<OnUpgrade>().ok_or_else(|| HttpError::bad_request(message).into())
}

/// Serves a session in its own task, until it ends or the node stops.
fn spawn_session<F>(
    api: &Api,
    kind: &'static str,
    guard: SessionGuard,
    upgrade: OnUpgrade,
    serve: impl FnOnce(TokioIo<hyper::upgrade::Upgraded>) -> F + Send + 'static,
) where
    F: Future<Output = SessionOutcome> + Send + 'static,
{
    let (node, name) = (api.node_supervisor.clone(), api.node.clone());
    api.supervisor.spawn(format!("{kind} on {name}"), task::Kind::Work, async move {
        let served = async {
            match upgrade.await {
                Ok(client) => {
                    let outcome = serve(TokioIo::new(client)).await;
                    debug!(node = name, kind, end = ?outcome.end, sent = outcome.sent, received = outcome.received, "session ended");
                }
                Err(error) => debug!(node = name, kind, %error, "the client disconnected before the session started"),
            }
        };
        tokio::select! {
            () = served => {}
            () = node.stopping() => warn!(node = name, kind, "session aborted: the node is stopping"),
        }
        drop(guard);
    });
}
