//! The files of a supervisor: the state of its container, and a lock that it holds while it lives.
//!
//! A full disk must not lose an exit code. So the state has two files of a fixed size, allocated before the container is
//! started: a new state is written into the spare one, and then the two are swapped. That needs no further space.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use jiff::Timestamp;
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::{
    fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{ContainerExit, State};
use crate::files::read_json;

const STATE: &str = "state.json";
/// The file that the next state is written to.
const SPARE: &str = "state.spare";
const LOCK: &str = "shim.lock";
/// The size of both files.
const SIZE: usize = 4096;

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub(super) enum StateFile {
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
    Exited(ContainerExit),
}

/// The state of the container in a directory.
pub(super) fn read(dir: &Path) -> io::Result<State> {
    let mut written = last_written(dir)?;
    if !matches!(written, Some(StateFile::Exited(_))) {
        if is_supervised(dir)? {
            return Ok(match written {
                Some(StateFile::Running { pid, started, .. }) => State::Running { pid, started },
                Some(StateFile::Exited(exit)) => State::Exited(exit),
                Some(StateFile::Starting { .. }) | None => State::Created,
            });
        }
        // The supervisor may have recorded the exit between the two reads.
        written = last_written(dir)?;
    }
    Ok(match written {
        None => State::Created,
        Some(StateFile::Starting { pid, .. }) => State::Lost { pid, started: None },
        Some(StateFile::Running { pid, started, .. }) => {
            State::Lost { pid: Some(pid), started: Some(started) }
        }
        Some(StateFile::Exited(exit)) => State::Exited(exit),
    })
}

/// Start time of the container's first process, in clock ticks.
pub(super) fn ticks(dir: &Path) -> io::Result<Option<u64>> {
    Ok(match last_written(dir)? {
        Some(StateFile::Starting { ticks, .. } | StateFile::Running { ticks, .. }) => ticks,
        Some(StateFile::Exited(_)) | None => None,
    })
}

/// Writes the state of the container in a directory, without needing space on the disk except the first two times.
pub(super) fn write(dir: &Path, written: &StateFile) -> io::Result<()> {
    let (state, spare) = (dir.join(STATE), dir.join(SPARE));
    let text = padded(written)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&spare)?;
    allocate(&file)?;
    file.write_all_at(&text, 0)?;
    file.set_len(text.len() as u64)?;
    match renameat_with(CWD, &spare, CWD, &state, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // The first state, or a filesystem that cannot swap: then the next state needs space.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => fs::rename(&spare, &state),
        Err(error) => Err(error.into()),
    }
}

/// Allocates the spare file, so that a later [`write`] cannot fail for lack of space.
pub(super) fn reserve(dir: &Path) -> io::Result<()> {
    let spare = dir.join(SPARE);
    allocate(&OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(spare)?)
}

fn allocate(file: &File) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, SIZE as u64) {
        // A filesystem without it. Zeros also occupy space on most.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if file.metadata()?.len() < SIZE as u64 => {
            file.write_all_at(&[0; SIZE], 0)
        }
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A state as JSON of exactly [`SIZE`] bytes. A longer message is shortened.
fn padded(written: &StateFile) -> io::Result<Vec<u8>> {
    let mut written = written.clone();
    loop {
        let mut text = serde_json::to_vec(&written)?;
        if text.len() <= SIZE {
            text.resize(SIZE, b'\n');
            return Ok(text);
        }
        let message = match &mut written {
            StateFile::Exited(exit) => &mut exit.message,
            StateFile::Running { log_error: Some(message), .. } => message,
            StateFile::Running { .. } | StateFile::Starting { .. } => {
                return Err(io::Error::other("the state of the container is too long"));
            }
        };
        message.truncate(message.floor_char_boundary(message.len() / 2));
    }
}

/// The state that was written last.
pub(super) fn last_written(dir: &Path) -> io::Result<Option<StateFile>> {
    match read_json(&dir.join(STATE)) {
        // Malformed: it may have been swapped after it was opened, and be written again.
        Err(error) if error.raw_os_error().is_none() => read_json(&dir.join(STATE)),
        outcome => outcome,
    }
}

/// Whether a supervisor is active in a directory. The query does not take its lock.
pub(super) fn is_supervised(dir: &Path) -> io::Result<bool> {
    is_locked(&dir.join(LOCK))
}

/// Takes the lock of the supervisor; `None` if another one has it.
pub(super) fn lock(dir: &Path) -> io::Result<Option<File>> {
    try_lock(&dir.join(LOCK))
}

/// Takes a lock that is released when this process exits; `None` if it is taken.
pub(super) fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole_file_lock())) {
        Ok(_) => Ok(Some(file)),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a lock is taken. The query does not take it, even for a moment.
pub(super) fn is_locked(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut lock = whole_file_lock();
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != kind(libc::F_UNLCK))
}

fn whole_file_lock() -> libc::flock {
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

#[cfg(test)]
mod tests {
    use std::fs;

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
        let running = StateFile::Running { pid: 7, ticks: Some(70), started: moment(), log_error: None };
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
        write(dir.path(), &StateFile::Starting { pid: Some(7), ticks: Some(70) }).unwrap();
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
    fn a_state_is_written_into_the_reserved_file_and_swapped() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &StateFile::Starting { pid: None, ticks: None }).unwrap();
        reserve(dir.path()).unwrap();
        let inode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().ino();
        let (first, second) = (inode(STATE), inode(SPARE));
        for code in [7, 8] {
            let exit = ContainerExit::ended(moment(), moment(), code, false);
            write(dir.path(), &StateFile::Exited(exit.clone())).unwrap();
            assert_eq!(read(dir.path()).unwrap(), State::Exited(exit));
        }
        assert_eq!((inode(STATE), inode(SPARE)), (first, second), "swapped twice, and no other file");
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [STATE, SPARE]);
    }

    #[test]
    fn a_message_that_is_too_long_for_the_reserved_space_is_shortened() {
        let dir = tempfile::tempdir().unwrap();
        let error = super::super::StartError::new("ü\u{1}".repeat(SIZE));
        let exit = ContainerExit::not_started(&error, moment());
        write(dir.path(), &StateFile::Exited(exit)).unwrap();
        assert_eq!(fs::metadata(dir.path().join(STATE)).unwrap().len(), SIZE as u64);
        let State::Exited(exit) = read(dir.path()).unwrap() else { panic!("it exited") };
        assert!(exit.code == 128 && exit.message.starts_with("ü\u{1}ü"), "{exit:?}");
    }

    #[test]
    fn a_lock_has_one_holder_and_querying_it_does_not_take_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_supervised(dir.path()).unwrap());
        let first = lock(dir.path()).unwrap();
        assert!(first.is_some() && is_supervised(dir.path()).unwrap());
        assert!(lock(dir.path()).unwrap().is_none());
        drop(first);
        assert!(!is_supervised(dir.path()).unwrap());
        assert!(lock(dir.path()).unwrap().is_some());
    }
}
