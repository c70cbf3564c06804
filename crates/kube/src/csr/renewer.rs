//! Keeps a certificate: renews it in time, and asks for another when something else is wanted.

use std::{pin::pin, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rand::{Rng, RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{info, warn};
use vk_supervisor::{Backoff, Clock};

use super::{CertificateSpec, Error, Pair, Store, obtain};
use crate::Client;

/// How often the clock is read while there is nothing to do: a machine that slept, or whose clock was set, is noticed.
const LOOK: Duration = Duration::from_secs(10);
/// Certificates that are old when they come, as with a clock that is wrong, do not make a storm: after each there is a pause
/// of a quarter of what is left of it, within these.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_mins(5);

/// How it stands with a certificate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenewalStatus {
    /// The one to use. Never one that has expired.
    pub current: Option<Pair>,
    /// The request that waits for somebody to decide: `kubectl certificate approve NAME`.
    pub pending: Option<String>,
    /// What went wrong last. It goes with the next success.
    pub trouble: Option<String>,
}

/// Keeps one certificate. What it has from before is in use as soon as this is made.
pub struct Renewer {
    client: Client,
    fallback: Option<Client>,
    wanted: watch::Receiver<CertificateSpec>,
    store: Store,
    clock: Clock,
    status: watch::Sender<RenewalStatus>,
    /// When to replace the current one.
    due: Timestamp,
    /// No success is followed by another attempt before this.
    rested: Instant,
}

// === impl Renewer ===

impl Renewer {
    /// Keeps the certificate that is wanted at any time.
    pub fn new(client: Client, wanted: watch::Receiver<CertificateSpec>, store: Store, clock: Clock) -> Self {
        let mut status = RenewalStatus::default();
        let now = clock.now();
        match store.load() {
            // Another node's would be worse than none. One that lacks an address is better.
            Ok(pair) => {
                let wanted = wanted.borrow();
                status.current = pair.filter(|pair| !pair.expired(now) && pair.belongs_to(&wanted));
            }
            Err(error) => {
                warn!(%error, "the stored certificate cannot be used: asking for another");
                status.trouble = Some(error.to_string());
            }
        }
        let due = status.current.as_ref().map_or(now, |pair| due(pair, &mut rand::rng()));
        if let Some(pair) = &status.current {
            let wanted = wanted.borrow();
            client.metrics().certificate(wanted.signer.word(), &wanted.node, pair.not_after());
        }
        Self {
            client,
            fallback: None,
            wanted,
            store,
            clock,
            status: watch::Sender::new(status),
            due,
            rested: Instant::now(),
        }
    }

    /// Asks through this client when there is no certificate that is valid, where the first client lives by the certificate
    /// itself.
    #[must_use]
    pub fn with_fallback(mut self, client: Client) -> Self {
        self.fallback = Some(client);
        self
    }

    /// How it stands, now and later.
    pub fn status(&self) -> watch::Receiver<RenewalStatus> {
        self.status.subscribe()
    }

    /// Keeps the certificate for ever. May be dropped at any time.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
        let mut rng = StdRng::from_rng(&mut rand::rng());
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            self.drop_expired();
            if !self.must_ask(&wanted) {
                tokio::select! {
                    () = sleep(LOOK) => {}
                    () = changed(&mut self.wanted) => {}
                }
                continue;
            }
            let error = match self.ask(&wanted).await {
                Some(Ok(pair)) => {
                    self.due = due(&pair, &mut rng);
                    let left = pair.not_after().duration_since(self.clock.now());
                    let pause = Duration::try_from(left).unwrap_or_default() / 4;
                    self.rested = Instant::now() + pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                    self.client.metrics().certificate(wanted.signer.word(), &wanted.node, pair.not_after());
                    self.status
                        .send_replace(RenewalStatus { current: Some(pair), ..RenewalStatus::default() });
                    backoff.reset();
                    continue;
                }
                Some(Err(error)) => error,
                // Something else is wanted by now.
                None => continue,
            };
            let asked = match &error {
                Error::Api { error, .. } => error.retry_after,
                _ => None,
            };
            let wait = self.in_time(backoff.next(asked, &mut rng));
            warn!(node = wanted.node, %error, ?wait, "no new {} certificate: trying again", wanted.signer.word());
            self.status.send_modify(|status| {
                status.pending = None;
                status.trouble = Some(error.to_string());
            });
            let until = Instant::now() + wait;
            while Instant::now() < until {
                self.drop_expired();
                tokio::select! {
                    () = sleep(LOOK.min(until.saturating_duration_since(Instant::now()))) => {}
                    () = changed(&mut self.wanted) => break,
                }
            }
        }
    }

    /// Whether it is time for another certificate.
    fn must_ask(&self, wanted: &CertificateSpec) -> bool {
        let status = self.status.borrow();
        let Some(current) = &status.current else { return true };
        if let Some(lack) = current.lacks(wanted) {
            info!(node = wanted.node, "the {} certificate is replaced: {lack}", wanted.signer.word());
            return true;
        }
        self.clock.now() >= self.due && Instant::now() >= self.rested
    }

    /// Asks until somebody has decided. `None`: something else is wanted meanwhile.
    async fn ask(&mut self, wanted: &CertificateSpec) -> Option<Result<Pair, Error>> {
        let Self { client, fallback, wanted: changes, store, clock, status, .. } = self;
        let client = match fallback {
            Some(fallback) if status.borrow().current.is_none() => fallback,
            _ => client,
        };
        let pending = status.clone();
        let tell = move |name: &str| {
            pending.send_modify(|status| status.pending = Some(name.to_owned()));
        };
        let mut asking = pin!(obtain(client, wanted, store, clock, tell));
        loop {
            tokio::select! {
                decided = &mut asking => return Some(decided),
                () = sleep(LOOK) => drop_expired(status, clock),
                () = changed(changes) => {
                    if *changes.borrow_and_update() != *wanted {
                        status.send_modify(|status| status.pending = None);
                        return None;
                    }
                }
            }
        }
    }

    /// Not so long that the certificate is over by then.
    fn in_time(&self, wait: Duration) -> Duration {
        match &self.status.borrow().current {
            Some(current) => {
                let left = current.not_after().duration_since(self.clock.now());
                wait.min((Duration::try_from(left).unwrap_or_default() / 4).max(FIRST_RETRY))
            }
            None => wait,
        }
    }

    fn drop_expired(&self) {
        drop_expired(&self.status, &self.clock);
    }
}

/// Waits for another wish; for ever when nobody is there any more to have one.
async fn changed(wanted: &mut watch::Receiver<CertificateSpec>) {
    if wanted.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn drop_expired(status: &watch::Sender<RenewalStatus>, clock: &Clock) {
    let now = clock.now();
    status.send_if_modified(|status| {
        let expired = status.current.take_if(|pair| pair.expired(now));
        if let Some(pair) = &expired {
            warn!(since = %pair.not_after(), "the certificate has expired");
        }
        expired.is_some()
    });
}

/// As the kubelet: after 70 to 90 per cent of its life.
fn due(pair: &Pair, rng: &mut impl Rng) -> Timestamp {
    let life = pair.not_after().duration_since(pair.not_before());
    let part = life.as_secs_f64() * rng.random_range(0.7..=0.9);
    let used = SignedDuration::try_from_secs_f64(part).unwrap_or(SignedDuration::ZERO);
    pair.not_before().checked_add(used).unwrap_or_else(|_| pair.not_after())
}
