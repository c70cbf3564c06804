//! HTTP as probes and hooks speak it: one GET on a connection of its own, no proxy, no verification, redirects on the same host
//! only.

mod url;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, LOCATION, REFERER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;

use self::url::Url;
use super::{
    dial::{self, Beside, Driver, First, Watched, beside, drive},
    prober::Outcome,
    tls,
};

/// As much of a body as is read.
const MOST_BODY: usize = 10 << 10;

/// After so many requests a redirect is not followed any more.
const MOST_REQUESTS: usize = 10;

/// The version of the kubelet that we are like, for servers that know it by its name.
const VERSION: &str = "1.36";

/// What Go says when TLS was asked for and plain HTTP came back; hooks are tried again without TLS then.
const PLAIN: &str = "http: server gave HTTP response to HTTPS client";

/// A client.
pub(crate) struct Web {
    tls: Arc<ClientConfig>,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Get {
    url: Url,
    /// In place of the URL's host.
    host: Option<HeaderValue>,
    headers: HeaderMap,
    /// Why it cannot be sent. Found out when it is, as by a kubelet, for which this is a failure of the probe.
    wrong: Option<String>,
}

/// An answer whose body is yet to be read.
struct Answer {
    response: Response<Incoming>,
    driver: Driver,
    _sender: Sender,
}

/// What a request was sent with: the connection ends when it is gone.
enum Sender {
    One(#[expect(dead_code, reason = "held")] conn::http1::SendRequest<Empty<Bytes>>),
    Two(#[expect(dead_code, reason = "held")] conn::http2::SendRequest<Empty<Bytes>>),
}

// === impl Get ===

impl Get {
    /// The request that a probe or hook describes. The purpose is part of the user agent.
    pub(crate) fn new(
        action: &HTTPGetAction,
        container: &Container,
        host: &str,
        purpose: &str,
    ) -> Result<Self, String> {
        let port = dial::port(&action.port, container)?;
        let scheme = action.scheme.as_deref().filter(|scheme| !scheme.is_empty()).unwrap_or("http");
        let url =
            Url::new(&scheme.to_ascii_lowercase(), host, port, action.path.as_deref().unwrap_or_default());
        let mut headers = HeaderMap::new();
        let mut wrong = None;
        for header in action.http_headers.iter().flatten() {
            match (
                HeaderName::from_bytes(header.name.as_bytes()),
                HeaderValue::from_bytes(header.value.as_bytes()),
            ) {
                (Ok(name), Ok(value)) => _ = headers.append(name, value),
                (Err(_), _) => wrong = Some(format!("net/http: invalid header field name {:?}", header.name)),
                (_, Err(_)) => {
                    wrong = Some(format!("net/http: invalid header field value for {:?}", header.name));
                }
            }
        }
        let host = headers.remove(HOST).filter(|host| !host.is_empty());
        if !headers.contains_key(USER_AGENT) {
            let agent = HeaderValue::try_from(format!("kube-{purpose}/{VERSION}"));
            headers.insert(USER_AGENT, agent.map_err(|error| error.to_string())?);
        }
        match headers.get(ACCEPT).map(HeaderValue::is_empty) {
            None => _ = headers.insert(ACCEPT, HeaderValue::from_static("*/*")),
            // Given and empty: to be left out.
            Some(true) => _ = headers.remove(ACCEPT),
            Some(false) => {}
        }
        Ok(Self { url, host, headers, wrong })
    }

    /// The host and port that are asked.
    pub(crate) fn authority(&self) -> String {
        self.url.authority()
    }

    /// The same without TLS, and without what must not be sent without it.
    pub(crate) fn without_tls(&self) -> Self {
        let mut plain = self.clone();
        "http".clone_into(&mut plain.url.scheme);
        plain.headers.remove(http::header::AUTHORIZATION);
        plain
    }

    /// All headers in the order in which a kubelet writes them.
    fn in_order(&self) -> HeaderMap {
        let mut ordered = HeaderMap::new();
        let host = self.host.clone().or_else(|| HeaderValue::try_from(self.url.authority()).ok());
        ordered.extend(host.map(|host| (HOST, host)));
        let mut names: Vec<&HeaderName> = self.headers.keys().collect();
        names.sort_by_key(|name| (*name != USER_AGENT, name.as_str()));
        for name in names {
            for value in self.headers.get_all(name) {
                ordered.append(name, value.clone());
            }
        }
        ordered.append(CONNECTION, HeaderValue::from_static("close"));
        ordered
    }

    /// Goes where a redirect points.
    fn redirect(&mut self, next: Url, relative: bool) {
        if !relative {
            self.host = None;
        }
        if !(self.url.scheme == "https" && next.scheme == "http")
            && let Ok(from) = HeaderValue::try_from(self.url.to_string())
        {
            self.headers.insert(REFERER, from);
        }
        self.url = next;
    }
}

// === impl Web ===

impl Web {
    pub(super) fn new() -> Result<Self, rustls::Error> {
        Ok(Self { tls: tls::config()? })
    }

    /// Probes.
    pub(super) async fn probe(&self, mut get: Get, limit: Duration) -> Outcome {
        let deadline = Instant::now() + limit;
        let mut answer = match timeout_at(deadline, self.follow(&mut get)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return Outcome::Failure(why),
            Err(_) => {
                return Outcome::Failure(format!(
                    "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                    get.url
                ));
            }
        };
        let body = match timeout_at(deadline, answer.body()).await {
            Ok(Ok(body)) => body,
            Ok(Err(message)) => return Outcome::Error { state: "failure", message },
            Err(_) => {
                let message =
                    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
                return Outcome::Error { state: "failure", message: message.to_owned() };
            }
        };
        match answer.response.status().as_u16() {
            200..300 => Outcome::Success,
            300..400 => Outcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&body)
            )),
            status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        }
    }

