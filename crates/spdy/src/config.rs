//! What can be set about a connection.

use std::time::Duration;

use crate::codec::Limits;

/// How a connection behaves. `Config::default()` is right for what Kubernetes does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// What the peer may make us hold in one frame.
    pub limits: Limits,
    /// How many streams of the peer there may be at a time; more are refused. Unset: 1,024 for a server, and none for a client,
    /// because no server of Kubernetes opens streams.
    pub max_streams: Option<usize>,
    /// How many bytes of headers all streams of the peer may hold together; streams over it are refused. 4 MiB.
    pub max_header_bytes: usize,
    /// How many bytes wait for the reader of one stream before the connection is read no further. 256 KiB.
    pub receive_buffer: usize,
    /// How many bytes wait for the readers of all streams together before the connection is read no further. 4 MiB.
    pub receive_total: usize,
    /// How many bytes of all streams wait for the carrier before writers have to wait; one stream may have a quarter. 1 MiB.
    pub send_buffer: usize,
    /// Whether to send PINGs, so that a dead peer is noticed and what lies between sees traffic.
    pub keep_alive: Option<KeepAlive>,
    /// The connection ends when no frame has passed either way for so long. PINGs count, as they do in Go. Zero: never.
    pub idle_timeout: Option<Duration>,
    /// How long an orderly close waits for a peer that takes nothing, and then for the peer to close its side. 5 s.
    pub linger: Duration,
}

/// PINGs that are sent without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// One is sent each time that this has passed. Zero: never.
    pub interval: Duration,
    /// The connection fails when nothing at all was received for so long after a PING. Time in which this side did not read,
    /// because a stream's reader is slow, does not count.
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_streams: None,
            max_header_bytes: 4 << 20,
            receive_buffer: 256 << 10,
            receive_total: 4 << 20,
            send_buffer: 1 << 20,
            keep_alive: None,
            idle_timeout: None,
            linger: Duration::from_secs(5),
        }
    }
}
