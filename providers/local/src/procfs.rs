//! Processes as `/proc` shows them: start times, sessions and environments.

use std::fs;

/// The environment variable that all processes of a container at level `process` have, with the container's id.
pub const CONTAINER_VARIABLE: &str = "VK_CONTAINER";

/// Fields of `/proc/PID/stat`.
struct Stat {
    is_dead: bool,
    session: i32,
    /// Start time in clock ticks since boot.
    start_ticks: u64,
}

/// Start time of a process in clock ticks since boot; `None` if it does not exist.
pub fn start_ticks(pid: i32) -> Option<u64> {
    Some(stat(pid)?.start_ticks)
}

/// The living processes of a session.
pub fn session_members(leader: i32) -> Vec<i32> {
    pids().filter(|pid| stat(*pid).is_some_and(|stat| !stat.is_dead && stat.session == leader)).collect()
}

/// The processes of a container at level `process`, including those that left their parents and sessions. A process that
/// changed its environment is not found.
///
/// Used to clean up after a killed supervisor; a running one knows its processes.
pub fn container_processes(id: &str) -> Vec<i32> {
    let variable = format!("{CONTAINER_VARIABLE}={id}");
    let has_variable = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    pids().filter(has_variable).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may hold any character.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Stat {
        is_dead: matches!(*fields.first()?, "Z" | "X"),
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}
