//! Features of this host that container specs depend on.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use vk_provider::{Error, Result};

/// Capability names by number.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// Entries of `/dev` that are not devices of the host, because every container has its own.
const NOT_DEVICES: [&str; 8] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev", "console"];

/// The features of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFeatures {
    /// Whether it only has cgroup v2.
    pub unified: bool,
    /// The directories of the cgroup v1 hierarchies below `/sys/fs/cgroup`; empty with cgroup v2.
    pub hierarchies: Vec<String>,
    /// Whether the kernel supports cgroup namespaces.
    pub cgroup_namespace: bool,
    /// Whether the number of processes can be limited.
    pub pids: bool,
    /// Whether huge pages can be limited.
    pub huge_pages: bool,
    /// Whether AppArmor is enabled.
    pub apparmor: bool,
    /// The capabilities of this process, without `CAP_`.
    pub capabilities: BTreeSet<String>,
    /// The host's devices, for privileged containers.
    pub devices: Vec<DeviceNode>,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// The path in the container.
    pub path: PathBuf,
    /// `c` or `b`.
    pub kind: &'static str,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

// === impl HostFeatures ===

impl HostFeatures {
    /// Detects the features of this host, given its cgroups.
    pub fn detect(cgroups: &crate::cgroup::HostCgroups) -> Self {
        let mut devices = Vec::new();
        collect_devices(Path::new("/dev"), &mut devices, 0);
        devices.sort_by(|one, other| one.path.cmp(&other.path));
        Self {
            unified: cgroups.is_unified(),
            hierarchies: cgroups.hierarchies(),
            cgroup_namespace: Path::new("/proc/self/ns/cgroup").exists(),
            pids: cgroups.has("pids"),
            huge_pages: cgroups.has("hugetlb"),
            apparmor: fs::read_to_string("/sys/module/apparmor/parameters/enabled")
                .is_ok_and(|enabled| enabled.starts_with('Y')),
            capabilities: fs::read_to_string("/proc/self/status")
                .map(|status| usable_capabilities(&status))
                .unwrap_or_default(),
            devices,
        }
    }
}

/// Capabilities that are both effective and in the bounding set.
fn usable_capabilities(status: &str) -> BTreeSet<String> {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or_default()
    };
    let held = set("CapEff:") & set("CapBnd:");
    let names = CAPABILITIES.iter().enumerate().filter(|(number, _)| held & (1 << number) != 0);
    names.map(|(_, name)| (*name).to_owned()).collect()
}

fn collect_devices(directory: &Path, devices: &mut Vec<DeviceNode>, depth: usize) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(kind) = entry.file_type() else { continue };
        if depth == 0 && NOT_DEVICES.iter().any(|other| name == *other) {
            continue;
        }
        if kind.is_dir() && depth < 4 {
            collect_devices(&entry.path(), devices, depth + 1);
        } else if kind.is_char_device() || kind.is_block_device() {
            devices.extend(DeviceNode::at(&entry.path(), &entry.path()).ok());
        }
    }
}

// === impl DeviceNode ===

impl DeviceNode {
    /// The device at a path of this host, to be created at another path in the container.
    pub fn at(host: &Path, container: &Path) -> Result<Self> {
        let unlike = || Error::invalid(format!("{} is not a device node", host.display()));
        let found = fs::metadata(host).map_err(|error| {
            Error::invalid(format!("device {}: {error}", host.display())).caused_by(error)
        })?;
        let kind = match found.file_type() {
            kind if kind.is_char_device() => "c",
            kind if kind.is_block_device() => "b",
            _ => return Err(unlike()),
        };
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        Ok(Self {
            path: container.to_owned(),
            kind,
            major: major.into(),
            minor: minor.into(),
            mode: found.mode() & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_that_are_effective_and_in_the_bounding_set() {
        let status = "Name:\tx\nCapEff:\t000000000000000b\nCapBnd:\t0000000000000009\n";
        assert_eq!(usable_capabilities(status), BTreeSet::from(["CHOWN".to_owned(), "FOWNER".to_owned()]));
        assert!(usable_capabilities("nothing").is_empty());
    }

    #[test]
    fn a_path_that_is_not_a_device_is_rejected() {
        let error = DeviceNode::at(Path::new("/proc"), Path::new("/dev/x")).unwrap_err();
        assert_eq!(error.message(), "/proc is not a device node");
        let null = DeviceNode::at(Path::new("/dev/null"), Path::new("/dev/nothing")).unwrap();
        assert_eq!((null.kind, null.major, null.minor), ("c", 1, 3));
        assert_eq!(null.path, Path::new("/dev/nothing"));
    }
}
