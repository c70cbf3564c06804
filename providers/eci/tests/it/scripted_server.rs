//! An HTTP server on loopback that answers as a test says, also with what no service would send.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// A call that the server got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    /// The action.
    pub(crate) action: String,
    /// The parameters of query and form.
    pub(crate) parameters: BTreeMap<String, String>,
}

/// What the server does with a call.
pub(crate) enum Reply {
    /// Status, further header lines, content type and body.
    Answer(u16, &'static str, &'static str, String),
    /// Nothing, for ever.
    Stall,
    /// So many bytes.
    Flood(usize),
}

type Handler = dyn Fn(&Received) -> Reply + Send + Sync;

/// The server. It stops when it is dropped.
pub(crate) struct ScriptedServer {
    /// Its URL.
    pub(crate) url: String,
    received: Arc<Mutex<Vec<Received>>>,
    _tasks: JoinSet<()>,
}

// === impl Received ===

impl Received {
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }
}

// === impl Reply ===

impl Reply {
    /// A regular answer.
    pub(crate) fn json(body: &Value) -> Self {
        Self::Answer(200, "", "application/json;charset=utf-8", body.to_string())
    }

    /// A refusal.
    pub(crate) fn refusal(status: u16, code: &str, message: &str) -> Self {
        let body = json!({"Code": code, "Message": message, "RequestId": "1A2B-3C"});
        Self::Answer(status, "", "application/json", body.to_string())
    }

    async fn send(self, stream: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        match self {
            Self::Answer(status, more, kind, body) => {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n"
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await?;
            }
            Self::Stall => std::future::pending().await,
            Self::Flood(size) => {
                let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"ContainerGroups\":[\"";
                stream.write_all(head).await?;
                let part = vec![b'x'; 1 << 16];
                for _ in 0..size / part.len() {
                    stream.write_all(&part).await?;
                }
            }
        }
        stream.shutdown().await
    }
}

// === impl ScriptedServer ===

impl ScriptedServer {
    pub(crate) async fn start(handler: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve(None, handler).await
    }

    /// A server whose certificate nobody has signed.
    pub(crate) async fn start_tls(handler: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Self::serve(Some(TlsAcceptor::from(Arc::new(config))), handler).await
    }

    async fn serve(
        tls: Option<TlsAcceptor>,
        handler: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = if tls.is_some() {
            format!("https://localhost:{port}")
        } else {
            format!("http://127.0.0.1:{port}")
        };
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let (seen, handler) = (Arc::clone(&received), Arc::new(handler) as Arc<Handler>);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, seen, handler) = (tls.clone(), Arc::clone(&seen), Arc::clone(&handler));
                connections.spawn(async move {
                    // The client may close the connection at any time.
                    let _ = match tls {
                        None => respond(stream, &*handler, &seen).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => respond(stream, &*handler, &seen).await,
                            Err(error) => Err(error),
                        },
                    };
                });
            }
        });
        Self { url, received, _tasks: tasks }
    }

    /// The calls of an action so far.
    pub(crate) fn calls(&self, action: &str) -> Vec<Received> {
        self.received.lock().iter().filter(|one| one.action == action).cloned().collect()
    }
}

async fn respond(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: &Handler,
    seen: &Mutex<Vec<Received>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let mut parameters: BTreeMap<String, String> = pairs(query).collect();
    parameters.extend(pairs(&String::from_utf8_lossy(&body)));
    let action = headers.get("x-acs-action").cloned().unwrap_or_default();
    let received = Received { action, parameters };
    seen.lock().push(received.clone());
    handler(&received).send(&mut stream).await
}

fn pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((decoded(name), decoded(value)))
    })
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        match (first, after) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = tail;
            }
            (byte, tail) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
