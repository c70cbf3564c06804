//! Cgroup v1: a hierarchy per controller, or per group of controllers.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::backend::Resources;

use super::{CgroupUsage, path_error, usage, write, write_unlimited};

/// How long to wait for a freeze: a process in uninterruptible sleep is not frozen before it wakes up.
const FREEZE_CHECKS: u32 = 250;
const FREEZE_POLL: Duration = Duration::from_millis(2);
/// The value that means no limit, rounded to pages.
const NO_LIMIT: u64 = 0x7FFF_FFFF_FFFF_0000;

/// A v1 hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct V1Hierarchy {
    /// Its directory below the root.
    pub(super) directory: String,
    controllers: Vec<String>,
}

impl V1Hierarchy {
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|other| other == controller)
    }
}

/// The hierarchies below a root: directories named by their controllers. Links to a hierarchy with several controllers are
/// ignored.
pub(super) fn hierarchies(root: &Path) -> io::Result<Vec<V1Hierarchy>> {
    let entries = fs::read_dir(root).map_err(|error| path_error(root, "list cgroups of", &error))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(directory) = entry.file_name().to_str().map(ToOwned::to_owned) else { continue };
        // Only v1 hierarchies have this file.
        if !is_directory || !entry.path().join("tasks").exists() {
            continue;
        }
        let controllers = directory.split(',').map(ToOwned::to_owned).collect();
        found.push(V1Hierarchy { directory, controllers });
    }
    found.sort_by(|one, other| one.directory.cmp(&other.directory));
    Ok(found)
}

pub(super) fn create(root: &Path, below: &Path, hierarchy: &V1Hierarchy) -> io::Result<()> {
    let mut path = root.to_owned();
    for part in below.components() {
        let parent = path.clone();
        path.push(part);
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(path_error(&path, "create cgroup", &error)),
        }
        if hierarchy.has("cpuset") {
            // Without these, no process can enter it.
            for name in ["cpuset.cpus", "cpuset.mems"] {
                inherit(&parent.join(name), &path.join(name))?;
            }
        }
        if hierarchy.has("memory") {
            let all = path.join("memory.use_hierarchy");
            // Old kernels only include children in the usage if this is set before they exist.
            if fs::read_to_string(&all).is_ok_and(|value| value.trim() == "0") {
                write(&all, "1")?;
            }
        }
    }
    Ok(())
}

fn inherit(parent: &Path, child: &Path) -> io::Result<()> {
    if fs::read_to_string(child).is_ok_and(|value| value.trim().is_empty()) {
        let value = fs::read_to_string(parent).map_err(|error| path_error(parent, "read", &error))?;
        write(child, value.trim())?;
    }
    Ok(())
}

pub(super) fn limit(directory: &Path, hierarchy: &V1Hierarchy, limits: &Resources) -> io::Result<()> {
    let set = |name: &str, value: i64| {
        if value == 0 { Ok(()) } else { write(&directory.join(name), &value.to_string()) }
    };
    if hierarchy.has("cpu") {
        set("cpu.shares", limits.cpu_shares)?;
        if limits.cpu_quota == 0 {
            write_unlimited(&directory.join("cpu.cfs_quota_us"), "-1")?;
        } else {
            set("cpu.cfs_period_us", limits.cpu_period)?;
            set("cpu.cfs_quota_us", limits.cpu_quota)?;
        }
    }
    if hierarchy.has("memory") {
        if limits.memory_limit == 0 {
            write_unlimited(&directory.join("memory.limit_in_bytes"), "-1")?;
        } else {
            set("memory.limit_in_bytes", limits.memory_limit)?;
        }
        let with_swap = directory.join("memory.memsw.limit_in_bytes");
        if limits.memory_swap_limit != 0 && with_swap.exists() {
            write(&with_swap, &limits.memory_swap_limit.to_string())?;
        }
    }
    if hierarchy.has("hugetlb") {
        for (size, bytes) in &limits.hugepages {
            write(&directory.join(format!("hugetlb.{size}.limit_in_bytes")), &bytes.to_string())?;
        }
    }
    Ok(())
}

/// Freezes a cgroup; returns whether that was attempted successfully. A process in uninterruptible sleep is frozen later.
pub(super) fn freeze(state: &Path) -> bool {
    let written = fs::write(state, "FROZEN").is_ok();
    for _ in 0..FREEZE_CHECKS {
        match fs::read_to_string(state) {
            Ok(text) if text.trim() == "FREEZING" => std::thread::sleep(FREEZE_POLL),
            _ => break,
        }
    }
    written
}

pub(super) fn usage(
    cpuacct: Option<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
) -> Option<CgroupUsage> {
    let cpu_nanos = cpuacct.and_then(|directory| usage::number(&directory.join("cpuacct.usage")));
    let mut found = CgroupUsage { cpu_nanos, ..CgroupUsage::default() };
    if let Some(directory) = memory
        && let Some(used) = usage::number(&directory.join("memory.usage_in_bytes"))
    {
        let stat = usage::table(&directory.join("memory.stat"));
        let of = |name: &str| stat.get(name).copied();
        let limit = usage::number(&directory.join("memory.limit_in_bytes")).filter(|limit| *limit < NO_LIMIT);
        found.memory = Some(usage::memory(
            used,
            of("total_inactive_file"),
            of("total_rss"),
            of("total_pgfault"),
            of("total_pgmajfault"),
            limit,
        ));
    }
    found.processes = pids.and_then(|directory| usage::number(&directory.join("pids.current")));
    (found != CgroupUsage::default()).then_some(found)
}
