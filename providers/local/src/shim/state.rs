//! The files of a supervisor: the state of its container, and a lock that it holds while it lives.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
};

use jiff::Timestamp;
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Exit, State};

const STATE: &str = "state.json";
const LOCK: &str = "shim.lock";

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub(super) enum Written {
    /// A supervisor is starting it.
    Starting {
        /// The process that is about to become the program, recorded once it can outlive the supervisor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticks: Option<u64>,
    },
    /// It runs.
    Running {
        pid: i32,
        /// Start time of the process, which distinguishes it from a later one with the same PID.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticks: Option<u64>,
        started: Timestamp,
        /// Why a part of the log is missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log_error: Option<String>,
    },
    /// It exited.
    Exited(Exit),
}

/// The state of the container in a directory.
pub(super) fn read(dir: &Path) -> io::Result<State> {
    let mut written = load::<Written>(&dir.join(STATE))?;
    if !matches!(written, Some(Written::Exited(_))) {
        if held(&dir.join(LOCK))? {
            return Ok(match written {
                Some(Written::Running { pid, started, .. }) => State::Running { pid, started },
                Some(Written::Exited(exit)) => State::Exited(exit),
                Some(Written::Starting { .. }) | None => State::Created,
            });
        }
        // The supervisor may have recorded the exit between the two reads.
        written = load(&dir.join(STATE))?;
    }
    Ok(match written {
        None => State::Created,
        Some(Written::Starting { pid, .. }) => State::Lost { pid, started: None },
        Some(Written::Running { pid, started, .. }) => State::Lost { pid: Some(pid), started: Some(started) },
        Some(Written::Exited(exit)) => State::Exited(exit),
    })
}

/// Start time of the container's first process, in clock ticks.
pub(super) fn ticks(dir: &Path) -> io::Result<Option<u64>> {
    Ok(match load(&dir.join(STATE))? {
        Some(Written::Starting { ticks, .. } | Written::Running { ticks, .. }) => ticks,
        Some(Written::Exited(_)) | None => None,
    })
}

/// Writes the state of the container in a directory.
pub(super) fn write(dir: &Path, written: &Written) -> io::Result<()> {
    save(&dir.join(STATE), written)
}

/// The state that was written last.
pub(super) fn before(dir: &Path) -> io::Result<Option<Written>> {
    load(&dir.join(STATE))
}

/// Whether a supervisor is active in this directory.
#[cfg(test)]
pub(super) fn supervised(dir: &Path) -> io::Result<bool> {
    held(&dir.join(LOCK))
}

/// Takes the lock of the supervisor; `None` if another one has it.
pub(super) fn lock(dir: &Path) -> io::Result<Option<File>> {
    take(&dir.join(LOCK))
}

/// Takes a lock that is released when this process exits; `None` if it is taken.
pub(super) fn take(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole())) {
        Ok(_) => Ok(Some(file)),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a lock is taken. The query does not take it, even for a moment.
pub(super) fn held(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut lock = whole();
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != kind(libc::F_UNLCK))
}

fn whole() -> libc::flock {
    libc::flock {
        l_type: kind(libc::F_WRLCK),
        l_whence: kind(libc::SEEK_SET),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// The constants have another type than the struct's fields.
fn kind(constant: libc::c_int) -> libc::c_short {
    libc::c_short::try_from(constant).unwrap_or_default()
}

/// Reads a JSON file; `None` if it does not exist.
pub(super) fn load<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(text) => {
            let read = serde_json::from_slice(&text);
            read.map(Some).map_err(|error| io::Error::other(format!("read {}: {error}", path.display())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a JSON file atomically.
pub(super) fn save<T: Serialize>(path: &Path, content: &T) -> io::Result<()> {
    let new = path.with_extension(format!("new.{}", std::process::id()));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(content)?)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment() -> Timestamp {
        "2026-11-15T16:30:00Z".parse().unwrap()
    }

    #[test]
    fn a_directory_without_state_is_created() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), State::Created);
    }

    #[test]
    fn a_running_container_without_a_supervisor_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let running = Written::Running { pid: 7, ticks: Some(70), started: moment(), log_error: None };
        let lock = lock(dir.path()).unwrap().expect("the lock is free");
        write(dir.path(), &running).unwrap();
        assert_eq!(read(dir.path()).unwrap(), State::Running { pid: 7, started: moment() });
        drop(lock);
        assert_eq!(read(dir.path()).unwrap(), State::Lost { pid: Some(7), started: Some(moment()) });
        assert_eq!(ticks(dir.path()).unwrap(), Some(70));
    }

    #[test]
    fn a_starting_program_is_known_before_the_supervisor_reports_it_as_running() {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock(dir.path()).unwrap().expect("the lock is free");
        write(dir.path(), &Written::Starting { pid: Some(7), ticks: Some(70) }).unwrap();
        assert_eq!(read(dir.path()).unwrap(), State::Created);
        drop(lock);
        assert_eq!(read(dir.path()).unwrap(), State::Lost { pid: Some(7), started: None });
        assert_eq!(ticks(dir.path()).unwrap(), Some(70));
    }

    #[test]
    fn state_files_of_earlier_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for (text, lost) in [
            (r#"{"phase":"starting"}"#, State::Lost { pid: None, started: None }),
            (
                r#"{"phase":"running","pid":7,"started":"2026-11-15T16:30:00Z"}"#,
                State::Lost { pid: Some(7), started: Some(moment()) },
            ),
        ] {
            fs::write(dir.path().join(STATE), text).unwrap();
            assert_eq!(read(dir.path()).unwrap(), lost);
            assert_eq!(ticks(dir.path()).unwrap(), None);
        }
    }

    #[test]
    fn a_lock_has_one_holder_and_querying_it_does_not_take_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!supervised(dir.path()).unwrap());
        let first = lock(dir.path()).unwrap();
        assert!(first.is_some() && supervised(dir.path()).unwrap());
        assert!(lock(dir.path()).unwrap().is_none());
        drop(first);
        assert!(!supervised(dir.path()).unwrap());
        assert!(lock(dir.path()).unwrap().is_some());
    }
}
