//! Port-forward in every protocol.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinSet,
    time::timeout,
};
use vk_provider::{Error, Result, ability::Forward};
use vk_spdy::{Connection, Headers};
use vk_streaming::{
    SessionEnd, SessionLimits,
    client::{self, Forwarder},
    forward::Protocol,
};

use crate::{
    raw_client,
    test_server::{self, Host},
    throughput::{read_pattern, write_pattern},
};

pub(crate) const PROTOCOLS: [Protocol; 4] =
    [Protocol::Spdy, Protocol::Tunnel, Protocol::Channels, Protocol::ChannelsBase64];

/// A port that sends nothing.
pub(crate) fn silent() -> Forward {
    let (ours, theirs) = duplex(1000);
    // Leaked on purpose, so that it stays open.
    std::mem::forget(theirs);
    Forward::Stream(Box::new(ours))
}

/// Connects to a server at the other end of the pipe.
pub(crate) async fn call(io: DuplexStream, protocol: Protocol, ports: &[u16]) -> Result<Forwarder> {
    let query: Vec<_> = ports.iter().map(|port| format!("port={port}")).collect();
    let path = format!("/portForward/default/web?{}", query.join("&"));
    let request = test_server::request(protocol == Protocol::Spdy, &path);
    client::forward_over(io, request, protocol, ports, &SessionLimits::default()).await
}

/// Ports served by the test: every connection is added to the list.
#[derive(Clone, Default)]
struct Pod {
    accepted: Arc<Mutex<Vec<(u16, DuplexStream)>>>,
}

impl Pod {
    fn serve(&self, io: DuplexStream) -> Host {
        let accepted = Arc::clone(&self.accepted);
        let dial = move |port| {
            let accepted = Arc::clone(&accepted);
            async move {
                let (ours, theirs) = duplex(1000);
                accepted.lock().push((port, theirs));
                Ok(Forward::Stream(Box::new(ours)))
            }
        };
        test_server::forward_host(io, dial, SessionLimits::default())
    }

