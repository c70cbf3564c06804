//! The connection state behind a lock.

use std::{sync::Arc, task::Waker};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{ConnectionState, Role, StreamCore};
use crate::Config;

/// The connection state behind a lock, and notifications about the connection as a whole.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    state: Mutex<ConnectionState>,
    pub(crate) accept: Notify,
    pub(crate) ended: Notify,
}

impl ConnectionHandle {
    pub(crate) fn new(role: Role, config: Config) -> Arc<Self> {
        let state = Mutex::new(ConnectionState::new(role, config));
        Arc::new(Self { state, accept: Notify::new(), ended: Notify::new() })
    }

    /// Runs a closure on the state. Wakes tasks only after the lock is released: a waker may drop what it wakes, which may be a stream
    /// that needs the lock.
    pub(crate) fn with<Answer>(&self, act: impl FnOnce(&mut ConnectionState) -> Answer) -> Answer {
        let (answer, wakeups) = {
            let mut state = self.state.lock();
            let answer = act(&mut state);
            (answer, std::mem::take(&mut state.wakeups))
        };
        for waker in wakeups.wakers {
            waker.wake();
        }
        for core in wakeups.closed {
            core.closed.notify_waiters();
        }
        for pong in wakeups.pongs {
            // The caller may have given up.
            let _ = pong.send(());
        }
        if wakeups.arrived {
            self.accept.notify_one();
        }
        if wakeups.no_more {
            self.accept.notify_waiters();
        }
        if wakeups.ended {
            self.ended.notify_waiters();
        }
        answer
    }
}

/// What to wake after the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    pub(crate) wakers: Vec<Waker>,
    pub(super) closed: Vec<Arc<StreamCore>>,
    pub(super) pongs: Vec<oneshot::Sender<()>>,
    pub(super) arrived: bool,
    pub(super) no_more: bool,
    pub(super) ended: bool,
}

impl Wakeups {
    /// A stream can be accepted.
    pub(crate) fn arrived(&mut self) {
        self.arrived = true;
    }

    /// Replaces a waker. The old one is woken, rather than dropped under the lock.
    pub(crate) fn register(&mut self, slot: &mut Option<Waker>, waker: &Waker) {
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            self.wakers.extend(slot.replace(waker.clone()));
        }
    }
}
