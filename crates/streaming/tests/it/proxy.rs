//! URLs of a provider: a container runtime's server, which is ours over TCP here.

use std::sync::Arc;

use http::{Request, StatusCode, request::Parts};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    net::TcpListener,
    task::JoinSet,
};
use vk_provider::{
    Error,
    ability::{ExecOptions, Exit, Forward, Session},
    error::Kind,
};
use vk_streaming::{
    RejectedUpgrade, SessionEnd, SessionLimits, client,
    exec::{Protocol, ProtocolVersion},
    proxy::{self, Upstream},
};

use crate::{
    exec::PROTOCOLS,
    fake_process::{self, Process},
    forward,
    test_server::{self, ALL, Host},
};

/// A container runtime's streaming server with one session, and its URL.
async fn runtime(options: ExecOptions) -> (String, Process, Host) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), test_server::query(options));
    let (provided, process) = fake_process::session(options);
    let host = Host::later(async move {
        let (io, _) = listener.accept().await.unwrap();
        test_server::exec_host(io, Ok(provided), SessionLimits::default())
    });
    (url, process, host)
}

fn parts(protocol: Protocol, options: ExecOptions) -> Parts {
    let mut request = test_server::request(test_server::is_spdy(protocol), &test_server::query(options));
    request.headers_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request.into_parts().0
}

/// A client, through a kubelet that proxies to the URL.
async fn through(url: String, protocol: Protocol, options: ExecOptions) -> (Result<Session, Error>, Host) {
    let (ours, theirs) = duplex(8 << 10);
    let host = Host::proxy(theirs, url, SessionLimits::default());
    (test_server::call(ours, protocol, options).await, host)
}

async fn talk(mut session: Session, mut process: Process, what: &str) {
    session.stdin.as_mut().unwrap().write_all(b"ping").await.unwrap();
    assert_eq!(process.read(4).await, b"ping", "{what}");
    process.print(b"pong").await;
    process.complain(b"oh").await;
    process.exit(0);
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.as_mut().unwrap().read_to_string(&mut out).await.unwrap();
    session.stderr.as_mut().unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((&*out, &*err), ("pong", "oh"), "{what}");
    assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{what}");
}

#[tokio::test]
async fn a_url_is_proxied_byte_for_byte_for_all_protocols_of_a_runtime() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| protocol.version() < ProtocolVersion::V5) {
        let what = format!("{protocol:?}");
        let (url, process, mut runtime) = runtime(ALL).await;
        let (session, mut host) = through(url, protocol, ALL).await;
        talk(session.unwrap(), process, &what).await;
        assert_eq!(runtime.outcome().await.unwrap().end, SessionEnd::Exited(0), "{what}");
        let outcome = host.outcome().await.unwrap();
        assert!(matches!(outcome.end, SessionEnd::Done | SessionEnd::ClientGone), "{what} {outcome:?}");
        assert!(outcome.received > 0 && outcome.sent > 0, "{what} {outcome:?}");
    }
}

#[tokio::test]
async fn version_5_is_served_here_and_the_runtime_is_called_with_spdy() {
    let (url, mut process, mut runtime) = runtime(ALL).await;
    let (ours, theirs) = duplex(8 << 10);
    let dialled = client::exec(&url, &ALL, &SessionLimits::default()).await;
    let mut host = test_server::exec_host(theirs, dialled, SessionLimits::default());
    let mut session = test_server::call(ours, Protocol::WebSocket(ProtocolVersion::V5), ALL).await.unwrap();
    // The end of input is passed on.
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"all").await.unwrap();
    stdin.shutdown().await.unwrap();
    let mut bytes_read = String::new();
    process.stdin.read_to_string(&mut bytes_read).await.unwrap();
    assert_eq!(bytes_read, "all");
    process.print(b"bye").await;
    process.exit(42);
    let mut said = String::new();
    session.stdout.as_mut().unwrap().read_to_string(&mut said).await.unwrap();
    assert_eq!((&*said, session.exit.await.unwrap()), ("bye", Exit { code: 42 }));
    assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(42));
    assert_eq!(runtime.outcome().await.unwrap().end, SessionEnd::Exited(42));
}

