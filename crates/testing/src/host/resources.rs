//! Bridge, subnet, cgroup and folder on the host, for one container runtime. Removed when dropped, and before use when an earlier run was killed.

use std::{
    fs::{File, Metadata},
    io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{attempt, cgroup, firewall, make_folder, run};

/// The numbers that [`HostResources::any`] chooses from.
const NUMBERS: std::ops::RangeInclusive<u8> = 212..=254;
/// Above the ports that tests choose from, and below those of control planes.
const KUBELET_PORTS: u16 = 19_000;
/// The cgroup of containers that name none.
const RUNTIME_GROUP: &str = "k8s.io";

/// The resources of one container runtime on this host.
#[derive(Debug)]
pub struct HostResources {
    number: u8,
    folder: PathBuf,
    /// Whether they were created by this process, and not left by another one.
    is_own: bool,
    /// No other process uses this number while the lock is held.
    _lock: NumberLock,
}

/// The lock of a number: a locked file, which is removed with the lock.
#[derive(Debug)]
struct NumberLock {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

// === impl HostResources ===

impl HostResources {
    /// Takes any free number.
    pub fn any() -> Self {
        remove_abandoned();
        let free = NUMBERS.into_iter().find_map(|number| Some((number, NumberLock::take(number)?)));
        let (number, lock) = free.expect("a free number: every one is in use by another test");
        Self::prepare(number, lock)
    }

    /// Takes this number, for tests whose recordings contain its addresses.
    pub fn numbered(number: u8) -> Self {
        let lock = NumberLock::take(number)
            .unwrap_or_else(|| panic!("host resources {number} are in use by another run"));
        Self::prepare(number, lock)
    }

    /// What may be left of a number.
    fn abandoned(number: u8, lock: NumberLock) -> Self {
        let folder = std::env::temp_dir().join(format!("vk-peer-{number}"));
        Self { number, folder, is_own: false, _lock: lock }
    }

    fn prepare(number: u8, lock: NumberLock) -> Self {
        let mut resources = Self::abandoned(number, lock);
        let left = resources.remove_all();
        assert!(left.is_empty(), "left by an earlier run and still in use: {left:?}");
        resources.is_own = true;
        make_folder(&resources.shared());
        let (bridge, shared) = (resources.bridge(), resources.shared());
        let shared = shared.to_string_lossy();
        run("mount", &["--bind", &shared, &shared]);
        run("mount", &["--make-shared", &shared]);
        run("ip", &["link", "add", &bridge, "type", "bridge"]);
        let [four, six] = resources.addresses();
        run("ip", &["address", "add", &format!("{four}/16"), "dev", &bridge]);
        run("ip", &["address", "add", &format!("{six}/64"), "dev", &bridge, "nodad"]);
        run("ip", &["link", "set", &bridge, "up"]);
        cgroup::make(&resources.cgroup());
        resources
    }

    /// The number that all names are derived from.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// A folder for all files, which is removed at the end. Its path is short because sockets are in it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A folder whose mounts propagate into the namespaces: for pod directories that the test's own process creates.
    pub fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    /// The bridge of the pods, and the name of their network.
    pub fn bridge(&self) -> String {
        format!("vkpeer{}", self.number)
    }

    /// The cgroup of pods, under the root of each hierarchy.
    pub fn cgroup(&self) -> String {
        format!("vk-peer-{}", self.number)
    }

    /// The addresses of the node on the bridge, IPv4 and IPv6.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let number = self.number;
        let six = format!("fd00:{number}::1").parse::<std::net::Ipv6Addr>();
        [[10, number, 0, 1].into(), six.expect("a valid address").into()]
    }

    /// A free port on these addresses for the node's kubelet API. Not 10250: a process that listens on all addresses may have that.
    pub fn kubelet_port(&self) -> u16 {
        KUBELET_PORTS + u16::from(self.number)
    }

    /// Removes all resources. Returns those that could not be removed.
    fn remove_all(&self) -> Vec<PathBuf> {
        let bridge = self.bridge();
        if Path::new("/sys/class/net").join(&bridge).exists() {
            run("ip", &["link", "delete", &bridge]);
            firewall::remove(&bridge);
        }
        let mut left = cgroup::remove(&self.cgroup());
        let tasks = self.folder.join("containerd-state/io.containerd.runtime.v2.task").join(RUNTIME_GROUP);
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            left.extend(cgroup::remove(&format!("{RUNTIME_GROUP}/{}", task.file_name().to_string_lossy())));
        }
        cgroup::remove_if_empty(RUNTIME_GROUP);
        let shared = self.shared();
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let below = |line: &&str| line.split(' ').nth(1).is_some_and(|at| Path::new(at).starts_with(&shared));
        // In reverse order of mounting; stacked mounts have one line each.
        for line in mounts.lines().filter(below).collect::<Vec<_>>().into_iter().rev() {
            attempt("umount", &["--lazy", line.split(' ').nth(1).unwrap_or_default()]);
        }
        if self.folder.exists() && std::fs::remove_dir_all(&self.folder).is_err() {
            left.push(self.folder.clone());
        }
        left
    }
}

impl Drop for HostResources {
    fn drop(&mut self) {
        let left = self.remove_all();
        assert!(std::thread::panicking() || !self.is_own || left.is_empty(), "cannot remove {left:?}");
    }
}

// === impl NumberLock ===

impl NumberLock {
    /// Takes the lock, unless another process has it.
    fn take(number: u8) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("vk-peer-{number}.lock"));
        loop {
            let file = File::options().write(true).create(true).truncate(false).open(&path);
            let file = file.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
            file.try_lock().ok()?;
            // Its last owner may have removed it after it was opened here.
            let inode = |metadata: io::Result<Metadata>| metadata.ok().map(|metadata| metadata.ino());
            if inode(file.metadata()) == inode(std::fs::metadata(&path)) {
                return Some(Self { path, _file: file });
            }
        }
    }
}

impl Drop for NumberLock {
    fn drop(&mut self) {
        // Before the lock ends, so that it is never the file of another owner.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes what killed runs left of any number.
fn remove_abandoned() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix("vk-peer-"));
        let number =
            name.map(|name| name.strip_suffix(".lock").unwrap_or(name)).and_then(|name| name.parse().ok());
        // Whoever has the lock still needs it.
        if let Some((number, lock)) = number.and_then(|number| Some((number, NumberLock::take(number)?))) {
            drop(HostResources::abandoned(number, lock));
        }
    }
}