    /// Sends a request and waits until all of the answer is there, whatever it is.
    pub(crate) async fn ask(&self, get: &Get) -> Result<(), String> {
        let mut answer = self.follow(&mut get.clone()).await?;
        let length = answer
            .response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        if length.is_none_or(|length: usize| length <= MOST_BODY) {
            // It has answered: a body that breaks off changes nothing.
            let _broken = answer.body().await;
        }
        Ok(())
    }

    /// Whether [`ask`](Self::ask) failed because the server does not speak TLS.
    pub(crate) fn is_plain(why: &str) -> bool {
        why.ends_with(PLAIN)
    }

    /// Sends a request and follows redirects on the same host.
    async fn follow(&self, get: &mut Get) -> Result<Answer, String> {
        let first = get.url.host.clone();
        let mut requests = 0;
        loop {
            let failed = |why: String, url: &Url| format!("Get \"{url}\": {why}");
            let answer = self.send(get).await.map_err(|why| failed(why, &get.url))?;
            requests += 1;
            let Some(location) = location(&answer.response) else { return Ok(answer) };
            let (next, relative) = get.url.join(&location).map_err(|why| {
                failed(format!("failed to parse Location header {location:?}: {why}"), &get.url)
            })?;
            if next.host != first {
                return Ok(answer);
            }
            if requests >= MOST_REQUESTS {
                return Err(failed("stopped after 10 redirects".to_owned(), &next));
            }
            get.redirect(next, relative);
        }
    }

    async fn send(&self, get: &Get) -> Result<Answer, String> {
        if let Some(wrong) = &get.wrong {
            return Err(wrong.clone());
        }
        let secure = match get.url.scheme.as_str() {
            "http" => false,
            "https" => true,
            other => return Err(format!("unsupported protocol scheme {other:?}")),
        };
        let stream = dial::connect(&get.url.host, get.url.port).await?;
        let ends = stream.local_addr().and_then(|here| Ok((here, stream.peer_addr()?)));
        let (stream, first) = Watched::new(stream);
        let answered =
            if secure { self.send_secure(get, stream, &first).await } else { one(get, stream).await };
        answered.map_err(|broken| broken.said(ends.ok()))
    }

    async fn send_secure(&self, get: &Get, stream: Watched, first: &First) -> Result<Answer, Broken> {
        let name =
            ServerName::try_from(get.url.host.clone()).map_err(|error| Broken::Said(error.to_string()))?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(|error| {
            if first.is_plain_http() { Broken::Said(PLAIN.to_owned()) } else { Broken::Tls(error) }
        })?;
        let second = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if second { two(get, stream).await } else { one(get, stream).await }
    }
}

// === impl Answer ===

impl Answer {
    /// The body, as much of it as is read.
    async fn body(&mut self) -> Result<Vec<u8>, String> {
        let body = self.response.body_mut();
        beside(&mut self.driver, async {
            let mut read = Vec::new();
            while read.len() < MOST_BODY {
                let Some(frame) = body.frame().await else { break };
                let frame = frame.map_err(|error| {
                    if error.is_incomplete_message() {
                        "unexpected EOF".to_owned()
                    } else {
                        error.to_string()
                    }
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
}

/// Why there is no answer on a connection.
enum Broken {
    Said(String),
    Tls(std::io::Error),
    Http(hyper::Error),
}

impl Broken {
    fn said(self, ends: Option<(std::net::SocketAddr, std::net::SocketAddr)>) -> String {
        use std::error::Error as _;
        let read = |error: &std::io::Error| match ends {
            Some((here, there)) => format!("read tcp {here}->{there}: read: {}", dial::said(error)),
            None => dial::said(error),
        };
        match self {
            Self::Said(text) => text,
            Self::Tls(error) => {
                let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                match alert {
                    Some(rustls::Error::AlertReceived(alert)) => format!("remote error: tls: {alert:?}"),
                    Some(other) => format!("tls: {other}"),
                    None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
                    None => read(&error),
                }
            }
            Self::Http(error) => {
                if let Some(io) = error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
                    return read(io);
                }
                if error.is_incomplete_message() {
                    "EOF".to_owned()
                } else if error.is_parse() {
                    format!(
                        "net/http: HTTP/1.x transport connection broken: malformed HTTP response: {error}"
                    )
                } else {
                    error.to_string()
                }
            }
        }
    }
}

/// HTTP/1.1.
async fn one<S>(get: &Get, stream: S) -> Result<Answer, Broken>
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
async fn two<S>(get: &Get, stream: S) -> Result<Answer, Broken>
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

/// Where an answer sends us, if it does.
fn location(response: &Response<Incoming>) -> Option<String> {
    let moved = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let location = response.headers().get(LOCATION).filter(|location| moved && !location.is_empty())?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}
