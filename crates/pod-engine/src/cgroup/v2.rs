//! Cgroup v2: one hierarchy, whose controllers are enabled from parent to child.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::backend::Resources;

use super::{CgroupUsage, path_error, usage, write, write_unlimited};

/// Controllers for limits and usage, as far as the host has them.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

/// Creates a cgroup and enables the controllers in it.
pub(super) fn create(root: &Path, path: &Path, controllers: &[String]) -> io::Result<PathBuf> {
    let mut directory = root.to_owned();
    for part in path.components() {
        enable_controllers(&directory, controllers)?;
        directory.push(part);
        match fs::create_dir(&directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(path_error(&directory, "create cgroup", &error)),
        }
    }
    // Containers get cgroups in it.
    enable_controllers(&directory, controllers)?;
    Ok(directory)
}

fn enable_controllers(directory: &Path, controllers: &[String]) -> io::Result<()> {
    let file = directory.join("cgroup.subtree_control");
    let given = fs::read_to_string(&file).unwrap_or_default();
    let given: Vec<&str> = given.split_whitespace().collect();
    for name in CONTROLLERS.iter().filter(|name| controllers.iter().any(|other| other == **name)) {
        if given.contains(name) {
            continue;
        }
        // One by one: a controller that cannot be enabled does not prevent the others.
        if let Err(error) = fs::write(&file, format!("+{name}")) {
            if ["cpu", "memory", "pids"].contains(name) {
                return Err(path_error(&file, &format!("enable the cgroup controller {name:?} in"), &error));
            }
            tracing::debug!(%error, controller = name, cgroup = %directory.display(), "enabling a cgroup controller failed");
        }
    }
    Ok(())
}

pub(super) fn limit(directory: &Path, limits: &Resources) -> io::Result<()> {
    if limits.cpu_shares != 0 {
        write(&directory.join("cpu.weight"), &weight(limits.cpu_shares).to_string())?;
    }
    if limits.cpu_quota == 0 {
        write_unlimited(&directory.join("cpu.max"), "max")?;
    } else {
        let period = if limits.cpu_period == 0 { 100_000 } else { limits.cpu_period };
        write(&directory.join("cpu.max"), &format!("{} {period}", limits.cpu_quota))?;
    }
    if limits.memory_limit == 0 {
        write_unlimited(&directory.join("memory.max"), "max")?;
    } else {
        write(&directory.join("memory.max"), &limits.memory_limit.to_string())?;
    }
    for (size, bytes) in &limits.hugepages {
        let file = directory.join(format!("hugetlb.{size}.max"));
        // The controller is optional.
        if file.exists() {
            write(&file, &bytes.to_string())?;
        }
    }
    for (name, value) in &limits.unified {
        // A pod's cgroup has no processes itself: the kernel would reject this.
        if name != "memory.oom.group" {
            write(&directory.join(name), value)?;
        }
    }
    Ok(())
}

/// Converts v1 shares (2 to 262144) to a v2 weight (1 to 10000), as runc does.
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

pub(super) fn usage(directory: &Path) -> Option<CgroupUsage> {
    let mut found = CgroupUsage::default();
    let cpu = usage::table(&directory.join("cpu.stat"));
    found.cpu_nanos = cpu.get("usage_usec").map(|micros| micros.saturating_mul(1000));
    if let Some(used) = usage::number(&directory.join("memory.current")) {
        let stat = usage::table(&directory.join("memory.stat"));
        let of = |name: &str| stat.get(name).copied();
        // `max` is not a number: there is no limit.
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
    (found != CgroupUsage::default()).then_some(found)
}
