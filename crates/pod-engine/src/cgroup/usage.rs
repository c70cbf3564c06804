//! Usage counters of cgroups.

use std::{collections::BTreeMap, fs, path::Path};

use crate::backend::MemoryUsage;

/// Usage of a cgroup, as far as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Total CPU time.
    pub cpu_nanos: Option<u64>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// Memory as the kubelet reports it: the working set excludes inactive page cache.
pub(super) fn memory(
    used: u64,
    inactive_file: Option<u64>,
    rss: Option<u64>,
    page_faults: Option<u64>,
    major_page_faults: Option<u64>,
    limit: Option<u64>,
) -> MemoryUsage {
    let working_set = used.saturating_sub(inactive_file.unwrap_or_default());
    MemoryUsage {
        working_set,
        available: limit.map(|limit| limit.saturating_sub(working_set)),
        usage: Some(used),
        rss,
        page_faults,
        major_page_faults,
    }
}

pub(super) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads a file of names and numbers; empty if it does not exist.
pub(super) fn table(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let rows = text.lines().filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    });
    rows.collect()
}
