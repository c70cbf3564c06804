//! How long and how much a session may be, and how it ended.

use std::time::Duration;

/// Limits of a session. The defaults are a kubelet's, where a kubelet has the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// A session in which no byte moved for so long is ended. 4 hours; zero is never, as in Go.
    pub idle: Duration,
    /// What a client may take to open its streams, and another server to answer when we are the client. 30 seconds.
    pub creation: Duration,
    /// What a client may take to read the end of a session that is over, and to close the connection. 5 seconds.
    pub linger: Duration,
    /// How often a ping is sent. It finds out about a client that has gone while its input waits for a process that does
    /// not read, which is when nobody reads from the connection either. 30 seconds; `None` is never.
    pub keepalive: Option<Duration>,
    /// The largest WebSocket message, in bytes. 32 MiB: clients exist that send a whole file in one.
    pub max_message: usize,
}

impl Default for Limits {
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

impl Limits {
    /// How long nothing may move.
    pub(crate) fn idle(&self) -> Duration {
        if self.idle.is_zero() { Duration::MAX } else { self.idle }
    }

    /// How long a client may take to read what was sent to it. It may have stopped its output for a while, and must not lose
    /// the rest because the process has ended; but one that has not moved for all the idle time is not waited for again.
    pub(crate) fn patience(&self, end: &End) -> Duration {
        if *end == End::Idle { self.linger } else { self.idle() }
    }
}

/// What became of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Bytes of the client that reached the pod.
    pub received: u64,
    /// Bytes of the pod that were sent to the client.
    pub sent: u64,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The process ended, and the client was told so.
    Exited(i32),
    /// The provider failed, and the client was told why.
    Failed(String),
    /// All connections were closed in order.
    Done,
    /// The client went away.
    ClientGone,
    /// No byte moved for the time that `Limits` gives.
    Idle,
    /// The client did not open its streams within [`Limits::creation`].
    NoStreams,
    /// The client broke the protocol.
    Protocol(String),
}
