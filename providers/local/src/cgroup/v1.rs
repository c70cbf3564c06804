//! Version 1: a hierarchy per controller, or per few that are mounted together.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use vk_pod_engine::backend::Resources;

use super::{Usage, at, is_gone, processes, send_kill, usage, write};

/// How long a freeze is waited for: a process in the middle of a call to the disk is not frozen before it is back.
const FROZEN_CHECKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// What cgroups of version 1 say where there is no limit, rounded to pages.
const NO_LIMIT: u64 = 0x7FFF_FFFF_FFFF_0000;

/// A hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// Its directory below the root.
    pub(super) directory: String,
    controllers: Vec<String>,
}

impl Mounted {
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|other| other == controller)
    }
}

/// The hierarchies below a root: directories named for their controllers. Names that are links to one mounted with others are not
/// told twice.
pub(super) fn mounted(root: &Path) -> io::Result<Vec<Mounted>> {
    let entries = fs::read_dir(root).map_err(|error| at(root, "list cgroups of", &error))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(directory) = entry.file_name().to_str().map(ToOwned::to_owned) else { continue };
        // Without this file it is no hierarchy of version 1.
        if !is_directory || !entry.path().join("tasks").exists() {
            continue;
        }
        let controllers = directory.split(',').map(ToOwned::to_owned).collect();
        found.push(Mounted { directory, controllers });
    }
    found.sort_by(|one, other| one.directory.cmp(&other.directory));
    Ok(found)
}

pub(super) fn create(root: &Path, directory: &Path, mounted: &Mounted) -> io::Result<()> {
    let mut path = root.to_owned();
    let below = directory.strip_prefix(root).unwrap_or_else(|_| Path::new(""));
    for part in below.components() {
        let parent = path.clone();
        path.push(part);
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(at(&path, "make cgroup", &error)),
        }
        if mounted.has("cpuset") {
            // Without these nothing can run in it.
            for name in ["cpuset.cpus", "cpuset.mems"] {
                inherit(&parent.join(name), &path.join(name))?;
            }
        }
        if mounted.has("memory") {
            let all = path.join("memory.use_hierarchy");
            // Old kernels count those below only when told to, and only before there are any.
            if fs::read_to_string(&all).is_ok_and(|value| value.trim() == "0") {
                write(&all, "1")?;
            }
        }
    }
    Ok(())
}

fn inherit(parent: &Path, child: &Path) -> io::Result<()> {
    if fs::read_to_string(child).is_ok_and(|value| value.trim().is_empty()) {
        let value = fs::read_to_string(parent).map_err(|error| at(parent, "read", &error))?;
        write(child, value.trim())?;
    }
    Ok(())
}

pub(super) fn limit(directory: &Path, mounted: &Mounted, limits: &Resources) -> io::Result<()> {
    let set = |name: &str, value: i64| {
        if value == 0 { Ok(()) } else { write(&directory.join(name), &value.to_string()) }
    };
    if mounted.has("cpu") {
        set("cpu.shares", limits.cpu_shares)?;
        if limits.cpu_quota != 0 {
            set("cpu.cfs_period_us", limits.cpu_period)?;
            set("cpu.cfs_quota_us", limits.cpu_quota)?;
        }
    }
    if mounted.has("memory") {
        set("memory.limit_in_bytes", limits.memory_limit)?;
        let with_swap = directory.join("memory.memsw.limit_in_bytes");
        if limits.memory_swap_limit != 0 && with_swap.exists() {
            write(&with_swap, &limits.memory_swap_limit.to_string())?;
        }
    }
    if mounted.has("hugetlb") {
        for (size, bytes) in &limits.hugepages {
            write(&directory.join(format!("hugetlb.{size}.limit_in_bytes")), &bytes.to_string())?;
        }
    }
    Ok(())
}

/// Freezes, kills and thaws, so that nothing can fork away from the signal.
pub(super) fn kill(watched: &Path, freezer: Option<&Path>) -> io::Result<()> {
    let freezer = freezer.map(|directory| directory.join("freezer.state")).filter(|state| state.exists());
    if let Some(state) = &freezer {
        let _ = fs::write(state, "FROZEN");
        for _ in 0..FROZEN_CHECKS {
            match fs::read_to_string(state) {
                Ok(text) if text.trim() == "FREEZING" => std::thread::sleep(PAUSE),
                _ => break,
            }
        }
    }
    let found = processes(watched);
    for pid in found.iter().flatten() {
        send_kill(*pid);
    }
    if let Some(state) = &freezer {
        match fs::write(state, "THAWED") {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(at(state, "thaw", &error)),
        }
    }
    found.map(drop)
}

pub(super) fn usage(
    cpuacct: Option<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
) -> Option<Usage> {
    let cpu_nanos = cpuacct.and_then(|directory| usage::number(&directory.join("cpuacct.usage")));
    let mut found = Usage { cpu_nanos, ..Usage::default() };
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
    (found != Usage::default()).then_some(found)
}
