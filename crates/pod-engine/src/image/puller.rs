//! Pulls.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};
use vk_provider::{
    EventKind, PodRef,
    resolve::{PullCredentials, Resolver},
};
use vk_supervisor::Clock;

use super::{
    Policy, Ready,
    backoff::Backoffs,
    name::normalise,
    records::{Access, Records, hash},
};
use crate::{
    Settings,
    backend::{ContainerBackend, Image, SandboxConfig, told},
    make::Tell,
    status::Trouble,
};

/// Brings images onto the machine, for all pods.
pub struct Puller {
    backend: Arc<dyn ContainerBackend>,
    clock: Clock,
    records: Arc<Records>,
    permits: Option<Arc<Semaphore>>,
    /// Pulls under way.
    flights: Mutex<HashMap<Route, WeakShared<BoxFuture<'static, Landing>>>>,
    backoffs: Mutex<Backoffs>,
}

/// An image that a pod needs.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The pod.
    pub pod: &'a PodRef,
    /// The image as it is written in the spec.
    pub image: &'a str,
    /// When it is pulled.
    pub policy: Policy,
    /// The pod's sandbox, which a runtime may want to see.
    pub sandbox: &'a SandboxConfig,
    /// Who knows the pod's credentials.
    pub resolver: &'a dyn Resolver,
}

/// The image, and the hashes of the credentials with which it is tried.
type Route = (String, Vec<String>);

/// How a pull ended: with an image, or with what went wrong.
type Landing = Result<Arc<Pulled>, Arc<str>>;

#[derive(Debug)]
struct Pulled {
    image_ref: String,
    /// As the runtime knows it afterwards.
    image: Result<Option<Image>, String>,
    /// What the pull took, without the wait for its turn.
    took: Duration,
    /// The hash of the credentials that were good for it.
    hash: Option<String>,
}

// === impl Puller ===

impl Puller {
    /// A puller with its records below the node's folder.
    pub fn new(backend: Arc<dyn ContainerBackend>, settings: &Settings, clock: Clock) -> Self {
        Self {
            backend,
            clock,
            records: Records::new(&settings.root.join("images")),
            permits: settings.parallel_pulls.map(|most| Arc::new(Semaphore::new(most.max(1)))),
            flights: Mutex::default(),
            backoffs: Mutex::default(),
        }
    }

    /// Makes sure that an image is there and that this pod may use it. Tells a kubelet's events, except for the last one of a
    /// container that cannot start: [`failed_event`](super::failed_event).
    ///
    /// Dropping the call is safe. The pull goes on as long as another pod waits for it.
    pub async fn ensure(&self, wanted: &Wanted<'_>, tell: Tell<'_>) -> Result<Ready, Trouble> {
        let written = wanted.image;
        let image = normalise(written).map_err(|why| {
            let message = format!("Failed to apply default image tag {written:?}: {why}");
            tell(EventKind::Warning, "InspectFailed", message.clone());
            trouble("InvalidImageName", message)
        })?;
        let never = || {
            let message = format!("Container image {written:?} is not present with pull policy of Never");
            tell(EventKind::Warning, "ErrImageNeverPull", message.clone());
            trouble("ErrImageNeverPull", message)
        };
        let present = match wanted.policy {
            Policy::Always => None,
            Policy::IfNotPresent | Policy::Never => self.inspect(&image, tell).await?,
        };
        let mut credentials = None;
        if let Some(present) = present {
            let allowed = match self.records.access(written, &present.id).await {
                Access::Everyone => true,
                Access::Unknown => false,
                Access::Holders(hashes) => {
                    let own = self.credentials(wanted, &image).await?;
                    let fits = own.iter().any(|own| hashes.contains(&hash(own)));
                    credentials = Some(own);
                    fits
                }
            };
            if allowed {
                let message = format!(
                    "Container image {written:?} already present on machine and can be accessed by the pod"
                );
                tell(EventKind::Normal, "Pulled", message);
                return Ok(Ready { image_ref: present.id.clone(), image: present });
            }
        }
        // Also when it is there and this pod may not have it: who is not allowed to know does not learn it.
        if wanted.policy == Policy::Never {
            return Err(never());
        }
        let credentials = match credentials {
            Some(credentials) => credentials,
            None => self.credentials(wanted, &image).await?,
        };
        self.pull(wanted, &image, credentials, tell).await
    }

