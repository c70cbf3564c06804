//! How a connection ends.

use super::{Phase, State};
use crate::{
    Error,
    codec::{Frame, GoAwayStatus, ResetStatus},
};

impl State {
    /// The carrier takes nothing more. What the peer has sent can still be read.
    pub(crate) fn lose_outbound(&mut self, error: &Error) {
        self.outbound_failure = Some(error.clone());
        self.outbox.clear();
        for entry in self.streams.values_mut() {
            entry.lose_local(error, &mut self.signals);
        }
    }

    /// Why the carrier takes nothing more.
    pub(crate) fn outbound_failure(&self) -> Option<Error> {
        self.outbound_failure.clone()
    }

    /// Nobody holds the connection any more.
    pub(crate) fn abandon(&mut self) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.closed_here = true;
            self.lose_all(&Error::Closed);
            self.end(Ok(()));
        }
    }

    /// After the peer's GOAWAY, the last stream takes the connection with it.
    pub(super) fn leave_when_done(&mut self) {
        if self.gone_away && self.streams.is_empty() && self.is_open() {
            self.begin_close(Ok(()));
        }
    }

    /// Says good-bye: resets what is open, and sends GOAWAY after everything that is queued.
    pub(crate) fn begin_close(&mut self, result: Result<(), Error>) {
        if !self.is_open() {
            return;
        }
        self.closed_here = !self.gone_away;
        let reason = result.clone().err().unwrap_or(Error::Closed);
        let open: Vec<_> =
            self.streams.iter().filter(|(_, entry)| !entry.is_over()).map(|(id, _)| *id).collect();
        for id in open {
            self.rst(id, ResetStatus::Cancel);
        }
        self.lose_all(&reason);
        let status = match &result {
            Err(Error::Protocol(_)) => GoAwayStatus::ProtocolError,
            _ => GoAwayStatus::Ok,
        };
        self.short(&Frame::GoAway { last_good: self.last_peer_id, status });
        self.phase = Phase::Closing(result);
        self.wake_driver();
    }

    /// The peer broke the protocol: nothing more is worth sending but GOAWAY.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.is_open() {
            self.outbox.clear();
            for entry in self.streams.values_mut() {
                entry.lose(&error, &mut self.signals);
            }
            self.begin_close(Err(error));
        } else {
            self.end(Err(error));
        }
    }

    /// The end: nothing passes any more.
    pub(crate) fn end(&mut self, result: Result<(), Error>) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        let reason = result.clone().err().unwrap_or(Error::PeerClosed);
        self.phase = Phase::Ended(result);
        self.lose_all(&reason);
        self.outbox.clear();
        self.pings.clear();
        self.signals.ended = true;
        self.wake_driver();
    }

    /// Every stream is cut off; those that nobody has taken yet are dropped.
    fn lose_all(&mut self, reason: &Error) {
        for id in std::mem::take(&mut self.backlog) {
            self.streams.remove(&id);
        }
        for entry in self.streams.values_mut() {
            entry.lose(reason, &mut self.signals);
        }
        self.stalled = None;
        self.signals.no_more = true;
    }
}
