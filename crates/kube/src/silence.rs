//! Drops connections that have fallen silent.
//!
//! A connection whose peer is gone without a word (a dropped NAT entry, a failed load balancer) looks alive until the pings of
//! HTTP/2 or the kernel give up on it. That is longer than a lease may take. Whoever waits in vain for an answer names the time
//! since when it waits: a connection that has received nothing since then is dropped, and the next request opens another.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures::task::AtomicWaker;
use hyper_util::client::legacy::connect::{Connected, Connection};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The open connections of one set of credentials.
#[derive(Default)]
pub(crate) struct OpenConnections(Mutex<Vec<Weak<ConnectionState>>>);

struct ConnectionState {
    last_read: Mutex<Instant>,
    dropped: AtomicBool,
    reader: AtomicWaker,
}

/// A connection that fails once it was found silent.
pub(crate) struct SilenceGuard<S> {
    inner: S,
    state: Arc<ConnectionState>,
}

// === impl OpenConnections ===

impl OpenConnections {
    /// Drops the connections that have received nothing since this time. Returns their number.
    pub(crate) fn drop_silent(&self, since: Instant) -> usize {
        let open: Vec<Arc<ConnectionState>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let silent = open.iter().filter(|state| *state.last_read.lock() < since);
        silent.filter(|state| state.drop_connection()).count()
    }

    fn register(&self) -> Arc<ConnectionState> {
        let state = Arc::new(ConnectionState {
            last_read: Mutex::new(Instant::now()),
            dropped: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        let mut open = self.0.lock();
        open.retain(|state| state.strong_count() > 0);
        open.push(Arc::downgrade(&state));
        state
    }
}

// === impl ConnectionState ===

impl ConnectionState {
    /// Returns whether it was open.
    fn drop_connection(&self) -> bool {
        let was_open = !self.dropped.swap(true, Ordering::AcqRel);
        self.reader.wake();
        was_open
    }

    fn check(&self) -> io::Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            let reason = "the connection has fallen silent: dropped";
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        Ok(())
    }
}

// === impl SilenceGuard ===

impl<S> SilenceGuard<S> {
    /// Wraps a new connection.
    pub(crate) fn new(inner: S, connections: &OpenConnections) -> Self {
        Self { inner, state: connections.register() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SilenceGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Registered before the check, so that no drop is missed.
        self.state.reader.register(context.waker());
        self.state.check()?;
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before {
            *self.state.last_read.lock() = Instant::now();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SilenceGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.state.check()?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.state.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<S: Connection> Connection for SilenceGuard<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    fn connection(connections: &OpenConnections) -> (SilenceGuard<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(64);
        (SilenceGuard::new(near, connections), far)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_dropped_for_who_reads_it_and_others_are_not() {
        let connections = OpenConnections::default();
        let (mut silent, _far) = connection(&connections);
        let (mut answered, mut peer) = connection(&connections);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let sent = Instant::now();
        let mut reader = Box::pin(async move {
            let error = silent.read_u8().await.unwrap_err();
            (error.kind(), silent.write_all(b"x").await.is_err())
        });
        assert!((&mut reader).now_or_never().is_none());
        tokio::time::sleep(Duration::from_secs(3)).await;
        peer.write_all(b"a").await.unwrap();
        assert_eq!(answered.read_u8().await.unwrap(), b'a');
        let (mut new, mut new_peer) = connection(&connections);
        assert_eq!(connections.drop_silent(sent), 1);
        assert_eq!(reader.await, (io::ErrorKind::TimedOut, true));
        assert_eq!(connections.drop_silent(sent), 0, "it is gone");
        for (connection, peer) in [(&mut answered, &mut peer), (&mut new, &mut new_peer)] {
            connection.write_all(b"y").await.unwrap();
            assert_eq!(peer.read_u8().await.unwrap(), b'y');
        }
    }
}
