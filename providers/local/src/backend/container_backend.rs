//! Implements [`ContainerBackend`] for [`LocalBackend`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{future::join_all, stream::BoxStream};
use vk_pod_engine::{
    ContainerBackend,
    backend::{
        ContainerConfig, ContainerEntry, ExecOutput, FsUsage, Image, Listing, PodUsage, RuntimeCondition,
        RuntimeHandler, RuntimeInfo, SandboxConfig, SandboxEntry,
    },
    image::Access,
    snapshot::{Container, Sandbox},
};
use vk_provider::{
    Error, Result,
    ability::{AttachOptions, ExecOptions, Forward, Started},
    error::Kind,
    resolve::PullCredentials,
};

use super::{
    Inner, LocalBackend, blocking, container::container_state, container_store::matches_labels, error, events,
};
use crate::{isolation::Isolation, namespace};

/// The image name that stands for the host itself, if the operator allows it.
const HOST: &str = "host";

impl Inner {
    /// Whether an image name stands for the host itself.
    pub(super) fn is_host(&self, image: &str) -> bool {
        let tagged = image.strip_suffix(":latest").unwrap_or(image);
        let plain = tagged.strip_prefix("docker.io/library/").unwrap_or(tagged);
        self.settings.isolation == Isolation::Process && self.settings.host_image && plain == HOST
    }

    async fn listing(self: &Arc<Self>, labels: &BTreeMap<String, String>) -> Result<Listing> {
        let (sandboxes, containers) = {
            let store = self.store.lock();
            let sandboxes =
                store.sandboxes.values().filter(|entry| matches_labels(&entry.record.config.labels, labels));
            let containers =
                store.containers.values().filter(|entry| matches_labels(&entry.record.config.labels, labels));
            // The pod of a container is that of its sandbox.
            let homes = containers.filter_map(|entry| {
                let home = store.sandboxes.get(&entry.record.sandbox)?;
                Some((Arc::clone(entry), home.record.config.pod.clone()))
            });
            (sandboxes.cloned().collect::<Vec<_>>(), homes.collect::<Vec<_>>())
        };
        let sandboxes = sandboxes.iter().map(|entry| SandboxEntry {
            id: entry.record.id.clone(),
            pod: entry.record.config.pod.clone(),
            state: self.sandbox_state(entry),
            attempt: entry.record.config.attempt,
        });
        let sandboxes = sandboxes.collect();
        let containers = containers.into_iter().map(|(entry, pod)| async move {
            let state = self.observed_state(&entry).await;
            ContainerEntry {
                id: entry.record.id.clone(),
                pod,
                sandbox: entry.record.sandbox.clone(),
                name: entry.record.config.name.clone(),
                state: container_state(state.as_ref()),
                attempt: entry.record.config.attempt,
            }
        });
        let containers = join_all(containers).await;
        Ok(Listing { sandboxes, containers })
    }
}

#[async_trait]
impl ContainerBackend for LocalBackend {
    async fn runtime(&self) -> Result<RuntimeInfo> {
        let settings = &self.inner.settings;
        let network = match (&settings.network, &settings.network_problem) {
            (None, Some(problem)) => {
                format!("pods use the host's network: {problem}")
            }
            _ => String::new(),
        };
        let handler = RuntimeHandler {
            name: String::new(),
            user_namespaces: false,
            recursive_read_only: settings.isolation == Isolation::Oci,
        };
        Ok(RuntimeInfo {
            name: "local".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: RuntimeCondition { ok: true, ..RuntimeCondition::default() },
            network: RuntimeCondition { ok: true, reason: String::new(), message: network },
            handlers: vec![handler],
            cgroup_driver: (settings.isolation == Isolation::Oci).then(|| "cgroupfs".to_owned()),
        })
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<String> {
        let config = config.clone();
        let limit = self.inner.settings.call_limit.saturating_mul(2);
        self.run_to_completion(limit, |inner| async move { inner.run_sandbox(config).await }).await
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let limit = self.inner.settings.call_limit;
        self.run_to_completion(limit, |inner| async move { inner.stop_sandbox(&id).await }).await
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let limit = self.inner.settings.call_limit;
        self.run_to_completion(limit, |inner| async move { inner.remove_sandbox(&id).await }).await
    }

    async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.inner.sandbox_status(id)
    }

    async fn create_container(
        &self,
        sandbox: &str,
        container: &ContainerConfig,
        _config: &SandboxConfig,
    ) -> Result<String> {
        let (sandbox, container) = (sandbox.to_owned(), container.clone());
        let limit = self.inner.settings.call_limit;
        self.run_to_completion(
            limit,
            |inner| async move { inner.create_container(&sandbox, container).await },
        )
        .await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let limit = self.inner.settings.call_limit;
        self.run_to_completion(limit, |inner| async move { inner.start_container(&id).await }).await
    }

