//! Containers: made here, run by their shims.

mod making;

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use vk_pod_engine::{
    backend::ContainerConfig,
    snapshot::{Container, ContainerState, Mounted, User},
};
use vk_provider::{Error, Result, error::Kind};

use super::{
    Inner, blocking, fault, leftover, plain,
    record::{self, ContainerRecord},
    registry::{KnownContainer, KnownSandbox},
    signal,
};
use crate::{
    level::Level,
    shim::{Exit, State},
};

/// How long the kernel may take to end what it was told to kill.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// The code of a process that was killed, and the word for it.
const KILLED: i32 = 137;
const ERROR: &str = "Error";

impl Inner {
    pub(super) fn container_directory(&self, id: &str) -> PathBuf {
        self.directory.join("containers").join(id)
    }

    pub(super) async fn create_container(
        self: &Arc<Self>,
        sandbox: &str,
        config: ContainerConfig,
    ) -> Result<String> {
        let sandbox = self.registry.lock().sandbox(sandbox).map_err(|_| {
            fault::told(Kind::NotFound, format!("failed to find sandbox id {sandbox:?}: not found"))
        })?;
        let this = Arc::clone(self);
        blocking("make container", move || this.make_container(&sandbox, config)).await
    }

    fn make_container(self: &Arc<Self>, sandbox: &KnownSandbox, config: ContainerConfig) -> Result<String> {
        let id = record::new_id();
        let directory = self.container_directory(&id);
        let outcome = self.fill_container(&id, sandbox, config, &directory);
        match outcome {
            Ok(record) => {
                let known = KnownContainer::new(record, directory);
                self.registry.lock().containers.insert(id.clone(), Arc::new(known));
                Ok(id)
            }
            Err(error) => {
                if let Err(second) = leftover::bury(&directory) {
                    tracing::warn!(
                        error = second.report(),
                        container = id,
                        "half a container could not be taken back"
                    );
                }
                Err(fault::told(error.kind().clone(), error.message().to_owned()))
            }
        }
    }

