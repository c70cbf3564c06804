//! Where containers stand, and how they are brought to their end: also those whose files or supervisors do not tell.

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

/// How long the kernel may take to end what it was told to kill.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long a start that is under way is waited for before it is ended by force, and once more after that.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long somebody who only looks waits for the end of a container whose supervisor is gone.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// The lock that a supervisor holds while it lives.
const LOCK: &str = "shim.lock";
/// The code of a process that was killed, and the word for it.
const KILLED: i32 = 137;
const ERROR: &str = "Error";

impl Inner {
    /// Where a container stands, for those who look at many; `None` where that cannot be told now. One container never holds up or hides the others.
    pub(in super::super) async fn told(self: &Arc<Self>, known: &Arc<KnownContainer>) -> Option<State> {
        let ended = known.ended.lock().clone();
        if let Some(exit) = ended {
            return Some(State::Exited(exit));
        }
        let outcome = match look(known) {
            // Somebody is at it already, and it takes its time.
            Ok(State::Lost { .. }) if known.burial.try_lock().is_err() => return None,
            Ok(State::Lost { .. }) => {
                let (tell, told) = oneshot::channel();
                let (this, container) = (Arc::clone(self), Arc::clone(known));
                self.tasks.lock().spawn(async move {
                    // Nobody may be waiting.
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
                        "where a container stands cannot be told: it is listed as unknown until that changes or it is removed"
                    );
                }
            })
            .ok()
    }

    /// Where a container stands. One whose shim is gone is buried first.
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

    /// Ends what the shim of a container left when it was killed, and writes down that it ended.
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
        // Without room on the disk it is known to this process, and found out anew by the next.
        if let Err(error) = known.shim.conclude(&exit) {
            tracing::warn!(%error, container = known.record.id, "the end of a container could not be written down");
        }
        *known.ended.lock() = Some(exit.clone());
        tracing::warn!(
            container = known.record.id,
            "the supervisor of a container was gone: the container was ended"
        );
        Ok(State::Exited(exit))
    }

    fn kill_rest(&self, known: &KnownContainer, pid: Option<i32>, started: Option<Timestamp>) -> Result<()> {
        let failed =
            |error: io::Error| fault::told(Kind::Internal, format!("failed to kill container: {error}"));
        if let (Some(cgroups), Some(cgroup)) = (&self.settings.cgroups, &known.record.launch.cgroup) {
            cgroups.kill(cgroup).map_err(failed)?;
            return cgroups.remove(cgroup).map_err(failed);
        }
        // After a restart of the machine the number is another's.
        if known.record.boot != self.boot {
            return Ok(());
        }
        if let Some(pid) = pid {
            let ticks = known.shim.start_ticks().ok().flatten();
            plain::kill_session(pid, started, ticks).map_err(failed)?;
        }
        plain::kill_strays(&known.record.id).map_err(failed)
    }

    /// The same where it holds nobody up.
    async fn kill(
        self: &Arc<Self>,
        known: &Arc<KnownContainer>,
        pid: Option<i32>,
        started: Option<Timestamp>,
    ) -> Result<()> {
        let (this, container) = (Arc::clone(self), Arc::clone(known));
        blocking("end container", move || this.kill_rest(&container, pid, started)).await
    }

    /// Waits until no start is under way, and keeps others from beginning one. A start that hangs is ended by force.
    async fn settled<'a>(self: &Arc<Self>, known: &'a Arc<KnownContainer>) -> Result<MutexGuard<'a, ()>> {
        for last in [false, true] {
            let until = Instant::now() + START_LIMIT;
            if let Ok(start) = timeout_at(until, known.start.lock()).await {
                // One that another process of ours began, or whose caller gave up.
                while is_starting(known) && Instant::now() < until {
                    sleep(LOOK).await;
                }
                if !is_starting(known) {
                    return Ok(start);
                }
            }
            if !last {
                tracing::warn!(container = known.record.id, "a start that does not end is ended by force");
                self.kill(known, None, None).await?;
            }
        }
        let message =
            format!("container {:?} is being started, and cannot be stopped meanwhile", known.record.id);
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
            // One that does not get the signal still gets its time, and is killed then.
            if let Err(error) = self.send(&known, known.record.stop_signal).await {
                tracing::warn!(
                    error = error.report(),
                    container = id,
                    signal = known.record.stop_signal,
                    "a container could not be told to stop: it is killed when its time is over"
                );
            }
            match self.ended_by(&known, grace).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = error.report(), container = id, "a container is killed at once");
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

    /// Waits for the end, at most this long; whether it came. Where the supervisor does not answer, its files are looked at.
    async fn ended_by(self: &Arc<Self>, known: &Arc<KnownContainer>, within: Duration) -> Result<bool> {
        let until = Instant::now() + within;
        let mut state = known.shim.wait(until).await;
        if let Err(error) = &state {
            tracing::debug!(%error, container = known.record.id, "the supervisor of a container does not answer");
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

    /// Kills a container and waits until it is gone; one that is being started, as soon as it runs.
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
                    "where a container stands cannot be told: it is ended by force"
                );
                return self.end_untold(known).await;
            }
        };
        // A supervisor that died at this moment is met by the wait.
        if self.send_kill(known).await && self.ended_by(known, KILL_LIMIT).await? {
            return Ok(());
        }
        // The supervisor does not do it: the kernel must.
        self.kill(known, Some(pid), Some(started)).await?;
        if self.ended_by(known, KILL_LIMIT).await? {
            return Ok(());
        }
        Err(unkillable(known))
    }

    /// Ends a container whose state cannot be read: by its supervisor, and by its cgroup.
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

    /// Has the supervisor kill the container; whether it heard that.
    async fn send_kill(&self, known: &KnownContainer) -> bool {
        let sent = self.send(known, signal::KILL).await;
        if let Err(error) = &sent {
            tracing::warn!(
                error = error.report(),
                container = known.record.id,
                "a container could not be told to end: it is ended by force"
            );
        }
        sent.is_ok()
    }

    pub(in super::super) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(known) = self.registry.lock().container(id) else { return Ok(()) };
        // Kept to the end: what is being removed is not started.
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

/// Where a container stands, as its files say.
fn look(known: &KnownContainer) -> Result<State> {
    let state = match known.shim.state() {
        Ok(state) => state,
        // A file without sense, as a loss of power leaves it, with nobody who would write it anew.
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

/// Whether a supervisor is making the container at this moment.
fn is_starting(known: &KnownContainer) -> bool {
    matches!(known.shim.state(), Ok(State::Created)) && supervised(known)
}

/// Whether a supervisor lives.
fn supervised(known: &KnownContainer) -> bool {
    // Where that cannot be found out it is assumed: nothing is removed under the feet of one.
    locked(known.shim.dir()).unwrap_or(true)
}

/// Whether a supervisor holds the lock in a container's directory. Asking takes nothing.
pub(in super::super) fn locked(directory: &Path) -> io::Result<bool> {
    let file = match File::open(directory.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // The kernel's constants have another type than the fields they are for.
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
