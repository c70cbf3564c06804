//! Keeps the Secret, and the CAs in the configuration of the webhook, as they should be.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{ObjectReference, Secret},
};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};
use vk_kube::{Client, Error, Kind, Objects, Patch, Recorder, Selector, WatchEvent, event::Severity};
use vk_supervisor::{Backoff, Clock, Supervisor};

use super::{
    SECRET, ServedNames, ca_bundle,
    contents::Contents,
    renewal::{Change, Renewal, Target},
    webhook_bundle,
};
use crate::policy::NAME;

/// How often the content is compared with the clock.
const CHECK_PERIOD: Duration = Duration::from_mins(1);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_mins(1);
/// The reason of events about a Secret that was repaired.
const REPAIRED: &str = "CertificateAuthorityReplaced";
const COMPONENT: &str = "placement";
pub(super) const SECRET_PERMISSION: &str = "apply `virtual-kubelet placement print rbac` again";
const WEBHOOK_PERMISSION: &str = "apply `virtual-kubelet placement print rbac --webhook`, or `virtual-kubelet placement print policy` again whenever \
     the CAs change";

/// Creates and renews the certificates, and tells the API server which CAs to trust. Only the leader may run it, and none if the user has given
/// certificates.
#[derive(Clone)]
pub struct Maintainer {
    /// Writes are fenced by the lease.
    pub client: Client,
    /// The namespace of the Secret.
    pub namespace: String,
    /// What the certificate is for.
    pub names: ServedNames,
    /// The webhook is served with this certificate, so the CAs in its configuration are ours.
    pub webhook: bool,
    /// The wall clock.
    pub clock: Clock,
}

/// Why nothing could be done.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("cannot generate a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    #[error("cannot write the Secret {SECRET}: {0}")]
    Secret(#[source] Error),
    #[error("cannot write the CAs to the MutatingWebhookConfiguration {NAME}: {0}")]
    Webhook(#[source] Error),
}

/// An object that is watched by its name.
#[derive(Debug)]
enum Watched<K> {
    /// It has not been listed yet.
    Unknown,
    Absent,
    Present(Box<K>),
}

/// The last events of a watch.
#[derive(Debug)]
struct WatchState<K> {
    object: Watched<K>,
    /// The object was in the list in progress.
    is_listed: bool,
    /// The log says that the permission is missing.
    is_forbidden: bool,
}

/// What the maintainer sees.
#[derive(Debug, Default)]
struct Observed {
    secret: WatchState<Secret>,
    configuration: WatchState<MutatingWebhookConfiguration>,
}

// === impl Maintainer ===

impl Maintainer {
    /// Runs whenever this process leads, until the supervisor stops.
    pub async fn run_while_leading(self, mut leading: watch::Receiver<bool>, supervisor: Supervisor) {
        loop {
            tokio::select! {
                led = leading.wait_for(|leads| *leads) => if led.is_err() { return },
                () = supervisor.stopping() => return,
            }
            tokio::select! {
                () = self.run() => {}
                // Any change: a loss may be over already.
                _ = leading.changed() => {}
                () = supervisor.stopping() => return,
            }
        }
    }

    /// Runs forever. Cancel-safe: every write has the version that it is based on as its precondition.
    async fn run(&self) {
        let secrets = Objects::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let mut secrets = Box::pin(secrets.watch(&selector(SECRET)));
        let mut configurations = if self.webhook {
            Objects::<MutatingWebhookConfiguration>::all(self.client.clone()).watch(&selector(NAME)).boxed()
        } else {
            stream::pending().boxed()
        };
        let mut observed = Observed::default();
        let (mut backoff, mut rng) =
            (Backoff::new(FIRST_RETRY, LAST_RETRY), StdRng::from_rng(&mut rand::rng()));
        let mut next_check = Instant::now();
        loop {
            let changed = tokio::select! {
                Some(event) = secrets.next() => observed.secret.apply(event, SECRET_PERMISSION),
                Some(event) = configurations.next() => observed.configuration.apply(event, WEBHOOK_PERMISSION),
                () = sleep_until(next_check) => true,
            };
            if !changed {
                continue;
            }
            let wait = match self.step(&mut observed).await {
                Ok(()) => {
                    backoff.reset();
                    CHECK_PERIOD
                }
                Err(error) => {
                    let wait = backoff.next(error.retry_after(), &mut rng);
                    error.log(wait);
                    wait
                }
            };
            next_check = Instant::now() + wait;
        }
    }

    async fn step(&self, observed: &mut Observed) -> Result<(), StepError> {
        let renewed = self.renew(observed).await;
        // Also if the Secret cannot be written: clients need the CAs of the present leaf.
        let published = self.publish(observed).await;
        renewed.and(published)
    }

    /// Writes the Secret if it is not as it should be.
    async fn renew(&self, observed: &mut Observed) -> Result<(), StepError> {
        let current = match &observed.secret.object {
            Watched::Unknown => return Ok(()),
            Watched::Absent => None,
            Watched::Present(secret) => Some(&**secret),
        };
        let contents = current.map(Contents::of);
        let target = Target {
            names: &self.names,
            now: self.clock.now(),
            bundle_is_published: !self.webhook || observed.bundle_is_published(),
        };
        let Some(renewal) = Renewal::of(contents.as_ref(), target)? else { return Ok(()) };
        let secrets = Objects::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let stored = match current {
            Some(current) => {
                secrets.patch(SECRET, Patch::Merge(&renewal.contents.patch(&current.metadata))).await
            }
            None => secrets.create(&renewal.contents.secret(&self.namespace)).await,
        };
        let stored = stored.map_err(StepError::Secret)?;
        self.report(&stored, &renewal.changes).await;
        observed.secret.object = Watched::Present(Box::new(stored));
        Ok(())
    }

    /// Writes the CAs to the configuration of the webhook if others are there.
    async fn publish(&self, observed: &mut Observed) -> Result<(), StepError> {
        let Some(patch) = observed.outdated_bundle() else { return Ok(()) };
        let configurations = Objects::<MutatingWebhookConfiguration>::all(self.client.clone());
        let stored =
            configurations.patch(NAME, Patch::Strategic(&patch)).await.map_err(StepError::Webhook)?;
        info!("wrote the CAs to the MutatingWebhookConfiguration {NAME}");
        observed.configuration.object = Watched::Present(Box::new(stored));
        Ok(())
    }

    async fn report(&self, secret: &Secret, changes: &[Change]) {
        for change in changes {
            let namespace = &self.namespace;
            if !change.is_repair() {
                info!("Secret {namespace}/{SECRET}: {change}");
                continue;
            }
            warn!("Secret {namespace}/{SECRET}: {change}");
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                namespace: Some(namespace.clone()),
                name: Some(SECRET.to_owned()),
                uid: secret.metadata.uid.clone(),
                ..ObjectReference::default()
            };
            let recorder = Recorder::new(self.client.clone(), COMPONENT, COMPONENT);
            recorder.publish(&about, Severity::Warning, REPAIRED, &change.to_string()).await;
        }
    }
}

