//! Keeps a certificate valid: renews it in time and requests another when the spec changes.

use std::{pin::pin, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rand::{Rng, RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{info, warn};
use vk_supervisor::{Backoff, Clock};

use super::{CertificateSpec, CertificateStore, Error, NodeCertificate, obtain};
use crate::Client;

/// How often the clock is read while idle. This notices a suspended host and a clock that was set.
const CLOCK_CHECK_PERIOD: Duration = Duration::from_secs(10);
/// After a certificate was issued, the next request waits for a quarter of the remaining lifetime, within these bounds. This
/// prevents a storm of requests if certificates are about to expire when issued, as with a wrong clock.
const MIN_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_mins(1);
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_mins(5);

/// The state of a certificate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenewalStatus {
    /// The certificate to use. Never an expired one.
    pub current: Option<NodeCertificate>,
    /// The name of the undecided request: `kubectl certificate approve NAME`.
    pub pending: Option<String>,
    /// The last error. Cleared by the next success.
    pub last_error: Option<String>,
}

/// Keeps one certificate valid. A stored certificate is in use as soon as this is created.
pub struct Renewer {
    client: Client,
    fallback: Option<Client>,
    spec: watch::Receiver<CertificateSpec>,
    store: CertificateStore,
    clock: Clock,
    status: watch::Sender<RenewalStatus>,
    /// When to renew the current certificate.
    renew_at: Timestamp,
    /// Earliest time for another request after a success.
    earliest_request: Instant,
}

// === impl Renewer ===

impl Renewer {
    /// Keeps a certificate for the current spec.
    pub fn new(
        client: Client,
        spec: watch::Receiver<CertificateSpec>,
        store: CertificateStore,
        clock: Clock,
    ) -> Self {
        let mut status = RenewalStatus::default();
        let now = clock.now();
        match store.load() {
            // Never use another node's certificate. One that lacks an address is better than none.
            Ok(certificate) => {
                let spec = spec.borrow();
                status.current = certificate
                    .filter(|certificate| !certificate.is_expired(now) && certificate.belongs_to(&spec));
            }
            Err(error) => {
                warn!(%error, "the stored certificate cannot be used: requesting another");
                status.last_error = Some(error.to_string());
            }
        }
        let renew_at =
            status.current.as_ref().map_or(now, |certificate| renew_at(certificate, &mut rand::rng()));
        if let Some(certificate) = &status.current {
            let spec = spec.borrow();
            client.metrics().certificate(spec.signer.purpose(), &spec.node, certificate.not_after());
        }
        Self {
            client,
            fallback: None,
            spec,
            store,
            clock,
            status: watch::Sender::new(status),
            renew_at,
            earliest_request: Instant::now(),
        }
    }

    /// Uses this client to request a certificate while none is valid: for a first client that authenticates with the
    /// certificate itself.
    #[must_use]
    pub fn with_fallback(mut self, client: Client) -> Self {
        self.fallback = Some(client);
        self
    }

    /// Subscribes to the status.
    pub fn status(&self) -> watch::Receiver<RenewalStatus> {
        self.status.subscribe()
    }

    /// Runs forever. Cancel-safe.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
        let mut rng = StdRng::from_rng(&mut rand::rng());
        loop {
            let spec = self.spec.borrow_and_update().clone();
            self.drop_expired();
            if !self.needs_request(&spec) {
                tokio::select! {
                    () = sleep(CLOCK_CHECK_PERIOD) => {}
                    () = changed(&mut self.spec) => {}
                }
                continue;
            }
            let error = match self.request(&spec).await {
                Some(Ok(certificate)) => {
                    self.renew_at = renew_at(&certificate, &mut rng);
                    let left = certificate.not_after().duration_since(self.clock.now());
                    let pause = Duration::try_from(left).unwrap_or_default() / 4;
                    self.earliest_request = Instant::now() + pause.clamp(MIN_PAUSE, MAX_PAUSE);
                    self.client.metrics().certificate(
                        spec.signer.purpose(),
                        &spec.node,
                        certificate.not_after(),
                    );
                    self.status.send_replace(RenewalStatus {
                        current: Some(certificate),
                        ..RenewalStatus::default()
                    });
                    backoff.reset();
                    continue;
                }
                Some(Err(error)) => error,
                // The spec changed.
                None => continue,
            };
            let retry_after = match &error {
                Error::Api { error, .. } => error.retry_after,
                _ => None,
            };
            let wait = self.cap_before_expiry(backoff.next(retry_after, &mut rng));
            warn!(node = spec.node, %error, ?wait, "no new {} certificate: will retry", spec.signer.purpose());
            self.status.send_modify(|status| {
                status.pending = None;
                status.last_error = Some(error.to_string());
            });
            let until = Instant::now() + wait;
            while Instant::now() < until {
                self.drop_expired();
                tokio::select! {
                    () = sleep(CLOCK_CHECK_PERIOD.min(until.saturating_duration_since(Instant::now()))) => {}
                    () = changed(&mut self.spec) => break,
                }
            }
        }
    }

    /// Whether to request another certificate now.
    fn needs_request(&self, spec: &CertificateSpec) -> bool {
        let status = self.status.borrow();
        let Some(current) = &status.current else { return true };
        if let Some(mismatch) = current.mismatch(spec) {
            info!(node = spec.node, "replacing the {} certificate: {mismatch}", spec.signer.purpose());
            return true;
        }
        self.clock.now() >= self.renew_at && Instant::now() >= self.earliest_request
    }

    /// Requests a certificate and waits for a decision. `None` if the spec changed meanwhile.
    async fn request(&mut self, spec: &CertificateSpec) -> Option<Result<NodeCertificate, Error>> {
        let Self { client, fallback, spec: changes, store, clock, status, .. } = self;
        let client = match fallback {
            Some(fallback) if status.borrow().current.is_none() => fallback,
            _ => client,
        };
        let pending = status.clone();
        let on_created = move |name: &str| {
            pending.send_modify(|status| status.pending = Some(name.to_owned()));
        };
        let mut request = pin!(obtain(client, spec, store, clock, on_created));
        loop {
            tokio::select! {
                decided = &mut request => return Some(decided),
                () = sleep(CLOCK_CHECK_PERIOD) => drop_expired(status, clock),
                () = changed(changes) => {
                    if *changes.borrow_and_update() != *spec {
                        status.send_modify(|status| status.pending = None);
                        return None;
                    }
                }
            }
        }
    }

    /// Shortens a wait so that it ends before the certificate expires.
    fn cap_before_expiry(&self, wait: Duration) -> Duration {
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

/// Waits for the spec to change; forever if its sender is gone.
async fn changed(spec: &mut watch::Receiver<CertificateSpec>) {
    if spec.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn drop_expired(status: &watch::Sender<RenewalStatus>, clock: &Clock) {
    let now = clock.now();
    status.send_if_modified(|status| {
        let expired = status.current.take_if(|certificate| certificate.is_expired(now));
        if let Some(certificate) = &expired {
            warn!(since = %certificate.not_after(), "the certificate has expired");
        }
        expired.is_some()
    });
}

/// Picks the renewal time as the kubelet does: after 70 to 90 per cent of the lifetime.
fn renew_at(certificate: &NodeCertificate, rng: &mut impl Rng) -> Timestamp {
    let life = certificate.not_after().duration_since(certificate.not_before());
    let part = life.as_secs_f64() * rng.random_range(0.7..=0.9);
    let used = SignedDuration::try_from_secs_f64(part).unwrap_or(SignedDuration::ZERO);
    certificate.not_before().checked_add(used).unwrap_or_else(|_| certificate.not_after())
}
