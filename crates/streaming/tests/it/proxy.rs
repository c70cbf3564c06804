//! Addresses that a provider gives: a container runtime's server, which here is ours over TCP.

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
    End, Limits, Refusal, client,
    exec::{Protocol, Version},
    proxy::{self, Upstream},
};

use crate::{
    exec::PROTOCOLS,
    forward,
    host::{self, ALL, Host},
    process::{self, Process},
};

/// A container runtime's streaming server with one session, and its address.
async fn runtime(options: ExecOptions) -> (String, Process, Host) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), host::query(options));
    let (provided, process) = process::session(options);
    let host = Host::later(async move {
        let (io, _) = listener.accept().await.unwrap();
        host::exec_host(io, Ok(provided), Limits::default())
    });
    (url, process, host)
}

fn parts(protocol: Protocol, options: ExecOptions) -> Parts {
    let mut request = host::request(host::is_spdy(protocol), &host::query(options));
    request.headers_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request.into_parts().0
}

/// Speaks as the client does, through a kubelet that proxies to the address.
async fn through(url: String, protocol: Protocol, options: ExecOptions) -> (Result<Session, Error>, Host) {
    let (ours, theirs) = duplex(8 << 10);
    let host = Host::proxy(theirs, url, Limits::default());
    (host::call(ours, protocol, options).await, host)
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
async fn an_address_is_proxied_byte_for_byte_for_all_that_a_runtime_speaks() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| protocol.version() < Version::V5) {
        let what = format!("{protocol:?}");
        let (url, process, mut runtime) = runtime(ALL).await;
        let (session, mut host) = through(url, protocol, ALL).await;
        talk(session.unwrap(), process, &what).await;
        assert_eq!(runtime.outcome().await.unwrap().end, End::Exited(0), "{what}");
        let outcome = host.outcome().await.unwrap();
        assert!(matches!(outcome.end, End::Done | End::ClientGone), "{what} {outcome:?}");
        assert!(outcome.received > 0 && outcome.sent > 0, "{what} {outcome:?}");
    }
}

#[tokio::test]
async fn version_5_is_served_here_and_the_runtime_is_called_by_spdy() {
    let (url, mut process, mut runtime) = runtime(ALL).await;
    let (ours, theirs) = duplex(8 << 10);
    let dialled = client::exec(&url, &ALL, &Limits::default()).await;
    let mut host = host::exec_host(theirs, dialled, Limits::default());
    let mut session = host::call(ours, Protocol::WebSocket(Version::V5), ALL).await.unwrap();
    // The end of input goes all the way.
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"all").await.unwrap();
    stdin.shutdown().await.unwrap();
    let mut heard = String::new();
    process.stdin.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "all");
    process.print(b"bye").await;
    process.exit(42);
    let mut said = String::new();
    session.stdout.as_mut().unwrap().read_to_string(&mut said).await.unwrap();
    assert_eq!((&*said, session.exit.await.unwrap()), ("bye", Exit { code: 42 }));
    assert_eq!(host.outcome().await.unwrap().end, End::Exited(42));
    assert_eq!(runtime.outcome().await.unwrap().end, End::Exited(42));
}

