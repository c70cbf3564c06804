//! Serves a host on a socket.

use std::io;

use futures::{StreamExt, stream::BoxStream};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
};
use vk_provider::{Error, PodChange};

use crate::{
    pod_host::PodHost,
    protocol::{self, ClientMessage, Response, ServerMessage},
};

/// The maximum number of queued responses per connection; then no more requests are read.
const QUEUE: usize = 64;

/// Serves the pods of a host on a socket until dropped. Connections end with it.
pub async fn serve(listener: UnixListener, host: PodHost) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                connections.spawn(connection(stream, host.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: UnixStream, host: PodHost) {
    let (read, mut write) = stream.into_split();
    let (lines, mut outgoing) = mpsc::channel::<Vec<u8>>(QUEUE);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Some(line) = outgoing.recv().await {
            if write.write_all(&line).await.is_err() {
                return;
            }
        }
    });
    let mut incoming = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        match incoming.read_until(b'\n', &mut line).await {
            Ok(length) if length > 0 => {}
            _ => return,
        }
        let answer = match serde_json::from_slice(&line) {
            Ok(ClientMessage::Ask { id, request }) => {
                ServerMessage::Answer { id, answer: host.apply(request).into() }
            }
            Ok(ClientMessage::Subscribe { node }) => {
                // Subscribed here and not in the task, because the client lists the pods next.
                tasks.spawn(forward(host.changes(&node), lines.clone()));
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "a client of the mock's backend sent an invalid message");
                return;
            }
        };
        if !send(&lines, &answer).await {
            return;
        }
    }
}

/// Sends the changes of a node's pods. A slow reader gets only the newest ones.
async fn forward(mut changes: BoxStream<'static, PodChange>, lines: mpsc::Sender<Vec<u8>>) {
    while let Some(change) = changes.next().await {
        let message = match change {
            PodChange::Status(pod, status) => ServerMessage::Change { pod, status: Some(status) },
            PodChange::Refresh(pod) => ServerMessage::Change { pod, status: None },
            _ => continue,
        };
        if !send(&lines, &message).await {
            return;
        }
    }
}

async fn send(lines: &mpsc::Sender<Vec<u8>>, message: &ServerMessage) -> bool {
    let line = protocol::line(message).or_else(|error: Error| match message {
        ServerMessage::Answer { id, .. } => {
            protocol::line(&ServerMessage::Answer { id: *id, answer: Response::from(Err(error)) })
        }
        ServerMessage::Change { .. } => Err(error),
    });
    match line {
        Ok(line) => lines.send(line).await.is_ok(),
        Err(error) => {
            tracing::warn!(%error, "cannot send a change of a pod");
            true
        }
    }
}
