//! What a kubelet needs on the machine outside of its namespaces, and what it changes there: put back when dropped, and
//! first of all when a run that was killed has left it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Seek as _, Write as _},
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
    folder: PathBuf,
    /// Two kubelets would fight for the same bridge and cgroups. Holds the settings as they were, in case that we are killed.
    lock: File,
}

// === impl Machine ===

impl Machine {
    pub(super) fn prepare() -> Self {
        let path = std::env::temp_dir().join("virtual-kubelet-peer.lock");
        let mut lock =
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        lock.try_lock().expect("another run has the machine");
        let folder = std::env::temp_dir().join("virtual-kubelet-peer");
        let left = put_back(&folder, &mut lock);
        assert!(left.is_empty(), "of an earlier run, and in use: {left:?}");
        let settings: BTreeMap<&str, String> = SETTINGS
            .iter()
            .filter_map(|name| Some((*name, std::fs::read_to_string(setting(name)).ok()?)))
            .collect();
        lock.write_all(&serde_json::to_vec(&settings).unwrap()).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let machine = Self { folder, lock };
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
        &self.folder
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let left = put_back(&self.folder, &mut self.lock);
        assert!(std::thread::panicking() || left.is_empty(), "not put back: {left:?}");
    }
}

/// Removes what is left of a run. Returns what could not be removed.
fn put_back(folder: &Path, lock: &mut File) -> Vec<PathBuf> {
    let mut left = Vec::new();
    if Path::new("/sys/class/net").join(BRIDGE).exists() {
        run("ip", &["link", "delete", BRIDGE]);
    }
    let groups = hierarchies().into_iter().map(|hierarchy| hierarchy.join(CGROUP));
    left.extend(groups.filter(|group| !remove_cgroup(group)));
    if folder.exists() && std::fs::remove_dir_all(folder).is_err() {
        left.push(folder.to_owned());
    }
    let mut text = String::new();
    lock.rewind().and_then(|()| lock.read_to_string(&mut text)).unwrap();
    // Empty after a run that ended well.
    let settings: BTreeMap<String, String> = serde_json::from_str(&text).unwrap_or_default();
    for (name, value) in settings {
        if std::fs::write(setting(&name), value).is_err() {
            left.push(setting(&name));
        }
    }
    lock.rewind().and_then(|()| lock.set_len(0)).unwrap();
    left
}

fn setting(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
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
