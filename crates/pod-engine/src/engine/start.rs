//! How containers start: image, environment, mounts, creation, start, hook.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod};
use vk_provider::{Error, EventKind, PodBundle, Result, error::Kind, resolve::Facts};

use super::{actor::Actor, shared::blocking, sync::Outcome};
use crate::{
    backend::{Runtime, SandboxConfig},
    decide::{self, Start, Why},
    hook, image, log, make,
    parts::{self, Part, Role},
    status::Trouble,
    volume,
};

/// What the containers of a pod start into.
struct Ground<'a> {
    bundle: &'a PodBundle,
    /// With the status that was computed last.
    pod: &'a Pod,
    runtime: &'a Runtime,
    sandbox: &'a str,
    config: &'a SandboxConfig,
    /// The images of image volumes, as far as they are there.
    images: BTreeMap<String, String>,
    /// And why others are not.
    missing: BTreeMap<String, Trouble>,
}

impl Actor {
    /// Starts containers one after the other. A failed init container ends it, any other only itself.
    pub(super) async fn start_all(
        &mut self,
        bundle: &PodBundle,
        pod: &Pod,
        runtime: &Runtime,
        sandbox: &str,
        config: &SandboxConfig,
        starts: &[Start],
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if starts.is_empty() {
            return outcome;
        }
        let (images, missing) = self.image_volumes(bundle, config).await;
        let ground = Ground { bundle, pod, runtime, sandbox, config, images, missing };
        for start in starts {
            let now = self.now();
            self.backoffs.begin(start, now);
            match self.start(&ground, start).await {
                Ok(()) => {
                    self.troubles.remove(&start.name);
                    outcome.did = true;
                }
                Err(trouble) => {
                    self.troubles.insert(start.name.clone(), trouble);
                    outcome.failed = true;
                    // It may have left something behind.
                    self.slot.outdate();
                    if start.role == Role::Init {
                        break;
                    }
                }
            }
        }
        outcome
    }