/// Selects one object.
pub(super) fn selector(name: &str) -> Selector {
    Selector { fields: Some(format!("metadata.name={name}")), labels: None }
}

// === impl Observed ===

impl Observed {
    /// Whether the API server trusts the CAs in the Secret, or does not call the webhook.
    fn bundle_is_published(&self) -> bool {
        !matches!(self.configuration.object, Watched::Unknown) && self.outdated_bundle().is_none()
    }

    /// What makes the API server trust the CAs in the Secret. `None` if it does, or if one of both is not there.
    fn outdated_bundle(&self) -> Option<serde_json::Value> {
        let (Watched::Present(secret), Watched::Present(configuration)) =
            (&self.secret.object, &self.configuration.object)
        else {
            return None;
        };
        webhook_bundle::patch(configuration, &ca_bundle::of_contents(&Contents::of(secret))?)
    }
}

// === impl WatchState ===

impl<K> WatchState<K> {
    /// Whether there is something to check. The hint says how to permit the watch.
    fn apply(&mut self, event: WatchEvent<K>, hint: &str) -> bool {
        let is_forbidden = matches!(&event, WatchEvent::Error(error) if error.kind == Kind::Forbidden);
        if is_forbidden && !std::mem::replace(&mut self.is_forbidden, is_forbidden) {
            warn!("the certificates of placement cannot be maintained: {hint}");
        }
        match event {
            WatchEvent::Restarted => {
                self.is_listed = false;
                false
            }
            WatchEvent::Applied(object) => {
                self.object = Watched::Present(Box::new(object));
                self.is_listed = true;
                true
            }
            WatchEvent::Deleted(_) => {
                self.object = Watched::Absent;
                self.is_listed = false;
                true
            }
            WatchEvent::Listed if !self.is_listed => {
                self.object = Watched::Absent;
                true
            }
            WatchEvent::Listed | WatchEvent::Error(_) => false,
        }
    }
}

impl<K> Default for WatchState<K> {
    fn default() -> Self {
        Self { object: Watched::Unknown, is_listed: false, is_forbidden: false }
    }
}

// === impl StepError ===

impl StepError {
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Generate(_) => None,
            Self::Secret(error) | Self::Webhook(error) => error.retry_after,
        }
    }

    fn log(&self, wait: Duration) {
        let hint = match self {
            Self::Secret(error) if is_race(error) => {
                return debug!(%self, "somebody else has changed the Secret");
            }
            Self::Webhook(error) if is_race(error) => return debug!(%self, "the configuration has changed"),
            Self::Secret(error) if error.kind == Kind::Forbidden => SECRET_PERMISSION,
            Self::Webhook(error) if error.kind == Kind::Forbidden => WEBHOOK_PERMISSION,
            _ => "will retry",
        };
        warn!(?wait, "{self}: {hint}");
    }
}

/// The watch brings what has won.
fn is_race(error: &Error) -> bool {
    matches!(error.kind, Kind::Conflict | Kind::AlreadyExists | Kind::Replaced)
}