    pub(super) async fn start_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let known = self.registry.lock().container(id)?;
        match self.state(&known).await? {
            State::Created => {}
            State::Running { .. } => return Ok(()),
            State::Exited(_) | State::Lost { .. } => {
                let message = "container is in CONTAINER_EXITED state";
                return Err(fault::told(Kind::Internal, message));
            }
        }
        if known.record.boot != self.boot {
            let message = "failed to create container: the machine was restarted after it was made";
            return Err(fault::told(Kind::Internal, message));
        }
        let launched = known.shim.start(&self.settings.program, &known.record.launch).await;
        launched.map_err(|error| fault::told(Kind::Internal, error.to_string()))
    }

    /// Where a container stands. One whose shim is gone is buried first.
    pub(super) async fn state(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<State> {
        if let Some(exit) = known.ended.lock().clone() {
            return Ok(State::Exited(exit));
        }
        match look(known)? {
            State::Lost { .. } => self.settle(known).await,
            state => Ok(state),
        }
    }

    /// Ends what the shim of a container left when it was killed, and writes down that it ended.
    async fn settle(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<State> {
        let _burial = known.burial.lock().await;
        let State::Lost { pid, started } = look(known)? else { return look(known) };
        let (this, container) = (Arc::clone(self), Arc::clone(known));
        blocking("end container", move || this.kill_rest(&container, pid, started)).await?;
        let exit = Exit {
            started,
            finished: self.settings.clock.now(),
            code: KILLED,
            oom: false,
            reason: ERROR.to_owned(),
            message: String::new(),
        };
        known
            .shim
            .conclude(&exit)
            .map_err(|error| fault::system("failed to write the state of a container", &error))?;
        *known.ended.lock() = Some(exit.clone());
        tracing::warn!(
            container = known.record.id,
            "the supervisor of a container was gone: the container was ended"
        );
        Ok(State::Exited(exit))
    }

    fn kill_rest(&self, known: &KnownContainer, pid: Option<i32>, started: Option<Timestamp>) -> Result<()> {
        let failed =
            |error: std::io::Error| fault::told(Kind::Internal, format!("failed to kill container: {error}"));
        if let (Some(cgroups), Some(cgroup)) = (&self.settings.cgroups, &known.record.launch.cgroup) {
            cgroups.kill(cgroup).map_err(failed)?;
            return cgroups.remove(cgroup).map_err(failed);
        }
        // After a restart of the machine the number is another's.
        if known.record.boot == self.boot
            && let Some(pid) = pid
        {
            plain::kill_session(pid, started).map_err(failed)?;
        }
        Ok(())
    }

    pub(super) async fn stop_container(self: &Arc<Self>, id: &str, grace: Duration) -> Result<()> {
        let Ok(known) = self.registry.lock().container(id) else { return Ok(()) };
        if !matches!(self.state(&known).await?, State::Running { .. }) {
            return Ok(());
        }
        if !grace.is_zero() {
            self.send(&known, known.record.stop_signal).await?;
            if self.ended_by(&known, grace).await? {
                return Ok(());
            }
        }
        self.end(&known).await
    }

    async fn send(&self, known: &KnownContainer, number: i32) -> Result<()> {
        known.shim.signal(number).await.map_err(|error| {
            fault::system(&format!("failed to signal container {:?}", known.record.id), &error)
        })
    }

    /// Waits for the end, at most this long; whether it came.
    async fn ended_by(self: &Arc<Self>, known: &Arc<KnownContainer>, within: Duration) -> Result<bool> {
        let until = tokio::time::Instant::now() + within;
        let state = known.shim.wait(until).await.map_err(|error| {
            fault::system(&format!("failed to wait for container {:?}", known.record.id), &error)
        })?;
        match state {
            State::Running { .. } => Ok(false),
            State::Lost { .. } => self.settle(known).await.map(|_| true),
            State::Created | State::Exited(_) => Ok(true),
        }
    }

    /// Kills a container and waits until it is gone.
    pub(super) async fn end(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<()> {
        if !matches!(self.state(known).await?, State::Running { .. }) {
            return Ok(());
        }
        // A supervisor that died at this moment is met by the wait.
        if let Err(error) = self.send(known, signal::KILL).await {
            tracing::debug!(
                error = error.report(),
                container = known.record.id,
                "a container could not be told to end"
            );
        }
        if self.ended_by(known, KILL_LIMIT).await? {
            return Ok(());
        }
        // The supervisor does not do it: the kernel must.
        let (this, container) = (Arc::clone(self), Arc::clone(known));
        blocking("end container", move || this.kill_rest(&container, None, None)).await?;
        if self.ended_by(known, KILL_LIMIT).await? {
            return Ok(());
        }
        let message =
            format!("an error occurs during waiting for container {:?} to be killed", known.record.id);
        Err(fault::told(Kind::Unavailable, message))
    }

    pub(super) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(known) = self.registry.lock().container(id) else { return Ok(()) };
        self.end(&known).await?;
        let (this, container) = (Arc::clone(self), Arc::clone(&known));
        blocking("remove container", move || {
            if let (Some(cgroups), Some(cgroup)) = (&this.settings.cgroups, &container.record.launch.cgroup) {
                let failed = |error: std::io::Error| {
                    fault::told(Kind::Internal, format!("failed to remove the container's cgroup: {error}"))
                };
                if cgroups.exists(cgroup) {
                    cgroups.kill(cgroup).map_err(failed)?;
                    cgroups.remove(cgroup).map_err(failed)?;
                }
            }
            leftover::bury(container.shim.dir())
        })
        .await?;
        self.registry.lock().containers.remove(id);
        self.layers.lock().remove(id);
        Ok(())
    }

    pub(super) async fn container_status(self: &Arc<Self>, id: &str) -> Result<Container> {
        let known = self.registry.lock().container(id)?;
        let state = self.state(&known).await?;
        let ContainerRecord { config, .. } = &known.record;
        let mut container = Container {
            id: id.to_owned(),
            name: config.name.clone(),
            attempt: config.attempt,
            sandbox: known.record.sandbox.clone(),
            state: told_state(&state),
            created: known.record.created,
            started: None,
            finished: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: known.record.image.clone(),
            image_ref: known.record.image_ref.clone(),
            image_id: known.record.image_id.clone(),
            log_path: known.record.launch.log.to_string_lossy().into_owned(),
            user: known.record.identity.as_ref().map(|identity| User {
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
            State::Created => {}
            State::Running { started, .. } => container.started = Some(started),
            State::Lost { started, .. } => container.started = started,
            State::Exited(exit) => {
                container.started = exit.started;
                container.finished = Some(exit.finished);
                container.exit_code = exit.code;
                container.reason = exit.reason;
                container.message = exit.message;
            }
        }
        Ok(container)
    }

    /// A container that runs, for what needs its process.
    pub(super) async fn running(self: &Arc<Self>, id: &str) -> Result<(Arc<KnownContainer>, i32)> {
        let known = self.registry.lock().container(id)?;
        let state = self.state(&known).await?;
        match state {
            State::Running { pid, .. } => Ok((known, pid)),
            other => {
                let state = match told_state(&other) {
                    ContainerState::Created => "CONTAINER_CREATED",
                    ContainerState::Exited => "CONTAINER_EXITED",
                    ContainerState::Running | ContainerState::Unknown => "CONTAINER_UNKNOWN",
                };
                Err(fault::told(Kind::Unavailable, format!("container is in {state} state")))
            }
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.settings.level == Level::Process
    }
}

/// Where a container stands, as its files say.
fn look(known: &KnownContainer) -> Result<State> {
    let state = known.shim.state().map_err(|error| {
        fault::system(&format!("failed to read the state of container {}", known.record.id), &error)
    })?;
    if let State::Exited(exit) = &state {
        *known.ended.lock() = Some(exit.clone());
    }
    Ok(state)
}

pub(super) fn told_state(state: &State) -> ContainerState {
    match state {
        State::Created => ContainerState::Created,
        State::Running { .. } => ContainerState::Running,
        State::Exited(_) => ContainerState::Exited,
        State::Lost { .. } => ContainerState::Unknown,
    }
}

/// An error of the images in the words of containers.
pub(super) fn no_image(image: &str) -> Error {
    fault::told(Kind::NotFound, format!("failed to resolve image {image:?}: not found"))
}
