//! One forwarded connection: bytes between the client's stream and the pod's port.

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

use super::Shared;
use crate::{
    client,
    meter::Meter,
    wire::{self, Broken, Input, Output, Way},
};

/// The most that is told of an error.
const LONGEST_ERROR: usize = 16 << 10;

/// The client's side of a connection.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) port: u16,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) error: Output,
    /// Whether the client can end its own direction alone. Where it cannot, the end of the pod's is the end.
    pub(super) half_close: bool,
}

/// How the bytes of a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum Relayed {
    /// In order.
    Done,
    /// One side broke it off.
    Broken,
    /// The pod's side broke it off, and said why.
    Failed(String),
}

/// A pod's side, and what it said when it failed. A connection that breaks has no words; one that another server could not
/// make has.
#[derive(Debug)]
struct Heard<R> {
    stream: R,
    words: Option<String>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Heard<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read
            && error.kind() == io::ErrorKind::Other
        {
            self.words = Some(error.to_string());
        }
        read
    }
}

impl Pair {
    /// Connects to the port and moves bytes until both directions have ended.
    pub(super) async fn serve(mut self, shared: &Shared) {
        match self.forward(shared).await {
            Ok(Relayed::Done) => {
                let _ = self.error.finish().await;
            }
            // A text would make kubectl give up all of its connections. This one just breaks, as it did at the other end.
            Ok(Relayed::Broken | Relayed::Failed(_)) => {
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

    /// The error is to be told to the client.
    async fn forward(&mut self, shared: &Shared) -> Result<Relayed, String> {
        // Meanwhile nobody reads what the client sends, and that holds up its other connections in the end.
        let limit = shared.limits.creation;
        let forward = match timeout(limit, (shared.dial)(self.port)).await {
            Ok(dialled) => dialled.map_err(|error| error.report())?,
            Err(_) => return Err(format!("no connection within {limit:?}")),
        };
        match forward {
            Forward::Stream(stream) => match self.relay(stream, &shared.meter).await {
                Relayed::Failed(words) => Err(words),
                relayed => Ok(relayed),
            },
            Forward::Url(url) => {
                let failed = |error: vk_provider::Error| error.report();
                let forwarder = client::forward(&url, &shared.limits).await.map_err(failed)?;
                let (stream, mut errors) = forwarder.pair(self.port).await.map_err(failed)?;
                let (relayed, told) = {
                    let relay = self.relay(stream, &shared.meter);
                    let told = errors.all(LONGEST_ERROR);
                    tokio::pin!(relay, told);
                    match future::select(relay, told).await {
                        Either::Left((Relayed::Done, _)) => (Relayed::Done, Vec::new()),
                        Either::Left((broken, told)) => {
                            // What broke it stands on the other server's error stream.
                            let told = timeout(shared.limits.linger, told).await;
                            (broken, told.map(|(told, _)| told).unwrap_or_default())
                        }
                        Either::Right(((told, _), relay)) if told.is_empty() => (relay.await, told),
                        Either::Right(((told, _), _)) => (Relayed::Broken, told),
                    }
                };
                if told.is_empty() { Ok(relayed) } else { Err(String::from_utf8_lossy(&told).into_owned()) }
            }
        }
    }

    async fn relay(&mut self, stream: BoxDuplex, meter: &Meter) -> Relayed {
        let Self { input, output, half_close, .. } = self;
        let (from_pod, mut to_pod) = tokio::io::split(stream);
        let mut from_pod = Heard { stream: from_pod, words: None };
        let inward = async {
            match wire::inward(input, &mut to_pod, meter, Way::ToPod).await {
                Ok(()) => Ok(()),
                Err(Broken::Source) => Err(()),
                // The pod takes no more, and may still have something to say.
                Err(Broken::Destination) => {
                    wire::discard(input).await;
                    Ok(())
                }
            }
        };
        let outward = async {
            wire::outward(&mut from_pod, output, meter, Way::ToClient).await.map_err(|_| ())?;
            output.finish().await.map_err(|_| ())
        };
        let (inward, outward) = (Box::pin(inward), Box::pin(outward));
        let ended = match future::select(inward, outward).await {
            Either::Left((Ok(()), outward)) => outward.await,
            Either::Right((Ok(()), inward)) if *half_close => {
                // A client that resets the stream now has what it wanted.
                let _ = inward.await;
                Ok(())
            }
            Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
        };
        match (ended, from_pod.words) {
            (Ok(()), _) => Relayed::Done,
            (Err(()), Some(words)) => Relayed::Failed(words),
            (Err(()), None) => Relayed::Broken,
        }
    }
}
