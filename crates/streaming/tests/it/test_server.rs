//! Test code: an HTTP server like the kubelet API, which parses the request, answers, and hands the connection over.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, duplex},
    task::JoinSet,
};
use vk_provider::{
    Error, Result,
    ability::{ExecOptions, Forward, Session},
};
use vk_streaming::{
    RejectedUpgrade, SessionLimits, SessionOutcome, client, exec, forward,
    proxy::{self, Upstream},
};

use crate::{
    fake_process::{self, Process},
    raw_client,
};

pub(crate) type Io = TokioIo<Upgraded>;
type Serve = Box<dyn FnOnce(Io) -> BoxFuture<'static, SessionOutcome> + Send>;

pub(crate) const ALL: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };
pub(crate) const TTY: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: false, tty: true };

/// A server with one connection.
pub(crate) struct Host {
    tasks: JoinSet<Option<SessionOutcome>>,
}

impl Host {
    /// Serves one connection: answers the first request, and upgrades if it is valid.
    pub(crate) fn start<IO>(
        io: IO,
        answer: impl FnOnce(&http::request::Parts) -> Result<(Response<()>, Serve), RejectedUpgrade>
        + Send
        + 'static,
    ) -> Self
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut tasks = JoinSet::new();
        tasks.spawn(host(io, answer));
        Self { tasks }
    }

    /// A server that starts later.
    pub(crate) fn later(starting: impl Future<Output = Self> + Send + 'static) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { starting.await.outcome().await });
        Self { tasks }
    }

    /// A kubelet whose provider returns this URL.
    pub(crate) fn proxy<IO>(io: IO, url: String, limits: SessionLimits) -> Self
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // The response must wait for the runtime's, so the head is read here.
            let (parts, io) = raw_client::head(io).await;
            match proxy::open(&url, &parts, &limits).await.unwrap() {
                Upstream::Switched { response, io: upstream } => {
                    let client = raw_client::answer(io, &response).await;
                    Some(proxy::splice(client, upstream, &limits).await)
                }
                Upstream::Answered(answer) => panic!("{answer:?}"),
            }
        });
        Self { tasks }
    }

    /// The outcome of the session; `None` if there was none.
    pub(crate) async fn outcome(&mut self) -> Option<SessionOutcome> {
        let ended = tokio::time::timeout(Duration::from_hours(12), self.tasks.join_next());
        ended.await.expect("the session ends in time").expect("one task").expect("no panic")
    }
}

async fn host<IO>(
    io: IO,
    answer: impl FnOnce(&http::request::Parts) -> Result<(Response<()>, Serve), RejectedUpgrade> + Send + 'static,
) -> Option<SessionOutcome>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answer = Mutex::new(Some(answer));
    let upgrading = Arc::new(Mutex::new(None));
    let service = service_fn(|request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let answered = (answer.lock().take().expect("one request"))(&parts);
        let mut request = Request::from_parts(parts, body);
        let response = match answered {
            Ok((response, serve)) => {
                *upgrading.lock() = Some((hyper::upgrade::on(&mut request), serve));
                response.map(|()| Full::default())
            }
            Err(rejected) => rejected.into_response().map(|text| Full::new(bytes::Bytes::from(text))),
        };
        async { Ok::<_, Infallible>(response) }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(io), service).with_upgrades().await;
    let (upgraded, serve) = upgrading.lock().take()?;
    Some(serve(TokioIo::new(upgraded.await.ok()?)).await)
}

/// A server that returns this session.
pub(crate) fn exec_host<IO>(io: IO, session: Result<Session>, limits: SessionLimits) -> Host
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    Host::start(io, move |parts| {
        let request = exec::Request::parse(parts)?;
        let response = request.switching();
        let serve: Serve =
            Box::new(move |io| Box::pin(async move { exec::serve(io, &request, session, &limits).await }));
        Ok((response, serve))
    })
}

/// A server that forwards.
pub(crate) fn forward_host<IO, D, F>(io: IO, dial: D, limits: SessionLimits) -> Host
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    D: Fn(u16) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Forward>> + Send + 'static,
{
    Host::start(io, move |parts| {
        let request = forward::Request::parse(parts)?;
        let response = request.switching();
        let serve: Serve = Box::new(move |io| {
            Box::pin(
                async move { forward::serve(io, &request, move |port| Box::pin(dial(port)), &limits).await },
            )
        });
        Ok((response, serve))
    })
}

/// The query for these streams.
pub(crate) fn query(options: ExecOptions) -> String {
    let flags = [
        (options.stdin, "input=1"),
        (options.stdout, "output=1"),
        (options.stderr, "error=1"),
        (options.tty, "tty=1"),
    ];
    let set: Vec<_> = flags.into_iter().filter_map(|(on, name)| on.then_some(name)).collect();
    format!("/exec/default/web/app?command=sh&{}", set.join("&"))
}

/// Whether a protocol uses SPDY.
pub(crate) fn is_spdy(protocol: exec::Protocol) -> bool {
    matches!(protocol, exec::Protocol::Spdy(_))
}

/// A request with the right method for a protocol.
pub(crate) fn request(spdy: bool, path: &str) -> Request<()> {
    let method = if spdy { "POST" } else { "GET" };
    Request::builder().method(method).uri(path).header("host", "node").body(()).unwrap()
}

/// A client's session in this protocol, and the process that our server runs for it.
pub(crate) struct Joined {
    pub(crate) session: Session,
    pub(crate) process: Process,
    pub(crate) host: Host,
}

/// Client and server over a pipe.
pub(crate) async fn join(protocol: exec::Protocol, options: ExecOptions) -> Joined {
    join_with(protocol, options, &SessionLimits::default()).await
}

pub(crate) async fn join_with(
    protocol: exec::Protocol,
    options: ExecOptions,
    limits: &SessionLimits,
) -> Joined {
    let (ours, theirs) = duplex(8 << 10);
    let (provided, process) = fake_process::session(options);
    let host = exec_host(theirs, Ok(provided), limits.clone());
    let session = call(ours, protocol, options).await.expect("the server accepts the request");
    Joined { session, process, host }
}

/// Connects to a server at the other end of the pipe.
pub(crate) async fn call(
    io: DuplexStream,
    protocol: exec::Protocol,
    options: ExecOptions,
) -> Result<Session, Error> {
    let request = request(is_spdy(protocol), &query(options));
    client::exec_over(io, request, &[protocol], &options, &SessionLimits::default()).await
}
