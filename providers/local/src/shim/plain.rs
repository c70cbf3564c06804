//! What tells the processes of a container that runs as plain processes from all others of the machine.

use std::{fs, path::Path};

/// The variable that all processes of such a container have in their environment, with the name of its directory.
pub(super) const MARK: &str = "VK_CONTAINER";

/// The processes of a container at the level `process`, by the variable `VK_CONTAINER` that they were started with: also those that
/// parted from their parents and sessions. Whoever gave itself another environment is not found.
///
/// For whoever clears up after a supervisor that was killed; a living one knows its processes.
pub fn plain_strays(id: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={id}");
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let text = fs::read(entry.path().join("environ")).ok()?;
            text.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()).then_some(pid)
        })
        .collect()
}

/// When the kernel started a process, in its ticks since the machine's start; `None` where there is no such process.
pub fn start_ticks_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The name of a container by its directory.
pub(super) fn name(dir: &Path) -> String {
    dir.file_name().map_or_else(|| "container".to_owned(), |name| name.to_string_lossy().into_owned())
}
