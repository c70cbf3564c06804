//! Image pulls.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use vk_provider::{
    Error, EventKind, PodRef,
    error::Kind,
    resolve::{PullCredentials, Resolver},
};

use super::{
    Policy, ResolvedImage,
    access::{Access, credentials_hash},
    name::{self, normalize},
    pull_backoff::PullBackoffs,
    pull_permits::PullPermits,
    pull_records::{PullIntent, PullRecords},
};
use crate::{
    Settings,
    backend::{ContainerBackend, Image, SandboxConfig, full_message},
    spec::RecordEvent,
    status::FailureReason,
    text::go_duration,
};

/// Pulls images for all pods.
pub struct Puller {
    backend: Arc<dyn ContainerBackend>,
    /// `None` if the runtime keeps the records of its images.
    records: Option<Arc<PullRecords>>,
    permits: PullPermits,
    /// Active pulls.
    pulls: Mutex<HashMap<PullKey, SharedPull>>,
    backoffs: Mutex<PullBackoffs>,
}

/// An image that a pod needs.
#[derive(Clone, Copy)]
pub struct ImageRequest<'a> {
    /// The pod.
    pub pod: &'a PodRef,
    /// The image name in the spec.
    pub image: &'a str,
    /// Its pull policy.
    pub policy: Policy,
    /// The pod's sandbox, which some runtimes need.
    pub sandbox: &'a SandboxConfig,
    /// The resolver of the pod's credentials.
    pub resolver: &'a dyn Resolver,
}

/// A pull that all pods wait for which need its image.
struct SharedPull {
    outcome: WeakShared<BoxFuture<'static, PullOutcome>>,
    /// The namespace of the pod that began it, for which it counts.
    namespace: Arc<str>,
    /// Whether it has a permit.
    is_active: Arc<AtomicBool>,
}

/// The image and the hashes of the credentials.
type PullKey = (String, Vec<String>);

/// The pulled image, or the error.
type PullOutcome = Result<Arc<Pulled>, PullError>;

/// The error of a pull.
#[derive(Clone, Debug)]
struct PullError {
    message: Arc<str>,
    /// The runtime did not say that the pull failed: its connection was lost, or it did not answer in time. It may have the image now.
    result_unknown: bool,
}

#[derive(Debug)]
struct Pulled {
    image_ref: String,
    /// The runtime's description of it.
    image: Result<Option<Image>, String>,
    /// The duration of the pull without waiting.
    took: Duration,
    /// The hash of the credentials that succeeded.
    hash: Option<String>,
}

// === impl Puller ===

impl Puller {
    /// A puller for the images of this runtime.
    pub fn new(backend: Arc<dyn ContainerBackend>, settings: &Settings) -> Self {
        Self {
            backend,
            records: settings.pull_records.as_deref().map(PullRecords::new),
            permits: PullPermits::new(settings.parallel_pulls),
            pulls: Mutex::default(),
            backoffs: Mutex::default(),
        }
    }

    /// Ensures that an image is present and that this pod may use it. Records a kubelet's events, except the last one of a container that
    /// cannot start: [`failed_event`](super::failed_event).
    ///
    /// The call can be cancelled. The pull continues as long as another pod waits for it.
    pub async fn ensure(
        &self,
        request: &ImageRequest<'_>,
        record: RecordEvent<'_>,
    ) -> Result<ResolvedImage, FailureReason> {
        let written = request.image;
        let image = normalize(written).map_err(|why| {
            let message = format!("Failed to apply default image tag {written:?}: {why}");
            record(EventKind::Warning, "InspectFailed", message.clone());
            failure("InvalidImageName", message)
        })?;
        let never = || {
            let message = format!("Container image {written:?} is not present with pull policy of Never");
            record(EventKind::Warning, "ErrImageNeverPull", message.clone());
            failure("ErrImageNeverPull", message)
        };
        let present = match request.policy {
            Policy::Always => None,
            Policy::IfNotPresent | Policy::Never => self.inspect(&image, record).await?,
        };
        let mut credentials = None;
        if let Some(present) = present {
            let allowed = match self.access(written, &image, &present, record).await? {
                Access::Everyone => true,
                Access::Unknown => false,
                Access::Credentials(hashes) => {
                    let own = self.credentials(request, &image).await?;
                    let fits = own.iter().any(|own| hashes.contains(&credentials_hash(own)));
                    credentials = Some(own);
                    fits
                }
            };
            if allowed {
                let message = format!(
                    "Container image {written:?} already present on machine and can be accessed by the pod"
                );
                record(EventKind::Normal, "Pulled", message);
                return Ok(ResolvedImage { image_ref: present.id.clone(), image: present });
            }
        }
        // The same if the image is present and this pod may not use it: the pod must not learn that it exists.
        if request.policy == Policy::Never {
            return Err(never());
        }
        let credentials = match credentials {
            Some(credentials) => credentials,
            None => self.credentials(request, &image).await?,
        };
        self.pull(request, &image, credentials, record).await
    }

