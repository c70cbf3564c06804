//! Requests that are not calls on objects: reads of any path, streamed responses, and upgrades to other protocols.
//!
//! Streams may last for hours, an upgraded connection is handed over, and upgrades need HTTP/1.1: so both use the transport for
//! watches, which opens a connection for each.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::{Request, Response, StatusCode, response::Parts};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use kube::{client::Body, core::Status};
use serde::de::DeserializeOwned;

use crate::{
    Client, Error, Kind,
    objects::{CALL_TIMEOUT, with_timeout},
};

/// Time limit for an upgrade: the API server asks a kubelet, which asks a container runtime.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes read of an error response.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Characters shown of an error response that is not a Status: it may be an HTML page of a proxy.
const MAX_ERROR_TEXT: usize = 500;

/// A connection after an upgrade.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// Why an upgrade failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeError {
    /// The error.
    pub error: Error,
    /// Whether the API server answered with a Status. Otherwise the answer comes from a server behind or in front of it, such as
    /// one that does not know the protocol.
    pub is_status: bool,
}

impl Client {
    /// Reads JSON at a path, such as an API without types here.
    pub async fn read<T: DeserializeOwned>(&self, resource: &str, path: &str) -> Result<T, Error> {
        let text = self.read_text(resource, path).await?;
        serde_json::from_str(&text)
            .map_err(|error| Error::new(Kind::Server, format!("cannot decode the answer: {error}")))
    }

    /// Reads text at a path.
    pub async fn read_text(&self, resource: &str, path: &str) -> Result<String, Error> {
        let result = async {
            let request = Request::get(path).body(Vec::new()).map_err(|error| invalid_path(&error))?;
            let kube = self.kube();
            with_timeout(kube.request_text(request)).await
        }
        .await;
        self.metrics().count("get", resource, &result);
        result
    }

    /// Opens a stream of what is at a path. Only connecting has a time limit: a kubelet does not answer before there is something to
    /// send, such as the next line of a log. Dropping the stream closes it.
    pub async fn stream(
        &self,
        resource: &str,
        path: &str,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, Error> {
        let result = async {
            let request = Request::get(path).body(Body::empty()).map_err(|error| invalid_path(&error))?;
            let response = self.kube_for_watches().send(request).await.map_err(Error::from)?;
            if !response.status().is_success() {
                return Err(error_response(response).await.error);
            }
            Ok(response.into_body().into_data_stream().map_err(io::Error::other).boxed())
        }
        .await;
        self.metrics().count("stream", resource, &result);
        result
    }

    /// Upgrades a connection to another protocol. The request carries the upgrade headers; returns the head of the 101 response and
    /// the connection.
    pub async fn upgrade(
        &self,
        resource: &str,
        request: Request<()>,
    ) -> Result<(Parts, Upgraded), UpgradeError> {
        let result = self.send_upgrade(request).await;
        self.metrics().count(
            "connect",
            resource,
            &result.as_ref().map_err(|rejected| rejected.error.clone()),
        );
        result
    }

    async fn send_upgrade(&self, request: Request<()>) -> Result<(Parts, Upgraded), UpgradeError> {
        let not_status = |error| UpgradeError { error, is_status: false };
        let kube = self.kube_for_watches();
        let asking = Box::pin(kube.send(request.map(|()| Body::empty())));
        let mut response = match tokio::time::timeout(UPGRADE_TIMEOUT, asking).await {
            Ok(answer) => answer.map_err(|error| not_status(Error::from(error)))?,
            Err(_) => return Err(not_status(Error::timeout(UPGRADE_TIMEOUT))),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(error_response(response).await);
        }
        let upgraded = hyper::upgrade::on(&mut response)
            .await
            .map_err(|error| not_status(Error::new(Kind::Unreachable, error.to_string())))?;
        Ok((response.into_parts().0, TokioIo::new(upgraded)))
    }
}

fn invalid_path(error: &http::Error) -> Error {
    Error::new(Kind::Invalid, format!("invalid request path: {error}"))
}

/// Reads an error response.
async fn error_response(response: Response<Body>) -> UpgradeError {
    let code = response.status();
    let reading = Limited::new(response.into_body(), MAX_ERROR_BODY).collect();
    let body = match tokio::time::timeout(CALL_TIMEOUT, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        // The status code is enough.
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    parse_error_body(code, &body)
}

fn parse_error_body(code: StatusCode, body: &[u8]) -> UpgradeError {
    // All fields of a Status are optional, so any JSON object parses as one: check the code.
    if let Ok(status) = serde_json::from_slice::<Status>(body)
        && status.code >= 400
    {
        return UpgradeError { error: kube::Error::Api(status.boxed()).into(), is_status: true };
    }
    let text: String = String::from_utf8_lossy(body).trim().chars().take(MAX_ERROR_TEXT).collect();
    let message = if text.is_empty() { code.to_string() } else { format!("{code}: {text}") };
    let status = Status { code: code.as_u16(), message, ..Status::default() };
    UpgradeError { error: kube::Error::Api(status.boxed()).into(), is_status: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_the_api_server_is_distinguished_from_answers_of_proxies() {
        let status = br#"{"kind":"Status","status":"Failure","message":"pods \"a\" not found","reason":"NotFound","code":404}"#;
        let rejected = parse_error_body(StatusCode::NOT_FOUND, status);
        assert!(rejected.is_status);
        assert_eq!(
            (rejected.error.kind, rejected.error.message.as_str()),
            (Kind::NotFound, "pods \"a\" not found")
        );

        let rejected = parse_error_body(StatusCode::FORBIDDEN, b"<html>no</html>\n");
        assert!(!rejected.is_status);
        assert_eq!(rejected.error, Error::new(Kind::Forbidden, "403 Forbidden: <html>no</html>"));

        let rejected = parse_error_body(StatusCode::BAD_GATEWAY, b"{}");
        assert_eq!((rejected.is_status, rejected.error.kind), (false, Kind::Server));
        assert_eq!(parse_error_body(StatusCode::OK, b"").error.message, "200 OK");
        assert_eq!(
            parse_error_body(StatusCode::IM_A_TEAPOT, &[b'x'; 9000]).error.message.len(),
            "418 I'm a teapot: ".len() + MAX_ERROR_TEXT
        );
    }
}
