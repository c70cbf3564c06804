//! The background task of a client's streams. It runs as long as any of them exists.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinSet,
};

/// Keeps a task running; it is aborted when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct BackgroundTask {
    _running: Arc<JoinSet<()>>,
}

impl BackgroundTask {
    pub(super) fn start(task: impl Future<Output = ()> + Send + 'static) -> Self {
        let mut running = JoinSet::new();
        running.spawn(task);
        Self { _running: Arc::new(running) }
    }
}

/// A stream that needs a background task.
#[derive(Debug)]
pub(super) struct TaskStream<T> {
    pub(super) stream: T,
    pub(super) _task: BackgroundTask,
}

impl<T: AsyncRead + Unpin> AsyncRead for TaskStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TaskStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
