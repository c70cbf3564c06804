//! After a pause nothing is sent that was waiting.
//!
//! A request that has passed the fence and given its body away can still wait in this process: in the buffers of HTTP/2 and
//! of TLS, of which nobody can take it back. A process that is paused at that moment (SIGSTOP, a frozen container, a
//! machine that sleeps) would send it when it goes on, and by then another may have the lease. So the connection itself
//! ends with the pause, below all buffers: where bytes go to the kernel. Calls fail as they do with every connection that
//! is lost, and what is still wanted passes the fence anew.

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

/// A pause that is no longer than this does no harm: at least as much of the lease is left when the fence closes.
const LIMIT: Duration = Duration::from_secs(1);

/// How often the pulse beats by itself.
const BEAT: Duration = Duration::from_millis(200);

static OF_THIS_PROCESS: LazyLock<Arc<StallDetector>> = LazyLock::new(StallDetector::start);

/// Notices when the process did not run for a while.
pub(crate) struct StallDetector {
    now: Box<dyn Fn() -> Moment + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    last: Moment,
    pauses: u64,
}

/// By two clocks, as the fence has it: the steady one stands still while the machine sleeps, and the wall clock can be set
/// back. A wall clock that is set forward looks like a pause, and costs a connection.
#[derive(Clone, Copy)]
struct Moment {
    steady: Instant,
    wall: Timestamp,
}

/// A connection that takes nothing more to send once the process was paused. What comes in can be read.
pub(crate) struct StallGuard<S> {
    inner: S,
    pulse: Arc<StallDetector>,
    /// How many pauses there had been when the connection was made.
    pauses: u64,
}

// === impl StallDetector ===

impl StallDetector {
    /// The one of this process.
    pub(crate) fn of_this_process() -> Arc<Self> {
        Arc::clone(&OF_THIS_PROCESS)
    }

    fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { last: now(), pauses: 0 });
        Self { now: Box::new(now), state }
    }

    /// In a thread and not in a task: a runtime that is busy is not a process that is paused.
    fn start() -> Arc<Self> {
        let clock = Clock::system();
        let pulse = Arc::new(Self::new(move || Moment::now(&clock)));
        let beating = Arc::clone(&pulse);
        let thread = thread::Builder::new().name("pulse".to_owned()).spawn(move || {
            loop {
                thread::sleep(BEAT);
                beating.beat();
            }
        });
        if let Err(error) = thread {
            // Safe all the same: every silence then looks like a pause.
            warn!(%error, "cannot start a thread: connections to the API server end whenever they are idle");
        }
        pulse
    }

    /// Beats, and tells how many pauses there were until now. The clocks are read under the lock: of all who beat after a
    /// pause, the first one counts it before any other gets an answer.
    fn beat(&self) -> u64 {
        let (pauses, gap) = {
            let mut state = self.state.lock();
            let now = (self.now)();
            let gap = now.since(state.last);
            state.pauses += u64::from(gap > LIMIT);
            state.last = now;
            (state.pauses, gap)
        };
        if gap > LIMIT {
            warn!(?gap, "the process was paused: what waited to be sent to the API server is dropped");
        }
        pauses
    }
}

// === impl Moment ===

impl Moment {
    #[expect(
        clippy::disallowed_methods,
        reason = "a pause is one of real time, whatever a test does to tokio's"
    )]
    fn now(clock: &Clock) -> Self {
        Self { steady: Instant::now(), wall: clock.now() }
    }

    /// The time since then, by the clock that shows more.
    fn since(self, earlier: Self) -> Duration {
        let steady = self.steady.saturating_duration_since(earlier.steady);
        let wall = Duration::try_from(self.wall.duration_since(earlier.wall)).unwrap_or_default();
        steady.max(wall)
    }
}

// === impl StallGuard ===

impl<S> StallGuard<S> {
    /// A connection that was made just now.
    pub(crate) fn new(inner: S, pulse: Arc<StallDetector>) -> Self {
        let pauses = pulse.beat();
        Self { inner, pulse, pauses }
    }

    /// An error for ever, once there was a pause.
    fn check(&self) -> io::Result<()> {
        if self.pulse.beat() == self.pauses {
            return Ok(());
        }
        let reason = "the process was paused: nothing may be sent that was waiting";
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

    /// Sends no bytes but the end.
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
