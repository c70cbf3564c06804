//! The machine that pods run on: how big it is, and what it is.

mod cgroup;
mod node;
mod pressure;
#[cfg(any(test, feature = "fake"))]
pub mod pretend;

use std::{collections::BTreeMap, fs, io, path::PathBuf};

use vk_provider::{NodeTemplate, Quantity};

use self::pressure::{Pressure, Strain};
pub use self::{cgroup::Cgroups, node::Node};

/// A machine, as its files tell. Read anew each time: memory and processors come and go.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    storage: PathBuf,
    /// Bytes of disk below which it is short of them; `None` is a kubelet's tenth.
    least_space: Option<u64>,
}

/// What of the machine is not for pods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reserved {
    /// Processors.
    pub cpu: Option<Quantity>,
    /// Memory.
    pub memory: Option<Quantity>,
    /// Disk.
    pub ephemeral_storage: Option<Quantity>,
}

/// A file system's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Space {
    bytes: u64,
    free_bytes: u64,
    inodes: u64,
    free_inodes: u64,
}

// === impl Machine ===

impl Machine {
    /// This machine; pods' files are below `storage`, or will be.
    pub fn here(storage: impl Into<PathBuf>) -> Self {
        Self::at("/", storage)
    }

    /// The machine whose files (`proc`, `sys`, `etc`) are below a directory.
    pub fn at(root: impl Into<PathBuf>, storage: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), storage: storage.into(), least_space: None }
    }

    /// The same, which is short of disk when less than this is free: by default when it is less than a tenth, as with a kubelet.
    #[must_use]
    pub fn with_least_space(mut self, bytes: Option<u64>) -> Self {
        self.least_space = bytes;
        self
    }

    /// Whether the disk is so full that pods are not taken; `None` where nobody can tell.
    pub fn is_short_of_space(&self) -> Option<bool> {
        pressure::short_of_space(self)
    }

    /// Bytes of memory.
    pub fn memory(&self) -> Option<u64> {
        self.meminfo("MemTotal")
    }

    /// Bytes of memory that could be had now.
    fn available_memory(&self) -> Option<u64> {
        self.meminfo("MemAvailable")
    }

    /// Processors.
    pub fn processors(&self) -> Option<i64> {
        let text = self.read("proc/cpuinfo").ok()?;
        let count = text.lines().filter(|line| line.starts_with("processor")).count();
        i64::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The file system that pods' files are on.
    fn space(&self) -> Option<Space> {
        // What is not made yet will be made in the next directory above that is there.
        let there = self.storage.ancestors().find(|path| path.exists())?;
        let found = rustix::fs::statvfs(there).ok()?;
        Some(Space {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            free_inodes: found.f_favail,
        })
    }

    /// Processes and threads that could be started yet, and the most that there can be.
    fn processes(&self) -> Option<(u64, u64)> {
        let most: u64 = self.read("proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
        let load = self.read("proc/loadavg").ok()?;
        let running: u64 = load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
        Some((most.saturating_sub(running), most))
    }

    /// Whether this process may do what only a privileged one may, by the number of the capability.
    pub fn capable(&self, capability: u32) -> Option<bool> {
        self.capability("proc/self/status", capability)
    }

    /// The same of another process.
    pub fn capable_of(&self, pid: i32, capability: u32) -> Option<bool> {
        self.capability(&format!("proc/{pid}/status"), capability)
    }

    fn capability(&self, path: &str, capability: u32) -> Option<bool> {
        let status = self.read(path).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let mask = u64::from_str_radix(line.trim(), 16).ok()?;
        Some(mask >> capability & 1 == 1)
    }

    /// The lowest OOM score that this process may give to another.
    pub fn oom_score_floor(&self) -> i64 {
        if self.capable(CAP_SYS_RESOURCE) == Some(true) {
            return -1000;
        }
        let own = self.read("proc/self/oom_score_adj").ok();
        own.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Puts the machine into the node's description: size, what is left for pods of it, and facts.
    fn describe(&self, node: &mut NodeTemplate, reserved: &Reserved, max_pods: i64) {
        let hugepages = self.hugepages();
        let capacity = self.capacity(&hugepages, max_pods);
        let in_hugepages = hugepages.values().copied().fold(Quantity::bytes(0), |sum, bytes| sum + bytes);
        let kept = [
            ("cpu", reserved.cpu),
            // Memory that is set aside for huge pages is no other memory.
            ("memory", Some(reserved.memory.unwrap_or(Quantity::bytes(0)) + in_hugepages)),
            ("ephemeral-storage", reserved.ephemeral_storage),
        ];
        let mut allocatable = capacity.clone();
        for (name, kept) in kept {
            if let (Some(left), Some(kept)) = (allocatable.get_mut(name), kept) {
                *left = (*left - kept).max(Quantity::units(0));
            }
        }
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

    /// The text of a file of the machine, such as `proc/meminfo`.
    pub fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.root.join(path))
    }

    /// Where a file of the machine is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

/// The right to raise limits and to lower OOM scores.
pub const CAP_SYS_RESOURCE: u32 = 24;

#[cfg(test)]
mod tests;
