//! What moves the bytes: between the carrier and the state.

mod intake;
mod outflow;
mod timers;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite};

use self::{
    intake::Intake,
    outflow::Outflow,
    timers::{Due, Timers},
};
use crate::{
    Error,
    state::{Phase, Shared},
};

/// Moves the bytes of a connection. Nothing happens unless it is polled: spawn it. It is ready when the connection has ended, with
/// the reason; dropping it ends the connection.
#[must_use = "a connection without its driver does nothing: spawn it"]
pub struct Driver<IO> {
    io: IO,
    shared: Arc<Shared>,
    intake: Intake,
    outflow: Outflow,
    timers: Timers,
    /// The carrier takes nothing more; what the peer has sent before is still read.
    mute: bool,
    /// Everything is written and the write side shut down: only the peer's end is waited for.
    lingers: bool,
}

/// After so many rounds other tasks have their turn.
const ROUNDS: usize = 64;

/// What one round has brought.
enum Round {
    Progress,
    Idle,
    End(Result<(), Error>),
}

impl<IO> Driver<IO> {
    pub(crate) fn new(io: IO, shared: Arc<Shared>) -> Self {
        let (limits, timers) = shared.with(|state| (state.config.limits, Timers::new(&state.config)));
        let (intake, outflow) = (Intake::new(limits), Outflow::default());
        Self { io, shared, intake, outflow, timers, mute: false, lingers: false }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    /// Writes once and reads once.
    fn round(&mut self, context: &mut Context<'_>) -> Round {
        let closing = self.shared.with(|state| match &state.phase {
            Phase::Open => Ok(None),
            Phase::Closing(result) => Ok(Some(result.clone())),
            Phase::Ended(result) => Err(result.clone()),
        });
        match closing {
            Ok(None) => self.converse(context),
            Ok(Some(result)) => self.say_good_bye(&result, context),
            Err(result) => Round::End(result),
        }
    }

    fn converse(&mut self, context: &mut Context<'_>) -> Round {
        let wrote = match self.outflow.write(&mut self.io, &self.shared, context) {
            Poll::Ready(Ok(bytes)) => bytes > 0,
            Poll::Ready(Err(error)) if !self.mute => {
                // A peer that has closed may have sent a lot before that, and it is all there to be read.
                self.mute = true;
                self.shared.with(|state| state.lose_outbound(&error));
                self.timers.closing(true);
                true
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        };
        let read = match self.intake.read(&mut self.io, &self.shared, context) {
            Poll::Ready(Ok(true)) => true,
            Poll::Ready(Ok(false)) if self.intake.is_at_boundary() => return Round::End(Ok(())),
            Poll::Ready(Ok(false)) => return Round::End(Err(Error::Truncated)),
            Poll::Ready(Err(error)) => return Round::End(Err(error)),
            Poll::Pending => false,
        };
        if read && self.mute {
            self.timers.closing(true);
        }
        self.timers.saw(wrote, read);
        if wrote || read { Round::Progress } else { Round::Idle }
    }

    /// Writes what is left, and then waits for the peer to close. What the peer sends meanwhile is read and thrown away: a socket
    /// that is closed with bytes unread makes the peer lose what it has not read either.
    fn say_good_bye(&mut self, result: &Result<(), Error>, context: &mut Context<'_>) -> Round {
        let mut progress = false;
        if !self.lingers {
            match self.outflow.write(&mut self.io, &self.shared, context) {
                Poll::Ready(Ok(0)) => {
                    if let Err(Error::Protocol(_)) = result {
                        return Round::End(result.clone()); // Nobody waits for a peer that misbehaves.
                    }
                    if Pin::new(&mut self.io).poll_shutdown(context).is_ready() {
                        self.lingers = true;
                        progress = true;
                    }
                }
                Poll::Ready(Ok(_)) => progress = true,
                Poll::Ready(Err(error)) => return Round::End(result.clone().and(Err(error))),
                Poll::Pending => {}
            }
        }
        self.timers.closing(progress);
        match self.intake.discard(&mut self.io, context) {
            Poll::Ready(true) => progress = true,
            Poll::Ready(false) if self.lingers => return Round::End(result.clone()),
            Poll::Ready(false) | Poll::Pending => {}
        }
        if progress { Round::Progress } else { Round::Idle }
    }

    fn drive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.with(|state| {
            let mut place = state.driver.take();
            state.signals.register(&mut place, context.waker());
            state.driver = place;
        });
        for _ in 0..ROUNDS {
            match self.round(context) {
                Round::End(result) => return Poll::Ready(result),
                Round::Progress => {}
                Round::Idle => match self.timers.poll(self.intake.is_stalled(), context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Due::Ping) => self.shared.with(|state| drop(state.ping())),
                    Poll::Ready(Due::Dead(after)) => return Poll::Ready(Err(Error::KeepAlive(after))),
                    Poll::Ready(Due::Idle(after)) => {
                        self.shared.with(|state| state.begin_close(Err(Error::Idle(after))));
                    }
                    Poll::Ready(Due::EndOfPatience) => {
                        let result = self.shared.with(|state| match &state.phase {
                            Phase::Closing(result) | Phase::Ended(result) => result.clone(),
                            Phase::Open => state.outbound_failure().map_or(Ok(()), Err),
                        });
                        let unsent = if self.lingers { Ok(()) } else { Err(Error::Unsent) };
                        return Poll::Ready(result.and(unsent));
                    }
                },
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Future for Driver<IO> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let driver = self.get_mut();
        let polled = driver.drive(context);
        if let Poll::Ready(result) = &polled {
            driver.shared.with(|state| state.end(result.clone()));
        }
        polled
    }
}

impl<IO> Drop for Driver<IO> {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.end(Err(Error::NotDriven));
            state.signals.wakers.extend(state.driver.take());
        });
    }
}

impl<IO> fmt::Debug for Driver<IO> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Driver").field("shared", &self.shared).finish_non_exhaustive()
    }
}
