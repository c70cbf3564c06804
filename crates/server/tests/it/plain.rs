//! HTTP without authentication, plain and over TLS.

use std::time::Duration;

use axum::{Router, routing::get};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use vk_server::{
    ConnectionLimits, serve_plain, serve_tls,
    tls::{self, ServingCertificate},
};
use vk_supervisor::{Supervisor, task};

use crate::{
    certificates::CA,
    harness::{self, SOON, split},
};

/// A server with these limits, and its port.
async fn start(limits: ConnectionLimits) -> (Supervisor, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let supervisor = Supervisor::new();
    let router = Router::new().route("/healthz", get(async || "ok"));
    let served = serve_plain(listener, router, limits, supervisor.clone());
    supervisor.spawn("server", task::Kind::Critical, served);
    (supervisor, port)
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

/// What the server sends until it closes the connection.
async fn until_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = async { while stream.read_buf(&mut answer).await.is_ok_and(|length| length > 0) {} };
    tokio::time::timeout(SOON, read).await.expect("the server closes the connection");
    String::from_utf8(answer).unwrap()
}

async fn health(port: u16) -> (u16, String) {
    let mut stream = connect(port).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await.unwrap();
    split(&until_end(&mut stream).await)
}

#[tokio::test]
async fn slow_and_silent_clients_are_closed() {
    let (_supervisor, port) =
        start(ConnectionLimits { head: Duration::from_millis(300), ..ConnectionLimits::default() }).await;
    let mut silent = connect(port).await;
    let mut slow = connect(port).await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ").await.unwrap();
    until_end(&mut silent).await;
    until_end(&mut slow).await;
    assert_eq!(health(port).await, (200, "ok".to_owned()));
}

#[tokio::test]
async fn a_crowd_of_connections_does_not_keep_a_probe_out() {
    let limits = ConnectionLimits { connections: 20, unauthorized: 10, ..ConnectionLimits::default() };
    let (_supervisor, port) = start(limits).await;
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(connect(port).await);
    }
    assert_eq!(health(port).await, (200, "ok".to_owned()));
    until_end(&mut crowd[0]).await;
}

#[tokio::test]
async fn an_idle_client_does_not_delay_a_stop() {
    let (supervisor, port) = start(ConnectionLimits::default()).await;
    let _idle = connect(port).await;
    assert_eq!(health(port).await.0, 200);
    assert!(supervisor.shut_down(SOON).await, "all tasks ended in time");
}

#[tokio::test]
async fn a_router_is_served_over_tls_and_plain_clients_are_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let supervisor = Supervisor::new();
    let router = Router::new().route("/healthz", get(async || "ok"));
    let config = tls::server_config(ServingCertificate::new(CA.serving().certified_key())).unwrap();
    let served = serve_tls(listener, config, router, ConnectionLimits::default(), supervisor.clone());
    supervisor.spawn("server", task::Kind::Critical, served);

    let mut stream = harness::connect(port, None, rustls::ALL_VERSIONS).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(split(&harness::until_end(&mut stream).await), (200, "ok".to_owned()));
    let mut plain = connect(port).await;
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let read = async { while plain.read_buf(&mut answer).await.is_ok_and(|length| length > 0) {} };
    tokio::time::timeout(SOON, read).await.expect("the server closes the connection");
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}
