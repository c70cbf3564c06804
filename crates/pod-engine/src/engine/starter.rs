//! Starts containers: image, environment, mounts, creation, start, postStart hook.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    task::{Poll, ready},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use vk_provider::{
    Error, EventKind, PodBundle, Resolver, Result,
    error::Kind,
    resolve::{Facts, Reference},
};

use super::{
    context::{PodScope, blocking},
    image_pulls::{ImagePulls, PullInputs, PullTarget},
    stopper::ContainerStopper,
};
use crate::{
    backend::{RuntimeInfo, SandboxConfig},
    containers::{PodContainer, Role, find_container, spec_hash},
    hook, image, log,
    plan::{CrashBackoffs, StartContainer, StopReason},
    snapshot::Snapshot,
    spec::{self, ContainerBuilder},
    status::FailureReason,
    volume::{self, PodVolumes},
};

/// Starts the containers of a pod.
pub(super) struct ContainerStarter {
    scope: PodScope,
    backoffs: CrashBackoffs,
    /// An object that a container needs and that does not exist.
    missing_reference: Option<(Arc<dyn Resolver>, Reference)>,
}

/// Where containers are started.
pub(super) struct StartTarget<'a> {
    pub(super) bundle: &'a PodBundle,
    /// The pod with the status that was computed last.
    pub(super) pod: &'a Pod,
    pub(super) snapshot: &'a Snapshot,
    pub(super) runtime: &'a RuntimeInfo,
    /// The id of the sandbox.
    pub(super) sandbox: &'a str,
    pub(super) config: &'a SandboxConfig,
    pub(super) volumes: &'a PodVolumes,
    pub(super) stopper: &'a ContainerStopper,
}

/// The images of a pod's image volumes, by volume name.
struct ImageVolumes {
    images: BTreeMap<String, String>,
    /// Why other images are missing.
    failures: BTreeMap<String, FailureReason>,
}

// === impl ContainerStarter ===

impl ContainerStarter {
    pub(super) fn new(scope: PodScope) -> Self {
        let backoffs = CrashBackoffs::new(scope.context.settings.max_crash_backoff);
        Self { scope, backoffs, missing_reference: None }
    }

    /// The crash back-off of the containers.
    pub(super) fn backoffs(&self) -> &CrashBackoffs {
        &self.backoffs
    }

    /// Rebuilds the back-off of containers that an earlier process started.
    pub(super) fn adopt(&mut self, pod: &Pod, snapshot: &Snapshot) {
        self.backoffs.adopt(pod, snapshot, self.scope.now());
    }

    /// Removes back-off that no longer counts.
    pub(super) fn prune_backoffs(&mut self, now: Timestamp) {
        self.backoffs.prune(now);
    }