    /// Removes the back-off of a pod.
    pub fn forget(&self, pod_uid: &str) {
        self.backoffs.lock().forget(pod_uid);
    }

    /// Removes the records of images that no longer exist and those of interrupted pulls.
    pub async fn prune(&self, images: &[Image]) {
        let Some(records) = &self.records else { return };
        let kept: BTreeSet<String> =
            images.iter().flat_map(|image| image.digests.iter().chain([&image.id])).cloned().collect();
        records.prune(kept).await;
        for intent in records.unresolved().await {
            // As it is inspected for a pod. If that fails it is tried again next time.
            let Ok(image) = normalize(&intent.image) else { continue };
            if let Ok(present) = self.backend.image(&image, "").await {
                records.resolve(intent, present).await;
            }
        }
    }

    async fn inspect(&self, image: &str, record: RecordEvent<'_>) -> Result<Option<Image>, FailureReason> {
        self.backend.image(image, "").await.map_err(|error| inspect_failure(&error, record))
    }

    /// Who may use an image that is present.
    async fn access(
        &self,
        written: &str,
        image: &str,
        present: &Image,
        record: RecordEvent<'_>,
    ) -> Result<Access, FailureReason> {
        if let Some(records) = &self.records {
            return Ok(records.access(written, present).await);
        }
        let access = self.backend.image_access(image, &present.id).await;
        access.map_err(|error| inspect_failure(&error, record))
    }

    /// Records the intent to pull, unless the runtime keeps the records.
    async fn begin(
        &self,
        written: &str,
        image: &str,
        record: RecordEvent<'_>,
    ) -> Result<Option<PullIntent>, FailureReason> {
        let Some(records) = &self.records else { return Ok(None) };
        let failed = |error| {
            let text = format!("Failed to record image pull intent for container image {written:?}: {error}");
            failure("ErrImagePull", text)
        };
        let present = self.inspect(image, record).await?;
        let intent = records.begin(written, present.as_ref()).await.map_err(failed)?;
        if intent.follows_unknown_result() {
            // Inspected again: the earlier pull may have added an image before this intent was recorded.
            let closed = match self.inspect(image, record).await {
                Ok(Some(present)) => intent.close(&present).await.map_err(failed),
                Ok(None) => Ok(()),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = closed {
                intent.finish().await;
                return Err(failure);
            }
        }
        Ok(Some(intent))
    }

    async fn credentials(
        &self,
        request: &ImageRequest<'_>,
        image: &str,
    ) -> Result<Vec<PullCredentials>, FailureReason> {
        let found = request.resolver.pull_credentials(image).await;
        found.map_err(|error| failure("ErrImagePull", error.message().to_owned()))
    }

    async fn pull(
        &self,
        request: &ImageRequest<'_>,
        image: &str,
        credentials: Vec<PullCredentials>,
        record: RecordEvent<'_>,
    ) -> Result<ResolvedImage, FailureReason> {
        let (written, uid) = (request.image, &*request.pod.uid);
        let waiting = {
            let backoffs = self.backoffs.lock();
            backoffs.remaining(uid, written, Instant::now()).map(|(_, why)| why.map(ToOwned::to_owned))
        };
        if let Some(why) = waiting {
            let message = format!("Back-off pulling image {written:?}");
            record(EventKind::Normal, "BackOff", message.clone());
            let message = why.map_or_else(|| message.clone(), |why| format!("{message}: {why}"));
            return Err(failure("ImagePullBackOff", message));
        }
        let intent = self.begin(written, image, record).await?;
        self.backoffs.lock().begin(uid, written);
        record(EventKind::Normal, "Pulling", format!("Pulling image {written:?}"));
        let began = Instant::now();
        match self.shared_pull(image, credentials, &request.pod.namespace, request.sandbox).await {
            Ok(pulled) => {
                let image = pulled.image.as_ref().ok().and_then(Option::as_ref);
                let size = image.map_or(0, |image| image.size);
                let message = format!(
                    "Successfully pulled image {written:?} in {} ({} including waiting). Image size: {size} bytes.",
                    go_duration(pulled.took),
                    go_duration(began.elapsed())
                );
                record(EventKind::Normal, "Pulled", message);
                self.backoffs.lock().prune(Instant::now());
                if let Some(intent) = intent {
                    let id = image.map(|image| image.id.as_str());
                    intent.succeed(&pulled.image_ref, id, pulled.hash.clone()).await;
                }
                // The user of the image is needed to create the container, so it must be known.
                let found = pulled.image.clone().map_err(|why| failure("CreateContainerConfigError", why))?;
                let image_ref = pulled.image_ref.clone();
                let image = found.unwrap_or_else(|| Image { id: image_ref.clone(), ..Image::default() });
                Ok(ResolvedImage { image_ref, image })
            }
            Err(PullError { message: why, result_unknown }) => {
                record(EventKind::Warning, "Failed", format!("Failed to pull image {written:?}: {why}"));
                let failure = pull_failure(written, &why);
                let again = format!("{}: {}", failure.reason, failure.message);
                self.backoffs.lock().record_failure(uid, written, again, Instant::now());
                // With an unknown result the intent stays, and with it the image is for nobody.
                if let Some(intent) = intent.filter(|_| !result_unknown) {
                    intent.finish().await;
                }
                Err(failure)
            }
        }
    }

    /// The active pull of this image with these credentials, or a new one.
    fn shared_pull(
        &self,
        image: &str,
        credentials: Vec<PullCredentials>,
        namespace: &str,
        sandbox: &SandboxConfig,
    ) -> Shared<BoxFuture<'static, PullOutcome>> {
        let key = (image.to_owned(), credentials.iter().map(credentials_hash).collect::<Vec<_>>());
        let mut pulls = self.pulls.lock();
        pulls.retain(|_, pull| pull.outcome.upgrade().is_some_and(|outcome| outcome.peek().is_none()));
        let joined = pulls.get(&key).filter(|pull| pull.can_be_joined(namespace));
        if let Some(outcome) = joined.and_then(|pull| pull.outcome.upgrade()) {
            return outcome;
        }
        let (backend, permits) = (Arc::clone(&self.backend), self.permits.clone());
        let (image, sandbox, owner) = (image.to_owned(), sandbox.clone(), Arc::<str>::from(namespace));
        let (namespace, is_active) = (Arc::clone(&owner), Arc::<AtomicBool>::default());
        let begun = Arc::clone(&is_active);
        let outcome = async move {
            let _permit = permits.acquire(name::registry(&image), &owner).await;
            begun.store(true, Ordering::Relaxed);
            let began = Instant::now();
            let (image_ref, hash) = attempt(&*backend, &image, &credentials, &sandbox).await?;
            let image = backend.image(&image, "").await.map_err(|error| error.message().to_owned());
            Ok(Arc::new(Pulled { image_ref, image, took: began.elapsed(), hash }))
        };
        let outcome = outcome.boxed().shared();
        if let Some(weak) = outcome.downgrade() {
            pulls.insert(key, SharedPull { outcome: weak, namespace, is_active });
        }
        outcome
    }
}

