//! HTTP as probes and hooks speak it: one GET on a connection of its own, no proxy, no verification, redirects on the same host
//! only.

mod exchange;
mod get;
mod url;

use std::{sync::Arc, time::Duration};

use http::header::CONTENT_LENGTH;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use self::exchange::{Answer, Broken, MOST_BODY, one, two};
pub(crate) use self::get::Get;
use super::{
    dial::{self, First, Watched},
    prober::Outcome,
    tls,
};

/// After so many requests a redirect is not followed any more.
const MOST_REQUESTS: usize = 10;

/// What Go says when TLS was asked for and plain HTTP came back; hooks are tried again without TLS then.
const PLAIN: &str = "http: server gave HTTP response to HTTPS client";

/// A client.
pub(crate) struct Web {
    tls: Arc<ClientConfig>,
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
                let over = if get.connected {
                    "context deadline exceeded"
                } else {
                    "net/http: request canceled while waiting for connection"
                };
                return Outcome::Failure(format!(
                    "Get \"{}\": {over} (Client.Timeout exceeded while awaiting headers)",
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
            if requests >= MOST_REQUESTS {
                return Err(format!("Get {location:?}: stopped after 10 redirects"));
            }
            get.redirect(next, relative);
        }
    }

    async fn send(&self, get: &mut Get) -> Result<Answer, String> {
        if let Some(wrong) = &get.wrong {
            return Err(wrong.clone());
        }
        let secure = match get.url.scheme.as_str() {
            "http" => false,
            "https" => true,
            other => return Err(format!("unsupported protocol scheme {other:?}")),
        };
        get.connected = false;
        let stream = dial::connect(&get.url.host, get.url.port).await?;
        let ends = stream.local_addr().and_then(|here| Ok((here, stream.peer_addr()?)));
        let (stream, first) = Watched::new(stream);
        let answered = if secure {
            self.send_secure(get, stream, &first).await
        } else {
            get.connected = true;
            one(get, stream).await
        };
        answered.map_err(|broken| broken.said(ends.ok(), &first))
    }

    async fn send_secure(&self, get: &mut Get, stream: Watched, first: &First) -> Result<Answer, Broken> {
        let name =
            ServerName::try_from(get.url.host.clone()).map_err(|error| Broken::Said(error.to_string()))?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(|error| {
            if first.is_plain_http() { Broken::Said(PLAIN.to_owned()) } else { Broken::Tls(error) }
        })?;
        get.connected = true;
        let second = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if second { two(get, stream).await } else { one(get, stream).await }
    }
}
