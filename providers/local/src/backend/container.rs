//! Containers: created here, run by their shims.

mod bundle;
mod lifecycle;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use vk_pod_engine::{
    backend::ContainerConfig,
    snapshot::{Container, ContainerState, Mounted, User},
};
use vk_provider::{Error, Result, error::Kind};

use super::{
    Inner, blocking,
    container_store::{LocalContainer, LocalSandbox},
    error,
    record::{self, ContainerRecord},
    recovery,
};
use crate::{
    isolation::Isolation,
    shim::{ContainerProcess, State},
};

impl Inner {
    pub(super) fn container_directory(&self, id: &str) -> PathBuf {
        self.directory.join("containers").join(id)
    }

    pub(super) async fn create_container(
        self: &Arc<Self>,
        sandbox: &str,
        config: ContainerConfig,
    ) -> Result<String> {
        let sandbox = self.store.lock().sandbox(sandbox).map_err(|_| {
            error::cri_error(Kind::NotFound, format!("failed to find sandbox id {sandbox:?}: not found"))
        })?;
        let this = Arc::clone(self);
        blocking("make container", move || this.build_container(&sandbox, config)).await
    }

    fn build_container(self: &Arc<Self>, sandbox: &LocalSandbox, config: ContainerConfig) -> Result<String> {
        let id = record::new_id();
        let directory = self.container_directory(&id);
        let outcome = self.write_container(&id, sandbox, config, &directory);
        match outcome.and_then(|(record, process)| self.register(record, process, &directory)) {
            Ok(()) => Ok(id),
            Err(error) => {
                if let Err(second) = recovery::remove_directory(&directory) {
                    tracing::warn!(
                        error = second.report(),
                        container = id,
                        "removing an incomplete container failed"
                    );
                }
                Err(error::cri_error(error.kind().clone(), error.message().to_owned()))
            }
        }
    }

    /// Adds a complete container to the registry, unless its sandbox was stopped meanwhile: nothing would ever remove
    /// it.
    fn register(&self, record: ContainerRecord, process: ContainerProcess, directory: &Path) -> Result<()> {
        let mut store = self.store.lock();
        if store.sandboxes.get(&record.sandbox).is_none_or(|sandbox| sandbox.is_stopped()) {
            let message = format!("sandbox container {:?} is not running", record.sandbox);
            return Err(error::cri_error(Kind::Internal, message));
        }
        let entry = LocalContainer::created(record, process, directory.to_owned());
        store.containers.insert(entry.record.id.clone(), Arc::new(entry));
        Ok(())
    }

    pub(super) async fn start_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let entry = self.store.lock().container(id)?;
        let _start = entry.start.lock().await;
        // It may have been removed while we waited for the lock.
        self.store.lock().container(id)?;
        match self.state(&entry).await? {
            State::Created => {}
            State::Running { .. } => return Ok(()),
            State::Exited(_) | State::Lost { .. } => {
                let message = "container is in CONTAINER_EXITED state";
                return Err(error::cri_error(Kind::Internal, message));
            }
        }
        if entry.record.boot != self.boot {
            let message = "failed to create container: the host was rebooted after the container was created";
            return Err(error::cri_error(Kind::Internal, message));
        }
        let Some(process) = entry.process.lock().clone() else {
            let message = "failed to create container: it was created by an earlier process of the provider, and its \
                           environment is on no disk: create it again";
            return Err(error::cri_error(Kind::Internal, message));
        };
        let launched = entry.shim.start(&self.settings.program, &entry.record.launch, &process).await;
        launched.map_err(|error| error::cri_error(Kind::Internal, error.to_string()))?;
        // From here on only the shim needs it.
        *entry.process.lock() = None;
        Ok(())
    }

    pub(super) async fn container_status(self: &Arc<Self>, id: &str) -> Result<Container> {
        let entry = self.store.lock().container(id)?;
        let state = self.observed_state(&entry).await;
        let ContainerRecord { config, .. } = &entry.record;
        let mut container = Container {
            id: id.to_owned(),
            name: config.name.clone(),
            attempt: config.attempt,
            sandbox: entry.record.sandbox.clone(),
            state: container_state(state.as_ref()),
            created: entry.record.created,
            started: None,
            finished: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: entry.record.image.clone(),
            image_ref: entry.record.image_ref.clone(),
            image_id: entry.record.image_id.clone(),
            log_path: entry.record.launch.log.to_string_lossy().into_owned(),
            user: entry.record.identity.as_ref().map(|identity| User {
                uid: identity.uid.into(),
                gid: identity.gid.into(),
                supplemental_groups: identity.groups.iter().map(|gid| i64::from(*gid)).collect(),
            }),
            mounts: config
                .mounts
                .iter()
                .map(|mount| Mounted {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    read_only: mount.read_only,
                })
                .collect(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        };
        match state {
            None | Some(State::Created) => {}
            Some(State::Running { started, .. }) => container.started = Some(started),
            Some(State::Lost { started, .. }) => container.started = started,
            Some(State::Exited(exit)) => {
                container.started = exit.started;
                container.finished = Some(exit.finished);
                container.exit_code = exit.code;
                container.reason = exit.reason;
                container.message = exit.message;
            }
        }
        Ok(container)
    }

    /// A running container and its PID.
    pub(super) async fn running(self: &Arc<Self>, id: &str) -> Result<(Arc<LocalContainer>, i32)> {
        let entry = self.store.lock().container(id)?;
        let state = self.state(&entry).await?;
        match state {
            State::Running { pid, .. } => Ok((entry, pid)),
            other => {
                let state = match container_state(Some(&other)) {
                    ContainerState::Created => "CONTAINER_CREATED",
                    ContainerState::Exited => "CONTAINER_EXITED",
                    ContainerState::Running | ContainerState::Unknown => "CONTAINER_UNKNOWN",
                };
                Err(error::cri_error(Kind::Unavailable, format!("container is in {state} state")))
            }
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.settings.isolation == Isolation::Process
    }
}

/// Maps a state to the engine's; `None` and lost containers are unknown.
pub(super) fn container_state(state: Option<&State>) -> ContainerState {
    match state {
        Some(State::Created) => ContainerState::Created,
        Some(State::Running { .. }) => ContainerState::Running,
        Some(State::Exited(_)) => ContainerState::Exited,
        None | Some(State::Lost { .. }) => ContainerState::Unknown,
    }
}

/// The error for an image that is not in the store.
pub(super) fn no_image(image: &str) -> Error {
    error::cri_error(Kind::NotFound, format!("failed to resolve image {image:?}: not found"))
}