// === impl SharedPull ===

impl SharedPull {
    /// Whether a pod of this namespace may wait for it: not if it waits itself, for a permit of another namespace.
    fn can_be_joined(&self, namespace: &str) -> bool {
        *self.namespace == *namespace || self.is_active.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Puller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Puller").field("records", &self.records).finish_non_exhaustive()
    }
}

impl fmt::Debug for ImageRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, image, policy, .. } = self;
        f.debug_struct("ImageRequest")
            .field("pod", pod)
            .field("image", image)
            .field("policy", policy)
            .finish_non_exhaustive()
    }
}

/// Tries the credentials one after the other. It pulls anonymously only if there are none: as in a kubelet, wrong credentials are an error.
async fn attempt(
    backend: &dyn ContainerBackend,
    image: &str,
    credentials: &[PullCredentials],
    sandbox: &SandboxConfig,
) -> Result<(String, Option<String>), PullError> {
    let (mut errors, mut result_unknown) = (Vec::<String>::new(), false);
    let anonymous = credentials.is_empty().then_some(None);
    for credentials in anonymous.into_iter().chain(credentials.iter().map(Some)) {
        match backend.pull(image, credentials, sandbox).await {
            Ok(image_ref) if image_ref.is_empty() => {
                result_unknown = true;
                errors.push(format!("imageRef of image {image:?} is not set"));
            }
            Ok(image_ref) => return Ok((image_ref, credentials.map(credentials_hash))),
            Err(error) => {
                result_unknown |= matches!(error.kind(), Kind::Unavailable | Kind::Cancelled);
                let why = full_message(&error);
                // The code Unknown is omitted.
                let why = why.strip_prefix("rpc error: code = Unknown desc = ").unwrap_or(&why).to_owned();
                if !errors.contains(&why) {
                    errors.push(why);
                }
            }
        }
    }
    let message = match errors.as_slice() {
        [one] => one.as_str().into(),
        many => format!("[{}]", many.join(", ")).into(),
    };
    Err(PullError { message, result_unknown })
}

/// The failure of inspecting an image, which is recorded as an event.
fn inspect_failure(error: &Error, record: RecordEvent<'_>) -> FailureReason {
    // A kubelet prints the name of the image that it has not found: an empty one.
    let message = format!("Failed to inspect image \"\": {}", full_message(error));
    record(EventKind::Warning, "InspectFailed", message.clone());
    failure("ImageInspectError", message)
}

/// The failure of a pull. Two causes have their own reasons.
fn pull_failure(image: &str, why: &str) -> FailureReason {
    for (reason, text) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(more) = why.strip_prefix(reason) {
            return failure(reason, format!("image pull failed for {image} because {text}{more}"));
        }
    }
    failure("ErrImagePull", why.to_owned())
}

fn failure(reason: &str, message: String) -> FailureReason {
    FailureReason { reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests;
