//! Features of the host that affect containers.

use std::{fs, path::Path};

/// Features of the host that affect containers. The default is a host with cgroups v1 and without huge pages and swap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFeatures {
    /// Huge page sizes, such as `2MB`: a container that requests none gets a limit of 0 for each.
    pub huge_pages: Vec<String>,
    /// Whether the host uses cgroups v2 only.
    pub unified: bool,
    /// Whether swap can be limited. Containers get no swap.
    pub swap: bool,
    /// Whether the kernel enforces AppArmor profiles.
    pub apparmor: bool,
    /// Masked paths of this host, in addition to the ones that are always masked.
    pub masked_paths: Vec<String>,
}

impl HostFeatures {
    /// Detects the features of this host. A feature that cannot be read is absent.
    pub fn detect() -> Self {
        let cgroups = Path::new("/sys/fs/cgroup");
        // Only the root of a v2 hierarchy has this file.
        let unified = cgroups.join("cgroup.controllers").exists();
        let swap = if unified {
            // The file exists in every cgroup but the root.
            let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
            cgroups.join(own).join("memory.swap.max").exists()
        } else {
            cgroups.join("memory/memory.memsw.limit_in_bytes").exists()
        };
        let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
        let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let throttles = cpus(possible.trim())
            .into_iter()
            .map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"));
        let pages = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
        let mut huge_pages: Vec<String> =
            pages.filter_map(|entry| page_size(entry.file_name().to_str()?)).collect();
        huge_pages.sort();
        Self {
            huge_pages,
            unified,
            swap,
            apparmor: Path::new("/sys/kernel/security/apparmor").exists() && enabled.starts_with('Y'),
            masked_paths: throttles.filter(|path| Path::new(path).exists()).collect(),
        }
    }
}

/// Parses a CPU list such as `0-3,5`; empty if it is malformed.
fn cpus(list: &str) -> Vec<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    let ranges: Option<Vec<_>> = list.split(',').map(range).collect();
    ranges.unwrap_or_default().into_iter().flatten().collect()
}

/// `hugepages-2048kB` as `2MB`, the notation of cgroups.
fn page_size(directory: &str) -> Option<String> {
    let kib: u64 = directory.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    Some(match kib {
        0..1024 => format!("{kib}KB"),
        1024..1_048_576 => format!("{}MB", kib >> 10),
        _ => format!("{}GB", kib >> 20),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_huge_pages_are_written_as_cgroups_write_them() {
        for (directory, size) in [
            ("hugepages-64kB", Some("64KB")),
            ("hugepages-2048kB", Some("2MB")),
            ("hugepages-1048576kB", Some("1GB")),
            ("hugepages-2048", None),
            ("other", None),
        ] {
            assert_eq!(page_size(directory).as_deref(), size, "{directory}");
        }
    }

    #[test]
    fn only_existing_paths_are_detected() {
        let features = HostFeatures::detect();
        assert!(features.masked_paths.iter().all(|path| Path::new(path).is_dir()), "{features:?}");
        assert!(features.huge_pages.iter().all(|size| size.ends_with('B')), "{features:?}");
        assert_eq!(features.huge_pages.is_empty(), !Path::new("/sys/kernel/mm/hugepages").exists());
    }

    #[test]
    fn processors_are_read_from_ranges() {
        assert_eq!(cpus("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(cpus("0"), [0]);
        assert!(cpus("").is_empty());
        assert!(cpus("a-b").is_empty());
    }
}
