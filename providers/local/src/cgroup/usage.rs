//! What the kernel counted.

use std::{collections::BTreeMap, fs, path::Path};

use vk_pod_engine::backend::MemoryUsage;

/// What a cgroup uses, as far as the kernel tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in all.
    pub cpu_nanos: Option<u64>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// Memory as a kubelet tells it: what is cached and not in use could be taken back.
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

/// A file of names and numbers; empty where it is not there.
pub(super) fn table(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let rows = text.lines().filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    });
    rows.collect()
}
