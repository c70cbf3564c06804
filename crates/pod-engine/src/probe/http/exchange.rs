//! One request and its answer, on a connection that is there.

use std::{error::Error as _, io, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, header::LOCATION};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use vk_provider::go_text::io_error;

use super::{
    super::dial::{Beside, Driver, First, beside, drive},
    get::Get,
};

/// As much of a body as is read.
pub(super) const MOST_BODY: usize = 10 << 10;

/// An answer whose body is yet to be read.
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    driver: Driver,
    _sender: Sender,
}

/// What a request was sent with: the connection ends when it is gone.
enum Sender {
    One(#[expect(dead_code, reason = "held")] conn::http1::SendRequest<Empty<Bytes>>),
    Two(#[expect(dead_code, reason = "held")] conn::http2::SendRequest<Empty<Bytes>>),
}

/// Why there is no answer on a connection.
pub(super) enum Broken {
    Said(String),
    Tls(io::Error),
    Http(hyper::Error),
}

/// HTTP/1.1.
pub(super) async fn one<S>(get: &Get, stream: S) -> Result<Answer, Broken>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(Broken::Http)?;
    let mut request = Request::new(Empty::new());
    *request.headers_mut() = get.in_order();
    *request.uri_mut() = get.url.target().map_err(Broken::Said)?;
    let mut driver: Driver = Some(Box::pin(async move {
        // What broke is told to whoever waits for the answer.
        let _broken = connection.await;
    }));
    let response = beside(&mut driver, sender.send_request(request)).await.map_err(Broken::Http)?;
    Ok(Answer { response, driver, _sender: Sender::One(sender) })
}

/// HTTP/2.
pub(super) async fn two<S>(get: &Get, stream: S) -> Result<Answer, Broken>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (executor, more) = Beside::new();
    let (mut sender, connection) =
        conn::http2::handshake(executor, TokioIo::new(stream)).await.map_err(Broken::Http)?;
    let mut request = Request::new(Empty::new());
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = get.headers.clone();
    let host = get.host.as_ref().and_then(|host| host.to_str().ok().map(str::to_owned));
    *request.uri_mut() = get.url.absolute(host).map_err(Broken::Said)?;
    let connection = async move {
        let _broken = connection.await;
    };
    let mut driver: Driver = Some(Box::pin(drive(connection, more)));
    let response = beside(&mut driver, sender.send_request(request)).await.map_err(Broken::Http)?;
    Ok(Answer { response, driver, _sender: Sender::Two(sender) })
}

// === impl Answer ===

impl Answer {
    /// The body, as much of it as is read.
    pub(super) async fn body(&mut self) -> Result<Vec<u8>, String> {
        let body = self.response.body_mut();
        beside(&mut self.driver, async {
            let mut read = Vec::new();
            while read.len() < MOST_BODY {
                let Some(frame) = body.frame().await else { break };
                let frame = frame.map_err(|error| {
                    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
                    let ended = io.is_some_and(|io| io.kind() == io::ErrorKind::UnexpectedEof);
                    if ended { "unexpected EOF".to_owned() } else { error.to_string() }
                })?;
                if let Ok(data) = frame.into_data() {
                    let room = MOST_BODY - read.len();
                    read.extend_from_slice(&data[..data.len().min(room)]);
                }
            }
            Ok(read)
        })
        .await
    }

    /// Where it sends us, if it does.
    pub(super) fn location(&self) -> Option<String> {
        let moved = matches!(self.response.status().as_u16(), 301..=303 | 307 | 308);
        let location = self.response.headers().get(LOCATION);
        let location = location.filter(|location| moved && !location.is_empty())?;
        Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
    }
}

// === impl Broken ===

impl Broken {
    /// In the words of a kubelet, which knows the two ends of the connection and what came first.
    pub(super) fn said(self, ends: Option<(SocketAddr, SocketAddr)>, first: &First) -> String {
        let read = |error: &io::Error| match ends {
            Some((here, there)) => format!("read tcp {here}->{there}: read: {}", io_error(error)),
            None => io_error(error),
        };
        match self {
            Self::Said(text) => text,
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
