//! Local servers. They end when they are dropped.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, Request, Response};
use http_body_util::{StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// A server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Requests, or the bytes before the response if the server does not speak HTTP.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

/// How a response is built.
pub(crate) fn body(frames: impl IntoIterator<Item = Frame<Bytes>>) -> Body {
    let frames: Vec<_> = frames.into_iter().map(Ok).collect();
    BoxBody::new(StreamBody::new(futures::stream::iter(frames)))
}

pub(crate) fn text(text: &str) -> Body {
    body([Frame::data(Bytes::copy_from_slice(text.as_bytes()))])
}

/// A body that ends with trailers.
pub(crate) fn trailed(data: &'static [u8], trailers: HeaderMap) -> Body {
    body([Frame::data(Bytes::from_static(data)), Frame::trailers(trailers)])
}

/// A body that begins and never ends.
pub(crate) fn endless(begins: &'static str, goes_on: bool) -> Body {
    let first = Bytes::from_static(begins.as_bytes());
    let stream = futures::stream::unfold(0_u64, move |sent| {
        let chunk = first.clone();
        async move {
            if sent > 0 && !goes_on {
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            Some((Ok(Frame::data(chunk)), sent + 1))
        }
    });
    BoxBody::new(StreamBody::new(SyncStream(Mutex::new(Box::pin(stream)))))
}

/// Boxed bodies must be `Sync`, which streams of async blocks here are not.
struct SyncStream(Mutex<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>);

impl futures::Stream for SyncStream {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.lock().as_mut().poll_next(cx)
    }
}

impl Server {
    async fn serve<F, W>(each: F) -> Self
    where
        F: Fn(TcpStream, Arc<Mutex<Vec<String>>>) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(each(stream, seen.clone()));
            }
        });
        Self { address, requests, _tasks: tasks }
    }

    /// HTTP/1.1.
    pub(crate) async fn http(
        answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::serve(move |stream, seen| speak(stream, false, answer.clone(), seen)).await
    }

    /// HTTP/2 without TLS, as in gRPC.
    pub(crate) async fn http2(
        answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::serve(move |stream, seen| speak(stream, true, answer.clone(), seen)).await
    }

    /// HTTP over TLS with a self-signed certificate; the HTTP version is negotiated.
    pub(crate) async fn https(
        protocols: &[&str],
        answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Self {
        let made = rcgen::generate_simple_self_signed(["nobody.example".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::serve(move |stream, seen| {
            let (acceptor, answer) = (acceptor.clone(), answer.clone());
            async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let second = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                speak(stream, second, answer, seen).await;
            }
        })
        .await
    }

    /// Sends this after it has received data, and then either closes or stays silent.
    pub(crate) async fn raw(says: &'static [u8], hangs_up: bool) -> Self {
        Self::serve(move |mut stream, seen| async move {
            let mut record_result = vec![0; 4096];
            let length = stream.read(&mut record_result).await.unwrap_or(0);
            seen.lock().push(String::from_utf8_lossy(&record_result[..length]).into_owned());
            let _ = stream.write_all(says).await;
            if !hangs_up {
                std::future::pending::<()>().await;
            }
        })
        .await
    }

    /// A port without a listener.
    pub(crate) async fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }
}

async fn speak<S>(
    stream: S,
    second: bool,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
    seen: Arc<Mutex<Vec<String>>>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        seen.lock().push(format!("{:?} {}", request.version(), request.uri()));
        let response = answer(&request);
        async move {
            if response.status() == http::StatusCode::IM_A_TEAPOT {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stream = TokioIo::new(stream);
    // Clients may disconnect at any time.
    let _ended = if second {
        conn::http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
    } else {
        conn::http1::Builder::new().serve_connection(stream, service).await
    };
}

/// A status that makes [`speak`] hang instead of answering.
pub(crate) fn never() -> Response<Body> {
    Response::builder().status(418).body(text("")).unwrap()
}
