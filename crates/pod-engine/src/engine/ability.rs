//! Logs, commands, attachments and connections: the right container or sandbox is found here, and the runtime does the rest.

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
    slot::{Slot, View},
};
use crate::{
    log, parts,
    snapshot::{Container, ContainerState, SandboxState, Snapshot},
};

impl Engine {
    /// What is known of a pod.
    async fn view(&self, pod: &PodRef) -> Result<(Arc<Slot>, View)> {
        let missing = || Error::not_found(format!("no pod {pod} on this node"));
        let slot = self.shared.find(pod).await?.ok_or_else(missing)?;
        let view = slot.known().await;
        if view.gone { Err(missing()) } else { Ok((slot, view)) }
    }

    /// The containers of this name, newest first. None for one that has not started; an error for one that the pod does not have.
    async fn instances(&self, container: &ContainerRef) -> Result<Vec<Container>> {
        let (slot, view) = self.view(&container.pod).await?;
        let found = named(&view.snapshot, &container.container);
        let pod = slot.bundle.lock().as_ref().map(|bundle| Arc::clone(&bundle.pod));
        let known = pod.is_some_and(|pod| parts::part(&pod, &container.container).is_some());
        if found.is_empty() && !known {
            return Err(Error::not_found(format!("no {container} on this node")));
        }
        Ok(found)
    }

    /// The id of a container that runs.
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
        // One that could not be started has written nothing; the one before it may have.
        let mut started = instances.iter().filter(|one| one.state != ContainerState::Created);
        let name = (&container.container, &container.pod.name);
        let wanted = if options.previous {
            started.nth(1).ok_or_else(|| {
                let text =
                    format!("previous terminated container {:?} in pod {:?} not found", name.0, name.1);
                Error::not_found(text)
            })?
        } else {
            let slot = self.shared.find(&container.pod).await?;
            started.next().ok_or_else(|| {
                if slot.is_some_and(|slot| slot.is_over()) {
                    // Not "not yet", which clients wait for.
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
        let (backend, id) = (Arc::clone(&self.shared.backend), wanted.id.clone());
        let is_running = move || {
            let (backend, id) = (Arc::clone(&backend), id.clone());
            async move { Ok(backend.container(&id).await?.state == ContainerState::Running) }
        };
        log::open(PathBuf::from(&wanted.log_path), options, &self.shared.clock, is_running).await
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
        self.shared.backend.exec(&id, command, options).await.map_err(|error| ended(error, container))
    }
}

#[async_trait]
impl Attach for Engine {
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started> {
        let id = self.running(container).await?;
        self.shared.backend.attach(&id, options).await.map_err(|error| ended(error, container))
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
        self.shared.backend.port_forward(&sandbox.id, port).await
    }
}

#[async_trait]
impl Stats for Engine {
    async fn summary(&self) -> Result<Summary> {
        self.shared.meter.summary(&self.shared).await
    }
}

/// A container that has gone since it was found is one that does not run.
fn ended(error: Error, container: &ContainerRef) -> Error {
    if *error.kind() == Kind::NotFound {
        return Error::unavailable(format!("{container} is not running any more")).caused_by(error);
    }
    error
}
