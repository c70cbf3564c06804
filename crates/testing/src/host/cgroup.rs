//! Control groups for tests, and their removal when programs were killed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Limit of processes and threads in a group, far below the host's limit: pods of some tests start as many as they can.
const MAX_PROCESSES: &str = "2048";

/// Creates a group in every hierarchy.
pub(super) fn make(name: &str) {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        super::make_folder(&group);
        let limit = group.join("pids.max");
        if limit.exists() {
            super::write(&limit, MAX_PROCESSES);
        }
    }
}

/// Removes a group and its children from every hierarchy. Returns those that are still in use.
pub(super) fn remove(name: &str) -> Vec<PathBuf> {
    let groups = hierarchies().into_iter().map(|hierarchy| hierarchy.join(name));
    groups.filter(|group| !remove_folder(group)).collect()
}

/// Removes a group from every hierarchy where it is empty.
pub(super) fn remove_if_empty(name: &str) {
    for hierarchy in hierarchies() {
        // It may contain groups of other programs, or not exist.
        let _ = std::fs::remove_dir(hierarchy.join(name));
    }
}

/// Removes children first; they must have no processes.
fn remove_folder(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return true };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        remove_folder(&entry.path());
    }
    // Killed processes may take a moment to leave the group.
    for _ in 0..100 {
        if std::fs::remove_dir(folder).is_ok() || !folder.exists() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// The mount points of control groups, v1 and v2.
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
