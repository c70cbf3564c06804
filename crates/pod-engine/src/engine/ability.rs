//! Logs, exec, attach, port forwarding and stats: finds the container or sandbox, and passes the call to the runtime.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use vk_provider::{
    ContainerRef, Error, PodRef, Result,
    ability::{
        Attach, AttachOptions, Exec, ExecOptions, Forward, LogBody, LogOptions, Logs, PortForward, Started,
        Stats, Summary,
    },
    error::Kind,
};

use super::{
    Engine,
    pod_handle::{PodHandle, PodView},
};
use crate::{
    containers::find_container,
    log,
    snapshot::{Container, ContainerState, SandboxState, Snapshot},
};

impl Engine {
    /// The handle and the observed state of a pod.
    async fn view(&self, pod: &PodRef) -> Result<(Arc<PodHandle>, PodView)> {
        let missing = || Error::not_found(format!("no pod {pod} on this node"));
        let handle = self.context.find_pod(pod).await?.ok_or_else(missing)?;
        let view = handle.observed().await;
        if view.removed { Err(missing()) } else { Ok((handle, view)) }
    }

    /// The instances of a container, newest first: empty if it has not started, an error if the pod has no such container.
    async fn instances(&self, container: &ContainerRef) -> Result<Vec<Container>> {
        let (handle, view) = self.view(&container.pod).await?;
        let found = named(&view.snapshot, &container.container);
        let known =
            handle.desired_pod().is_some_and(|pod| find_container(&pod, &container.container).is_some());
        if found.is_empty() && !known {
            return Err(Error::not_found(format!("no {container} on this node")));
        }
        Ok(found)
    }

    /// The id of a running container.
    async fn running(&self, container: &ContainerRef) -> Result<String> {
        let instances = self.instances(container).await?;
        let running = instances.into_iter().find(|one| one.state == ContainerState::Running);
        running.map(|one| one.id).ok_or_else(|| Error::unavailable(format!("{container} is not running")))
    }
}

fn named(snapshot: &Snapshot, name: &str) -> Vec<Container> {
    snapshot.containers.iter().filter(|container| container.name == name).cloned().collect()
}

#[async_trait]
impl Logs for Engine {
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        let instances = self.instances(container).await?;
        // An instance that failed to start has no log; the previous one may have.
        let mut started = instances.iter().filter(|one| one.state != ContainerState::Created);
        let name = (&container.container, &container.pod.name);
        let wanted = if options.previous {
            started.nth(1).ok_or_else(|| {
                let text =
                    format!("previous terminated container {:?} in pod {:?} not found", name.0, name.1);
                Error::not_found(text)
            })?
        } else {
            let handle = self.context.find_pod(&container.pod).await?;
            started.next().ok_or_else(|| {
                if handle.is_some_and(|handle| handle.is_finished()) {
                    // It will not start any more: a client must not wait for it.
                    let text = format!("container {:?} in pod {:?} never ran", name.0, name.1);
                    return Error::not_found(text);
                }
                let text = format!(
                    "container {:?} in pod {:?} is waiting to start: ContainerCreating",
                    name.0, name.1
                );
                Error::unavailable(text)
            })?
        };
        let (backend, id) = (Arc::clone(&self.context.backend), wanted.id.clone());
        let is_running = move || {
            let (backend, id) = (Arc::clone(&backend), id.clone());
            async move { Ok(backend.container(&id).await?.state == ContainerState::Running) }
        };
        log::open(PathBuf::from(&wanted.log_path), options, &self.context.clock, is_running).await
    }
}

#[async_trait]
impl Exec for Engine {
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started> {
        let id = self.running(container).await?;
        self.context.backend.exec(&id, command, options).await.map_err(|error| not_running(error, container))
    }
}

#[async_trait]
impl Attach for Engine {
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started> {
        let id = self.running(container).await?;
        self.context.backend.attach(&id, options).await.map_err(|error| not_running(error, container))
    }
}

#[async_trait]
impl PortForward for Engine {
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward> {
        let (_, view) = self.view(pod).await?;
        let ready = view.snapshot.sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready);
        let Some(sandbox) = ready else {
            return Err(Error::unavailable(format!(
                "forward port {port}: pod {pod} has no sandbox that is ready"
            )));
        };
        self.context.backend.port_forward(&sandbox.id, port).await
    }
}

#[async_trait]
impl Stats for Engine {
    async fn summary(&self) -> Result<Summary> {
        self.context.stats.summary(&self.context).await
    }
}

/// Reports a container that was removed meanwhile as not running.
fn not_running(error: Error, container: &ContainerRef) -> Error {
    if *error.kind() == Kind::NotFound {
        return Error::unavailable(format!("{container} is no longer running")).caused_by(error);
    }
    error
}
