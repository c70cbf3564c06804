//! The task behind a client's streams. It lives as long as any of them, and no longer.

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

/// Keeps a task running; when the last of its copies is dropped the task is aborted.
#[derive(Clone, Debug)]
pub(super) struct Task {
    _running: Arc<JoinSet<()>>,
}

impl Task {
    pub(super) fn start(task: impl Future<Output = ()> + Send + 'static) -> Self {
        let mut running = JoinSet::new();
        running.spawn(task);
        Self { _running: Arc::new(running) }
    }
}

/// A stream that needs a task.
#[derive(Debug)]
pub(super) struct With<T> {
    pub(super) stream: T,
    pub(super) _task: Task,
}

impl<T: AsyncRead + Unpin> AsyncRead for With<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for With<T> {
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
