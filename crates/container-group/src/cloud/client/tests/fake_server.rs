//! A server on loopback that answers as a test says, also with what no HTTP server would send.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::cloud::client::{Endpoint, PlainHttp};

/// A request that the server got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    /// Method and target.
    pub(crate) line: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

/// What the server does with a request.
pub(crate) enum Reply {
    /// An answer with this status, content type and body, and further header lines.
    Answer(u16, &'static str, String, &'static str),
    /// These bytes, and then the connection is closed.
    Bytes(Vec<u8>),
    /// These bytes, and then nothing.
    Stall(Vec<u8>),
    /// These bytes, and then as many more.
    Flood(Vec<u8>, usize),
}

/// The server. It stops when it is dropped.
pub(crate) struct FakeServer {
    pub(crate) endpoint: Endpoint,
    received: Arc<Mutex<Vec<Received>>>,
    flooded: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

type Handler = dyn Fn(&Received) -> Reply + Send + Sync;

// === impl Received ===

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn json(body: impl Into<String>) -> Self {
        Self::Answer(200, "application/json;charset=utf-8", body.into(), "")
    }

    /// A refusal of Alibaba.
    pub(crate) fn refusal(status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({"Code": code, "Message": message, "RequestId": "1A2B-3C"});
        Self::Answer(status, "application/json", body.to_string(), "")
    }

    async fn send(
        self,
        stream: &mut (impl AsyncWrite + Unpin),
        flooded: &AtomicUsize,
    ) -> std::io::Result<()> {
        match self {
            Self::Answer(status, content_type, body, more) => {
                let head = format!(
                    "HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await?;
            }
            Self::Bytes(bytes) => stream.write_all(&bytes).await?,
            Self::Stall(bytes) => {
                stream.write_all(&bytes).await?;
                stream.flush().await?;
                std::future::pending::<()>().await;
            }
            Self::Flood(bytes, size) => {
                stream.write_all(&bytes).await?;
                let part = vec![b' '; 64 << 10];
                while flooded.load(Ordering::Relaxed) < size {
                    stream.write_all(&part).await?;
                    flooded.fetch_add(part.len(), Ordering::Relaxed);
                }
            }
        }
        stream.shutdown().await
    }
}

// === impl FakeServer ===

impl FakeServer {
    pub(crate) async fn start(handler: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve(None, handler).await
    }

    /// A server with TLS for this name, and the root that signs for it.
    pub(crate) async fn start_tls(
        name: &str,
        handler: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> (Self, Arc<RootCertStore>) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        (Self::serve(Some(TlsAcceptor::from(Arc::new(config))), handler).await, Arc::new(roots))
    }

    async fn serve(
        tls: Option<TlsAcceptor>,
        handler: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let endpoint = Endpoint::parse(&url, PlainHttp::Loopback).unwrap();
        let (received, flooded) = (Arc::<Mutex<Vec<Received>>>::default(), Arc::<AtomicUsize>::default());
        let (seen, sent, handler) =
            (Arc::clone(&received), Arc::clone(&flooded), Arc::new(handler) as Arc<Handler>);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, seen, sent) = (tls.clone(), Arc::clone(&seen), Arc::clone(&sent));
                let handler = Arc::clone(&handler);
                connections.spawn(async move {
                    // The client may close the connection at any time.
                    let _ = match tls {
                        None => respond(stream, &*handler, &seen, &sent).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => respond(stream, &*handler, &seen, &sent).await,
                            Err(error) => Err(error),
                        },
                    };
                });
            }
        });
        Self { endpoint, received, flooded, _tasks: tasks }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    /// Bytes of a flood that were sent.
    pub(crate) fn flooded(&self) -> usize {
        self.flooded.load(Ordering::Relaxed)
    }
}

async fn respond(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: &Handler,
    seen: &Mutex<Vec<Received>>,
    flooded: &AtomicUsize,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut received = Received::default();
    stream.read_line(&mut received.line).await?;
    received.line.truncate(received.line.trim_end().trim_end_matches(" HTTP/1.1").len());
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        received.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = received.header("content-length").parse().unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    received.body = String::from_utf8(body).unwrap();
    seen.lock().push(received.clone());
    let reply = handler(&received);
    reply.send(&mut stream, flooded).await
}
