//! What is no call on an object: an answer that is read as it comes, a connection that changes its protocol, a path of
//! another API.
//!
//! Answers that may last for hours and connections that are given away need connections of their own, and the protocol of a
//! connection can be changed in HTTP/1.1 only: they go where the watches go.

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
    objects::{CALL_LIMIT, limited},
};

/// What a server may take to agree to another protocol: it asks a kubelet, and that asks a container runtime.
const UPGRADE_LIMIT: Duration = Duration::from_secs(30);
/// The most that is read of an answer that is a refusal.
const LONGEST_REFUSAL: usize = 64 << 10;
/// The most that is shown of one that is no Status: it may be the page of a proxy.
const SHOWN: usize = 500;

/// A connection whose protocol was changed.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// Why the protocol of a connection was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeError {
    /// What was said.
    pub error: Error,
    /// Whether the API server has said it, in a Status. What is no Status comes from a server behind it or before it, such as
    /// one that does not know the protocol.
    pub is_status: bool,
}

impl Client {
    /// Reads what is at a path, such as an API that has no types here.
    pub async fn read<T: DeserializeOwned>(&self, resource: &str, path: &str) -> Result<T, Error> {
        let text = self.read_text(resource, path).await?;
        serde_json::from_str(&text).map_err(|error| {
            Error::new(Kind::Server, format!("the answer is not what it should be: {error}"))
        })
    }

    /// The same as text.
    pub async fn read_text(&self, resource: &str, path: &str) -> Result<String, Error> {
        let result = async {
            let request = Request::get(path).body(Vec::new()).map_err(|error| unusable(&error))?;
            let kube = self.kube();
            limited(kube.request_text(request)).await
        }
        .await;
        self.metrics().count("get", resource, &result);
        result
    }

    /// Opens what is at a path, to be read as it comes. Without a time limit but for the connection: a kubelet does not even
    /// begin to answer before there is something to say, such as the next line of a log. Dropping the stream closes it.
    pub async fn stream(
        &self,
        resource: &str,
        path: &str,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, Error> {
        let result = async {
            let request = Request::get(path).body(Body::empty()).map_err(|error| unusable(&error))?;
            let response = self.kube_for_watches().send(request).await.map_err(Error::from)?;
            if !response.status().is_success() {
                return Err(refusal(response).await.error);
            }
            Ok(response.into_body().into_data_stream().map_err(io::Error::other).boxed())
        }
        .await;
        self.metrics().count("stream", resource, &result);
        result
    }

    /// Asks for another protocol on the connection. The request has the headers of the upgrade; the answer is that of a
    /// server that has agreed.
    pub async fn upgrade(
        &self,
        resource: &str,
        request: Request<()>,
    ) -> Result<(Parts, Upgraded), UpgradeError> {
        let result = self.switch(request).await;
        self.metrics().count("connect", resource, &result.as_ref().map_err(|refused| refused.error.clone()));
        result
    }

    async fn switch(&self, request: Request<()>) -> Result<(Parts, Upgraded), UpgradeError> {
        let silent = |error| UpgradeError { error, is_status: false };
        let kube = self.kube_for_watches();
        let asking = Box::pin(kube.send(request.map(|()| Body::empty())));
        let mut response = match tokio::time::timeout(UPGRADE_LIMIT, asking).await {
            Ok(answer) => answer.map_err(|error| silent(Error::from(error)))?,
            Err(_) => return Err(silent(Error::timeout(UPGRADE_LIMIT))),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        let upgraded = hyper::upgrade::on(&mut response)
            .await
            .map_err(|error| silent(Error::new(Kind::Unreachable, error.to_string())))?;
        Ok((response.into_parts().0, TokioIo::new(upgraded)))
    }
}

fn unusable(error: &http::Error) -> Error {
    Error::new(Kind::Invalid, format!("the address is none: {error}"))
}

/// An answer that is not what was asked for.
async fn refusal(response: Response<Body>) -> UpgradeError {
    let code = response.status();
    let reading = Limited::new(response.into_body(), LONGEST_REFUSAL).collect();
    let body = match tokio::time::timeout(CALL_LIMIT, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        // The code says enough.
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    told(code, &body)
}

fn told(code: StatusCode, body: &[u8]) -> UpgradeError {
    // Each field of a Status may be absent, so that any object could be one.
    if let Ok(status) = serde_json::from_slice::<Status>(body)
        && status.code >= 400
    {
        return UpgradeError { error: kube::Error::Api(status.boxed()).into(), is_status: true };
    }
    let said: String = String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect();
    let message = if said.is_empty() { code.to_string() } else { format!("{code}: {said}") };
    let status = Status { code: code.as_u16(), message, ..Status::default() };
    UpgradeError { error: kube::Error::Api(status.boxed()).into(), is_status: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_status_are_told_from_those_of_whoever_stands_between() {
        let status = br#"{"kind":"Status","status":"Failure","message":"pods \"a\" not found","reason":"NotFound","code":404}"#;
        let refused = told(StatusCode::NOT_FOUND, status);
        assert!(refused.is_status);
        assert_eq!(
            (refused.error.kind, refused.error.message.as_str()),
            (Kind::NotFound, "pods \"a\" not found")
        );

        let refused = told(StatusCode::FORBIDDEN, b"<html>no</html>\n");
        assert!(!refused.is_status);
        assert_eq!(refused.error, Error::new(Kind::Forbidden, "403 Forbidden: <html>no</html>"));

        let refused = told(StatusCode::BAD_GATEWAY, b"{}");
        assert_eq!((refused.is_status, refused.error.kind), (false, Kind::Server));
        assert_eq!(told(StatusCode::OK, b"").error.message, "200 OK");
        assert_eq!(
            told(StatusCode::IM_A_TEAPOT, &[b'x'; 9000]).error.message.len(),
            "418 I'm a teapot: ".len() + SHOWN
        );
    }
}
