//! Closes connections when the process was paused.
//!
//! A request that passed the fence and handed over its body may still be in a buffer of HTTP/2 or TLS, where nobody can
//! cancel it. If the process is paused at that moment (SIGSTOP, a frozen container, a suspended host), it would send the
//! request when it resumes, when the lease may have another holder. So after a pause the connection refuses to write, below all
//! buffers: where bytes go to the kernel. Calls fail as with any lost connection, and retries pass the fence again.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::warn;
use vk_supervisor::Clock;

/// The longest harmless pause: at least this much of the lease is left when the fence closes.
const MAX_STALL: Duration = Duration::from_secs(1);

/// How often the detector checks the clocks.
const CHECK_PERIOD: Duration = Duration::from_millis(200);

static GLOBAL: LazyLock<Arc<StallDetector>> = LazyLock::new(StallDetector::start);

/// Detects that the process did not run for a while.
pub(crate) struct StallDetector {
    now: Box<dyn Fn() -> ClockReading + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    last: ClockReading,
    stalls: u64,
}

/// A reading of two clocks, as in the fence: the monotonic clock stops while the host is suspended, and the wall clock can be
/// set back. A wall clock that is set forward looks like a pause and costs a connection.
#[derive(Clone, Copy)]
struct ClockReading {
    steady: Instant,
    wall: Timestamp,
}

/// A connection that rejects writes once the process was paused. Reads still work.
pub(crate) struct StallGuard<S> {
    inner: S,
    detector: Arc<StallDetector>,
    /// The number of stalls when the connection was made.
    stalls: u64,
}

// === impl StallDetector ===

impl StallDetector {
    /// The detector of this process.
    pub(crate) fn global() -> Arc<Self> {
        Arc::clone(&GLOBAL)
    }

    fn new(now: impl Fn() -> ClockReading + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { last: now(), stalls: 0 });
        Self { now: Box::new(now), state }
    }

    /// Starts a thread, not a task: a busy runtime is not a paused process.
    fn start() -> Arc<Self> {
        let clock = Clock::system();
        let detector = Arc::new(Self::new(move || ClockReading::now(&clock)));
        let background = Arc::clone(&detector);
        let thread = thread::Builder::new().name("stall-detector".to_owned()).spawn(move || {
            loop {
                thread::sleep(CHECK_PERIOD);
                background.check_clocks();
            }
        });
        if let Err(error) = thread {
            // Still safe: every idle time then looks like a pause.
            warn!(%error, "cannot start the stall detector: idle connections to the API server will be closed");
        }
        detector
    }

    /// Checks for a stall and returns the number of stalls so far. The clocks are read under the lock: after a pause, the first
    /// caller counts it before any other gets an answer.
    fn check_clocks(&self) -> u64 {
        let (stalls, gap) = {
            let mut state = self.state.lock();
            let now = (self.now)();
            let gap = now.since(state.last);
            state.stalls += u64::from(gap > MAX_STALL);
            state.last = now;
            (state.stalls, gap)
        };
        if gap > MAX_STALL {
            warn!(?gap, "the process was paused: dropping unsent requests to the API server");
        }
        stalls
    }
}

// === impl ClockReading ===

impl ClockReading {
    #[expect(
        clippy::disallowed_methods,
        reason = "stalls are measured in real time, not in tokio's test time"
    )]
    fn now(clock: &Clock) -> Self {
        Self { steady: Instant::now(), wall: clock.now() }
    }

    /// The time since an earlier reading, by the clock that shows more.
    fn since(self, earlier: Self) -> Duration {
        let steady = self.steady.saturating_duration_since(earlier.steady);
        let wall = Duration::try_from(self.wall.duration_since(earlier.wall)).unwrap_or_default();
        steady.max(wall)
    }
}

// === impl StallGuard ===

impl<S> StallGuard<S> {
    /// Wraps a new connection.
    pub(crate) fn new(inner: S, detector: Arc<StallDetector>) -> Self {
        let stalls = detector.check_clocks();
        Self { inner, detector, stalls }
    }

    /// Fails forever after a stall.
    fn check(&self) -> io::Result<()> {
        if self.detector.check_clocks() == self.stalls {
            return Ok(());
        }
        let reason = "the process was paused: unsent data is dropped";
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    /// Allowed: it sends no data.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<S: Connection> Connection for StallGuard<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests;