    /// Resolves when the object exists that a container was missing.
    pub(super) async fn reference_appeared(&self) {
        match &self.missing_reference {
            Some((resolver, reference)) => resolver.appeared(reference).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn clear_missing_reference(&mut self) {
        self.missing_reference = None;
    }

    /// Starts containers one after the other, and returns the result of each. A failed init container ends it, others do not. It also ends
    /// at a container whose image is being pulled: call it again when [`ImagePulls::finished`] resolves.
    ///
    /// So a container waits for the images of those before it. A kubelet does the same (`startContainer` pulls, one container after the
    /// other), and pods rely on this order: a `postStart` hook of one container keeps the next one from starting.
    pub(super) async fn start_all(
        &mut self,
        target: &StartTarget<'_>,
        starts: &[StartContainer],
        pulls: &mut ImagePulls,
    ) -> Vec<(String, Result<(), FailureReason>)> {
        let mut results = Vec::new();
        if starts.is_empty() {
            return results;
        }
        let Poll::Ready(volumes) = Self::pull_image_volumes(target, pulls) else { return results };
        for start in starts {
            let Poll::Ready(ready) = self.container_and_image(target, &volumes, start, pulls) else {
                return results;
            };
            pulls.forget(&PullTarget::Container(start.name.clone()));
            // Not before: a container in back-off would not be started when its image is there.
            self.backoffs.begin(start, self.scope.now());
            let result = match ready {
                // Boxed, because it is large.
                Ok((container, image)) => {
                    Box::pin(self.start(target, &volumes, start, &container, &image)).await
                }
                Err(failure) => Err(failure),
            };
            let failed = result.is_err();
            results.push((start.name.clone(), result));
            if failed {
                // The runtime may have created the container.
                self.scope.handle.mark_stale();
                if start.role == Role::Init {
                    break;
                }
            }
        }
        pulls.forget_volumes();
        results
    }

    /// Pulls the images that are mounted as volumes, one after the other.
    fn pull_image_volumes(target: &StartTarget<'_>, pulls: &mut ImagePulls) -> Poll<ImageVolumes> {
        let (mut images, mut failures) = (BTreeMap::new(), BTreeMap::new());
        for wanted in volume::images(&target.bundle.pod) {
            let inputs = PullInputs {
                image: &wanted.reference,
                policy: image::Policy::of(wanted.pull_policy.as_deref(), &wanted.reference),
                sandbox: target.config,
                resolver: &target.bundle.resolver,
            };
            match ready!(pulls.poll(&PullTarget::Volume(wanted.volume.clone()), &inputs)) {
                Ok(image) => drop(images.insert(wanted.volume, image.image_ref)),
                Err(failure) => drop(failures.insert(wanted.volume, failure)),
            }
        }
        Poll::Ready(ImageVolumes { images, failures })
    }

    /// A container and its image, unless that is being pulled.
    fn container_and_image<'a>(
        &self,
        target: &StartTarget<'a>,
        volumes: &ImageVolumes,
        start: &StartContainer,
        pulls: &mut ImagePulls,
    ) -> Poll<Result<(PodContainer<'a>, image::ResolvedImage), FailureReason>> {
        let name = start.name.as_str();
        let Some(container) = find_container(target.pod, name) else {
            let message = format!("no container {name:?} in the pod");
            return Poll::Ready(Err(failure("CreateContainerConfigError", &message)));
        };
        let mut mounts = container.spec.volume_mounts.iter().flatten();
        if let Some(failure) = mounts.find_map(|mount| volumes.failures.get(&mount.name)) {
            return Poll::Ready(Err(failure.clone()));
        }
        let image = ready!(self.pull_image(target, &container.spec, pulls));
        Poll::Ready(image.map(|image| (container, image)))
    }

    /// Creates and starts a container. A failure was recorded as an event.
    async fn start(
        &mut self,
        target: &StartTarget<'_>,
        volumes: &ImageVolumes,
        start: &StartContainer,
        container: &PodContainer<'_>,
        image: &image::ResolvedImage,
    ) -> Result<(), FailureReason> {
        let name = start.name.as_str();
        let id = self.create(target, volumes, start, container, image).await?;
        self.record(name, EventKind::Normal, "Created", "Container created".to_owned());
        if let Err(error) = self.scope.context.backend.start_container(&id).await {
            return Err(self.fail(name, "RunContainerError", &error));
        }
        self.record(name, EventKind::Normal, "Started", "Container started".to_owned());
        self.run_post_start(target, container, id).await
    }

    async fn create(
        &mut self,
        target: &StartTarget<'_>,
        volumes: &ImageVolumes,
        start: &StartContainer,
        container: &PodContainer<'_>,
        image: &image::ResolvedImage,
    ) -> Result<String, FailureReason> {
        let name = start.name.as_str();
        let config_error = "CreateContainerConfigError";
        let facts = self.facts(target);
        let inputs = target.bundle.resolver.container(name, &facts).await.map_err(|error| {
            if let Kind::Unresolved(reference) = error.kind() {
                self.missing_reference = Some((Arc::clone(&target.bundle.resolver), reference.clone()));
            }
            self.fail(name, config_error, &error)
        })?;
        let options = volume::MountOptions {
            images: Some(&volumes.images),
            recursive_read_only: target.runtime.supports_recursive_read_only(target.snapshot.handler()),
        };
        let mounts = target.volumes.mounts(&container.spec, &inputs.pairs(), &options).await;
        let mounts = mounts.map_err(|failure| self.record_failure(name, failure))?;
        let attempt = if let Some(restarts) = start.restarts {
            restarts
        } else {
            let logged = self.attempt_from_logs(name).await;
            logged.map_err(|error| self.fail(name, config_error, &error))?
        };
        let files = self.create_files(target, container, &facts.pod_ips).await;
        let (hosts_file, termination_file) = files.map_err(|error| self.fail(name, config_error, &error))?;
        // In any state: the runtime reports that it has exited.
        let debug_target =
            container.target.and_then(|target_name| Some(target.snapshot.newest(target_name)?.id.clone()));
        let context = &self.scope.context;
        let builder = ContainerBuilder {
            pod: target.pod,
            container,
            attempt,
            hash: spec_hash(&container.spec),
            settings: &context.settings,
            features: &context.features,
            runtime: target.runtime,
            sandbox: target.config,
            image,
            inputs: &inputs,
            mounts: &mounts,
            hosts_file: hosts_file.as_deref(),
            termination_file: termination_file.as_deref(),
            target: debug_target.as_deref(),
        };
        let config = builder.build().map_err(|failure| self.record_failure(name, failure))?;
        let created = context.backend.create_container(target.sandbox, &config, target.config).await;
        created.map_err(|error| self.fail(name, "CreateContainerError", &error))
    }

    /// Pulls the image of a container.
    fn pull_image(
        &self,
        target: &StartTarget<'_>,
        container: &Container,
        pulls: &mut ImagePulls,
    ) -> Poll<Result<image::ResolvedImage, FailureReason>> {
        let name = container.name.as_str();
        let image = container.image.as_deref().unwrap_or_default();
        let inputs = PullInputs {
            image,
            policy: image::Policy::of(container.image_pull_policy.as_deref(), image),
            sandbox: target.config,
            resolver: &target.bundle.resolver,
        };
        let pulled = ready!(pulls.poll(&PullTarget::Container(name.to_owned()), &inputs));
        Poll::Ready(pulled.inspect_err(|failure| {
            let (kind, reason, message) = image::failed_event(failure);
            self.record(name, kind, reason, message);
        }))
    }

    /// The facts that the container's environment can refer to.
    fn facts(&self, target: &StartTarget<'_>) -> Facts {
        let host_ips = self.scope.context.settings.node_ips.clone();
        let sandbox = target.snapshot.sandboxes.iter().find(|sandbox| sandbox.id == target.sandbox);
        let pod_ips = match sandbox {
            Some(sandbox) if !sandbox.host_network => sandbox.ips.clone(),
            _ => host_ips.clone(),
        };
        Facts { pod_ips, host_ips, volumes: target.volumes.facts() }
    }

    /// Creates the files of a container on the host: hosts file, termination message file and log directory.
    async fn create_files(
        &self,
        target: &StartTarget<'_>,
        container: &PodContainer<'_>,
        pod_ips: &[IpAddr],
    ) -> Result<(Option<PathBuf>, Option<PathBuf>)> {
        let context = &self.scope.context;
        let settings = &context.settings;
        let mut hosts = None;
        if spec::mounts_hosts(target.pod, pod_ips) {
            // Needed only with host networking. A host may have no such file.
            let host = tokio::fs::read_to_string(&settings.hosts_file).await.unwrap_or_default();
            hosts = Some(spec::hosts(target.pod, &settings.cluster_domain, pod_ips, &host)?);
        }
        let has_message = container.spec.termination_message_path.as_deref() != Some("");
        let (dirs, log_directories) = (context.dirs.clone(), context.log_directories.clone());
        let (pod, name) = (self.scope.pod().clone(), container.spec.name.clone());
        let log_root = settings.log_root.clone();
        blocking(move || {
            let hosts = hosts.map(|content| dirs.write_hosts(&pod.uid, &content)).transpose()?;
            let message = has_message.then(|| dirs.create_message_file(&pod.uid, &name)).transpose()?;
            log_directories.register(&log_root, &pod)?;
            log::directory::create(&log_root, &pod, &name)?;
            Ok((hosts, message))
        })
        .await?
    }

    /// The attempt number of a container that only its log files remember.
    async fn attempt_from_logs(&self, name: &str) -> Result<u32> {
        let (log_root, pod) = (self.scope.context.settings.log_root.clone(), self.scope.pod().clone());
        let name = name.to_owned();
        blocking(move || log::directory::next_attempt(&log_root, &pod, &name)).await
    }

    /// Runs the postStart hook. If it fails the container is stopped.
    async fn run_post_start(
        &self,
        target: &StartTarget<'_>,
        container: &PodContainer<'_>,
        id: String,
    ) -> Result<(), FailureReason> {
        let call = hook::HookCall {
            pod: self.scope.pod().clone(),
            container: container.spec.clone().into_owned(),
            id,
            ip: self.facts(target).pod_ips.first().copied(),
            record: self.scope.context.event_recorder(),
        };
        let hooked = hook::post_start(&self.scope.context.prober, &call).await;
        let Err(failed) = hooked else { return Ok(()) };
        let message = "FailedPostStartHook".to_owned();
        let stopped =
            target.stopper.stop_one(target.pod, target.snapshot, &call.id, message, StopReason::PostStart);
        if let Err(error) = stopped.await {
            self.scope.warn("cannot stop a container whose postStart hook failed", &error);
        }
        Err(failure(hook::POST_START_ERROR, &failed.message))
    }

    /// Records an error as an event and turns it into a waiting reason.
    fn fail(&self, container: &str, reason: &str, error: &Error) -> FailureReason {
        self.record_failure(container, failure(reason, error.message()))
    }

    /// Records a failure as an event.
    fn record_failure(&self, container: &str, failure: FailureReason) -> FailureReason {
        self.record(container, EventKind::Warning, "Failed", format!("Error: {}", failure.message));
        failure
    }

    fn record(&self, container: &str, kind: EventKind, reason: &str, message: String) {
        self.scope.record_container_event(container, kind, reason, message);
    }
}

fn failure(reason: &str, message: &str) -> FailureReason {
    FailureReason { reason: reason.to_owned(), message: message.to_owned() }
}
