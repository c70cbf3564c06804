//! One forwarded connection: copies bytes between the client's stream and the pod's port.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures::future::{self, Either};
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::timeout,
};
use vk_provider::{
    Result,
    ability::{BoxDuplex, Forward},
};
use vk_spdy::ResetStatus;

use super::ForwardContext;
use crate::{
    activity::ActivityTracker,
    client,
    stream::{self, CopyError, Direction, StreamReader, StreamWriter},
};

/// Limit of an error text.
const MAX_ERROR: usize = 16 << 10;

/// The client's side of a connection.
#[derive(Debug)]
pub(super) struct ForwardedConnection {
    pub(super) port: u16,
    pub(super) input: StreamReader,
    pub(super) output: StreamWriter,
    pub(super) error: StreamWriter,
    /// Whether the client can close its direction alone. If not, the end of the pod's direction ends the connection.
    pub(super) half_close: bool,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum RelayEnd {
    /// Normally.
    Done,
    /// One side broke it.
    CopyError,
    /// The pod's side failed with an error text.
    Failed(String),
}

/// Captures the error text of the pod's side. A broken connection has none; one that another server could not establish has.
#[derive(Debug)]
struct ErrorCapture<R> {
    stream: R,
    error: Option<String>,
}

impl<R: AsyncRead + Unpin> AsyncRead for ErrorCapture<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read
            && error.kind() == io::ErrorKind::Other
        {
            self.error = Some(error.to_string());
        }
        read
    }
}

impl ForwardedConnection {
    /// Connects to the port and copies bytes until both directions have ended.
    pub(super) async fn serve(mut self, context: &ForwardContext) {
        match self.forward(context).await {
            Ok(RelayEnd::Done) => {
                let _ = self.error.finish().await;
            }
            // An error text would make kubectl close all its connections. This one just breaks, as it did at the other end.
            Ok(RelayEnd::CopyError | RelayEnd::Failed(_)) => {
                self.output.reset(ResetStatus::Cancel);
                let _ = self.error.finish().await;
            }
            Err(text) => {
                let text = format!("error forwarding port {}: {text}", self.port);
                tracing::debug!(port = self.port, %text, "port-forward failed");
                let _ = self.error.send(text.as_bytes()).await;
                let _ = self.error.finish().await;
                self.output.reset(ResetStatus::InternalError);
            }
        }
    }

    /// The error is reported to the client.
    async fn forward(&mut self, context: &ForwardContext) -> Result<RelayEnd, String> {
        // Meanwhile nobody reads the client's data, which eventually blocks its other connections.
        let limit = context.limits.creation;
        let forward = match timeout(limit, (context.dial)(self.port)).await {
            Ok(dialled) => dialled.map_err(|error| error.report())?,
            Err(_) => return Err(format!("no connection within {limit:?}")),
        };
        match forward {
            Forward::Stream(stream) => match self.relay(stream, &context.activity).await {
                RelayEnd::Failed(error) => Err(error),
                relayed => Ok(relayed),
            },
            Forward::Url(url) => {
                let failed = |error: vk_provider::Error| error.report();
                let forwarder = client::forward(&url, &context.limits).await.map_err(failed)?;
                let (stream, mut errors) = forwarder.connect_port(self.port).await.map_err(failed)?;
                let (relayed, error_text) = {
                    let relay = self.relay(stream, &context.activity);
                    let error_text = errors.read_all(MAX_ERROR);
                    tokio::pin!(relay, error_text);
                    match future::select(relay, error_text).await {
                        Either::Left((RelayEnd::Done, _)) => (RelayEnd::Done, Vec::new()),
                        Either::Left((broken, error_text)) => {
                            // The reason is on the other server's error stream.
                            let error_text = timeout(context.limits.linger, error_text).await;
                            (broken, error_text.map(|(error_text, _)| error_text).unwrap_or_default())
                        }
                        Either::Right(((error_text, _), relay)) if error_text.is_empty() => {
                            (relay.await, error_text)
                        }
                        Either::Right(((error_text, _), _)) => (RelayEnd::CopyError, error_text),
                    }
                };
                if error_text.is_empty() {
                    Ok(relayed)
                } else {
                    Err(String::from_utf8_lossy(&error_text).into_owned())
                }
            }
        }
    }

    async fn relay(&mut self, stream: BoxDuplex, activity: &ActivityTracker) -> RelayEnd {
        let Self { input, output, half_close, .. } = self;
        let (from_pod, mut to_pod) = tokio::io::split(stream);
        let mut from_pod = ErrorCapture { stream: from_pod, error: None };
        let inward = async {
            match stream::copy_from_peer(input, &mut to_pod, activity, Direction::ToPod).await {
                Ok(()) => Ok(()),
                Err(CopyError::Source) => Err(()),
                // The pod takes no more, but may still send.
                Err(CopyError::Destination) => {
                    stream::discard(input).await;
                    Ok(())
                }
            }
        };
        let outward = async {
            stream::copy_to_peer(&mut from_pod, output, activity, Direction::ToClient)
                .await
                .map_err(|_| ())?;
            output.finish().await.map_err(|_| ())
        };
        let (inward, outward) = (Box::pin(inward), Box::pin(outward));
        let ended = match future::select(inward, outward).await {
            Either::Left((Ok(()), outward)) => outward.await,
            Either::Right((Ok(()), inward)) if *half_close => {
                // A client that resets the stream now has received everything.
                let _ = inward.await;
                Ok(())
            }
            Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
        };
        match (ended, from_pod.error) {
            (Ok(()), _) => RelayEnd::Done,
            (Err(()), Some(error)) => RelayEnd::Failed(error),
            (Err(()), None) => RelayEnd::CopyError,
        }
    }
}
