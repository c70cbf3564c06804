//! The state behind its lock.

use std::{sync::Arc, task::Waker};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{Core, Role, State};
use crate::Config;

/// The state behind its lock, and those who wait for the connection as a whole.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) accept: Notify,
    pub(crate) ended: Notify,
}

impl Shared {
    pub(crate) fn new(role: Role, config: Config) -> Arc<Self> {
        let state = Mutex::new(State::new(role, config));
        Arc::new(Self { state, accept: Notify::new(), ended: Notify::new() })
    }

    /// Does something with the state; whoever is to hear of it is woken after the lock is free again, because a waker may drop
    /// what it wakes, and that may be a stream, which would want the lock.
    pub(crate) fn with<Answer>(&self, act: impl FnOnce(&mut State) -> Answer) -> Answer {
        let (answer, signals) = {
            let mut state = self.state.lock();
            let answer = act(&mut state);
            (answer, std::mem::take(&mut state.signals))
        };
        for waker in signals.wakers {
            waker.wake();
        }
        for core in signals.over {
            core.over.notify_waiters();
        }
        for pong in signals.pongs {
            // Whoever waited may have left.
            let _ = pong.send(());
        }
        if signals.arrived {
            self.accept.notify_one();
        }
        if signals.no_more {
            self.accept.notify_waiters();
        }
        if signals.ended {
            self.ended.notify_waiters();
        }
        answer
    }
}

/// Whom to wake when the lock is free.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) wakers: Vec<Waker>,
    pub(super) over: Vec<Arc<Core>>,
    pub(super) pongs: Vec<oneshot::Sender<()>>,
    pub(super) arrived: bool,
    pub(super) no_more: bool,
    pub(super) ended: bool,
}

impl Signals {
    /// There is a stream to be accepted.
    pub(crate) fn arrived(&mut self) {
        self.arrived = true;
    }

    /// Puts a waker in its place. The one that was there is woken once more, rather than dropped under the lock.
    pub(crate) fn register(&mut self, place: &mut Option<Waker>, waker: &Waker) {
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.wakers.extend(place.replace(waker.clone()));
        }
    }
}