    /// Ends when the caller stops waiting: a second call with another grace period must not compete with the first one.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let limit = self.inner.settings.call_limit.saturating_add(grace);
        let stop = self.inner.stop_container(id, grace);
        tokio::time::timeout(limit, stop).await.unwrap_or_else(|_| Err(error::deadline_exceeded()))
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let limit = self.inner.settings.call_limit;
        self.run_to_completion(limit, |inner| async move { inner.remove_container(&id).await }).await
    }

    async fn container(&self, id: &str) -> Result<Container> {
        self.inner.container_status(id).await
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Listing> {
        self.inner.listing(labels).await
    }

    async fn run(&self, container: &str, command: &[String], limit: Duration) -> Result<ExecOutput> {
        let (entry, _) = self.inner.running(container).await?;
        entry.shim.run(command, limit).await
    }

    async fn exec(&self, container: &str, command: &[String], options: &ExecOptions) -> Result<Started> {
        let (entry, _) = self.inner.running(container).await?;
        let limit = self.inner.settings.call_limit;
        let session = tokio::time::timeout(limit, entry.shim.exec(command, options)).await;
        session.unwrap_or_else(|_| Err(error::deadline_exceeded())).map(Started::Session)
    }

    async fn attach(&self, container: &str, options: &AttachOptions) -> Result<Started> {
        let (entry, _) = self.inner.running(container).await?;
        let limit = self.inner.settings.call_limit;
        let session = tokio::time::timeout(limit, entry.shim.attach(options)).await;
        session.unwrap_or_else(|_| Err(error::deadline_exceeded())).map(Started::Session)
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Forward> {
        let place = self.inner.network_namespace(sandbox)?;
        let limit = self.inner.settings.call_limit;
        let dialled = tokio::time::timeout(limit, namespace::connect(sandbox, place.as_deref(), port)).await;
        match dialled {
            Ok(Ok(stream)) => Ok(Forward::Stream(Box::new(stream))),
            Ok(Err(error)) => Err(error::cri_error(Kind::Unavailable, error.to_string())),
            Err(_) => Err(error::deadline_exceeded()),
        }
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        let (entry, _) = self.inner.running(container).await?;
        let limit = self.inner.settings.call_limit;
        match tokio::time::timeout(limit, entry.shim.reopen_log()).await {
            Ok(done) => done.map_err(|error| error::io_error("failed to reopen the container's log", &error)),
            Err(_) => Err(error::deadline_exceeded()),
        }
    }

    async fn image(&self, image: &str, _handler: &str) -> Result<Option<Image>> {
        if self.inner.is_host(image) {
            return Ok(Some(host()));
        }
        Ok(self.inner.settings.images.image(image).map_err(Error::from)?.map(|stored| stored.to_engine()))
    }

    async fn images(&self) -> Result<Vec<Image>> {
        let store = Arc::clone(&self.inner.settings.images);
        let stored = blocking("list images", move || store.list().map_err(Error::from)).await?;
        let own = (self.inner.is_host(HOST)).then(host);
        Ok(stored.iter().map(crate::image::StoredImage::to_engine).chain(own).collect())
    }

    async fn pull(
        &self,
        image: &str,
        credentials: Option<&PullCredentials>,
        _sandbox: &SandboxConfig,
    ) -> Result<String> {
        if self.inner.is_host(image) {
            return Ok(HOST.to_owned());
        }
        let pull = self.inner.settings.images.pull(image, credentials);
        let pulled = match self.inner.settings.pull_limit {
            None => pull.await,
            Some(limit) => tokio::time::timeout(limit, pull).await.map_err(|_| {
                Error::unavailable(format!(
                    "failed to pull image {image:?}: not finished within {limit:?} (pullTimeout)"
                ))
            })?,
        };
        Ok(pulled.map_err(Error::from)?.id)
    }

    async fn image_access(&self, image: &str, id: &str) -> Result<Access> {
        if self.inner.is_host(image) {
            return Ok(Access::Everyone);
        }
        self.inner.settings.images.access(image, id).map_err(Error::from)
    }

    async fn remove_image(&self, image: &str) -> Result<()> {
        let (store, image) = (Arc::clone(&self.inner.settings.images), image.to_owned());
        blocking("remove image", move || store.remove(&image).map(drop).map_err(Error::from)).await
    }

    async fn used_images(&self) -> Result<BTreeSet<String>> {
        let store = self.inner.store.lock();
        Ok(store.containers.values().flat_map(|entry| entry.record.images.iter().cloned()).collect())
    }

    async fn image_fs(&self) -> Result<Vec<FsUsage>> {
        let store = Arc::clone(&self.inner.settings.images);
        blocking("measure images", move || {
            let usage = store.usage().map_err(Error::from)?;
            Ok(vec![FsUsage {
                mount_point: store.directory().to_string_lossy().into_owned(),
                used_bytes: usage.bytes,
                used_inodes: Some(usage.inodes),
            }])
        })
        .await
    }

    async fn usage(&self, labels: &BTreeMap<String, String>) -> Result<Vec<PodUsage>> {
        self.inner.usage(labels).await
    }

    fn events(&self) -> Option<BoxStream<'static, String>> {
        Some(events::stream(Arc::clone(&self.inner.events)))
    }
}

fn host() -> Image {
    Image { id: HOST.to_owned(), tags: vec![HOST.to_owned()], pinned: true, ..Image::default() }
}
