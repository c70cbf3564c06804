//! Moves bytes between the transport and the connection state.

mod frame_reader;
mod frame_writer;
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
    frame_reader::FrameReader,
    frame_writer::FrameWriter,
    timers::{TimerEvent, Timers},
};
use crate::{
    Error,
    state::{ConnectionHandle, Phase},
};

/// Moves the bytes of a connection. It must be polled: spawn it. It resolves when the connection has ended, with the result; dropping
/// it aborts the connection.
#[must_use = "a connection without its driver does nothing: spawn it"]
pub struct Driver<IO> {
    io: IO,
    handle: Arc<ConnectionHandle>,
    reader: FrameReader,
    writer: FrameWriter,
    timers: Timers,
    /// Writing has failed; what the peer sent before is still read.
    write_failed: bool,
    /// Everything is written and the write side is shut down: waiting for the peer to close.
    lingering: bool,
}

/// Rounds before yielding to other tasks.
const MAX_ROUNDS: usize = 64;

/// The result of a round.
enum Progress {
    Made,
    Idle,
    End(Result<(), Error>),
}

impl<IO> Driver<IO> {
    pub(crate) fn new(io: IO, handle: Arc<ConnectionHandle>) -> Self {
        let (limits, timers) = handle.with(|state| (state.config.limits, Timers::new(&state.config)));
        let (reader, writer) = (FrameReader::new(limits), FrameWriter::default());
        Self { io, handle, reader, writer, timers, write_failed: false, lingering: false }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    /// Writes once and reads once.
    fn round(&mut self, context: &mut Context<'_>) -> Progress {
        let closing = self.handle.with(|state| match &state.phase {
            Phase::Open => Ok(None),
            Phase::Closing(result) => Ok(Some(result.clone())),
            Phase::Ended(result) => Err(result.clone()),
        });
        match closing {
            Ok(None) => self.run_open(context),
            Ok(Some(result)) => self.run_closing(&result, context),
            Err(result) => Progress::End(result),
        }
    }

    fn run_open(&mut self, context: &mut Context<'_>) -> Progress {
        let wrote = match self.writer.write(&mut self.io, &self.handle, context) {
            Poll::Ready(Ok(bytes)) => bytes > 0,
            Poll::Ready(Err(error)) if !self.write_failed => {
                // A peer that has closed may have sent a lot before, which can still be read.
                self.write_failed = true;
                self.handle.with(|state| state.fail_sending(&error));
                self.timers.record_close_progress(true);
                true
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        };
        let read = match self.reader.read(&mut self.io, &self.handle, context) {
            Poll::Ready(Ok(true)) => true,
            Poll::Ready(Ok(false)) if self.reader.is_at_boundary() => return Progress::End(Ok(())),
            Poll::Ready(Ok(false)) => return Progress::End(Err(Error::Truncated)),
            Poll::Ready(Err(error)) => return Progress::End(Err(error)),
            Poll::Pending => false,
        };
        if read && self.write_failed {
            self.timers.record_close_progress(true);
        }
        self.timers.record_traffic(wrote, read);
        if wrote || read { Progress::Made } else { Progress::Idle }
    }

    /// Writes what is queued, and then waits for the peer to close. Meanwhile received data is dropped: closing a socket with unread data
    /// makes the peer lose what it has not read yet.
    fn run_closing(&mut self, result: &Result<(), Error>, context: &mut Context<'_>) -> Progress {
        let mut progress = false;
        if !self.lingering {
            match self.writer.write(&mut self.io, &self.handle, context) {
                Poll::Ready(Ok(0)) => {
                    if let Err(Error::Protocol(_)) = result {
                        return Progress::End(result.clone()); // A misbehaving peer is not waited for.
                    }
                    if Pin::new(&mut self.io).poll_shutdown(context).is_ready() {
                        self.lingering = true;
                        progress = true;
                    }
                }
                Poll::Ready(Ok(_)) => progress = true,
                Poll::Ready(Err(error)) => return Progress::End(result.clone().and(Err(error))),
                Poll::Pending => {}
            }
        }
        self.timers.record_close_progress(progress);
        match self.reader.discard(&mut self.io, context) {
            Poll::Ready(true) => progress = true,
            Poll::Ready(false) if self.lingering => return Progress::End(result.clone()),
            Poll::Ready(false) | Poll::Pending => {}
        }
        if progress { Progress::Made } else { Progress::Idle }
    }

    fn drive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.handle.with(|state| {
            let mut waker = state.driver.take();
            state.wakeups.register(&mut waker, context.waker());
            state.driver = waker;
        });
        for _ in 0..MAX_ROUNDS {
            match self.round(context) {
                Progress::End(result) => return Poll::Ready(result),
                Progress::Made => {}
                Progress::Idle => match self.timers.poll(self.reader.is_blocked(), context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(TimerEvent::Ping) => self.handle.with(|state| drop(state.ping())),
                    Poll::Ready(TimerEvent::Dead(after)) => return Poll::Ready(Err(Error::KeepAlive(after))),
                    Poll::Ready(TimerEvent::Idle(after)) => {
                        self.handle.with(|state| state.start_close(Err(Error::Idle(after))));
                    }
                    Poll::Ready(TimerEvent::LingerExpired) => {
                        let result = self.handle.with(|state| match &state.phase {
                            Phase::Closing(result) | Phase::Ended(result) => result.clone(),
                            Phase::Open => state.send_failure().map_or(Ok(()), Err),
                        });
                        let unsent = if self.lingering { Ok(()) } else { Err(Error::Unsent) };
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
            driver.handle.with(|state| state.end(result.clone()));
        }
        polled
    }
}

impl<IO> Drop for Driver<IO> {
    fn drop(&mut self) {
        self.handle.with(|state| {
            state.end(Err(Error::NotDriven));
            state.wakeups.wakers.extend(state.driver.take());
        });
    }
}

impl<IO> fmt::Debug for Driver<IO> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Driver").field("handle", &self.handle).finish_non_exhaustive()
    }
}
