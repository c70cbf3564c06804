//! What makes a control plane end with its parent, whatever the parent's end.
//!
//! A guardian process holds the read end of a pipe whose only write end is ours. When we are gone the pipe
//! reads as ended; the guardian then kills every component whose pid is on file and removes the run folder.
//! The kernel closes the pipe, so this works for kill -9 and for statics that are never dropped, and it needs
//! no `unsafe` pre-exec hook.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::error::{Error, Result};

/// Signals that a terminal or a test runner sends to everybody must not end the guardian early. The pids
/// folder is renamed first: a component that starts late finds it gone and does not run (see `process`).
/// Removing the folder is tried again because a process that was just killed may still be writing.
const GUARDIAN: &str = r#"
trap '' INT TERM HUP QUIT PIPE
cat >/dev/null
mv "$1/pids" "$1/ended"
for file in "$1"/ended/*; do
  if [ -f "$file" ]; then read -r pid <"$file" && kill -9 "$pid"; fi
done
tries=0
until rm -rf "$1" || [ "$tries" -ge 50 ]; do tries=$((tries + 1)); sleep 0.1; done
"#;

/// The run folder of a control plane and its guardian. Dropping it kills what still runs and removes the
/// folder, and returns when that is done.
#[derive(Debug)]
pub(super) struct Guard {
    folder: PathBuf,
    guardian: Child,
    /// Closing this is the signal; nothing is ever written to it.
    alive: Option<ChildStdin>,
}

// === impl Guard ===

impl Guard {
    pub(super) fn new() -> Result<Self> {
        let temporary = std::env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix("vk-control-plane-")
            .tempdir_in(&temporary)
            .map_err(Error::file("make a folder in", &temporary))?;
        let pids = folder.path().join("pids");
        std::fs::create_dir(&pids).map_err(Error::file("make", &pids))?;
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "sh"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C at the terminal goes to our group only.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn { component: "the guardian of the control plane", source })?;
        let alive = guardian.stdin.take();
        // From here on the guardian removes it.
        Ok(Self { folder: folder.keep(), guardian, alive })
    }

    /// A folder that goes away with the control plane.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the named component must write its pid before it runs.
    pub(super) fn pid_file(&self, component: &str) -> PathBuf {
        self.folder.join("pids").join(component)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Err(error) = self.guardian.wait() {
            tracing::warn!(%error, "could not wait for the guardian of the control plane");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::Launch;
    use super::*;

    fn launch(guard: &Guard, program: &str, arg: &str, log: &Path) -> Launch {
        Launch {
            component: "sleeper",
            program: program.into(),
            args: vec![arg.to_owned()],
            pid_file: guard.pid_file("sleeper"),
            log: log.join("log"),
        }
    }

    #[test]
    fn the_guardian_ends_what_is_on_file_and_removes_the_folder() {
        let logs = tempfile::tempdir().unwrap();
        let guard = Guard::new().unwrap();
        let folder = guard.folder().to_owned();
        let mut process = launch(&guard, "sleep", "1000", logs.path()).start().unwrap();
        while std::fs::read_to_string(guard.pid_file("sleeper")).unwrap_or_default().is_empty() {
            std::thread::yield_now();
        }
        drop(guard);
        assert!(!folder.exists());
        while process.check_running().is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_component_that_starts_after_the_end_does_not_run() {
        let logs = tempfile::tempdir().unwrap();
        let ran = logs.path().join("ran");
        let guard = Guard::new().unwrap();
        let late = launch(&guard, "touch", &ran.display().to_string(), logs.path());
        drop(guard);
        let mut process = late.start().unwrap();
        while process.check_running().is_ok() {
            std::thread::yield_now();
        }
        assert!(!ran.exists());
    }
}
