//! HTTP without authentication, plain and over TLS.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use vk_server::{
    ConnectionLimits, serve_plain, serve_tls,
    tls::{self, ServingCertificate, client_ca::ClientCa},
};
use vk_supervisor::{Supervisor, task};

use crate::{
    certificates::{CA, TestCa, TestCertificate},
    harness::{self, SOON, split},
};

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";
/// The only client of a server that requires a certificate.
const SCHEDULER: &str = "scheduler";

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

/// A server that requires a certificate of the scheduler.
struct ServerOfScheduler {
    port: u16,
    /// CAs of clients.
    client_ca: ClientCa,
    requests: Arc<AtomicUsize>,
    _supervisor: Supervisor,
}

// === impl ServerOfScheduler ===

impl ServerOfScheduler {
    async fn start(limits: ConnectionLimits) -> Self {
        let (client_ca, requests) = (ClientCa::default(), Arc::new(AtomicUsize::new(0)));
        let serving = ServingCertificate::new(CA.serving().certified_key());
        let config = tls::server_config_for(serving, client_ca.clone(), &[SCHEDULER]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let supervisor = Supervisor::new();
        let counter = Arc::clone(&requests);
        let count = get(async move || counter.fetch_add(1, Ordering::Relaxed).to_string());
        let router = Router::new().route("/healthz", count);
        let served = serve_tls(listener, config, router, limits, supervisor.clone());
        supervisor.spawn("server", task::Kind::Critical, served);
        Self { port, client_ca, requests, _supervisor: supervisor }
    }

    /// The status code; 0 if there is no response.
    async fn code(&self, client: Option<&TestCertificate>) -> u16 {
        let mut codes = Vec::new();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let Ok(mut stream) = harness::connect(self.port, client, &[version]).await else {
                codes.push(0);
                continue;
            };
            // With TLS 1.3 the client learns of the refusal when it reads.
            drop(stream.write_all(HEALTH).await);
            codes.push(split(&harness::until_end(&mut stream).await).0);
        }
        assert_eq!(codes[0], codes[1], "TLS 1.2 and 1.3");
        codes[0]
    }
}

#[tokio::test]
async fn a_server_for_one_client_answers_nobody_else() {
    let server = ServerOfScheduler::start(ConnectionLimits::default()).await;
    let scheduler = CA.client(SCHEDULER, 2030);
    assert_eq!(server.code(Some(&scheduler)).await, 0, "no CA is trusted yet");
    server.client_ca.replace(CA.pem.as_bytes()).unwrap();
    let another = TestCa::new("another");
    let strangers = [
        ("another CA", another.client(SCHEDULER, 2030)),
        ("another CA of the same name", TestCa::new("authority").client(SCHEDULER, 2030)),
        ("another name", CA.client("somebody", 2030)),
        ("a name that begins the same", CA.client("scheduler2", 2030)),
        ("no name", CA.client("", 2030)),
        ("it has expired", CA.client(SCHEDULER, 2025)),
        ("not a client certificate", CA.serving()),
        ("the key of another", scheduler.with_key_of(&another.client(SCHEDULER, 2030))),
    ];
    assert_eq!(server.code(None).await, 0, "no certificate");
    for (who, certificate) in &strangers {
        assert_eq!(server.code(Some(certificate)).await, 0, "{who}");
    }
    assert_eq!(server.requests.load(Ordering::Relaxed), 0);
    assert_eq!(server.code(Some(&scheduler)).await, 200);

    // The CAs are replaced.
    server.client_ca.replace(another.pem.as_bytes()).unwrap();
    assert_eq!(server.code(Some(&scheduler)).await, 0);
    assert_eq!(server.code(Some(&strangers[0].1)).await, 200);
}

#[tokio::test]
async fn a_client_with_a_certificate_is_not_closed_for_a_crowd_without_one() {
    let limits = ConnectionLimits { unauthorized: 10, ..ConnectionLimits::default() };
    let server = ServerOfScheduler::start(limits).await;
    server.client_ca.replace(CA.pem.as_bytes()).unwrap();
    let scheduler = CA.client(SCHEDULER, 2030);
    let mut kept = harness::connect(server.port, Some(&scheduler), rustls::ALL_VERSIONS).await.unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
    assert!(kept.read(&mut [0; 4096]).await.unwrap() > 0);
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(connect(server.port).await);
    }
    until_end(&mut crowd[0]).await;
    kept.write_all(HEALTH).await.unwrap();
    assert_eq!(split(&harness::until_end(&mut kept).await), (200, "1".to_owned()));
}
