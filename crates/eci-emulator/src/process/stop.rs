//! The end of processes.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use jiff::SignedDuration;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    Handle,
    command::{Weak, processes},
    hook,
};

/// A start of a container.
pub(super) struct Target {
    pub(super) group: u64,
    pub(super) container: usize,
    pub(super) handle: Handle,
}

/// Ends a container: its hook, a polite signal, and after the grace period another one.
pub(super) async fn stop(emulator: Weak, target: Target, spec: Value, grace: SignedDuration) {
    let grace = Duration::try_from(grace).unwrap_or_default();
    if grace > Duration::ZERO {
        let deadline = tokio::time::Instant::now() + grace;
        if let Some(emulator) = emulator.upgrade() {
            let hook = hook::pre_stop(&emulator, &target.handle, &spec);
            let _ = tokio::time::timeout_at(deadline, hook).await;
        }
        signal(target.handle.pid, Signal::TERM);
        while tokio::time::Instant::now() < deadline {
            if !is_running(&emulator, &target) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    if is_running(&emulator, &target) {
        signal(target.handle.pid, Signal::KILL);
    }
}

fn is_running(emulator: &Weak, target: &Target) -> bool {
    emulator.upgrade().is_some_and(|emulator| {
        let handle = processes(&emulator).handle(target.group, target.container);
        handle.is_some_and(|handle| handle.run == target.handle.run)
    })
}

/// Sends a signal to a container's own process. It may have ended already.
pub(super) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// The code and the signal of an end.
pub(super) fn code(status: ExitStatus) -> (i32, i32) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code, 0),
        (None, Some(signal)) => (128 + signal, signal),
        (None, None) => (-1, 0),
    }
}
