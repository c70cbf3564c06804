//! The HTTP client of probes and hooks: one GET per connection, no proxy, no certificate verification, redirects on the same host only.

mod request;
mod response;
mod url;

use std::{sync::Arc, time::Duration};

use http::header::CONTENT_LENGTH;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub(crate) use self::request::HttpGet;
use self::response::{ExchangeError, HttpResponse, MAX_BODY, send_http1, send_http2};
use super::{
    connection::{self, FirstBytes, RecordingStream},
    prober::ProbeOutcome,
    tls,
};

/// Maximum number of requests of a redirect chain.
const MAX_REQUESTS: usize = 10;

/// Go's error if a TLS server answers in plain HTTP. Hooks are then retried without TLS.
const PLAIN_HTTP: &str = "http: server gave HTTP response to HTTPS client";

/// The HTTP client of probes and hooks.
pub(crate) struct HttpClient {
    tls: Arc<ClientConfig>,
}

// === impl Web ===

impl HttpClient {
    pub(super) fn new() -> Result<Self, rustls::Error> {
        Ok(Self { tls: tls::config()? })
    }

    /// Runs an HTTP probe.
    pub(super) async fn probe(&self, mut get: HttpGet, timeout: Duration) -> ProbeOutcome {
        let deadline = Instant::now() + timeout;
        let mut answer = match timeout_at(deadline, self.follow(&mut get)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return ProbeOutcome::Failure(why),
            Err(_) => {
                let over = if get.connected {
                    "context deadline exceeded"
                } else {
                    "net/http: request canceled while waiting for connection"
                };
                return ProbeOutcome::Failure(format!(
                    "Get \"{}\": {over} (Client.Timeout exceeded while awaiting headers)",
                    get.url
                ));
            }
        };
        let body = match timeout_at(deadline, answer.body()).await {
            Ok(Ok(body)) => body,
            Ok(Err(message)) => return ProbeOutcome::Error { state: "failure", message },
            Err(_) => {
                let message =
                    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
                return ProbeOutcome::Error { state: "failure", message: message.to_owned() };
            }
        };
        match answer.response.status().as_u16() {
            200..300 => ProbeOutcome::Success,
            300..400 => ProbeOutcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&body)
            )),
            status => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        }
    }

    /// Sends a request and reads the response, whatever its status.
    pub(crate) async fn request(&self, get: &HttpGet) -> Result<(), String> {
        let mut answer = self.follow(&mut get.clone()).await?;
        let length = answer
            .response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        if length.is_none_or(|length: usize| length <= MAX_BODY) {
            // An incomplete body is not an error.
            let _broken = answer.body().await;
        }
        Ok(())
    }

    /// Whether [`request`](Self::request) failed because the server does not speak TLS.
    pub(crate) fn is_plain_http(why: &str) -> bool {
        why.ends_with(PLAIN_HTTP)
    }

    /// Sends a request and follows redirects on the same host.
    async fn follow(&self, get: &mut HttpGet) -> Result<HttpResponse, String> {
        let first = get.url.host.clone();
        let mut requests = 0;
        loop {
            let answer = self.send(get).await.map_err(|why| format!("Get \"{}\": {why}", get.url))?;
            requests += 1;
            let Some(location) = answer.location() else { return Ok(answer) };
            let (next, relative) = get.url.join(&location).map_err(|why| {
                format!(
                    "Get \"{}\": failed to parse Location header {location:?}: parse {location:?}: {why}",
                    get.url
                )
            })?;
            if next.host != first {
                return Ok(answer);
            }
            if requests >= MAX_REQUESTS {
                return Err(format!("Get {location:?}: stopped after 10 redirects"));
            }
            get.redirect(next, relative);
        }
    }

    async fn send(&self, get: &mut HttpGet) -> Result<HttpResponse, String> {
        if let Some(invalid) = &get.invalid {
            return Err(invalid.clone());
        }
        let secure = match get.url.scheme.as_str() {
            "http" => false,
            "https" => true,
            other => return Err(format!("unsupported protocol scheme {other:?}")),
        };
        get.connected = false;
        let stream = connection::connect(&get.url.host, get.url.port).await?;
        let ends = stream.local_addr().and_then(|here| Ok((here, stream.peer_addr()?)));
        let (stream, first) = RecordingStream::new(stream);
        let answered = if secure {
            self.send_secure(get, stream, &first).await
        } else {
            get.connected = true;
            send_http1(get, stream).await
        };
        answered.map_err(|broken| broken.message(ends.ok(), &first))
    }

    async fn send_secure(
        &self,
        get: &mut HttpGet,
        stream: RecordingStream,
        first: &FirstBytes,
    ) -> Result<HttpResponse, ExchangeError> {
        let name = ServerName::try_from(get.url.host.clone())
            .map_err(|error| ExchangeError::Message(error.to_string()))?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(|error| {
            if first.is_plain_http() {
                ExchangeError::Message(PLAIN_HTTP.to_owned())
            } else {
                ExchangeError::Tls(error)
            }
        })?;
        get.connected = true;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if is_http2 { send_http2(get, stream).await } else { send_http1(get, stream).await }
    }
}
