//! Version 2: one hierarchy, whose controllers are handed down from parent to child.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use vk_pod_engine::backend::Resources;

use super::{Usage, at, is_gone, processes, send_kill, usage, write};

/// Controllers that a pod's limits and figures need, where the machine has them.
const WANTED: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

/// Makes a cgroup and hands the controllers down to it.
pub(super) fn create(root: &Path, path: &Path, controllers: &[String]) -> io::Result<PathBuf> {
    let mut directory = root.to_owned();
    for part in path.components() {
        hand_down(&directory, controllers)?;
        directory.push(part);
        match fs::create_dir(&directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(at(&directory, "make cgroup", &error)),
        }
    }
    // A container's cgroup is made in it.
    hand_down(&directory, controllers)?;
    Ok(directory)
}

fn hand_down(directory: &Path, controllers: &[String]) -> io::Result<()> {
    let file = directory.join("cgroup.subtree_control");
    let given = fs::read_to_string(&file).unwrap_or_default();
    let given: Vec<&str> = given.split_whitespace().collect();
    for name in WANTED.iter().filter(|name| controllers.iter().any(|other| other == **name)) {
        if given.contains(name) {
            continue;
        }
        // One by one: a controller that cannot be handed down leaves the others.
        if let Err(error) = fs::write(&file, format!("+{name}")) {
            if ["cpu", "memory", "pids"].contains(name) {
                return Err(at(&file, &format!("hand the cgroup controller {name:?} down in"), &error));
            }
            tracing::debug!(%error, controller = name, cgroup = %directory.display(), "a cgroup controller stays behind");
        }
    }
    Ok(())
}

pub(super) fn limit(directory: &Path, limits: &Resources) -> io::Result<()> {
    if limits.cpu_shares != 0 {
        write(&directory.join("cpu.weight"), &weight(limits.cpu_shares).to_string())?;
    }
    if limits.cpu_quota != 0 {
        let period = if limits.cpu_period == 0 { 100_000 } else { limits.cpu_period };
        write(&directory.join("cpu.max"), &format!("{} {period}", limits.cpu_quota))?;
    }
    if limits.memory_limit != 0 {
        write(&directory.join("memory.max"), &limits.memory_limit.to_string())?;
    }
    for (size, bytes) in &limits.hugepages {
        write(&directory.join(format!("hugetlb.{size}.max")), &bytes.to_string())?;
    }
    for (name, value) in &limits.unified {
        // A pod's own cgroup holds no processes; what is about those in it would be refused.
        if name != "memory.oom.group" {
            write(&directory.join(name), value)?;
        }
    }
    Ok(())
}

/// The weight of version 2 for shares of version 1: the range 2 to 262144 becomes 1 to 10000, as runc turns it.
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

pub(super) fn kill(directory: &Path) -> io::Result<()> {
    match fs::write(directory.join("cgroup.kill"), "1") {
        Ok(()) => return Ok(()),
        Err(error) if is_gone(&error) => {}
        Err(error) => {
            tracing::debug!(%error, cgroup = %directory.display(), "the cgroup is killed one by one");
        }
    }
    // Kernels before 5.14.
    for pid in processes(directory)? {
        send_kill(pid);
    }
    Ok(())
}

pub(super) fn usage(directory: &Path) -> Option<Usage> {
    let mut found = Usage::default();
    let cpu = usage::table(&directory.join("cpu.stat"));
    found.cpu_nanos = cpu.get("usage_usec").map(|micros| micros.saturating_mul(1000));
    if let Some(used) = usage::number(&directory.join("memory.current")) {
        let stat = usage::table(&directory.join("memory.stat"));
        let of = |name: &str| stat.get(name).copied();
        // `max` is no number, and no limit.
        let limit = usage::number(&directory.join("memory.max"));
        found.memory = Some(usage::memory(
            used,
            of("inactive_file"),
            of("anon"),
            of("pgfault"),
            of("pgmajfault"),
            limit,
        ));
    }
    found.processes = usage::number(&directory.join("pids.current"));
    (found != Usage::default()).then_some(found)
}
