//! What a runtime needs on the machine outside of its namespaces: put back when dropped, and first of all when a run that was killed
//! has left it.

use std::{
    fs::File,
    net::IpAddr,
    path::{Path, PathBuf},
};

use super::{attempt, cgroup, chains, make_folder, run};

/// Those that [`Machine::any`] chooses from.
const ANY: std::ops::RangeInclusive<u8> = 212..=254;
/// Where a runtime puts containers that name no group.
const RUNTIME_GROUP: &str = "k8s.io";

/// A part of this machine, for one runtime.
#[derive(Debug)]
pub struct Machine {
    number: u8,
    folder: PathBuf,
    /// Nobody else has this number while it is held.
    _lock: File,
}

// === impl Machine ===

impl Machine {
    /// One that nobody has.
    pub fn any() -> Self {
        let free = ANY.into_iter().find_map(|number| Some((number, lock(number)?)));
        let (number, lock) = free.expect("a free number: so many runtimes cannot be in use");
        Self::prepare(number, lock)
    }

    /// A certain one, for tests that write its addresses down.
    pub fn numbered(number: u8) -> Self {
        let lock = lock(number).unwrap_or_else(|| panic!("another run has machine {number}"));
        Self::prepare(number, lock)
    }

    fn prepare(number: u8, lock: File) -> Self {
        let folder = std::env::temp_dir().join(format!("vk-peer-{number}"));
        let machine = Self { number, folder, _lock: lock };
        let left = machine.put_back();
        assert!(left.is_empty(), "of an earlier run, and in use: {left:?}");
        make_folder(&machine.shared());
        let (bridge, shared) = (machine.bridge(), machine.shared());
        let shared = shared.to_string_lossy();
        run("mount", &["--bind", &shared, &shared]);
        run("mount", &["--make-shared", &shared]);
        run("ip", &["link", "add", &bridge, "type", "bridge"]);
        let [four, six] = machine.addresses();
        run("ip", &["address", "add", &format!("{four}/16"), "dev", &bridge]);
        run("ip", &["address", "add", &format!("{six}/64"), "dev", &bridge, "nodad"]);
        run("ip", &["link", "set", &bridge, "up"]);
        cgroup::make(&machine.cgroup());
        machine
    }

    /// Its number, from which everything is named.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// A folder for everything; short, because sockets are in it. Removed at the end.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A folder in which what is mounted outside of the runtime's namespaces is seen inside too: for the directories of pods, when
    /// whoever makes them is the test's own process.
    pub fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    /// The bridge that pods are on, and also the name of their network.
    pub fn bridge(&self) -> String {
        format!("vkpeer{}", self.number)
    }

    /// A control group under the root of each hierarchy, for what runs in pods.
    pub fn cgroup(&self) -> String {
        format!("vk-peer-{}", self.number)
    }

    /// The addresses of the node, on the bridge.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let number = self.number;
        let six = format!("fd00:{number}::1").parse::<std::net::Ipv6Addr>();
        [[10, number, 0, 1].into(), six.expect("decimal digits are hexadecimal ones").into()]
    }

    /// Removes what is left of a run. Returns what could not be removed.
    fn put_back(&self) -> Vec<PathBuf> {
        let bridge = self.bridge();
        if Path::new("/sys/class/net").join(&bridge).exists() {
            run("ip", &["link", "delete", &bridge]);
            chains::remove(&bridge);
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
        // The last mounted first; one over the other makes one line each.
        for line in mounts.lines().filter(below).collect::<Vec<_>>().into_iter().rev() {
            attempt("umount", &["--lazy", line.split(' ').nth(1).unwrap_or_default()]);
        }
        if self.folder.exists() && std::fs::remove_dir_all(&self.folder).is_err() {
            left.push(self.folder.clone());
        }
        left
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let left = self.put_back();
        assert!(std::thread::panicking() || left.is_empty(), "not put back: {left:?}");
    }
}

fn lock(number: u8) -> Option<File> {
    let path = std::env::temp_dir().join(format!("vk-peer-{number}.lock"));
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = file.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
    file.try_lock().ok().map(|()| file)
}
