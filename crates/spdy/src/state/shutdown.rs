//! Closing a connection.

use super::{ConnectionState, Phase};
use crate::{
    Error,
    codec::{Frame, GoAwayStatus, ResetStatus},
};

impl ConnectionState {
    /// Writing to the transport failed. What the peer sent can still be read.
    pub(crate) fn fail_sending(&mut self, error: &Error) {
        self.send_failure = Some(error.clone());
        self.send_queue.clear();
        for stream in self.streams.values_mut() {
            stream.fail_local(error, &mut self.wakeups);
        }
    }

    /// Why writing failed.
    pub(crate) fn send_failure(&self) -> Option<Error> {
        self.send_failure.clone()
    }

    /// The connection's handle was dropped.
    pub(crate) fn drop_connection(&mut self) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.closed_locally = true;
            self.fail_all(&Error::Closed);
            self.end(Ok(()));
        }
    }

    /// After the peer's GOAWAY, the end of the last stream closes the connection.
    pub(super) fn close_if_drained(&mut self) {
        if self.received_go_away && self.streams.is_empty() && self.is_open() {
            self.start_close(Ok(()));
        }
    }

    /// Starts to close: resets open streams, and sends GOAWAY after everything that is queued.
    pub(crate) fn start_close(&mut self, result: Result<(), Error>) {
        if !self.is_open() {
            return;
        }
        self.closed_locally = !self.received_go_away;
        let reason = result.clone().err().unwrap_or(Error::Closed);
        let open: Vec<_> =
            self.streams.iter().filter(|(_, stream)| !stream.is_closed()).map(|(id, _)| *id).collect();
        for id in open {
            self.send_reset(id, ResetStatus::Cancel);
        }
        self.fail_all(&reason);
        let status = match &result {
            Err(Error::Protocol(_)) => GoAwayStatus::ProtocolError,
            _ => GoAwayStatus::Ok,
        };
        self.send_short(&Frame::GoAway { last_good: self.last_peer_id, status });
        self.phase = Phase::Closing(result);
        self.wake_driver();
    }

    /// The peer violated the protocol: drops everything that is queued, and sends GOAWAY.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.is_open() {
            self.send_queue.clear();
            for stream in self.streams.values_mut() {
                stream.fail(&error, &mut self.wakeups);
            }
            self.start_close(Err(error));
        } else {
            self.end(Err(error));
        }
    }

    /// Ends the connection.
    pub(crate) fn end(&mut self, result: Result<(), Error>) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        let reason = result.clone().err().unwrap_or(Error::PeerClosed);
        self.phase = Phase::Ended(result);
        self.fail_all(&reason);
        self.send_queue.clear();
        self.pings.clear();
        self.wakeups.ended = true;
        self.wake_driver();
    }

    /// Fails all streams; those not accepted yet are dropped.
    fn fail_all(&mut self, reason: &Error) {
        for id in std::mem::take(&mut self.backlog) {
            self.streams.remove(&id);
        }
        for stream in self.streams.values_mut() {
            stream.fail(reason, &mut self.wakeups);
        }
        self.blocked = None;
        self.wakeups.no_more = true;
    }
}
