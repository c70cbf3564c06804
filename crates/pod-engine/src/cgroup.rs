//! Cgroups of pods and containers: limits, usage, kill and removal.
//!
//! A pod has a cgroup at the path that the engine gives, and each container has one in it. Paths are relative to the root of
//! each mounted hierarchy, as in runc, regardless of this process's own cgroup. Hybrid hosts, which mount cgroup v2 without
//! controllers beside the v1 hierarchies, count as v1.
//!
//! Kill and removal are written by hand instead of with `libcgroups`: its managers neither wait until killed processes are gone,
//! nor freeze a v1 cgroup first, nor descend into nested cgroups.

#[cfg(test)]
mod tests;
mod usage;
mod v1;
mod v2;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Component, Path, PathBuf},
    thread,
    time::Duration,
};

use crate::backend::Resources;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

pub use self::usage::CgroupUsage;

/// Where the hierarchies are mounted on every host.
pub const MOUNT_POINT: &str = "/sys/fs/cgroup";
/// How long killed processes may take to exit, and removed cgroups to become empty.
const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// The cgroups of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCgroups {
    root: PathBuf,
    hierarchy: Hierarchy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// Version 1: directories below the root, each with one or more controllers.
    V1(Vec<v1::V1Hierarchy>),
    /// Version 2, with the controllers of the root.
    V2(Vec<String>),
}

// === impl HostCgroups ===

impl HostCgroups {
    /// The cgroups mounted at a path, normally [`MOUNT_POINT`]. Fails if a required controller is missing.
    pub fn detect(root: impl Into<PathBuf>) -> io::Result<Self> {
        let found = Self::at(root)?;
        for needed in ["cpu", "memory", "pids"] {
            if !found.has(needed) {
                return Err(io::Error::other(format!(
                    "{} has no cgroup controller {needed:?}: mount it, or use the level \"process\"",
                    found.root.display()
                )));
            }
        }
        Ok(found)
    }

    /// The cgroups at [`MOUNT_POINT`], whatever controllers they have.
    pub fn mounted() -> io::Result<Self> {
        Self::at(MOUNT_POINT)
    }

    fn at(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let hierarchy = match fs::read_to_string(root.join("cgroup.controllers")) {
            Ok(controllers) => Hierarchy::V2(controllers.split_whitespace().map(ToOwned::to_owned).collect()),
            Err(_) => Hierarchy::V1(v1::hierarchies(&root)?),
        };
        Ok(Self { root, hierarchy })
    }

    /// Whether these are cgroups of version 2.
    pub fn is_unified(&self) -> bool {
        matches!(self.hierarchy, Hierarchy::V2(_))
    }

    /// Whether this process may create cgroups here. They may be mounted read-only, as in a container.
    pub fn check_writable(&self) -> io::Result<()> {
        self.roots().iter().try_for_each(|root| {
            rustix::fs::access(root, rustix::fs::Access::WRITE_OK)
                .map_err(|error| path_error(root, "create cgroups in", &error.into()))
        })
    }

    /// Whether there is this controller.
    pub fn has(&self, controller: &str) -> bool {
        match &self.hierarchy {
            Hierarchy::V2(controllers) => controllers.iter().any(|other| other == controller),
            Hierarchy::V1(hierarchies) => hierarchies.iter().any(|one| one.has(controller)),
        }
    }

    /// The directories of the v1 hierarchies; empty with version 2.
    pub fn hierarchies(&self) -> Vec<String> {
        match &self.hierarchy {
            Hierarchy::V2(_) => Vec::new(),
            Hierarchy::V1(hierarchies) => hierarchies.iter().map(|one| one.directory.clone()).collect(),
        }
    }

