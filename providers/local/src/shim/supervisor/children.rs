//! The child processes of a supervisor: those it started, and adopted orphans.

use std::{collections::BTreeMap, fs, thread, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait},
};
use tokio::time::Instant;

use super::helper::Helper;
use crate::procfs;

/// How long killed processes may take to exit.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Exit codes of the children that are being watched.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// `None` while it runs.
    watched: BTreeMap<i32, Option<i32>>,
    /// Number of active helpers: the process that a helper started may exit before the helper has reported its PID.
    helpers: usize,
    unclaimed: BTreeMap<i32, i32>,
}

impl Children {
    /// Registers a started helper.
    pub(super) fn add_helper(&mut self, helper: i32) {
        self.helpers += 1;
        self.watch(helper);
    }

    /// Whether a helper is done: it has exited, or became the program.
    pub(super) fn is_done(&self, helper: &Helper) -> bool {
        helper.pid() == Some(helper.process()) || self.exit_code(helper.process()).is_some()
    }

    /// Unregisters a helper that is done; returns whether it failed. The process it started must be watched before.
    pub(super) fn finish_helper(&mut self, helper: &Helper) -> bool {
        self.helpers = self.helpers.saturating_sub(1);
        if helper.pid() == Some(helper.process()) {
            return false;
        }
        self.watched.remove(&helper.process()).flatten() != Some(0)
    }

    /// Keeps the exit code of a process.
    pub(super) fn watch(&mut self, process: i32) {
        let ended = self.unclaimed.remove(&process);
        self.watched.entry(process).or_insert(ended);
        if self.helpers == 0 {
            self.unclaimed.clear();
        }
    }

    /// Stops watching a process.
    pub(super) fn unwatch(&mut self, process: i32) {
        self.watched.remove(&process);
    }

    /// The exit code of a watched process, once it has exited.
    pub(super) fn exit_code(&self, process: i32) -> Option<i32> {
        self.watched.get(&process).copied().flatten()
    }

    /// Reaps all exited children. Returns whether there are others.
    pub(super) fn reap(&mut self) -> bool {
        loop {
            let (process, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some((process, status))) => (process.as_raw_pid(), status),
                Ok(None) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            };
            // By number: real-time signals have no names.
            let by_signal = status.terminating_signal().map(|number| 128 + number);
            let Some(code) = status.exit_status().or(by_signal) else { continue };
            match self.watched.get_mut(&process) {
                Some(ended) => *ended = Some(code),
                None if self.helpers > 0 => {
                    self.unclaimed.insert(process, code);
                }
                // An adopted orphan.
                None => {}
            }
        }
    }

    /// Kills a helper and the process it started, unless they have exited: their PIDs may have been reused.
    pub(super) fn kill(&self, helper: &Helper) {
        for process in helper.pid().into_iter().chain([helper.process()]) {
            if self.exit_code(process).is_none() && !self.unclaimed.contains_key(&process) {
                kill(process);
            }
        }
    }

    /// Kills all children, including those that are adopted when their parents die, until none is left.
    pub(super) fn kill_all(&mut self) {
        let until = Instant::now() + KILL_LIMIT;
        while self.reap() && Instant::now() < until {
            for child in children_of_this_process() {
                kill(child);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Our children, as the kernel lists them.
fn children_of_this_process() -> Vec<i32> {
    let text = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Kills one process.
pub(super) fn kill(process: i32) {
    if let Some(pid) = (process > 0).then(|| Pid::from_raw(process)).flatten() {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills a session leader and all processes of its session.
pub(super) fn kill_session(leader: i32) {
    if leader <= 1 {
        return;
    }
    if let Some(pid) = Pid::from_raw(leader) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    procfs::session_members(leader).into_iter().for_each(kill);
    kill(leader);
}
