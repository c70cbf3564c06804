//! Identifies the processes of containers that run as plain processes.

use std::{fs, path::Path};

/// The environment variable that all processes of such a container have, with the name of its directory.
pub(super) const MARK: &str = "VK_CONTAINER";

/// The processes of a container at level `process`, found by the variable `VK_CONTAINER`, including those that left
/// their parents and sessions. A process that changed its environment is not found.
///
/// Used to clean up after a killed supervisor; a running one knows its processes.
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

/// Start time of a process in clock ticks since boot; `None` if it does not exist.
pub fn start_ticks_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may hold any character.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The name of a container, from its directory.
pub(super) fn name(dir: &Path) -> String {
    dir.file_name().map_or_else(|| "container".to_owned(), |name| name.to_string_lossy().into_owned())
}