    /// Creates a cgroup and its parents, and sets its limits: a limit of 0 means none, and removes one that was set before.
    /// Without `limits` an existing cgroup is not changed.
    pub fn create(&self, path: &str, limits: Option<&Resources>) -> io::Result<()> {
        let path = relative_path(path)?;
        match &self.hierarchy {
            Hierarchy::V2(controllers) => {
                let directory = v2::create(&self.root, path, controllers)?;
                limits.map_or(Ok(()), |limits| v2::limit(&directory, limits))
            }
            Hierarchy::V1(hierarchies) => {
                for one in hierarchies {
                    let root = self.root.join(&one.directory);
                    v1::create(&root, path, one)?;
                    if let Some(limits) = limits {
                        v1::limit(&root.join(path), one, limits)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Kills everything in a cgroup and below it, and waits until nothing is left. Does nothing if it does not exist.
    pub fn kill(&self, path: &str) -> io::Result<()> {
        let until = Instant::now() + LIMIT;
        let mut directories = self.existing(path)?;
        // The freezer of version 1 first, so that nothing can fork.
        directories.sort_by_key(|directory| !directory.join("freezer.state").exists());
        loop {
            let mut left = Vec::new();
            for directory in &directories {
                left.extend(processes(directory)?);
            }
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(io::Error::other(format!(
                    "processes {left:?} of cgroup {path} do not exit after SIGKILL"
                )));
            }
            // Processes that were forked meanwhile are killed in the next round.
            for directory in &directories {
                kill_once(directory)?;
            }
            thread::sleep(POLL);
        }
    }

    /// Removes a cgroup with everything below it, if no process is in it. Does nothing if it does not exist.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        let until = Instant::now() + LIMIT;
        self.existing(path)?.iter().try_for_each(|directory| remove_tree(directory, until))
    }

    /// Removes a cgroup and those below it as far as no process is in them. Kills nothing.
    pub fn remove_empty(&self, path: &str) {
        for directory in self.existing(path).unwrap_or_default() {
            remove_empty_tree(&directory);
        }
    }

    /// The names of the cgroups directly below a cgroup, in any hierarchy.
    pub fn children(&self, path: &str) -> BTreeSet<String> {
        let directories = self.existing(path).unwrap_or_default();
        let below = directories.iter().flat_map(|directory| children(directory).unwrap_or_default());
        below.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
    }

    /// Whether the cgroup exists in any hierarchy.
    pub fn exists(&self, path: &str) -> bool {
        self.existing(path).is_ok_and(|directories| !directories.is_empty())
    }

    /// Usage of a cgroup; `None` if it does not exist.
    pub fn usage(&self, path: &str) -> Option<CgroupUsage> {
        let path = relative_path(path).ok()?;
        match &self.hierarchy {
            Hierarchy::V2(_) => v2::usage(&self.root.join(path)),
            Hierarchy::V1(hierarchies) => {
                let of = |controller: &str| {
                    let one = hierarchies.iter().find(|one| one.has(controller))?;
                    Some(self.root.join(&one.directory).join(path))
                };
                v1::usage(of("cpuacct"), of("memory"), of("pids"))
            }
        }
    }

    /// How often the OOM killer was active in a cgroup.
    pub fn oom_kills(&self, path: &str) -> u64 {
        let files = ["memory.events", "memory.oom_control"];
        let directories = self.existing(path).unwrap_or_default();
        let counts = directories.iter().flat_map(|directory| files.map(|file| directory.join(file)));
        counts.filter_map(|file| usage::table(&file).get("oom_kill").copied()).max().unwrap_or(0)
    }

    /// Moves this process into an existing cgroup.
    pub fn join(&self, path: &str) -> io::Result<()> {
        self.existing(path)?.iter().try_for_each(|directory| join(directory))
    }

    /// Moves this process into a cgroup, which is created if missing. A failure in one hierarchy does not prevent the others; the
    /// first error is returned.
    pub fn enter(&self, path: &str) -> io::Result<()> {
        let path = relative_path(path)?;
        let enter = |root: &Path| {
            match &self.hierarchy {
                Hierarchy::V1(hierarchies) => {
                    let known = hierarchies.iter().find(|one| root == self.root.join(&one.directory));
                    v1::create(root, path, &known.cloned().unwrap_or_default())?;
                }
                // Without controllers for its children, which would keep processes out of it.
                Hierarchy::V2(_) => fs::create_dir_all(root.join(path))?,
            }
            join(&root.join(path))
        };
        let entered = self.roots().into_iter().map(|root| enter(&root)).collect::<Vec<_>>();
        entered.into_iter().collect()
    }

    /// The roots of all hierarchies, including v1 hierarchies without controllers, which shims enter, too.
    fn roots(&self) -> Vec<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V2(_) => vec![self.root.clone()],
            Hierarchy::V1(_) => {
                let mut roots = children(&self.root).unwrap_or_default();
                roots.retain(|root| root.join("cgroup.procs").exists());
                roots.sort();
                roots
            }
        }
    }

    /// The directories of a cgroup in all hierarchies with controllers; they may not exist.
    fn directories(&self, path: &str) -> io::Result<Vec<PathBuf>> {
        let path = relative_path(path)?;
        Ok(match &self.hierarchy {
            Hierarchy::V2(_) => vec![self.root.join(path)],
            Hierarchy::V1(hierarchies) => {
                hierarchies.iter().map(|one| self.root.join(&one.directory).join(path)).collect()
            }
        })
    }

    /// The existing directories of a cgroup in all hierarchies.
    fn existing(&self, path: &str) -> io::Result<Vec<PathBuf>> {
        let mut all = self.directories(path)?;
        let path = relative_path(path)?;
        all.extend(self.roots().into_iter().map(|root| root.join(path)));
        all.retain(|directory| directory.is_dir());
        all.sort();
        all.dedup();
        Ok(all)
    }
}

/// The path below a hierarchy's root. The root itself and paths outside are rejected: everything there would be killed.
fn relative_path(path: &str) -> io::Result<&Path> {
    let relative = Path::new(path.trim_start_matches('/'));
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || relative.as_os_str().is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cgroup {path:?} is not a path below the root of the cgroups"),
        ));
    }
    Ok(relative)
}

