//! exec, attach and portForward: the request is answered by another protocol on the same connection, which goes on for as long
//! as the session does.

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
    Outcome, client,
    exec::{self, refuse_early},
    forward,
    proxy::{self, Upstream},
};
use vk_supervisor::task;

use crate::{Api, api::Open, refusal::Refusal};

type Parts = HashMap<String, String>;

pub(super) async fn exec(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<Parts>,
    request: Request,
) -> Response {
    remote_command(api, path, request, Verb::Exec).await.into_response()
}

pub(super) async fn attach(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<Parts>,
    request: Request,
) -> Response {
    remote_command(api, path, request, Verb::Attach).await.into_response()
}

/// Why there is no session: for a reason of ours, or of the protocol.
enum Refused {
    Ours(Refusal),
    Streams(vk_streaming::Refusal),
}

#[derive(Clone, Copy)]
enum Verb {
    Exec,
    Attach,
}

/// A command in a container, or the container's own process.
async fn remote_command(
    api: Arc<Api>,
    path: Parts,
    request: Request,
    verb: Verb,
) -> Result<Response, Refused> {
    let (mut head, _) = request.into_parts();
    let wanted = match verb {
        Verb::Exec => exec::Request::parse(&head),
        Verb::Attach => exec::Request::parse_attach(&head),
    };
    let wanted = wanted?;
    let part = |name: &str| path.get(name).map_or("", String::as_str);
    let uid = path.get("uid").map(String::as_str);
    let container = api.container(part("namespace"), part("pod"), uid, part("container"))?;
    let (kind, what) = match verb {
        Verb::Exec => ("exec", "commands in containers"),
        Verb::Attach => ("attach", "attaching to containers"),
    };
    let open = api.session(kind)?;
    let missing = || Refusal::not_implemented(what);
    let started = match verb {
        Verb::Exec => {
            let ability = api.provider.exec().ok_or_else(missing)?;
            ability.start(&container, &wanted.command, &wanted.options).await
        }
        Verb::Attach => {
            let ability = api.provider.attach().ok_or_else(missing)?;
            ability.attach(&container, &wanted.options).await
        }
    };
    let upgrade = upgrade(&mut head)?;
    let limits = api.streaming.clone();
    let session = match started {
        Ok(Started::Session(session)) => Ok(session),
        Ok(Started::Url(url)) if wanted.passes_through() => {
            return match proxy::open(&url, &head, &limits).await {
                Err(error) => Err(vk_streaming::Refusal::of(&error).into()),
                Ok(Upstream::Answered(response)) => Ok(response.map(Body::from)),
                Ok(Upstream::Switched { response, io }) => {
                    go_on(&api, kind, open, upgrade, async move |client| {
                        proxy::splice(client, io, &limits).await
                    });
                    Ok(response.map(|()| Body::empty()))
                }
            };
        }
        Ok(Started::Url(url)) => client::exec(&url, &wanted.options, &limits).await,
        Err(error) => match refuse_early(&error) {
            Some(refusal) => return Err(refusal.into()),
            None => Err(error),
        },
    };
    let response = wanted.switching().map(|()| Body::empty());
    go_on(&api, kind, open, upgrade, async move |client| {
        exec::serve(client, &wanted, session, &limits).await
    });
    Ok(response)
}

pub(super) async fn port_forward(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<Parts>,
    request: Request,
) -> Response {
    forward_ports(&api, &path, request).into_response()
}

fn forward_ports(api: &Arc<Api>, path: &Parts, request: Request) -> Result<Response, Refused> {
    let (mut head, _) = request.into_parts();
    let wanted = forward::Request::parse(&head)?;
    let part = |name: &str| path.get(name).map_or("", String::as_str);
    let uid = path.get("uid").map(String::as_str);
    let (pod, _) = api
        .pod(part("namespace"), part("pod"), uid)
        .ok_or_else(|| Refusal::not_found("pod does not exist"))?;
    if api.provider.port_forward().is_none() {
        return Err(Refusal::not_implemented("port-forwarding").into());
    }
    let open = api.session("portForward")?;
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
    let response = wanted.switching().map(|()| Body::empty());
    go_on(api, "portForward", open, upgrade, async move |client| {
        forward::serve(client, &wanted, dial, &limits).await
    });
    Ok(response)
}

// === impl Refused ===

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Ours(refusal)
    }
}

impl From<vk_streaming::Refusal> for Refused {
    fn from(refusal: vk_streaming::Refusal) -> Self {
        Self::Streams(refusal)
    }
}

impl axum::response::IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::Ours(refusal) => refusal.into_response(),
            Self::Streams(refusal) => refusal.into_response().map(Body::from),
        }
    }
}

/// What becomes of the connection once the answer is out. HTTP/2 has no such thing.
fn upgrade(head: &mut http::request::Parts) -> Result<OnUpgrade, Refused> {
    let message = "this connection cannot change its protocol: use HTTP/1.1";
    head.extensions.remove::<OnUpgrade>().ok_or_else(|| Refusal::bad_request(message).into())
}

/// Serves a session in a task of its own, until it is over or the node stops.
fn go_on<F>(
    api: &Api,
    kind: &'static str,
    open: Open,
    upgrade: OnUpgrade,
    serve: impl FnOnce(TokioIo<hyper::upgrade::Upgraded>) -> F + Send + 'static,
) where
    F: Future<Output = Outcome> + Send + 'static,
{
    let (node, name) = (api.node_supervisor.clone(), api.node.clone());
    api.owner.spawn(format!("{kind} on {name}"), task::Kind::Work, async move {
        let served = async {
            match upgrade.await {
                Ok(client) => {
                    let outcome = serve(TokioIo::new(client)).await;
                    debug!(node = name, kind, end = ?outcome.end, sent = outcome.sent, received = outcome.received, "a session is over");
                }
                Err(error) => debug!(node = name, kind, %error, "the client was gone before its session began"),
            }
        };
        tokio::select! {
            () = served => {}
            () = node.stopping() => warn!(node = name, kind, "a session is cut: the node stops"),
        }
        drop(open);
    });
}
