//! SessionLimits and outcomes of sessions.

use std::time::Duration;

/// SessionLimits of a session. The defaults are the kubelet's, where it has the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLimits {
    /// A session without traffic for this time is ended. 4 hours; zero means never, as in Go.
    pub idle: Duration,
    /// Time limit for a client to open its streams, and for a server to answer when we are the client. 30 seconds.
    pub creation: Duration,
    /// Time limit for a client to read the end of a session and to close the connection. 5 seconds.
    pub linger: Duration,
    /// How often a ping is sent. It detects a client that disconnected while its input waits for a process that does not read: then
    /// nobody reads from the connection. 30 seconds; `None` means never.
    pub keepalive: Option<Duration>,
    /// The largest WebSocket message, in bytes. 32 MiB: some clients send a whole file in one message.
    pub max_message: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_hours(4),
            creation: Duration::from_secs(30),
            linger: Duration::from_secs(5),
            keepalive: Some(Duration::from_secs(30)),
            max_message: 32 << 20,
        }
    }
}

impl SessionLimits {
    /// The idle timeout.
    pub(crate) fn idle(&self) -> Duration {
        if self.idle.is_zero() { Duration::MAX } else { self.idle }
    }

    /// How long a client may take to read what was sent. It may have paused its output for a while, and must not lose the rest because
    /// the process has ended. A client that was idle for the idle timeout is not waited for again.
    pub(crate) fn drain_timeout(&self, end: &SessionEnd) -> Duration {
        if *end == SessionEnd::Idle { self.linger } else { self.idle() }
    }
}

/// The outcome of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOutcome {
    /// How it ended.
    pub end: SessionEnd,
    /// Bytes from the client to the pod.
    pub received: u64,
    /// Bytes from the pod to the client.
    pub sent: u64,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The process ended, and the client was told.
    Exited(i32),
    /// The provider failed, and the client was told why.
    Failed(String),
    /// All connections were closed normally.
    Done,
    /// The client disconnected.
    ClientGone,
    /// No byte moved for `SessionLimits::idle`.
    Idle,
    /// The client did not open its streams within [`SessionLimits::creation`].
    NoStreams,
    /// The client violated the protocol.
    Protocol(String),
}