/// Sends SIGKILL to all processes of a cgroup, atomically if the hierarchy supports that.
fn kill_once(directory: &Path) -> io::Result<()> {
    // Version 2 since Linux 5.14.
    if directory.join("cgroup.kill").exists() && fs::write(directory.join("cgroup.kill"), "1").is_ok() {
        return Ok(());
    }
    // With the freezer of version 1, processes cannot fork meanwhile; the signal is delivered when they are thawed.
    let freezer = directory.join("freezer.state");
    let frozen = freezer.exists() && v1::freeze(&freezer);
    let found = processes(directory);
    for pid in found.iter().flatten().filter_map(|pid| Pid::from_raw(*pid)) {
        // It may have exited.
        let _ = kill_process(pid, Signal::KILL);
    }
    if frozen {
        match fs::write(&freezer, "THAWED") {
            Err(error) if !is_gone(&error) => return Err(path_error(&freezer, "thaw", &error)),
            _ => {}
        }
    }
    found.map(drop)
}

/// The processes in a cgroup and below.
fn processes(directory: &Path) -> io::Result<Vec<i32>> {
    let mut all: Vec<i32> = match fs::read_to_string(directory.join("cgroup.procs")) {
        // A process of another PID namespace is shown as 0, which would mean ourselves.
        Ok(text) => text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect(),
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        // Processes of a threaded cgroup are listed in the domain above it.
        Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => Vec::new(),
        Err(error) => return Err(path_error(directory, "read the processes of cgroup", &error)),
    };
    for child in children(directory)? {
        all.extend(processes(&child)?);
    }
    Ok(all)
}

fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(path_error(directory, "list cgroup", &error)),
    };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(directories.map(|entry| entry.path()).collect())
}

/// Children first: the kernel only removes empty cgroups.
fn remove_tree(directory: &Path, until: Instant) -> io::Result<()> {
    loop {
        // Listed again in each round: a process that is still exiting may have created another one.
        for child in children(directory)? {
            remove_tree(&child, until)?;
        }
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            // A killed process keeps it busy for a moment.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                thread::sleep(POLL);
            }
            Err(error) => return Err(path_error(directory, "remove cgroup", &error)),
        }
    }
}

fn remove_empty_tree(directory: &Path) {
    for child in children(directory).unwrap_or_default() {
        remove_empty_tree(&child);
    }
    // The kernel refuses if a process is in it.
    let _ = fs::remove_dir(directory);
}

/// Moves this process into the cgroup of a directory.
fn join(directory: &Path) -> io::Result<()> {
    fs::write(directory.join("cgroup.procs"), "0")
        .map_err(|error| path_error(directory, "join cgroup", &error))
}

const ENODEV: i32 = 19;
const EOPNOTSUPP: i32 = 95;

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}

fn path_error(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// Writes the value that means no limit. A file that does not exist limits nothing.
fn write_unlimited(path: &Path, value: &str) -> io::Result<()> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| path_error(path, &format!("write {value:?} to"), &error))
}
