//! Port-forward: echoes the input, or answers an HTTP request.

use async_trait::async_trait;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    task::JoinSet,
};
use vk_provider::{
    Error, PodRef, Result,
    ability::{Forward, PortForward},
};

use super::{
    console::{OwnedDuplex, PIPE},
    pod_runs,
};
use crate::{fault::Call, mock::Mock};

/// A port on which nothing listens.
const CLOSED_PORT: u16 = 1;
/// The maximum size of a request head.
const MAX_HEAD: usize = 64 * 1024;

#[async_trait]
impl PortForward for Mock {
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward> {
        let guard = self.0.faults.enter(Call::PortForward).await?;
        guard.finish(self.connect(pod, port).await)
    }
}

impl Mock {
    async fn connect(&self, pod: &PodRef, port: u16) -> Result<Forward> {
        pod_runs(&self.0.connection, pod).await?;
        if port == CLOSED_PORT {
            return Err(Error::unavailable(format!("dial port {port} of pod {pod}: connection refused")));
        }
        let (ours, stream) = duplex(PIPE);
        let mut task = JoinSet::new();
        let name = pod.name.to_string();
        task.spawn(async move {
            // An error means that the client has disconnected.
            let _ = answer(ours, &name).await;
        });
        Ok(Forward::Stream(Box::new(OwnedDuplex { stream, _task: task })))
    }
}

async fn answer(mut stream: DuplexStream, pod: &str) -> std::io::Result<()> {
    let mut buffer = vec![0; PIPE];
    let mut first = true;
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        if first && is_http(&buffer[..length]) {
            return http(stream, buffer[..length].to_vec(), pod).await;
        }
        first = false;
        stream.write_all(&buffer[..length]).await?;
    }
}

fn is_http(bytes: &[u8]) -> bool {
    let methods = ["GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "PATCH "];
    methods.iter().any(|method| bytes.starts_with(method.as_bytes()))
}

/// Reads the head of a request, responds and closes.
async fn http(mut stream: DuplexStream, mut head: Vec<u8>, pod: &str) -> std::io::Result<()> {
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let body = format!("hello from {pod}\n");
    let shown = if head.starts_with(b"HEAD ") { "" } else { &body };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{shown}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