    /// Pulls the images that are mounted as volumes.
    async fn image_volumes(
        &self,
        bundle: &PodBundle,
        config: &SandboxConfig,
    ) -> (BTreeMap<String, String>, BTreeMap<String, Trouble>) {
        let (mut images, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for wanted in volume::images(&bundle.pod) {
            let policy = image::Policy::of(wanted.pull_policy.as_deref(), &wanted.reference);
            let ready = self
                .shared
                .puller
                .ensure(
                    &image::Wanted {
                        pod: &self.slot.pod,
                        image: &wanted.reference,
                        policy,
                        sandbox: config,
                        resolver: &*bundle.resolver,
                    },
                    &|kind, reason, message| self.tell(kind, reason, message),
                )
                .await;
            match ready {
                Ok(ready) => drop(images.insert(wanted.volume, ready.image_ref)),
                Err(trouble) => drop(missing.insert(wanted.volume, trouble)),
            }
        }
        (images, missing)
    }

    /// Starts one container. What failed has been told.
    async fn start(&mut self, ground: &Ground<'_>, start: &Start) -> Result<(), Trouble> {
        let name = start.name.as_str();
        let Some(part) = parts::part(ground.pod, name) else {
            return Err(trouble("CreateContainerConfigError", &format!("no container {name:?} in the pod")));
        };
        let mut mounts = part.container.volume_mounts.iter().flatten();
        if let Some(missing) = mounts.find_map(|mount| ground.missing.get(&mount.name)) {
            return Err(missing.clone());
        }
        let id = self.create(ground, start, &part).await?;
        self.tell_of(name, EventKind::Normal, "Created", "Container created".to_owned());
        if let Err(error) = self.shared.backend.start_container(&id).await {
            return Err(self.failed(name, "RunContainerError", &error));
        }
        self.tell_of(name, EventKind::Normal, "Started", "Container started".to_owned());
        self.post_start(ground, &part, id).await
    }

    async fn create(
        &mut self,
        ground: &Ground<'_>,
        start: &Start,
        part: &Part<'_>,
    ) -> Result<String, Trouble> {
        let name = start.name.as_str();
        let image = self.image(ground, &part.container).await?;
        let facts = self.facts(ground);
        let inputs = ground.bundle.resolver.container(name, &facts).await.map_err(|error| {
            if let Kind::Unresolved(reference) = error.kind() {
                self.awaiting = Some((Arc::clone(&ground.bundle.resolver), reference.clone()));
            }
            self.failed(name, "CreateContainerConfigError", &error)
        })?;
        let with = volume::With {
            images: Some(&ground.images),
            recursive_read_only: self.recursive_read_only(ground.runtime),
        };
        let mounts = self.volumes.mounts(&part.container, &inputs.env, &with).await;
        let mounts = mounts.map_err(|trouble| self.refused(name, trouble))?;
        let settings = &self.shared.settings;
        let by_logs = match start.restarts {
            Some(_) => 0,
            None => self
                .by_logs(name)
                .await
                .map_err(|error| self.failed(name, "CreateContainerConfigError", &error))?,
        };
        let attempt = start.restart_count(|| by_logs);
        let files = self.files(ground, part, &facts.pod_ips);
        let (hosts_file, termination_file) =
            files.await.map_err(|error| self.failed(name, "CreateContainerConfigError", &error))?;
        // In whichever state: that it has ended is for the runtime to say.
        let target = part.target.and_then(|target| Some(self.snapshot.newest(target)?.id.clone()));
        let config = make::container(&make::ContainerOrder {
            pod: ground.pod,
            part,
            attempt,
            hash: decide::hash(&part.container),
            settings,
            machine: &self.shared.machine,
            runtime: ground.runtime,
            sandbox: ground.config,
            image: &image,
            inputs: &inputs,
            mounts: &mounts,
            hosts_file: hosts_file.as_deref(),
            termination_file: termination_file.as_deref(),
            target: target.as_deref(),
        });
        let config = config.map_err(|trouble| self.refused(name, trouble))?;
        let created = self.shared.backend.create_container(ground.sandbox, &config, ground.config).await;
        created.map_err(|error| self.failed(name, "CreateContainerError", &error))
    }

    async fn image(&self, ground: &Ground<'_>, container: &Container) -> Result<image::Ready, Trouble> {
        let name = container.name.as_str();
        let image = container.image.as_deref().unwrap_or_default();
        let wanted = image::Wanted {
            pod: &self.slot.pod,
            image,
            policy: image::Policy::of(container.image_pull_policy.as_deref(), image),
            sandbox: ground.config,
            resolver: &*ground.bundle.resolver,
        };
        let tell = |kind, reason: &str, message| self.tell_of(name, kind, reason, message);
        let ready = self.shared.puller.ensure(&wanted, &tell).await;
        ready.inspect_err(|trouble| {
            let (kind, reason, message) = image::failed_event(trouble);
            self.tell_of(name, kind, reason, message);
        })
    }

    /// What is known now of where the container starts.
    fn facts(&self, ground: &Ground<'_>) -> Facts {
        let host_ips = self.shared.settings.node_ips.clone();
        let sandbox = self.snapshot.sandboxes.iter().find(|sandbox| sandbox.id == ground.sandbox);
        let pod_ips = match sandbox {
            Some(sandbox) if !sandbox.host_network => sandbox.ips.clone(),
            _ => host_ips.clone(),
        };
        Facts { pod_ips, host_ips, volumes: self.volumes.facts() }
    }

    /// The files of ours that the container gets: hosts, termination message; and the folder of its log.
    async fn files(
        &self,
        ground: &Ground<'_>,
        part: &Part<'_>,
        pod_ips: &[IpAddr],
    ) -> Result<(Option<PathBuf>, Option<PathBuf>)> {
        let settings = &self.shared.settings;
        let mut hosts = None;
        if make::mounts_hosts(ground.pod, pod_ips) {
            // Only with the host's network; a machine without such a file has nothing to copy.
            let host = tokio::fs::read_to_string(&settings.hosts_file).await.unwrap_or_default();
            hosts = Some(make::hosts(ground.pod, &settings.cluster_domain, pod_ips, &host)?);
        }
        let messages = part.container.termination_message_path.as_deref() != Some("");
        let (place, ledger) = (self.shared.place.clone(), self.shared.ledger.clone());
        let (pod, name) = (self.slot.pod.clone(), part.container.name.clone());
        let log_root = settings.log_root.clone();
        blocking(move || {
            let hosts = hosts.map(|content| place.write_hosts(&pod.uid, &content)).transpose()?;
            let message = messages.then(|| place.message_file(&pod.uid, &name)).transpose()?;
            ledger.enter(&log_root, &pod)?;
            log::directory::create(&log_root, &pod, &name)?;
            Ok((hosts, message))
        })
        .await?
    }

    /// The number for a container of which only its logs tell.
    async fn by_logs(&self, name: &str) -> Result<u32> {
        let (log_root, pod) = (self.shared.settings.log_root.clone(), self.slot.pod.clone());
        let name = name.to_owned();
        blocking(move || log::directory::next_attempt(&log_root, &pod, &name)).await
    }

    async fn post_start(&self, ground: &Ground<'_>, part: &Part<'_>, id: String) -> Result<(), Trouble> {
        let call = hook::Call {
            pod: self.slot.pod.clone(),
            container: part.container.clone().into_owned(),
            id,
            ip: self.facts(ground).pod_ips.first().copied(),
            tell: self.shared.teller(),
        };
        let Err(failure) = hook::post_start(&self.shared.prober, &call).await else { return Ok(()) };
        let message = "FailedPostStartHook".to_owned();
        if let Err(error) = self.stop_one(ground.pod, &call.id, message, Why::PostStart).await {
            super::actor::complain(
                &self.slot.pod,
                "cannot stop a container whose postStart hook failed",
                &error,
            );
        }
        Err(trouble(hook::POST_START_ERROR, &failure.message))
    }

    /// Tells of a failure, and makes of it what is shown.
    fn failed(&self, container: &str, reason: &str, error: &Error) -> Trouble {
        self.refused(container, trouble(reason, error.message()))
    }

    /// Tells of what is shown.
    fn refused(&self, container: &str, trouble: Trouble) -> Trouble {
        self.tell_of(container, EventKind::Warning, "Failed", format!("Error: {}", trouble.message));
        trouble
    }

    fn tell_of(&self, container: &str, kind: EventKind, reason: &str, message: String) {
        self.shared.tell(&self.slot.pod, Some(container), kind, reason, message);
    }
}

fn trouble(reason: &str, message: &str) -> Trouble {
    Trouble { reason: reason.to_owned(), message: message.to_owned() }
}