    /// What is left of the wait after a pod's failed pull of an image, as it is written in the spec.
    pub fn wait(&self, pod_uid: &str, image: &str) -> Option<Duration> {
        self.backoffs.lock().waiting(pod_uid, image, Instant::now()).map(|(left, _)| left)
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, pod_uid: &str) {
        self.backoffs.lock().forget(pod_uid);
    }

    /// Forgets who pulled images that are gone. `began` is when this list was begun: what was pulled since is kept.
    pub async fn prune(&self, images: &[Image], began: Timestamp) {
        let kept: BTreeSet<&str> = images
            .iter()
            .flat_map(|image| image.digests.iter().chain([&image.id]))
            .map(String::as_str)
            .collect();
        self.records.prune(&kept, began).await;
    }

    async fn inspect(&self, image: &str, tell: Tell<'_>) -> Result<Option<Image>, Trouble> {
        self.backend.image(image, "").await.map_err(|error| {
            // A kubelet names the image that it has not found yet: none.
            let message = format!("Failed to inspect image \"\": {}", told(&error));
            tell(EventKind::Warning, "InspectFailed", message.clone());
            trouble("ImageInspectError", message)
        })
    }

    async fn credentials(&self, wanted: &Wanted<'_>, image: &str) -> Result<Vec<PullCredentials>, Trouble> {
        let found = wanted.resolver.pull_credentials(image).await;
        found.map_err(|error| trouble("ErrImagePull", error.message().to_owned()))
    }

    async fn pull(
        &self,
        wanted: &Wanted<'_>,
        image: &str,
        credentials: Vec<PullCredentials>,
        tell: Tell<'_>,
    ) -> Result<Ready, Trouble> {
        let (written, uid) = (wanted.image, &*wanted.pod.uid);
        let waiting = {
            let backoffs = self.backoffs.lock();
            backoffs.waiting(uid, written, Instant::now()).map(|(_, why)| why.map(ToOwned::to_owned))
        };
        if let Some(why) = waiting {
            let message = format!("Back-off pulling image {written:?}");
            tell(EventKind::Normal, "BackOff", message.clone());
            let message = why.map_or_else(|| message.clone(), |why| format!("{message}: {why}"));
            return Err(trouble("ImagePullBackOff", message));
        }
        let intent = self.records.begin(written).await.map_err(|error| {
            let text = format!("Failed to record image pull intent for container image {written:?}: {error}");
            trouble("ErrImagePull", text)
        })?;
        self.backoffs.lock().begin(uid, written);
        tell(EventKind::Normal, "Pulling", format!("Pulling image {written:?}"));
        let asked = Instant::now();
        match self.flight(image, credentials, wanted.sandbox).await {
            Ok(pulled) => {
                let size = pulled.image.as_ref().ok().and_then(Option::as_ref).map_or(0, |image| image.size);
                let message = format!(
                    "Successfully pulled image {written:?} in {} ({} including waiting). Image size: {size} bytes.",
                    seconds(pulled.took),
                    seconds(asked.elapsed())
                );
                tell(EventKind::Normal, "Pulled", message);
                self.backoffs.lock().forget_old(Instant::now());
                intent.pulled(&pulled.image_ref, pulled.hash.clone(), self.clock.now()).await;
                // A kubelet asks for the image's user when it makes the container. It is not guessed.
                let found = pulled.image.clone().map_err(|why| trouble("CreateContainerConfigError", why))?;
                let image_ref = pulled.image_ref.clone();
                let image = found.unwrap_or_else(|| Image { id: image_ref.clone(), ..Image::default() });
                Ok(Ready { image_ref, image })
            }
            Err(why) => {
                tell(EventKind::Warning, "Failed", format!("Failed to pull image {written:?}: {why}"));
                let trouble = told_by_runtime(written, &why);
                let again = format!("{}: {}", trouble.reason, trouble.message);
                self.backoffs.lock().failed(uid, written, again, Instant::now());
                intent.end().await;
                Err(trouble)
            }
        }
    }

