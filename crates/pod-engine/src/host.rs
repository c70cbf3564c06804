//! The host that pods run on: its capacity and its system information.

mod cgroup_layout;
mod node;
mod pressure;

use std::{collections::BTreeMap, fs, io, path::PathBuf};

use serde::Deserialize;
use vk_provider::{NodeTemplate, Quantity};

use self::pressure::{PressureTracker, Pressures};
pub use self::{cgroup_layout::CgroupLayout, node::HostNode};
use crate::{backend::Resources, config, spec};

/// A host, described by its files. They are read on each call: memory and processors can change.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    storage: PathBuf,
    /// Free disk space in bytes below which the host has disk pressure; `None` is 10 %, as in a kubelet.
    min_free_space: Option<u64>,
}

/// Resources of the host that are not available to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ReservedResources {
    /// Processors.
    #[serde(deserialize_with = "config::quantity")]
    pub cpu: Option<Quantity>,
    /// Memory.
    #[serde(deserialize_with = "config::quantity")]
    pub memory: Option<Quantity>,
    /// Disk space.
    #[serde(deserialize_with = "config::quantity")]
    pub ephemeral_storage: Option<Quantity>,
}

/// Size and free space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FsSpace {
    bytes: u64,
    free_bytes: u64,
    inodes: u64,
    free_inodes: u64,
}

// === impl Host ===

impl Host {
    /// This host. `storage` is the directory of the pods' files; it may not exist yet.
    pub fn local(storage: impl Into<PathBuf>) -> Self {
        Self::with_root("/", storage)
    }

