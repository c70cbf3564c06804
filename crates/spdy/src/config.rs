//! Configuration of a connection.

use std::time::Duration;

use crate::codec::FrameLimits;

/// The configuration of a connection. `Config::default()` fits Kubernetes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Limits of a single frame.
    pub limits: FrameLimits,
    /// Concurrent streams of the peer; more are rejected. Unset: 1,024 for a server, and none for a client, because Kubernetes servers
    /// do not open streams.
    pub max_streams: Option<usize>,
    /// Total header bytes of all streams of the peer; streams over it are rejected. 4 MiB.
    pub max_header_bytes: usize,
    /// Bytes buffered for the reader of one stream before reading stops. 256 KiB.
    pub receive_buffer: usize,
    /// Bytes buffered for the readers of all streams before reading stops. 4 MiB.
    pub receive_total: usize,
    /// Bytes of all streams queued for sending before writers wait; one stream may use a quarter. 1 MiB.
    pub send_buffer: usize,
    /// Send PINGs, to detect a dead peer and to keep proxies from closing the connection.
    pub keep_alive: Option<KeepAlive>,
    /// The connection ends after this time without any frame in either direction. PINGs count, as in Go. Zero: never.
    pub idle_timeout: Option<Duration>,
    /// How long an orderly close waits for a peer that reads nothing, and then for the peer to close its side. 5 s.
    pub linger: Duration,
}

/// Periodic PINGs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The interval. Zero: never.
    pub interval: Duration,
    /// The connection fails if nothing was received for this time after a PING. Time in which this side did not read, because of a slow
    /// reader, does not count.
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: FrameLimits::default(),
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
