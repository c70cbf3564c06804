//! Misbehaving clients.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use vk_provider::ability::LogBody;
use vk_server::ConnectionLimits;
use vk_testing::eventually;

use crate::{
    certificates::CA,
    harness::{POWERLESS, SOON, TOKEN, TestNode, split, until_end},
};

fn short() -> ConnectionLimits {
    ConnectionLimits {
        handshake: Duration::from_millis(300),
        head: Duration::from_millis(300),
        ..ConnectionLimits::default()
    }
}

/// Reads until the peer has closed.
async fn closed(stream: &mut TcpStream) {
    let mut piece = [0; 1024];
    let read = async { while stream.read(&mut piece).await.is_ok_and(|length| length > 0) {} };
    tokio::time::timeout(SOON, read).await.expect("the node closes the connection");
}

#[tokio::test]
async fn an_unfinished_handshake_is_closed() {
    let node = TestNode::start(short()).await;
    let mut silent = TcpStream::connect(("127.0.0.1", node.port)).await.unwrap();
    closed(&mut silent).await;
    let mut garbage = TcpStream::connect(("127.0.0.1", node.port)).await.unwrap();
    garbage.write_all(b"GET /pods HTTP/1.1\r\n\r\n").await.unwrap();
    closed(&mut garbage).await;
    assert_eq!(node.get("/healthz").await, (200, "ok".to_owned()));
}

#[tokio::test]
async fn a_slow_request_head_is_closed() {
    let node = TestNode::start(short()).await;
    let mut stream = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    stream.write_all(b"GET /pods HTTP/1.1\r\nHost: node\r\nX-Slow: ").await.unwrap();
    let answer = until_end(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    // A silent client, too.
    let mut silent = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    until_end(&mut silent).await;
    eventually("no connection is left", SOON, || async {
        let open = node.metrics.connections.get();
        if open == 0 { Ok(()) } else { Err(open) }
    })
    .await;
}

/// Writes a byte at a time, each faster than the time limit, until the node closes the connection.
async fn drip(stream: &mut (impl AsyncWrite + Unpin)) {
    let mut drops = tokio::time::interval(Duration::from_millis(20));
    let writing = async {
        loop {
            drops.tick().await;
            if stream.write_all(b"x").await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, writing).await.expect("the node closes a connection that only drips");
}

#[tokio::test]
async fn time_limits_apply_to_the_whole_and_not_to_each_byte() {
    let node = TestNode::start(short()).await;
    let mut head = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    head.write_all(b"GET /pods HTTP/1.1\r\nHost: node\r\nX-Slow: ").await.unwrap();
    drip(&mut head).await;
    // A handshake record of maximum length: it would take minutes to complete.
    let mut hello = TcpStream::connect(("127.0.0.1", node.port)).await.unwrap();
    hello.write_all(&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]).await.unwrap();
    drip(&mut hello).await;
    eventually("no connection is left", SOON, || async {
        let open = node.metrics.connections.get();
        if open == 0 { Ok(()) } else { Err(open) }
    })
    .await;
    assert_eq!(node.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn huge_headers_are_rejected() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let huge = format!("GET /pods HTTP/1.1\r\nHost: node\r\nX-Huge: {}\r\n\r\n", "x".repeat(1 << 20));
    let answer = node.send_raw(None, huge.as_bytes()).await.unwrap_or_default();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{}", &answer[..answer.len().min(100)]);
    let many: String = (0..5000).map(|number| format!("X-{number}: x\r\n")).collect::<Vec<_>>().concat();
    let answer = node
        .send_raw(None, format!("GET /pods HTTP/1.1\r\nHost: n\r\n{many}\r\n").as_bytes())
        .await
        .unwrap_or_default();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{}", &answer[..answer.len().min(100)]);
    let garbage = node.send_raw(None, b"\x00\xff\x80 this is no request\r\n\r\n").await.unwrap_or_default();
    assert!(garbage.is_empty() || garbage.starts_with("HTTP/1.1 400"), "{garbage}");
    assert_eq!(node.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn unauthorized_connections_evict_each_other_and_no_authorized_ones() {
    let node = TestNode::start(ConnectionLimits { unauthorized: 10, ..ConnectionLimits::default() }).await;
    let mut known = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    known.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 15];
    known.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");

    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(("127.0.0.1", node.port)).await.unwrap());
    }
    eventually("the oldest unauthorized are gone", SOON, || async {
        let (evicted, open) = (node.metrics.evicted.get(), node.metrics.connections.get());
        if evicted >= 190 && open <= 11 { Ok(()) } else { Err(format!("{evicted} evicted, {open} open")) }
    })
    .await;
    closed(&mut crowd[0]).await;
    // The authorized connection continues, and a new one is served.
    let closing = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    known.write_all(closing.as_bytes()).await.unwrap();
    assert!(until_end(&mut known).await.contains("HTTP/1.1 200 OK"));
    assert_eq!(node.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn connections_of_a_caller_without_rights_do_not_keep_the_api_server_out() {
    let limits = ConnectionLimits { connections: 50, unauthorized: 10, ..ConnectionLimits::default() };
    let node = TestNode::start(limits).await;
    let request = format!("GET /pods HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {POWERLESS}\r\n\r\n");
    let mut crowd = Vec::new();
    for _ in 0..50 {
        let mut stream = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 403");
        crowd.push(stream);
    }
    let admin = CA.client("admin", 2030);
    let ask = b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";
    let answer = tokio::time::timeout(SOON, node.send_raw(Some(&admin), ask)).await;
    assert_eq!(split(&answer.expect("the API server is let in").unwrap()).0, 200);
}

#[tokio::test]
async fn a_stop_lets_open_requests_finish_and_accepts_no_new_ones() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let mut idle = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    idle.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    idle.read_exact(&mut head).await.unwrap();
    assert!(node.supervisor.shut_down(SOON).await, "all tasks ended in time");
    assert!(TcpStream::connect(("127.0.0.1", node.port)).await.is_err());
    assert_eq!(node.metrics.connections.get(), 0);
}

#[tokio::test]
async fn a_followed_log_does_not_delay_a_stop() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let endless = stream::iter([Ok(Bytes::from_static(b"a line\n"))]).chain(stream::pending()).boxed();
    *node.provider.log.lock() = Some(LogBody::Final(endless));
    let mut following = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    let path = "/containerLogs/ns/web/main?follow=true";
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    following.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"a line\n\r\n") {
        assert!(following.read_buf(&mut seen).await.unwrap() > 0);
    }
    assert!(node.supervisor.shut_down(SOON).await, "the task ended in time");
}

#[tokio::test]
async fn requests_are_counted_by_route_and_code() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    node.get("/healthz").await;
    node.get("/nowhere/at/all").await;
    let refused =
        node.send_raw(None, b"GET /pods HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(split(&refused), (401, "Unauthorized".to_owned()));
    for (route, code) in [("healthz", 200), ("other", 404), ("pods", 401)] {
        let count =
            node.metrics.requests.get_or_create(&vk_server::metrics::RequestLabels { route, code }).get();
        assert_eq!(count, 1, "{route} {code}");
    }
}
