//! Credentials that are renewed in time.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use rand::{RngExt as _, rngs::StdRng};
use tracing::{debug, warn};
use vk_supervisor::{Backoff, Clock};

use super::{CredentialSource, Credentials};
use crate::cloud::error::{Class, Error, Result};

/// Temporary credentials are renewed this long before they expire, or sooner after a shorter part of their lifetime.
const MARGIN: Duration = Duration::from_mins(15);
/// Waiting times after a failed renewal.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_mins(2);

/// Credentials of a source, remembered until they must be renewed.
///
/// One caller at a time renews. Others use the present credentials while these are valid, also while renewals fail; only
/// without valid credentials do they wait. Clones share everything.
#[derive(Clone)]
pub struct CachedCredentials {
    source: Arc<dyn CredentialSource>,
    clock: Clock,
    state: Arc<Mutex<State>>,
    /// Held by the one that renews.
    renewal: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    current: Option<Credentials>,
    /// The cloud has refused the current credentials.
    is_rejected: bool,
    /// When to renew; `None` is never.
    renew_at: Option<Timestamp>,
    /// The last renewal failed, and this is why.
    failure: Option<Error>,
    backoff: Backoff,
    rng: StdRng,
}

// === impl CachedCredentials ===

impl CachedCredentials {
    /// Loads the credentials with the first call.
    pub fn new(source: Arc<dyn CredentialSource>, clock: Clock, rng: StdRng) -> Self {
        let state = State {
            current: None,
            is_rejected: false,
            renew_at: None,
            failure: None,
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
            rng,
        };
        Self { source, clock, state: Arc::new(Mutex::new(state)), renewal: Arc::default() }
    }

    /// The present credentials, renewed if it is time.
    pub async fn get(&self) -> Result<Credentials> {
        let Some(reason) = self.state.lock().reason_to_renew(self.clock.now()) else {
            return self.state.lock().outcome(self.clock.now());
        };
        let renewing = match reason {
            Reason::Soon => match self.renewal.try_lock() {
                Ok(renewing) => renewing,
                // Someone else renews.
                Err(_) => return self.state.lock().outcome(self.clock.now()),
            },
            Reason::Now => self.renewal.lock().await,
        };
        // Someone else may have renewed in the meantime.
        if self.state.lock().reason_to_renew(self.clock.now()).is_some() {
            let loaded = self.source.load().await;
            self.state.lock().on_loaded(loaded, self.clock.now());
        }
        drop(renewing);
        self.state.lock().outcome(self.clock.now())
    }

    /// The cloud has refused these credentials as expired or unknown: they are loaded again before the next use, if they are
    /// still the present ones.
    pub fn reject(&self, refused: &Credentials) {
        let mut state = self.state.lock();
        let is_current = state.current.as_ref().is_some_and(|current| current.is_same(refused));
        if is_current && !state.is_rejected {
            debug!("the cloud refused the credentials: loading them again");
            state.is_rejected = true;
            // At once, but not again and again if the source has no others.
            state.renew_at = Some(if state.backoff.failures() == 0 {
                self.clock.now()
            } else {
                state.retry_at(self.clock.now())
            });
        }
    }
}

impl fmt::Debug for CachedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("CachedCredentials")
            .field("current", &state.current)
            .field("renew_at", &state.renew_at)
            .finish_non_exhaustive()
    }
}

/// Why credentials are renewed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// There are none that could be used.
    Now,
    /// Those that there are will expire.
    Soon,
}

// === impl State ===

impl State {
    fn reason_to_renew(&self, now: Timestamp) -> Option<Reason> {
        let is_due = self.renew_at.is_none_or(|at| at <= now);
        match &self.current {
            None => is_due.then_some(Reason::Now),
            Some(current) => {
                let is_usable = current.is_valid(now) && !self.is_rejected;
                match (self.renew_at, is_usable) {
                    (Some(_), true) if is_due => Some(Reason::Soon),
                    (_, false) if is_due => Some(Reason::Now),
                    _ => None,
                }
            }
        }
    }

    /// The result of a call that does not renew, or not any more.
    fn outcome(&self, now: Timestamp) -> Result<Credentials> {
        match (&self.current, &self.failure) {
            (Some(current), None) => Ok(current.clone()),
            (Some(current), Some(_)) if current.is_valid(now) && !self.is_rejected => Ok(current.clone()),
            (_, Some(failure)) => Err(failure.clone()),
            (None, None) => Err(Error::new(Class::Transient, "load credentials", "no attempt has ended yet")),
        }
    }

    fn on_loaded(&mut self, loaded: Result<Credentials>, now: Timestamp) {
        let loaded = loaded.and_then(|credentials| match credentials.expires {
            Some(expires) if expires <= now => Err(already_expired(expires, now)),
            _ => Ok(credentials),
        });
        match loaded {
            Ok(credentials) => self.on_renewed(credentials, now),
            Err(error) => {
                let error = error.of_credentials();
                self.renew_at = Some(self.retry_at(now));
                let is_usable =
                    self.current.as_ref().is_some_and(|current| current.is_valid(now)) && !self.is_rejected;
                warn!(%error, is_usable, "cannot renew the credentials of the cloud");
                self.failure = Some(error);
            }
        }
    }

    fn on_renewed(&mut self, credentials: Credentials, now: Timestamp) {
        let is_unchanged = self.current.as_ref().is_some_and(|current| current.is_same(&credentials));
        if self.is_rejected && is_unchanged {
            // The source has no others. They are used, and a further refusal is answered more slowly.
            self.backoff.next(None, &mut self.rng);
        } else {
            self.backoff.reset();
        }
        self.renew_at = credentials.expires.map(|expires| self.time_to_renew(expires, now));
        self.current = Some(credentials);
        self.is_rejected = false;
        self.failure = None;
    }

    /// Before the margin, and spread out over time. Never at once, even if the source gives credentials that expire soon.
    fn time_to_renew(&mut self, expires: Timestamp, now: Timestamp) -> Timestamp {
        let lifetime = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
        let margin = MARGIN.min(lifetime / 3).mul_f64(self.rng.random_range(0.7..=1.0));
        later(now, lifetime.saturating_sub(margin))
    }

    fn retry_at(&mut self, now: Timestamp) -> Timestamp {
        later(now, self.backoff.next(None, &mut self.rng))
    }
}

fn later(now: Timestamp, wait: Duration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

fn already_expired(expires: Timestamp, now: Timestamp) -> Error {
    let text = format!(
        "the credentials that were just issued expired at {expires}, but the clock of this host says {now}: set the clock"
    );
    Error::new(Class::ClockSkew, "load credentials", text)
}
