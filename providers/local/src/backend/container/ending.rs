//! The state of containers, and stopping and removing them, even if the shim is gone or its files are unreadable.

use std::{fs::File, io, os::fd::AsFd as _, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use tokio::{
    sync::{MutexGuard, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use vk_provider::{Result, error::Kind};

use super::super::{Inner, blocking, fault, leftover, plain, registry::KnownContainer, signal};
use crate::shim::{Exit, State};

/// How long a killed container may take to exit.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for a start in progress before killing it, and again afterwards.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a status query waits for the cleanup of a container whose shim is gone.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(10);
/// The lock file that a shim holds while it runs.
const LOCK: &str = "shim.lock";
/// Exit code and reason of a killed container.
const KILLED: i32 = 137;
const ERROR: &str = "Error";

impl Inner {
    /// The state for listings; `None` if it is unknown at the moment. One container never delays or hides the others.
    pub(in super::super) async fn told(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Option<State> {
        let ended = known.ended.lock().clone();
        if let Some(exit) = ended {
            return Some(State::Exited(exit));
        }
        let outcome = match look(known) {
            // Another task is cleaning it up.
            Ok(State::Lost { .. }) if known.burial.try_lock().is_err() => return None,
            Ok(State::Lost { .. }) => {
                let (tell, told) = oneshot::channel();
                let (this, container) = (Arc::clone(self), Arc::clone(known));
                self.tasks.lock().spawn(async move {
                    // The caller may be gone.
                    let _ = tell.send(this.settle(&container).await);
                });
                match timeout(LOOK_LIMIT, told).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) | Err(_) => return None,
                }
            }
            outcome => outcome,
        };
        outcome
            .inspect_err(|error| {
                if known.puzzles() {
                    tracing::warn!(
                        error = error.report(),
                        container = known.record.id,
                        "the state of the container is unknown: it is listed as unknown until it can be read or the container is removed"
                    );
                }
            })
            .ok()
    }

    /// The state of a container. If its shim is gone, the container is cleaned up first.
    pub(in super::super) async fn state(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<State> {
        let ended = known.ended.lock().clone();
        if let Some(exit) = ended {
            return Ok(State::Exited(exit));
        }
        match look(known)? {
            State::Lost { .. } => self.settle(known).await,
            state => Ok(state),
        }
    }

    /// Kills what the dead shim of a container left running, and records the exit.
    async fn settle(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<State> {
        let _burial = known.burial.lock().await;
        let ended = known.ended.lock().clone();
        if let Some(exit) = ended {
            return Ok(State::Exited(exit));
        }
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
        // If the disk is full, this process remembers the exit, and the next one cleans up again.
        if let Err(error) = known.shim.conclude(&exit) {
            tracing::warn!(%error, container = known.record.id, "recording the exit of a container failed");
        }
        *known.ended.lock() = Some(exit.clone());
        tracing::warn!(container = known.record.id, "the shim of a container was gone: killed the container");
        Ok(State::Exited(exit))
    }

    fn kill_rest(&self, known: &KnownContainer, pid: Option<i32>, started: Option<Timestamp>) -> Result<()> {
        let failed =
            |error: io::Error| fault::told(Kind::Internal, format!("failed to kill container: {error}"));
        if let (Some(cgroups), Some(cgroup)) = (&self.settings.cgroups, &known.record.launch.cgroup) {
            cgroups.kill(cgroup).map_err(failed)?;
            return cgroups.remove(cgroup).map_err(failed);
        }
        // After a reboot the PID belongs to another process.
        if known.record.boot != self.boot {
            return Ok(());
        }
        if let Some(pid) = pid {
            let ticks = known.shim.start_ticks().ok().flatten();
            plain::kill_session(pid, started, ticks).map_err(failed)?;
        }
        plain::kill_strays(&known.record.id).map_err(failed)
    }

    /// Runs [`Self::kill_rest`] off the async threads.
    async fn kill(
        self: &Arc<Self>,
        known: &Arc<KnownContainer>,
        pid: Option<i32>,
        started: Option<Timestamp>,
    ) -> Result<()> {
        let (this, container) = (Arc::clone(self), Arc::clone(known));
        blocking("end container", move || this.kill_rest(&container, pid, started)).await
    }

    /// Waits until no start is in progress, and excludes new ones while the guard is held. A start that hangs is
    /// killed.
    async fn settled<'a>(self: &Arc<Self>, known: &'a Arc<KnownContainer>) -> Result<MutexGuard<'a, ()>> {
        for last in [false, true] {
            let until = Instant::now() + START_LIMIT;
            if let Ok(start) = timeout_at(until, known.start.lock()).await {
                // A start by another process of ours, or one whose caller gave up.
                while is_starting(known) && Instant::now() < until {
                    sleep(LOOK).await;
                }
                if !is_starting(known) {
                    return Ok(start);
                }
            }
            if !last {
                tracing::warn!(container = known.record.id, "killing a start that hangs");
                self.kill(known, None, None).await?;
            }
        }
        let message = format!("container {:?} is being started and cannot be stopped now", known.record.id);
        Err(fault::told(Kind::Unavailable, message))
    }

    pub(in super::super) async fn stop_container(self: &Arc<Self>, id: &str, grace: Duration) -> Result<()> {
        let Ok(known) = self.registry.lock().container(id) else { return Ok(()) };
        drop(self.settled(&known).await?);
        match self.state(&known).await {
            Ok(State::Running { .. }) => {}
            Ok(_) => return Ok(()),
            Err(_) => return self.end(&known).await,
        }
        if !grace.is_zero() {
            // If the signal cannot be delivered, the container still gets its grace period before it is killed.
            if let Err(error) = self.send(&known, known.record.stop_signal).await {
                tracing::warn!(
                    error = error.report(),
                    container = id,
                    signal = known.record.stop_signal,
                    "sending the stop signal to a container failed: it is killed after its grace period"
                );
            }
            match self.ended_by(&known, grace).await {
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
        self.end(&known).await
    }

    async fn send(&self, known: &KnownContainer, number: i32) -> Result<()> {
        known.shim.signal(number).await.map_err(|error| {
            fault::system(&format!("failed to signal container {:?}", known.record.id), &error)
        })
    }

    /// Waits for the exit; returns whether it happened in time. If the shim does not answer, its files are polled.
    async fn ended_by(self: &Arc<Self>, known: &Arc<KnownContainer>, within: Duration) -> Result<bool> {
        let until = Instant::now() + within;
        let mut state = known.shim.wait(until).await;
        if let Err(error) = &state {
            tracing::debug!(%error, container = known.record.id, "the shim of a container does not answer");
            state = known.shim.state();
            while matches!(state, Ok(State::Running { .. })) && Instant::now() < until {
                sleep(LOOK).await;
                state = known.shim.state();
            }
        }
        let state = state.map_err(|error| {
            fault::system(&format!("failed to wait for container {:?}", known.record.id), &error)
        })?;
        match state {
            State::Running { .. } => Ok(false),
            State::Lost { .. } => self.settle(known).await.map(|_| true),
            State::Created | State::Exited(_) => Ok(true),
        }
    }

    /// Kills a container and waits until it is gone. If it is being started, it is killed once it runs.
    pub(in super::super) async fn end(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<()> {
        drop(self.settled(known).await?);
        self.end_settled(known).await
    }

    async fn end_settled(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<()> {
        let (pid, started) = match self.state(known).await {
            Ok(State::Running { pid, started }) => (pid, started),
            Ok(_) => return Ok(()),
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    container = known.record.id,
                    "the state of a container is unknown: killing it"
                );
                return self.end_untold(known).await;
            }
        };
        // If the shim dies at this moment, the wait notices.
        if self.send_kill(known).await && self.ended_by(known, KILL_LIMIT).await? {
            return Ok(());
        }
        // The shim did not kill it: kill its processes directly.
        self.kill(known, Some(pid), Some(started)).await?;
        if self.ended_by(known, KILL_LIMIT).await? {
            return Ok(());
        }
        Err(unkillable(known))
    }

    /// Kills a container whose state is unreadable, through its shim and its cgroup.
    async fn end_untold(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Result<()> {
        self.send_kill(known).await;
        let until = Instant::now() + KILL_LIMIT;
        while supervised(known) && Instant::now() < until {
            sleep(LOOK).await;
        }
        self.kill(known, None, None).await?;
        let until = Instant::now() + KILL_LIMIT;
        while supervised(known) {
            if Instant::now() >= until {
                return Err(unkillable(known));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Asks the shim to kill the container; returns whether the request was delivered.
    async fn send_kill(&self, known: &KnownContainer) -> bool {
        let sent = self.send(known, signal::KILL).await;
        if let Err(error) = &sent {
            tracing::warn!(
                error = error.report(),
                container = known.record.id,
                "asking the shim to kill the container failed: killing its processes directly"
            );
        }
        sent.is_ok()
    }

    pub(in super::super) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(known) = self.registry.lock().container(id) else { return Ok(()) };
        // Held to the end, so that a container cannot be started while it is removed.
        let _start = self.settled(&known).await?;
        if self.registry.lock().container(id).is_err() {
            return Ok(());
        }
        self.end_settled(&known).await?;
        let (this, container) = (Arc::clone(self), Arc::clone(&known));
        blocking("remove container", move || {
            if let (Some(cgroups), Some(cgroup)) = (&this.settings.cgroups, &container.record.launch.cgroup) {
                let failed = |error: io::Error| {
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
}

/// Reads the state from the shim's files.
fn look(known: &KnownContainer) -> Result<State> {
    let state = match known.shim.state() {
        Ok(state) => state,
        // A malformed file, as a power loss leaves it, and no shim that would write it again.
        Err(error) if error.raw_os_error().is_none() && !supervised(known) => {
            State::Lost { pid: None, started: None }
        }
        Err(error) => {
            let what = format!("failed to read the state of container {}", known.record.id);
            return Err(fault::system(&what, &error));
        }
    };
    if let State::Exited(exit) = &state {
        *known.ended.lock() = Some(exit.clone());
    }
    Ok(state)
}

/// Whether a shim is creating the container at this moment.
fn is_starting(known: &KnownContainer) -> bool {
    matches!(known.shim.state(), Ok(State::Created)) && supervised(known)
}

/// Whether the shim is alive.
fn supervised(known: &KnownContainer) -> bool {
    // If that cannot be determined, assume so: nothing must be removed under a running shim.
    locked(known.shim.dir()).unwrap_or(true)
}

/// Whether a shim holds the lock in a container's directory. The query does not take the lock.
pub(in super::super) fn locked(directory: &Path) -> io::Result<bool> {
    let file = match File::open(directory.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // The constants have another type than the struct's fields.
    let kind = |constant: libc::c_int| libc::c_short::try_from(constant).unwrap_or_default();
    let mut lock = libc::flock {
        l_type: kind(libc::F_WRLCK),
        l_whence: kind(libc::SEEK_SET),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != kind(libc::F_UNLCK))
}

fn unkillable(known: &KnownContainer) -> vk_provider::Error {
    let message = format!("an error occurs during waiting for container {:?} to be killed", known.record.id);
    fault::told(Kind::Unavailable, message)
}