    /// The pull of this image with these credentials: the one that is under way, or a new one.
    fn flight(
        &self,
        image: &str,
        credentials: Vec<PullCredentials>,
        sandbox: &SandboxConfig,
    ) -> Shared<BoxFuture<'static, Landing>> {
        let key = (image.to_owned(), credentials.iter().map(hash).collect::<Vec<_>>());
        let mut flights = self.flights.lock();
        flights.retain(|_, flight| flight.upgrade().is_some_and(|flight| flight.peek().is_none()));
        if let Some(flight) = flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let (backend, permits) = (Arc::clone(&self.backend), self.permits.clone());
        let (image, sandbox) = (image.to_owned(), sandbox.clone());
        let flight = async move {
            let _turn = match permits {
                Some(permits) => permits.acquire_owned().await.ok(),
                None => None,
            };
            let began = Instant::now();
            let (image_ref, hash) = attempt(&*backend, &image, &credentials, &sandbox).await?;
            let image = backend.image(&image, "").await.map_err(|error| error.message().to_owned());
            Ok(Arc::new(Pulled { image_ref, image, took: began.elapsed(), hash }))
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(key, weak);
        }
        flight
    }
}

impl fmt::Debug for Puller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Puller").field("records", &self.records).finish_non_exhaustive()
    }
}

impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, image, policy, .. } = self;
        f.debug_struct("Wanted")
            .field("pod", pod)
            .field("image", image)
            .field("policy", policy)
            .finish_non_exhaustive()
    }
}

/// Tries the credentials one after the other. Anonymously only where there are none: as in a kubelet, credentials that do not fit
/// are an error and no reason to do without.
async fn attempt(
    backend: &dyn ContainerBackend,
    image: &str,
    credentials: &[PullCredentials],
    sandbox: &SandboxConfig,
) -> Result<(String, Option<String>), Arc<str>> {
    let mut errors: Vec<String> = Vec::new();
    let anonymous = credentials.is_empty().then_some(None);
    for credentials in anonymous.into_iter().chain(credentials.iter().map(Some)) {
        match backend.pull(image, credentials, sandbox).await {
            Ok(image_ref) if image_ref.is_empty() => {
                errors.push(format!("imageRef of image {image:?} is not set"));
            }
            Ok(image_ref) => return Ok((image_ref, credentials.map(hash))),
            Err(error) => {
                let why = told(&error);
                // A code that says nothing is left out.
                let why = why.strip_prefix("rpc error: code = Unknown desc = ").unwrap_or(&why).to_owned();
                if !errors.contains(&why) {
                    errors.push(why);
                }
            }
        }
    }
    Err(match errors.as_slice() {
        [one] => one.as_str().into(),
        many => format!("[{}]", many.join(", ")).into(),
    })
}

/// Two causes that a runtime can name have reasons of their own.
fn told_by_runtime(image: &str, why: &str) -> Trouble {
    for (reason, text) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(more) = why.strip_prefix(reason) {
            return trouble(reason, format!("image pull failed for {image} because {text}{more}"));
        }
    }
    trouble("ErrImagePull", why.to_owned())
}

fn trouble(reason: &str, message: String) -> Trouble {
    Trouble { reason: reason.to_owned(), message }
}

/// A duration as Go writes it, in whole milliseconds: `0s`, `532ms`, `1.25s`, `1m2.5s`.
fn seconds(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let fraction = match millis % 1000 {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    let seconds = format!("{}{fraction}s", millis / 1000 % 60);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod double;
#[cfg(test)]
mod tests;
