//! Keep-alive, idle and linger timers.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::{Config, KeepAlive};

/// An expired timer.
#[derive(Debug)]
pub(super) enum TimerEvent {
    /// Send a PING.
    Ping,
    /// The peer did not answer.
    Dead(Duration),
    /// No traffic.
    Idle(Duration),
    /// The peer took too long to close.
    LingerExpired,
}

/// The timers of a connection. Disabled ones cost nothing.
#[derive(Debug)]
pub(super) struct Timers {
    keep_alive: Option<KeepAlive>,
    idle: Option<Duration>,
    linger: Duration,
    last_traffic: Instant,
    next_ping: Instant,
    /// The first PING since the last read.
    unanswered_ping: Option<Instant>,
    /// Deadline of the close.
    linger_deadline: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timers {
    pub(super) fn new(config: &Config) -> Self {
        let now = Instant::now();
        // Zero means never, as in Go.
        let keep_alive = config.keep_alive.filter(|keep_alive| !keep_alive.interval.is_zero());
        Self {
            keep_alive,
            idle: config.idle_timeout.filter(|idle| !idle.is_zero()),
            linger: config.linger,
            last_traffic: now,
            next_ping: keep_alive.map_or(now, |keep_alive| now + keep_alive.interval),
            unanswered_ping: None,
            linger_deadline: None,
            sleep: None,
        }
    }

    /// Records traffic.
    pub(super) fn record_traffic(&mut self, wrote: bool, read: bool) {
        if (wrote || read) && (self.idle.is_some() || self.keep_alive.is_some()) {
            self.last_traffic = Instant::now();
            if read {
                self.unanswered_ping = None;
            }
        }
    }

    /// Records that the connection is closing, and whether that made progress.
    pub(super) fn record_close_progress(&mut self, progress: bool) {
        if progress || self.linger_deadline.is_none() {
            self.linger_deadline = Some(Instant::now() + self.linger);
        }
    }

    /// The next expired timer. Silence does not count while this side does not read (`blocked`).
    pub(super) fn poll(&mut self, blocked: bool, context: &mut Context<'_>) -> Poll<TimerEvent> {
        loop {
            let now = Instant::now();
            let next = match self.next(blocked, now) {
                NextTimer::TimerEvent(due) => return Poll::Ready(due),
                NextTimer::Never => {
                    self.sleep = None;
                    return Poll::Pending;
                }
                NextTimer::At(next) => next,
            };
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(next)));
            // An early timer is harmless: it is checked again.
            if sleep.deadline() > next || sleep.is_elapsed() {
                sleep.as_mut().reset(next);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn next(&mut self, blocked: bool, now: Instant) -> NextTimer {
        if let Some(linger_deadline) = &mut self.linger_deadline {
            if blocked {
                *linger_deadline = now + self.linger;
            }
            return if *linger_deadline <= now {
                NextTimer::TimerEvent(TimerEvent::LingerExpired)
            } else {
                NextTimer::At(*linger_deadline)
            };
        }
        let mut next = NextTimer::Never;
        if let Some(idle) = self.idle {
            let at = self.last_traffic + idle;
            if at <= now {
                return NextTimer::TimerEvent(TimerEvent::Idle(idle));
            }
            next = next.or_at(at);
        }
        if let Some(KeepAlive { interval, timeout }) = self.keep_alive {
            if let Some(unanswered_ping) = &mut self.unanswered_ping {
                if blocked {
                    *unanswered_ping = now;
                }
                if *unanswered_ping + timeout <= now {
                    return NextTimer::TimerEvent(TimerEvent::Dead(timeout));
                }
                next = next.or_at(*unanswered_ping + timeout);
            }
            if self.next_ping <= now {
                self.next_ping = now + interval;
                self.unanswered_ping.get_or_insert(now);
                return NextTimer::TimerEvent(TimerEvent::Ping);
            }
            next = next.or_at(self.next_ping);
        }
        next
    }
}

enum NextTimer {
    TimerEvent(TimerEvent),
    At(Instant),
    Never,
}

impl NextTimer {
    fn or_at(self, at: Instant) -> Self {
        match self {
            Self::At(earlier) if earlier <= at => Self::At(earlier),
            _ => Self::At(at),
        }
    }
}
