//! Ends a control plane together with the process that started it, no matter how that process ends.
//!
//! A cleanup process holds the read end of a pipe whose only write end is ours. When we end, the kernel closes the pipe; the cleanup
//! process then kills every component that has a pid file and removes the run folder. This works for kill -9 and for statics that are
//! never dropped, and needs no `unsafe` pre-exec hook.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::{Error, Result};

/// Signals that a terminal or test runner sends to the whole session must not end it early. The folder of pid files is renamed first: a
/// component that starts late does not find it and does not run (see `process`). Removing the folder is retried because a process that
/// was just killed may still write.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT PIPE
cat >/dev/null
mv "$1/pids" "$1/ended"
for file in "$1"/ended/*; do
  if [ -f "$file" ]; then read -r pid <"$file" && kill -9 "$pid"; fi
done
tries=0
until rm -rf "$1" || [ "$tries" -ge 50 ]; do tries=$((tries + 1)); sleep 0.1; done
"#;

/// The run folder of a control plane and the process that removes it. Dropping it kills all components that still run and removes the
/// folder, and returns when that is done.
#[derive(Debug)]
pub(crate) struct CleanupProcess {
    folder: PathBuf,
    process: Child,
    /// Closing this starts the cleanup; nothing is ever written to it.
    alive: Option<ChildStdin>,
}

// === impl CleanupProcess ===

impl CleanupProcess {
    pub(crate) fn new() -> Result<Self> {
        let temporary = std::env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix("vk-control-plane-")
            .tempdir_in(&temporary)
            .map_err(Error::file("make a folder in", &temporary))?;
        let pids = folder.path().join("pids");
        std::fs::create_dir(&pids).map_err(Error::file("make", &pids))?;
        let mut process = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C at the terminal signals our process group only.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn {
                component: "the cleanup process of the control plane",
                source,
            })?;
        let alive = process.stdin.take();
        // From here on the cleanup process removes it.
        Ok(Self { folder: folder.keep(), process, alive })
    }

    /// A folder that is removed with the control plane.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The pid file that a component must write before it runs.
    pub(crate) fn pid_file(&self, component: &str) -> PathBuf {
        self.folder.join("pids").join(component)
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Err(error) = self.process.wait() {
            tracing::warn!(%error, "cannot wait for the cleanup process of the control plane");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Launch;

    fn launch(cleanup: &CleanupProcess, program: &str, arg: &str, log: &Path) -> Launch {
        Launch {
            component: "sleeper",
            program: program.into(),
            args: vec![arg.to_owned()],
            pid_file: cleanup.pid_file("sleeper"),
            log: log.join("log"),
        }
    }

    #[test]
    fn dropping_it_kills_components_and_removes_the_folder() {
        let logs = tempfile::tempdir().unwrap();
        let cleanup = CleanupProcess::new().unwrap();
        let folder = cleanup.folder().to_owned();
        let mut process = launch(&cleanup, "sleep", "1000", logs.path()).start().unwrap();
        while std::fs::read_to_string(cleanup.pid_file("sleeper")).unwrap_or_default().is_empty() {
            std::thread::yield_now();
        }
        drop(cleanup);
        assert!(!folder.exists());
        while process.check_running().is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_component_that_starts_after_the_cleanup_does_not_run() {
        let logs = tempfile::tempdir().unwrap();
        let ran = logs.path().join("ran");
        let cleanup = CleanupProcess::new().unwrap();
        let late = launch(&cleanup, "touch", &ran.display().to_string(), logs.path());
        drop(cleanup);
        let mut process = late.start().unwrap();
        while process.check_running().is_ok() {
            std::thread::yield_now();
        }
        assert!(!ran.exists());
    }
}