#[tokio::test]
async fn a_client_that_disconnects_ends_the_runtimes_session() {
    for protocol in [Protocol::Spdy(ProtocolVersion::V4), Protocol::WebSocket(ProtocolVersion::V4)] {
        let (url, process, mut runtime) = runtime(ALL).await;
        let (session, mut host) = through(url, protocol, ALL).await;
        drop(session);
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?}");
        assert_eq!(runtime.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?}");
        assert_eq!(process.sessions.now(), 0, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_runtimes_error_reaches_the_client_and_the_clients_credentials_do_not_reach_the_runtime() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(None));
    let seeing = Arc::clone(&seen);
    let mut runtime = Host::later(async move {
        let (io, _) = listener.accept().await.unwrap();
        Host::start(io, move |parts| {
            *seeing.lock() = Some(parts.clone());
            Err(RejectedUpgrade::new(StatusCode::NOT_FOUND, "unknown token\n"))
        })
    });
    let client = parts(Protocol::Spdy(ProtocolVersion::V4), ALL);
    let limits = SessionLimits::default();
    let opening = proxy::open(&url, &client, &limits);
    let (opened, _) = futures::future::join(opening, runtime.outcome()).await;
    let Upstream::Answered(answer) = opened.unwrap() else { panic!("switched") };
    assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::NOT_FOUND, &b"unknown token\n"[..]));
    let seen = seen.lock().take().unwrap();
    assert_eq!((seen.method.as_str(), seen.uri.path()), ("POST", "/exec/token"));
    assert!(seen.headers.get("authorization").is_none());
}

#[tokio::test]
async fn an_error_response_has_the_same_kind_in_the_client() {
    for (status, kind) in
        [(404, Kind::NotFound), (400, Kind::Invalid), (403, Kind::Denied), (500, Kind::Internal)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
        let mut runtime = Host::later(async move {
            let (io, _) = listener.accept().await.unwrap();
            Host::start(io, move |_| {
                Err(RejectedUpgrade::new(StatusCode::from_u16(status).unwrap(), "not you\n"))
            })
        });
        let limits = SessionLimits::default();
        let calling = client::exec(&url, &ALL, &limits);
        let (called, _) = futures::future::join(calling, runtime.outcome()).await;
        let error = called.unwrap_err();
        assert_eq!(*error.kind(), kind);
        assert!(error.report().ends_with(": not you"), "{}", error.report());
        assert!(
            !error.report().contains("token"),
            "the URL grants access and must not be shown: {}",
            error.report()
        );
    }
}

#[tokio::test]
async fn an_unreachable_or_invalid_url_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unserved = format!("http://{}/exec/token", listener.local_addr().unwrap());
    drop(listener);
    let limits = SessionLimits::default();
    let error = client::exec(&unserved, &ALL, &limits).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.report().starts_with("connect to the streaming server 127.0.0.1:"), "{}", error.report());
    let error = client::exec("https://127.0.0.1/exec/token", &ALL, &limits).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unsupported);
    let client = parts(Protocol::Spdy(ProtocolVersion::V4), ALL);
    let error = proxy::open("not an address", &client, &limits).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Invalid);
}

#[tokio::test]
async fn ports_behind_a_url_are_forwarded_and_their_errors_reported() {
    for protocol in forward::PROTOCOLS {
        let (ours, theirs) = duplex(8 << 10);
        let runtimes = Arc::new(Mutex::new(JoinSet::new()));
        let dial = move |_| {
            let runtimes = Arc::clone(&runtimes);
            async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let url = format!("http://{}/portforward/token", listener.local_addr().unwrap());
                runtimes.lock().spawn(async move {
                    let (io, _) = listener.accept().await.unwrap();
                    let dial = |port| async move {
                        if port == 80 {
                            return Err(Error::unavailable("connection refused"));
                        }
                        let (ours, mut theirs) = duplex(1000);
                        theirs.write_u16(port).await.unwrap();
                        Ok(Forward::Stream(Box::new(ours)))
                    };
                    test_server::forward_host(io, dial, SessionLimits::default()).outcome().await
                });
                Ok(Forward::Url(url))
            }
        };
        let _host = test_server::forward_host(theirs, dial, SessionLimits::default());
        let forwarder = forward::call(ours, protocol, &[80, 81]).await.unwrap();
        let mut good = forwarder.open(81).await.unwrap();
        let mut bytes_read = Vec::new();
        good.read_to_end(&mut bytes_read).await.unwrap();
        assert_eq!(bytes_read, 81_u16.to_be_bytes(), "{protocol:?}");
        let mut bad = forwarder.open(80).await.unwrap();
        let error_text = bad.read_to_end(&mut Vec::new()).await.unwrap_err().to_string();
        assert_eq!(
            error_text, "error forwarding port 80: error forwarding port 80: connection refused",
            "{protocol:?}"
        );
    }
}

#[tokio::test]
async fn protocols_that_cannot_be_offered_together_are_rejected() {
    let mixed = [Protocol::Spdy(ProtocolVersion::V4), Protocol::WebSocket(ProtocolVersion::V5)];
    for protocols in
        [&mixed[..], &[Protocol::Spdy(ProtocolVersion::V5)], &[Protocol::WebSocket(ProtocolVersion::V2)]]
    {
        let request = Request::new(());
        let (ours, _theirs) = duplex(100);
        let error =
            client::exec_over(ours, request, protocols, &ALL, &SessionLimits::default()).await.unwrap_err();
        assert_eq!(*error.kind(), Kind::Invalid, "{protocols:?}");
    }
}