    async fn accept(&self) -> (u16, DuplexStream) {
        loop {
            if let Some(connection) = self.accepted.lock().pop() {
                return connection;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn bytes_go_both_ways_and_the_end_if_it_can_be_signalled() {
    for protocol in PROTOCOLS {
        let (ours, theirs) = duplex(8 << 10);
        let pod = Pod::default();
        let mut host = pod.serve(theirs);
        let forwarder = call(ours, protocol, &[8080]).await.unwrap();
        let mut client = forwarder.open(8080).await.unwrap();
        client.write_all(b"GET").await.unwrap();
        let (port, mut server) = pod.accept().await;
        assert_eq!(port, 8080, "{protocol:?}");
        let mut bytes_read = [0; 3];
        server.read_exact(&mut bytes_read).await.unwrap();
        assert_eq!(&bytes_read, b"GET", "{protocol:?}");
        if matches!(protocol, Protocol::Spdy | Protocol::Tunnel) {
            client.shutdown().await.unwrap();
            assert_eq!(server.read(&mut bytes_read).await.unwrap(), 0, "{protocol:?}");
        }
        server.write_all(b"200 OK").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "200 OK", "{protocol:?}");
        drop((client, forwarder));
        let outcome = host.outcome().await.unwrap();
        assert!(matches!(outcome.end, SessionEnd::ClientGone | SessionEnd::Done), "{protocol:?} {outcome:?}");
        assert_eq!((outcome.received, outcome.sent), (3, 6), "{protocol:?}");
    }
}

#[tokio::test]
async fn two_hundred_connections_at_once_each_get_their_own_bytes() {
    for protocol in [Protocol::Spdy, Protocol::Tunnel] {
        let (ours, theirs) = duplex(8 << 10);
        let dial = |port: u16| async move {
            let (ours, mut theirs) = duplex(1000);
            let mut server = JoinSet::new();
            server.spawn(async move {
                let mut asked = [0; 8];
                theirs.read_exact(&mut asked).await.unwrap();
                for _ in 0..500 {
                    theirs.write_all(&asked).await.unwrap();
                }
                theirs.write_u16(port).await.unwrap();
            });
            server.detach_all();
            Ok(Forward::Stream(Box::new(ours)))
        };
        let host = test_server::forward_host(theirs, dial, SessionLimits::default());
        let forwarder = Arc::new(call(ours, protocol, &[]).await.unwrap());
        let mut clients = JoinSet::new();
        for number in 0..200_u64 {
            let forwarder = Arc::clone(&forwarder);
            clients.spawn(async move {
                let port = 1000 + u16::try_from(number).unwrap();
                let mut client = forwarder.open(port).await.unwrap();
                client.write_u64(number).await.unwrap();
                client.shutdown().await.unwrap();
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).await.unwrap();
                assert_eq!(answer.len(), 4002);
                assert!(answer[..4000].chunks(8).all(|chunk| chunk == number.to_be_bytes()));
                assert_eq!(answer[4000..], port.to_be_bytes());
            });
        }
        clients.join_all().await;
        drop(host);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_megabytes_each_way_through_slow_readers_arrive_unchanged() {
    const MUCH: usize = 10 << 20;
    for protocol in PROTOCOLS {
        let (ours, theirs) = duplex(8 << 10);
        let pod = Pod::default();
        let mut host = pod.serve(theirs);
        let forwarder = call(ours, protocol, &[80]).await.unwrap();
        let client = forwarder.open(80).await.unwrap();
        let (client_reads, client_writes) = tokio::io::split(client);
        let (_, server) = pod.accept().await;
        let (server_reads, server_writes) = tokio::io::split(server);
        let up = futures::future::join(write_pattern(client_writes, MUCH), read_pattern(server_reads, MUCH));
        // The pod closes first if that closes everything.
        match protocol {
            Protocol::Spdy | Protocol::Tunnel => {
                let down = futures::future::join(
                    write_pattern(server_writes, MUCH),
                    read_pattern(client_reads, MUCH),
                );
                futures::future::join(up, down).await;
            }
            _ => {
                up.await;
                futures::future::join(write_pattern(server_writes, MUCH), read_pattern(client_reads, MUCH))
                    .await;
            }
        }
        drop(forwarder);
        let outcome = host.outcome().await.unwrap();
        assert_eq!((outcome.received, outcome.sent), (MUCH as u64, MUCH as u64), "{protocol:?}");
    }
}

#[tokio::test]
async fn an_unreachable_port_is_reported_as_text_and_the_others_continue() {
    for protocol in PROTOCOLS {
        let (ours, theirs) = duplex(8 << 10);
        let dial = |port| async move {
            if port == 80 {
                return Err(Error::unavailable("dial port 80 of default/web").caused_by("connection refused"));
            }
            let (ours, mut theirs) = duplex(1000);
            theirs.write_all(b"hello").await.unwrap();
            Ok(Forward::Stream(Box::new(ours)))
        };
        let _host = test_server::forward_host(theirs, dial, SessionLimits::default());
        let forwarder = call(ours, protocol, &[80, 81]).await.unwrap();
        let mut good = forwarder.open(81).await.unwrap();
        let mut bad = forwarder.open(80).await.unwrap();
        let text = "error forwarding port 80: dial port 80 of default/web: connection refused";
        let error_text = timeout(Duration::from_secs(5), bad.read_to_end(&mut Vec::new())).await.unwrap();
        assert_eq!(error_text.unwrap_err().to_string(), text, "{protocol:?}");
        let mut bytes_read = String::new();
        good.read_to_string(&mut bytes_read).await.unwrap();
        assert_eq!(bytes_read, "hello", "{protocol:?}");
    }
}

/// Counts open connections.
struct Counted {
    stream: DuplexStream,
    count: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl tokio::io::AsyncRead for Counted {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl tokio::io::AsyncWrite for Counted {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_leaves_no_connection_to_the_pod() {
    for protocol in PROTOCOLS {
        for blocked in [false, true] {
            let (ours, theirs) = duplex(8 << 10);
            let (count, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
            let (counted, holding) = (Arc::clone(&count), Arc::clone(&held));
            let dial = move |_| {
                let (stream, other) = duplex(1000);
                holding.lock().push(other);
                counted.fetch_add(1, Ordering::SeqCst);
                let count = Arc::clone(&counted);
                async move { Ok(Forward::Stream(Box::new(Counted { stream, count }))) }
            };
            let mut host = test_server::forward_host(theirs, dial, SessionLimits::default());
            let forwarder = call(ours, protocol, &[80]).await.unwrap();
            let mut client = forwarder.open(80).await.unwrap();
            if blocked {
                let writing = async {
                    loop {
                        client.write_all(&[0; 1000]).await.unwrap();
                    }
                };
                timeout(Duration::from_secs(1), writing).await.unwrap_err();
            }
            drop((client, forwarder));
            assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?} {blocked}");
            tokio::task::yield_now().await;
            assert_eq!(count.load(Ordering::SeqCst), 0, "{protocol:?} {blocked}");
        }
    }
}

/// A raw SPDY client after the handshake.
async fn by_hand(io: DuplexStream) -> (Connection, JoinSet<()>) {
    let mut io = io;
    raw_client::upgrade(&mut io, &raw_client::spdy_request("/portForward/default/web", "portforward.k8s.io"))
        .await;
    let (connection, driver) = Connection::client(io, vk_spdy::Config::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = driver.await;
    });
    (connection, tasks)
}

fn stream(kind: &str, port: &str, request: Option<&str>) -> Headers {
    let headers = Headers::new().with("streamType", kind).with("port", port);
    match request {
        Some(request) => headers.with("requestID", request),
        None => headers,
    }
}

#[tokio::test]
async fn old_clients_without_request_ids_are_supported() {
    let (ours, theirs) = duplex(8 << 10);
    let pod = Pod::default();
    let _host = pod.serve(theirs);
    let (connection, _tasks) = by_hand(ours).await;
    for port in ["80", "81"] {
        let _error = connection.open(&stream("error", port, None)).await.unwrap();
        let mut data = connection.open(&stream("data", port, None)).await.unwrap();
        let (accepted, mut server) = pod.accept().await;
        assert_eq!(accepted.to_string(), port);
        data.send("hi".into()).await.unwrap();
        let mut bytes_read = [0; 2];
        server.read_exact(&mut bytes_read).await.unwrap();
        assert_eq!(&bytes_read, b"hi");
    }
}

#[tokio::test]
async fn invalid_streams_are_rejected() {
    let (ours, theirs) = duplex(8 << 10);
    let _host = Pod::default().serve(theirs);
    let (connection, _tasks) = by_hand(ours).await;
    for (kind, port) in [("data", "0"), ("data", "x"), ("data", "65536"), ("stdin", "80"), ("", "80")] {
        let refused = connection.open(&stream(kind, port, Some("1"))).await.unwrap_err();
        assert!(matches!(refused, vk_spdy::Error::Reset(_)), "{kind} {port}: {refused}");
    }
    for missing in [Headers::new().with("port", "80"), Headers::new().with("streamType", "data")] {
        connection.open(&missing).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_partner_times_out_after_thirty_seconds() {
    let (ours, theirs) = duplex(8 << 10);
    let _host = Pod::default().serve(theirs);
    let (connection, _tasks) = by_hand(ours).await;
    let mut error = connection.open(&stream("error", "80", Some("7"))).await.unwrap();
    let began = tokio::time::Instant::now();
    let mut error_text = String::new();
    error.read_to_string(&mut error_text).await.unwrap();
    assert_eq!(error_text, "timed out waiting for streams of request 7");
    assert_eq!(began.elapsed().as_secs(), 30);
    let mut data = connection.open(&stream("data", "80", Some("8"))).await.unwrap();
    data.read(&mut [0]).await.unwrap_err();
}

#[tokio::test]
async fn a_duplicate_stream_is_rejected_and_reported() {
    let (ours, theirs) = duplex(8 << 10);
    let _host = Pod::default().serve(theirs);
    let (connection, _tasks) = by_hand(ours).await;
    let mut error = connection.open(&stream("error", "80", Some("7"))).await.unwrap();
    connection.open(&stream("error", "80", Some("7"))).await.unwrap_err();
    let mut error_text = String::new();
    error.read_to_string(&mut error_text).await.unwrap();
    assert_eq!(error_text, "error processing stream for request 7: error stream already assigned");
}

#[tokio::test]
async fn a_broken_connection_of_the_pod_breaks_one_connection_without_an_error_text() {
    let (ours, theirs) = duplex(8 << 10);
    let broken = |_| async {
        let stream = broken_off();
        Ok(Forward::Stream(Box::new(stream)))
    };
    let _host = test_server::forward_host(theirs, broken, SessionLimits::default());
    let (connection, _tasks) = by_hand(ours).await;
    let mut error = connection.open(&stream("error", "80", Some("7"))).await.unwrap();
    let mut data = connection.open(&stream("data", "80", Some("7"))).await.unwrap();
    let reset = data.read(&mut [0]).await.unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    let mut error_text = String::new();
    error.read_to_string(&mut error_text).await.unwrap();
    assert_eq!(error_text, "", "kubectl closes all connections when it reads a text here");
}

/// A stream whose reads fail.
fn broken_off() -> impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {
    struct CopyError;
    impl tokio::io::AsyncRead for CopyError {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()))
        }
    }
    tokio::io::join(CopyError, tokio::io::sink())
}

#[tokio::test]
async fn channels_start_with_their_ports() {
    let (mut ours, theirs) = duplex(8 << 10);
    let _host = test_server::forward_host(theirs, |_| async { Ok(silent()) }, SessionLimits::default());
    let request =
        raw_client::websocket_request("/portForward/default/web?port=80&port=8080", "v4.channel.k8s.io");
    raw_client::upgrade(&mut ours, &request).await;
    let mut begun = HashSet::new();
    for _ in 0..4 {
        begun.insert(raw_client::read_frame(&mut ours).await.payload);
    }
    let expected = [[0, 80, 0], [1, 80, 0], [2, 0x90, 0x1f], [3, 0x90, 0x1f]];
    assert_eq!(begun, expected.map(Vec::from).into());
}

#[tokio::test(start_paused = true)]
async fn a_connection_times_out_after_thirty_seconds() {
    for protocol in PROTOCOLS {
        let (ours, theirs) = duplex(8 << 10);
        let _host =
            test_server::forward_host(theirs, |_| futures::future::pending(), SessionLimits::default());
        let forwarder = call(ours, protocol, &[80]).await.unwrap();
        let mut hanging = forwarder.open(80).await.unwrap();
        let error_text = hanging.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(
            error_text.to_string(),
            "error forwarding port 80: no connection within 30s",
            "{protocol:?}"
        );
    }
}
