//! Control groups that programs leave when they are killed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// How many processes and threads a group may have: far fewer than a machine. Tests let pods start as many as they can, and whatever else
/// runs on the machine at that time is to go on.
const ROOM: &str = "2048";

/// Makes a group in every hierarchy.
pub(super) fn make(name: &str) {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        super::make_folder(&group);
        let limit = group.join("pids.max");
        if limit.exists() {
            super::write(&limit, ROOM);
        }
    }
}

/// Removes a group with those in it from every hierarchy. Returns what is still in use.
pub(super) fn remove(name: &str) -> Vec<PathBuf> {
    let groups = hierarchies().into_iter().map(|hierarchy| hierarchy.join(name));
    groups.filter(|group| !remove_folder(group)).collect()
}

/// Removes a group from every hierarchy where nothing is in it.
pub(super) fn remove_if_empty(name: &str) {
    for hierarchy in hierarchies() {
        // Somebody else's groups are in it, or it was never made.
        let _ = std::fs::remove_dir(hierarchy.join(name));
    }
}

/// From the leaves on; they must have no processes.
fn remove_folder(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return true };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        remove_folder(&entry.path());
    }
    // Processes that were killed may take a moment to leave it.
    for _ in 0..100 {
        if std::fs::remove_dir(folder).is_ok() || !folder.exists() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Where control groups are mounted, of either version.
fn hierarchies() -> Vec<PathBuf> {
    std::fs::read_to_string("/proc/mounts")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, folder, kind) = (fields.next()?, fields.next()?, fields.next()?);
            kind.starts_with("cgroup").then(|| PathBuf::from(folder))
        })
        .collect()
}
