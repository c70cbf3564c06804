//! What a kubelet needs on the machine outside of its namespaces, and what it changes there: put back when dropped, and
//! first of all when a run that was killed has left it.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

/// The addresses of the node, on a bridge that its pods are on too.
pub(super) const NODE_ADDRESSES: [&str; 2] = ["10.211.0.1", "fd00:211::1"];
pub(super) const BRIDGE: &str = "vkpeer0";
/// Under the root of each hierarchy.
pub(super) const CGROUP: &str = "vk-peer";

/// What a kubelet sets at its start.
const SETTINGS: [&str; 5] = [
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The machine while a kubelet is on it.
pub(super) struct Machine {
    folder: tempfile::TempDir,
    settings: Vec<(PathBuf, String)>,
    /// Two kubelets would fight for the same bridge and cgroups.
    _lock: File,
}

// === impl Machine ===

impl Machine {
    pub(super) fn prepare() -> Self {
        let lock = File::create(std::env::temp_dir().join("virtual-kubelet-peer.lock")).unwrap();
        lock.try_lock().expect("another run has the machine");
        let left = remove_leftovers();
        assert!(left.is_empty(), "of an earlier run, and in use: {left:?}");
        let settings = SETTINGS
            .iter()
            .map(|name| Path::new("/proc/sys").join(name))
            .filter_map(|path| std::fs::read_to_string(&path).ok().map(|value| (path, value)))
            .collect();
        let machine = Self { folder: tempfile::tempdir().unwrap(), settings, _lock: lock };
        run("ip", &["link", "add", BRIDGE, "type", "bridge"]);
        run("ip", &["address", "add", &format!("{}/16", NODE_ADDRESSES[0]), "dev", BRIDGE]);
        run("ip", &["address", "add", &format!("{}/64", NODE_ADDRESSES[1]), "dev", BRIDGE, "nodad"]);
        run("ip", &["link", "set", BRIDGE, "up"]);
        for hierarchy in hierarchies() {
            std::fs::create_dir_all(hierarchy.join(CGROUP)).unwrap();
        }
        machine
    }

    /// A folder for everything else; short, because sockets are in it.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut left = remove_leftovers();
        for (path, value) in &self.settings {
            if std::fs::write(path, value).is_err() {
                left.push(path.clone());
            }
        }
        assert!(std::thread::panicking() || left.is_empty(), "not put back: {left:?}");
    }
}

/// What could not be removed.
fn remove_leftovers() -> Vec<PathBuf> {
    if Path::new("/sys/class/net").join(BRIDGE).exists() {
        run("ip", &["link", "delete", BRIDGE]);
    }
    hierarchies()
        .into_iter()
        .map(|hierarchy| hierarchy.join(CGROUP))
        .filter(|group| !remove_cgroup(group))
        .collect()
}

/// Removes a control group with those in it, from the leaves on; they must be empty.
fn remove_cgroup(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return true };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        remove_cgroup(&entry.path());
    }
    // Processes that were killed may take a moment to leave it.
    for _ in 0..50 {
        if std::fs::remove_dir(folder).is_ok() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    false
}

/// Where control groups are mounted, of either version.
fn hierarchies() -> Vec<PathBuf> {
    std::fs::read_to_string("/proc/mounts")
        .unwrap()
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, folder, kind) = (fields.next()?, fields.next()?, fields.next()?);
            kind.starts_with("cgroup").then(|| PathBuf::from(folder))
        })
        .collect()
}

/// Runs a program that must succeed.
pub(super) fn run(program: &str, args: &[&str]) {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {}: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
