//! Sending one request on a connection, and its response.

use std::{error::Error as _, io, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, header::LOCATION};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    super::connection::{ConnectionExecutor, Driver, FirstBytes, drive, drive_until},
    request::HttpGet,
};
use crate::text::io_error;

/// Maximum size of a body that is read, in bytes.
pub(super) const MAX_BODY: usize = 10 << 10;

/// A response whose body is not read yet.
pub(super) struct HttpResponse {
    pub(super) response: Response<Incoming>,
    driver: Driver,
    _sender: SenderGuard,
}

/// The sender of a request, which keeps the connection open.
enum SenderGuard {
    Http1(#[expect(dead_code, reason = "held")] conn::http1::SendRequest<Empty<Bytes>>),
    Http2(#[expect(dead_code, reason = "held")] conn::http2::SendRequest<Empty<Bytes>>),
}

/// Why there is no response.
pub(super) enum ExchangeError {
    Message(String),
    Tls(io::Error),
    Http(hyper::Error),
}

/// Sends a request with HTTP/1.1.
pub(super) async fn send_http1<S>(get: &HttpGet, stream: S) -> Result<HttpResponse, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ExchangeError::Http)?;
    let mut request = Request::new(Empty::new());
    *request.headers_mut() = get.in_order();
    *request.uri_mut() = get.url.target().map_err(ExchangeError::Message)?;
    let mut driver: Driver = Some(Box::pin(async move {
        // The error is returned by the request.
        let _broken = connection.await;
    }));
    let response =
        drive_until(&mut driver, sender.send_request(request)).await.map_err(ExchangeError::Http)?;
    Ok(HttpResponse { response, driver, _sender: SenderGuard::Http1(sender) })
}

/// Sends a request with HTTP/2.
pub(super) async fn send_http2<S>(get: &HttpGet, stream: S) -> Result<HttpResponse, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (executor, more) = ConnectionExecutor::new();
    let (mut sender, connection) =
        conn::http2::handshake(executor, TokioIo::new(stream)).await.map_err(ExchangeError::Http)?;
    let mut request = Request::new(Empty::new());
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = get.headers.clone();
    let host = get.host.as_ref().and_then(|host| host.to_str().ok().map(str::to_owned));
    *request.uri_mut() = get.url.absolute(host).map_err(ExchangeError::Message)?;
    let connection = async move {
        let _broken = connection.await;
    };
    let mut driver: Driver = Some(Box::pin(drive(connection, more)));
    let response =
        drive_until(&mut driver, sender.send_request(request)).await.map_err(ExchangeError::Http)?;
    Ok(HttpResponse { response, driver, _sender: SenderGuard::Http2(sender) })
}

// === impl Answer ===

impl HttpResponse {
    /// Reads the body, up to the maximum size.
    pub(super) async fn body(&mut self) -> Result<Vec<u8>, String> {
        let body = self.response.body_mut();
        drive_until(&mut self.driver, async {
            let mut read = Vec::new();
            while read.len() < MAX_BODY {
                let Some(frame) = body.frame().await else { break };
                let frame = frame.map_err(|error| {
                    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
                    let ended = io.is_some_and(|io| io.kind() == io::ErrorKind::UnexpectedEof);
                    if ended { "unexpected EOF".to_owned() } else { error.to_string() }
                })?;
                if let Ok(data) = frame.into_data() {
                    let room = MAX_BODY - read.len();
                    read.extend_from_slice(&data[..data.len().min(room)]);
                }
            }
            Ok(read)
        })
        .await
    }

    /// The target of a redirect.
    pub(super) fn location(&self) -> Option<String> {
        let moved = matches!(self.response.status().as_u16(), 301..=303 | 307 | 308);
        let location = self.response.headers().get(LOCATION);
        let location = location.filter(|location| moved && !location.is_empty())?;
        Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
    }
}

// === impl ExchangeError ===

impl ExchangeError {
    /// The kubelet's error message. `ends` are the local and remote address of the connection.
    pub(super) fn message(self, ends: Option<(SocketAddr, SocketAddr)>, first: &FirstBytes) -> String {
        let read = |error: &io::Error| match ends {
            Some((here, there)) => format!("read tcp {here}->{there}: read: {}", io_error(error)),
            None => io_error(error),
        };
        match self {
            Self::Message(text) => text,
            Self::Tls(error) => {
                let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                match alert {
                    Some(rustls::Error::AlertReceived(alert)) => format!("remote error: tls: {alert:?}"),
                    Some(rustls::Error::InvalidMessage(_)) => {
                        "tls: first record does not look like a TLS handshake".to_owned()
                    }
                    Some(other) => format!("tls: {other}"),
                    None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
                    None => read(&error),
                }
            }
            Self::Http(error) => {
                if let Some(io) = error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
                    return read(io);
                }
                if error.is_incomplete_message() {
                    "EOF".to_owned()
                } else if error.is_parse() {
                    let line = first.line();
                    format!(
                        "net/http: HTTP/1.x transport connection broken: malformed HTTP response {line:?}"
                    )
                } else {
                    error.to_string()
                }
            }
        }
    }
}
