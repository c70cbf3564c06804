//! The state of containers, and stopping and removing them, even if the shim is gone or its files are unreadable.

use std::{io, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::{MutexGuard, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use vk_provider::{Result, error::Kind};

use super::super::{Inner, blocking, container_store::LocalContainer, error, process, recovery, signal};
use crate::shim::{ContainerExit, State};

/// How long a killed container may take to exit.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for a start in progress before killing it, and again afterwards.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a status query waits for the cleanup of a container whose shim is gone.
const QUERY_LIMIT: Duration = Duration::from_secs(2);
/// Polling interval.
const POLL: Duration = Duration::from_millis(10);
/// Exit code and reason of a killed container.
const KILLED: i32 = 137;
const ERROR: &str = "Error";

impl Inner {
    /// The state for listings; `None` if it is unknown at the moment. One container never delays or hides the others.
    pub(in super::super) async fn observed_state(
        self: &Arc<Self>,
        entry: &Arc<LocalContainer>,
    ) -> Option<State> {
        let ended = entry.ended.lock().clone();
        if let Some(exit) = ended {
            return Some(State::Exited(exit));
        }
        let outcome = match read_state(entry) {
            // Another task is cleaning it up.
            Ok(State::Lost { .. }) if entry.cleanup.try_lock().is_err() => return None,
            Ok(State::Lost { .. }) => {
                let (sender, receiver) = oneshot::channel();
                let (this, container) = (Arc::clone(self), Arc::clone(entry));
                self.tasks.lock().spawn(async move {
                    // The caller may be gone.
                    let _ = sender.send(this.clean_up_lost(&container).await);
                });
                match timeout(QUERY_LIMIT, receiver).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) | Err(_) => return None,
                }
            }
            outcome => outcome,
        };
        outcome
            .inspect_err(|error| {
                if entry.mark_unknown() {
                    tracing::warn!(
                        error = error.report(),
                        container = entry.record.id,
                        "the state of the container is unknown: it is listed as unknown until it can be read or the container is removed"
                    );
                }
            })
            .ok()
    }

    /// The state of a container. If its shim is gone, the container is cleaned up first.
    pub(in super::super) async fn state(self: &Arc<Self>, entry: &Arc<LocalContainer>) -> Result<State> {
        let ended = entry.ended.lock().clone();
        if let Some(exit) = ended {
            return Ok(State::Exited(exit));
        }
        match read_state(entry)? {
            State::Lost { .. } => self.clean_up_lost(entry).await,
            state => Ok(state),
        }
    }

    /// Kills what the dead shim of a container left running, and records the exit.
    async fn clean_up_lost(self: &Arc<Self>, entry: &Arc<LocalContainer>) -> Result<State> {
        let _cleanup = entry.cleanup.lock().await;
        let ended = entry.ended.lock().clone();
        if let Some(exit) = ended {
            return Ok(State::Exited(exit));
        }
        let State::Lost { pid, started } = read_state(entry)? else { return read_state(entry) };
        let (this, container) = (Arc::clone(self), Arc::clone(entry));
        blocking("end container", move || this.kill_processes_blocking(&container, pid, started)).await?;
        let exit = ContainerExit {
            started,
            finished: self.settings.clock.now(),
            code: KILLED,
            oom: false,
            reason: ERROR.to_owned(),
            message: String::new(),
        };
        // If the disk is full, this process remembers the exit, and the next one cleans up again.
        if let Err(error) = entry.shim.save_exit(&exit) {
            tracing::warn!(%error, container = entry.record.id, "recording the exit of a container failed");
        }
        *entry.ended.lock() = Some(exit.clone());
        tracing::warn!(container = entry.record.id, "the shim of a container was gone: killed the container");
        Ok(State::Exited(exit))
    }

    fn kill_processes_blocking(
        &self,
        entry: &LocalContainer,
        pid: Option<i32>,
        started: Option<Timestamp>,
    ) -> Result<()> {
        let failed =
            |error: io::Error| error::cri_error(Kind::Internal, format!("failed to kill container: {error}"));
        if let (Some(cgroups), Some(cgroup)) = (&self.settings.cgroups, &entry.record.launch.cgroup) {
            cgroups.kill(cgroup).map_err(failed)?;
            return cgroups.remove(cgroup).map_err(failed);
        }
        // After a reboot the PID belongs to another process.
        if entry.record.boot != self.boot {
            return Ok(());
        }
        if let Some(pid) = pid {
            let ticks = entry.shim.start_ticks().ok().flatten();
            process::kill_session(pid, started, ticks).map_err(failed)?;
        }
        process::kill_marked_processes(&entry.record.id).map_err(failed)
    }

    /// Runs [`Self::kill_processes_blocking`] off the async threads.
    async fn kill_processes(
        self: &Arc<Self>,
        entry: &Arc<LocalContainer>,
        pid: Option<i32>,
        started: Option<Timestamp>,
    ) -> Result<()> {
        let (this, container) = (Arc::clone(self), Arc::clone(entry));
        blocking("end container", move || this.kill_processes_blocking(&container, pid, started)).await
    }

    /// Waits until no start is in progress, and excludes new ones while the guard is held. A start that hangs is
    /// killed.
    async fn lock_start<'a>(self: &Arc<Self>, entry: &'a Arc<LocalContainer>) -> Result<MutexGuard<'a, ()>> {
        for last in [false, true] {
            let until = Instant::now() + START_LIMIT;
            if let Ok(start) = timeout_at(until, entry.start.lock()).await {
                // A start by another process of ours, or one whose caller gave up.
                while is_starting(entry) && Instant::now() < until {
                    sleep(POLL).await;
                }
                if !is_starting(entry) {
                    return Ok(start);
                }
            }
            if !last {
                tracing::warn!(container = entry.record.id, "killing a start that hangs");
                self.kill_processes(entry, None, None).await?;
            }
        }
        let message = format!("container {:?} is being started and cannot be stopped now", entry.record.id);
        Err(error::cri_error(Kind::Unavailable, message))
    }

    pub(in super::super) async fn stop_container(self: &Arc<Self>, id: &str, grace: Duration) -> Result<()> {
        let Ok(entry) = self.store.lock().container(id) else { return Ok(()) };
        drop(self.lock_start(&entry).await?);
        match self.state(&entry).await {
            Ok(State::Running { .. }) => {}
            Ok(_) => return Ok(()),
            Err(_) => return self.kill_container(&entry).await,
        }
        if !grace.is_zero() {
            // If the signal cannot be delivered, the container still gets its grace period before it is killed.
            if let Err(error) = self.send_signal(&entry, entry.record.stop_signal).await {
                tracing::warn!(
                    error = error.report(),
                    container = id,
                    signal = entry.record.stop_signal,
                    "sending the stop signal to a container failed: it is killed after its grace period"
                );
            }
            match self.wait_for_exit(&entry, grace).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        error = error.report(),
                        container = id,
                        "waiting for a container failed: it is killed now"
                    );
                }
            }
        }
        self.kill_container(&entry).await
    }

    async fn send_signal(&self, entry: &LocalContainer, number: i32) -> Result<()> {
        entry.shim.signal(number).await.map_err(|error| {
            error::io_error(&format!("failed to signal container {:?}", entry.record.id), &error)
        })
    }

    /// Waits for the exit; returns whether it happened in time. If the shim does not answer, its files are polled.
    async fn wait_for_exit(self: &Arc<Self>, entry: &Arc<LocalContainer>, within: Duration) -> Result<bool> {
        let until = Instant::now() + within;
        let mut state = entry.shim.wait(until).await;
        if let Err(error) = &state {
            tracing::debug!(%error, container = entry.record.id, "the shim of a container does not answer");
            state = entry.shim.state();
            while matches!(state, Ok(State::Running { .. })) && Instant::now() < until {
                sleep(POLL).await;
                state = entry.shim.state();
            }
        }
        let state = state.map_err(|error| {
            error::io_error(&format!("failed to wait for container {:?}", entry.record.id), &error)
        })?;
        match state {
            State::Running { .. } => Ok(false),
            State::Lost { .. } => self.clean_up_lost(entry).await.map(|_| true),
            State::Created | State::Exited(_) => Ok(true),
        }
    }

    /// Kills a container and waits until it is gone. If it is being started, it is killed once it runs.
    pub(in super::super) async fn kill_container(
        self: &Arc<Self>,
        entry: &Arc<LocalContainer>,
    ) -> Result<()> {
        drop(self.lock_start(entry).await?);
        self.kill_container_locked(entry).await
    }

    async fn kill_container_locked(self: &Arc<Self>, entry: &Arc<LocalContainer>) -> Result<()> {
        let (pid, started) = match self.state(entry).await {
            Ok(State::Running { pid, started }) => (pid, started),
            Ok(_) => return Ok(()),
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    container = entry.record.id,
                    "the state of a container is unknown: killing it"
                );
                return self.kill_unreadable(entry).await;
            }
        };
        // If the shim dies at this moment, the wait notices.
        if self.request_kill(entry).await && self.wait_for_exit(entry, KILL_LIMIT).await? {
            return Ok(());
        }
        // The shim did not kill it: kill its processes directly.
        self.kill_processes(entry, Some(pid), Some(started)).await?;
        if self.wait_for_exit(entry, KILL_LIMIT).await? {
            return Ok(());
        }
        Err(kill_timed_out(entry))
    }

    /// Kills a container whose state is unreadable, through its shim and its cgroup.
    async fn kill_unreadable(self: &Arc<Self>, entry: &Arc<LocalContainer>) -> Result<()> {
        self.request_kill(entry).await;
        let until = Instant::now() + KILL_LIMIT;
        while is_shim_alive(entry) && Instant::now() < until {
            sleep(POLL).await;
        }
        self.kill_processes(entry, None, None).await?;
        let until = Instant::now() + KILL_LIMIT;
        while is_shim_alive(entry) {
            if Instant::now() >= until {
                return Err(kill_timed_out(entry));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Asks the shim to kill the container; returns whether the request was delivered.
    async fn request_kill(&self, entry: &LocalContainer) -> bool {
        let sent = self.send_signal(entry, signal::KILL).await;
        if let Err(error) = &sent {
            tracing::warn!(
                error = error.report(),
                container = entry.record.id,
                "asking the shim to kill the container failed: killing its processes directly"
            );
        }
        sent.is_ok()
    }

    pub(in super::super) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(entry) = self.store.lock().container(id) else { return Ok(()) };
        // Held to the end, so that a container cannot be started while it is removed.
        let _start = self.lock_start(&entry).await?;
        if self.store.lock().container(id).is_err() {
            return Ok(());
        }
        self.kill_container_locked(&entry).await?;
        let (this, container) = (Arc::clone(self), Arc::clone(&entry));
        blocking("remove container", move || {
            if let (Some(cgroups), Some(cgroup)) = (&this.settings.cgroups, &container.record.launch.cgroup) {
                let failed = |error: io::Error| {
                    error::cri_error(
                        Kind::Internal,
                        format!("failed to remove the container's cgroup: {error}"),
                    )
                };
                if cgroups.exists(cgroup) {
                    cgroups.kill(cgroup).map_err(failed)?;
                    cgroups.remove(cgroup).map_err(failed)?;
                }
            }
            recovery::remove_directory(container.shim.dir())
        })
        .await?;
        self.store.lock().containers.remove(id);
        self.layers.forget(id);
        Ok(())
    }
}

/// Reads the state from the shim's files.
fn read_state(entry: &LocalContainer) -> Result<State> {
    let state = match entry.shim.state() {
        Ok(state) => state,
        // A malformed file, as a power loss leaves it, and no shim that would write it again.
        Err(error) if error.raw_os_error().is_none() && !is_shim_alive(entry) => {
            State::Lost { pid: None, started: None }
        }
        Err(error) => {
            let what = format!("failed to read the state of container {}", entry.record.id);
            return Err(error::io_error(&what, &error));
        }
    };
    if let State::Exited(exit) = &state {
        *entry.ended.lock() = Some(exit.clone());
    }
    Ok(state)
}

/// Whether a shim is creating the container at this moment.
fn is_starting(entry: &LocalContainer) -> bool {
    matches!(entry.shim.state(), Ok(State::Created)) && is_shim_alive(entry)
}

/// Whether the shim is alive.
fn is_shim_alive(entry: &LocalContainer) -> bool {
    // If that cannot be determined, assume so: nothing must be removed under a running shim.
    entry.shim.is_alive().unwrap_or(true)
}

fn kill_timed_out(entry: &LocalContainer) -> vk_provider::Error {
    let message = format!("an error occurs during waiting for container {:?} to be killed", entry.record.id);
    error::cri_error(Kind::Unavailable, message)
}