    /// A host whose files (`proc`, `sys`, `etc`) are below this directory.
    pub fn with_root(root: impl Into<PathBuf>, storage: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), storage: storage.into(), min_free_space: None }
    }

    /// Sets the free disk space below which the host has disk pressure.
    #[must_use]
    pub fn with_min_free_space(mut self, bytes: Option<u64>) -> Self {
        self.min_free_space = bytes;
        self
    }

    /// Whether the host has disk pressure; `None` if it cannot be measured.
    pub fn has_disk_pressure(&self) -> Option<bool> {
        pressure::has_disk_pressure(self)
    }

    /// Total memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.meminfo("MemTotal")
    }

    /// Available memory in bytes.
    fn available_memory(&self) -> Option<u64> {
        self.meminfo("MemAvailable")
    }

    /// Number of processors.
    pub fn processors(&self) -> Option<i64> {
        let text = self.read("proc/cpuinfo").ok()?;
        let count = text.lines().filter(|line| line.starts_with("processor")).count();
        i64::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The file system of the pods' files.
    fn space(&self) -> Option<FsSpace> {
        // If the directory does not exist yet, its nearest existing parent counts.
        let existing = self.storage.ancestors().find(|path| path.exists())?;
        let found = rustix::fs::statvfs(existing).ok()?;
        Some(FsSpace {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            free_inodes: found.f_favail,
        })
    }

    /// The number of processes and threads that can still be started, and the maximum.
    fn processes(&self) -> Option<(u64, u64)> {
        let most: u64 = self.read("proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
        let load = self.read("proc/loadavg").ok()?;
        let running: u64 = load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
        Some((most.saturating_sub(running), most))
    }

    /// Whether this process has a capability, by its number.
    pub fn has_capability(&self, capability: u32) -> Option<bool> {
        self.capability("proc/self/status", capability)
    }

    /// Whether another process has a capability.
    pub fn process_has_capability(&self, pid: i32, capability: u32) -> Option<bool> {
        self.capability(&format!("proc/{pid}/status"), capability)
    }

    fn capability(&self, path: &str, capability: u32) -> Option<bool> {
        let status = self.read(path).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let mask = u64::from_str_radix(line.trim(), 16).ok()?;
        Some(mask >> capability & 1 == 1)
    }

    /// The lowest OOM score adjustment that this process may set.
    pub fn oom_score_floor(&self) -> i64 {
        if self.has_capability(CAP_SYS_RESOURCE) == Some(true) {
            return -1000;
        }
        let own = self.read("proc/self/oom_score_adj").ok();
        own.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Makes this process one of the last that the OOM killer ends, as a kubelet does: without it nobody looks after the pods.
    pub fn protect_from_oom_killer(&self) -> io::Result<()> {
        fs::write(self.root.join("proc/self/oom_score_adj"), AGENT_OOM_SCORE_ADJ)
    }

    /// The limits of all pods together: capacity without what is reserved.
    pub fn allocatable_limits(&self, reserved: &ReservedResources) -> Resources {
        let (_, allocatable) = self.resources(reserved, 0);
        let amount = |name: &str| allocatable.get(name).copied();
        // A limit of 0 would be none.
        spec::node_limits(amount("cpu"), amount("memory").map(|memory| memory.max(Quantity::bytes(1))))
    }

    /// Adds the host to the node: capacity, allocatable resources and system information.
    fn describe(&self, node: &mut NodeTemplate, reserved: &ReservedResources, max_pods: i64) {
        let (capacity, allocatable) = self.resources(reserved, max_pods);
        node.capacity.extend(capacity);
        node.allocatable.extend(allocatable);
        let line = |path: &str| self.read(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let system = &mut node.system;
        system.kernel_version = line("proc/sys/kernel/osrelease");
        system.boot_id = line("proc/sys/kernel/random/boot_id");
        system.machine_id = line("etc/machine-id");
        system.system_uuid = line("sys/class/dmi/id/product_uuid");
        if system.system_uuid.is_empty() {
            system.system_uuid.clone_from(&system.machine_id);
        }
        system.os_image = self.os_image();
    }

    /// Capacity and allocatable resources.
    fn resources(
        &self,
        reserved: &ReservedResources,
        max_pods: i64,
    ) -> (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>) {
        let hugepages = self.hugepages();
        let capacity = self.capacity(&hugepages, max_pods);
        let in_hugepages = hugepages.values().copied().fold(Quantity::bytes(0), |sum, bytes| sum + bytes);
        let withheld = [
            ("cpu", reserved.cpu),
            // Memory that is reserved for huge pages is not available as normal memory.
            ("memory", Some(reserved.memory.unwrap_or(Quantity::bytes(0)) + in_hugepages)),
            ("ephemeral-storage", reserved.ephemeral_storage),
        ];
        let mut allocatable = capacity.clone();
        for (name, withheld) in withheld {
            if let (Some(left), Some(withheld)) = (allocatable.get_mut(name), withheld) {
                *left = (*left - withheld).max(Quantity::units(0));
            }
        }
        (capacity, allocatable)
    }

    fn capacity(&self, hugepages: &BTreeMap<String, Quantity>, max_pods: i64) -> BTreeMap<String, Quantity> {
        let bytes = |bytes: u64| Quantity::bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
        let known = [
            ("cpu", self.processors().map(Quantity::units)),
            ("memory", self.memory().map(bytes)),
            ("ephemeral-storage", self.space().map(|space| bytes(space.bytes))),
            ("pods", Some(Quantity::units(max_pods))),
        ];
        let known = known.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?)));
        known.chain(hugepages.clone()).collect()
    }

    fn hugepages(&self) -> BTreeMap<String, Quantity> {
        let mut sizes = BTreeMap::new();
        let Ok(folder) = fs::read_dir(self.root.join("sys/kernel/mm/hugepages")) else { return sizes };
        for entry in folder.flatten() {
            let name = entry.file_name();
            let kib = name.to_str().and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"));
            let Some(kib) = kib.and_then(|kib| kib.parse::<i64>().ok()) else { continue };
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok();
            let count: i64 = count.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
            let size = Quantity::bytes(kib << 10);
            sizes.insert(format!("hugepages-{size}"), Quantity::bytes((kib << 10).saturating_mul(count)));
        }
        sizes
    }

    fn os_image(&self) -> String {
        let text =
            self.read("etc/os-release").or_else(|_| self.read("usr/lib/os-release")).unwrap_or_default();
        let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        name.map(|name| name.trim_matches(['"', '\'']).to_owned()).unwrap_or_default()
    }

    fn meminfo(&self, key: &str) -> Option<u64> {
        let text = self.read("proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kib << 10)
    }

    /// Reads a file of the host, such as `proc/meminfo`.
    pub fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.root.join(path))
    }

    /// The path of a file of the host.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

/// The capability to raise limits and to lower OOM scores.
pub const CAP_SYS_RESOURCE: u32 = 24;
/// The OOM score of a kubelet: below those of all containers.
const AGENT_OOM_SCORE_ADJ: &str = "-999";

#[cfg(test)]
mod tests;
