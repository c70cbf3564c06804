//! One component as an operating system process.
//!
//! The handle is a plain `std` child and not tied to an async runtime: a control plane that tests share
//! outlives the runtime of the test that happened to start it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::error::{Error, Result};

/// Puts the pid on file before the program runs, and does not run it when the guardian has moved the folder
/// away: after the check the pid is certainly among those the guardian reads.
const LAUNCH: &str = r#"pid_file=$1; shift; echo $$ >"$pid_file" && [ -d "${pid_file%/*}" ] && exec "$@""#;

/// How much of a log is worth showing in an error.
const TAIL_LINES: usize = 20;
/// Bounds what is read of a log to find its last lines; a line of the API server can be long.
const TAIL_BYTES: u64 = 64 * 1024;
/// How often to look whether a process has ended.
const EXIT_POLL: Duration = Duration::from_millis(10);

/// How to start a component, as often as needed.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) component: &'static str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) pid_file: PathBuf,
    pub(super) log: PathBuf,
}

/// A started component. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub(super) struct Process {
    component: &'static str,
    child: Child,
    pid_file: PathBuf,
    log: PathBuf,
    /// Where this run's part of the log begins.
    log_start: u64,
}

// === impl Launch ===

impl Launch {
    pub(super) fn start(&self) -> Result<Process> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(Error::file("open", &self.log))?;
        let log_start = log.metadata().map_err(Error::file("read", &self.log))?.len();
        let stderr = log.try_clone().map_err(Error::file("open", &self.log))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", LAUNCH, "sh"])
            .arg(&self.pid_file)
            .arg(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr)
            // A Ctrl-C at the terminal must not end the components before the parent has decided to.
            .process_group(0);
        for name in foreign_settings() {
            command.env_remove(name);
        }
        let child = command.spawn().map_err(|source| Error::Spawn { component: self.component, source })?;
        Ok(Process {
            component: self.component,
            child,
            pid_file: self.pid_file.clone(),
            log: self.log.clone(),
            log_start,
        })
    }
}

// === impl Process ===

impl Process {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error when the component has ended by itself.
    pub(super) fn check_running(&mut self) -> Result<()> {
        match self.try_wait() {
            Some(status) => Err(Error::Exited {
                component: self.component,
                status,
                log: self.log.clone(),
                tail: self.log_tail(),
            }),
            None => Ok(()),
        }
    }

    /// The error for a component that runs but is not ready in time.
    pub(super) fn not_ready(&self, waited: Duration, seen: String) -> Error {
        let (component, log, tail) = (self.component, self.log.clone(), self.log_tail());
        Error::NotReady { component, waited, seen, log, tail }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let Ok(pid) = i32::try_from(self.child.id()) else { return };
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            tracing::debug!(component = self.component, %signal, %error, "signal not delivered");
        }
    }

    /// Asks the component to end, and kills it when it has not after `grace`.
    pub(super) async fn stop(mut self, grace: Duration) {
        let end = Instant::now() + grace;
        self.signal(Signal::SIGTERM);
        // A paused process acts on the request only when it goes on.
        self.signal(Signal::SIGCONT);
        while Instant::now() < end {
            if self.try_wait().is_some() {
                return;
            }
            sleep(EXIT_POLL).await;
        }
        tracing::debug!(component = self.component, ?grace, "still there after its grace time: killed");
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        self.forget_pid();
        Some(status)
    }

    /// The pid may soon belong to another process, which the guardian must not kill.
    fn forget_pid(&self) {
        if let Err(error) = std::fs::remove_file(&self.pid_file) {
            tracing::debug!(component = self.component, %error, "no pid file to remove");
        }
    }

    fn log_tail(&self) -> String {
        tail(&self.log, self.log_start)
            .unwrap_or_else(|error| format!("(cannot read {}: {error})", self.log.display()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_wait().is_some() {
            return;
        }
        if self.child.kill().and_then(|()| self.child.wait().map(drop)).is_ok() {
            self.forget_pid();
        }
    }
}

/// Variables of the caller that would change how a component behaves: etcd reads each of its flags from
/// `ETCD_*`, and a proxy between loopback addresses only breaks things.
fn foreign_settings() -> Vec<OsString> {
    let foreign = |name: &str| {
        name.starts_with("ETCD_") || name.to_ascii_lowercase().ends_with("_proxy") || name == "KUBECONFIG"
    };
    std::env::vars_os().map(|(name, _)| name).filter(|name| foreign(&name.to_string_lossy())).collect()
}

fn tail(log: &Path, start: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_its_last_lines_since_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let earlier = "an earlier run\n";
        let lines: Vec<String> = (0..50).map(|number| format!("line {number}")).collect();
        std::fs::write(&log, format!("{earlier}{}\n", lines.join("\n"))).unwrap();
        assert_eq!(tail(&log, earlier.len() as u64).unwrap(), lines[30..].join("\n"));

        std::fs::write(&log, format!("{earlier}only\n")).unwrap();
        assert_eq!(tail(&log, earlier.len() as u64).unwrap(), "only");
    }
}
