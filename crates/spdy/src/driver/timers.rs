//! When to ask whether the peer lives, and when to give up.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::{Config, KeepAlive};

/// What time has brought.
#[derive(Debug)]
pub(super) enum Due {
    /// A PING is to be sent.
    Ping,
    /// The peer did not answer.
    Dead(Duration),
    /// Nothing has passed.
    Idle(Duration),
    /// The peer has taken too long over the close.
    EndOfPatience,
}

/// The deadlines of a connection. There is no timer where none is asked for.
#[derive(Debug)]
pub(super) struct Timers {
    keep_alive: Option<KeepAlive>,
    idle: Option<Duration>,
    linger: Duration,
    last_passed: Instant,
    next_ping: Instant,
    /// The first PING since something was read.
    asked: Option<Instant>,
    /// Until when the close may take.
    patience: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timers {
    pub(super) fn new(config: &Config) -> Self {
        let now = Instant::now();
        // Nothing is due at every moment; in Go too, zero means never.
        let keep_alive = config.keep_alive.filter(|keep_alive| !keep_alive.interval.is_zero());
        Self {
            keep_alive,
            idle: config.idle_timeout.filter(|idle| !idle.is_zero()),
            linger: config.linger,
            last_passed: now,
            next_ping: keep_alive.map_or(now, |keep_alive| now + keep_alive.interval),
            asked: None,
            patience: None,
            sleep: None,
        }
    }

    /// Notes what passed.
    pub(super) fn saw(&mut self, wrote: bool, read: bool) {
        if (wrote || read) && (self.idle.is_some() || self.keep_alive.is_some()) {
            self.last_passed = Instant::now();
            if read {
                self.asked = None;
            }
        }
    }

    /// Notes that the connection closes, and whether that has come any further.
    pub(super) fn closing(&mut self, progress: bool) {
        if progress || self.patience.is_none() {
            self.patience = Some(Instant::now() + self.linger);
        }
    }

    /// What is due. A peer is not blamed for silence while this side does not read (`stalled`).
    pub(super) fn poll(&mut self, stalled: bool, context: &mut Context<'_>) -> Poll<Due> {
        loop {
            let now = Instant::now();
            let next = match self.next(stalled, now) {
                Next::Due(due) => return Poll::Ready(due),
                Next::Never => {
                    self.sleep = None;
                    return Poll::Pending;
                }
                Next::At(next) => next,
            };
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(next)));
            // One that ends too early does no harm: it is looked at again then.
            if sleep.deadline() > next || sleep.is_elapsed() {
                sleep.as_mut().reset(next);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn next(&mut self, stalled: bool, now: Instant) -> Next {
        if let Some(patience) = &mut self.patience {
            if stalled {
                *patience = now + self.linger;
            }
            return if *patience <= now { Next::Due(Due::EndOfPatience) } else { Next::At(*patience) };
        }
        let mut next = Next::Never;
        if let Some(idle) = self.idle {
            let at = self.last_passed + idle;
            if at <= now {
                return Next::Due(Due::Idle(idle));
            }
            next = next.or_at(at);
        }
        if let Some(KeepAlive { interval, timeout }) = self.keep_alive {
            if let Some(asked) = &mut self.asked {
                if stalled {
                    *asked = now;
                }
                if *asked + timeout <= now {
                    return Next::Due(Due::Dead(timeout));
                }
                next = next.or_at(*asked + timeout);
            }
            if self.next_ping <= now {
                self.next_ping = now + interval;
                self.asked.get_or_insert(now);
                return Next::Due(Due::Ping);
            }
            next = next.or_at(self.next_ping);
        }
        next
    }
}

enum Next {
    Due(Due),
    At(Instant),
    Never,
}

impl Next {
    fn or_at(self, at: Instant) -> Self {
        match self {
            Self::At(earlier) if earlier <= at => Self::At(earlier),
            _ => Self::At(at),
        }
    }
}