#[tokio::test]
async fn a_client_that_goes_takes_the_runtimes_session_with_it() {
    for protocol in [Protocol::Spdy(Version::V4), Protocol::WebSocket(Version::V4)] {
        let (url, process, mut runtime) = runtime(ALL).await;
        let (session, mut host) = through(url, protocol, ALL).await;
        drop(session);
        assert_eq!(host.outcome().await.unwrap().end, End::ClientGone, "{protocol:?}");
        assert_eq!(runtime.outcome().await.unwrap().end, End::ClientGone, "{protocol:?}");
        assert_eq!(process.sessions.now(), 0, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_runtimes_refusal_reaches_the_client_and_who_the_client_is_does_not_reach_the_runtime() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(None));
    let seeing = Arc::clone(&seen);
    let mut runtime = Host::later(async move {
        let (io, _) = listener.accept().await.unwrap();
        Host::start(io, move |parts| {
            *seeing.lock() = Some(parts.clone());
            Err(Refusal::new(StatusCode::NOT_FOUND, "unknown token\n"))
        })
    });
    let client = parts(Protocol::Spdy(Version::V4), ALL);
    let limits = Limits::default();
    let opening = proxy::open(&url, &client, &limits);
    let (opened, _) = futures::future::join(opening, runtime.outcome()).await;
    let Upstream::Answered(answer) = opened.unwrap() else { panic!("switched") };
    assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::NOT_FOUND, &b"unknown token\n"[..]));
    let seen = seen.lock().take().unwrap();
    assert_eq!((seen.method.as_str(), seen.uri.path()), ("POST", "/exec/token"));
    assert!(seen.headers.get("authorization").is_none());
}

#[tokio::test]
async fn a_refusal_is_an_error_of_the_same_kind_for_who_calls_as_a_client() {
    for (status, kind) in
        [(404, Kind::NotFound), (400, Kind::Invalid), (403, Kind::Denied), (500, Kind::Internal)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
        let mut runtime = Host::later(async move {
            let (io, _) = listener.accept().await.unwrap();
            Host::start(io, move |_| Err(Refusal::new(StatusCode::from_u16(status).unwrap(), "not you\n")))
        });
        let limits = Limits::default();
        let calling = client::exec(&url, &ALL, &limits);
        let (called, _) = futures::future::join(calling, runtime.outcome()).await;
        let error = called.unwrap_err();
        assert_eq!(*error.kind(), kind);
        assert!(error.report().ends_with(": not you"), "{}", error.report());
        assert!(
            !error.report().contains("token"),
            "the address lets whoever knows it in: {}",
            error.report()
        );
    }
}

#[tokio::test]
async fn an_address_that_nobody_serves_or_that_is_none_is_an_error_that_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unserved = format!("http://{}/exec/token", listener.local_addr().unwrap());
    drop(listener);
    let limits = Limits::default();
    let error = client::exec(&unserved, &ALL, &limits).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.report().starts_with("connect to the streaming server 127.0.0.1:"), "{}", error.report());
    let error = client::exec("https://127.0.0.1/exec/token", &ALL, &limits).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unsupported);
    let client = parts(Protocol::Spdy(Version::V4), ALL);
    let error = proxy::open("not an address", &client, &limits).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Invalid);
}

#[tokio::test]
async fn ports_behind_an_address_are_forwarded_and_their_errors_told() {
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
                    host::forward_host(io, dial, Limits::default()).outcome().await
                });
                Ok(Forward::Url(url))
            }
        };
        let _host = host::forward_host(theirs, dial, Limits::default());
        let forwarder = forward::call(ours, protocol, &[80, 81]).await.unwrap();
        let mut good = forwarder.open(81).await.unwrap();
        let mut heard = Vec::new();
        good.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, 81_u16.to_be_bytes(), "{protocol:?}");
        let mut bad = forwarder.open(80).await.unwrap();
        let told = bad.read_to_end(&mut Vec::new()).await.unwrap_err().to_string();
        assert_eq!(
            told, "error forwarding port 80: error forwarding port 80: connection refused",
            "{protocol:?}"
        );
    }
}

#[tokio::test]
async fn protocols_that_cannot_be_offered_together_are_refused() {
    let mixed = [Protocol::Spdy(Version::V4), Protocol::WebSocket(Version::V5)];
    for protocols in [&mixed[..], &[Protocol::Spdy(Version::V5)], &[Protocol::WebSocket(Version::V2)]] {
        let request = Request::new(());
        let (ours, _theirs) = duplex(100);
        let error = client::exec_over(ours, request, protocols, &ALL, &Limits::default()).await.unwrap_err();
        assert_eq!(*error.kind(), Kind::Invalid, "{protocols:?}");
    }
}
