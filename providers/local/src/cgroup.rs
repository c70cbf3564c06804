//! Limits and usage of processes that belong together.
//!
//! A pod has a cgroup, at the path that the engine gives, and each container has one in it, by its id. Paths are below the root of
//! each hierarchy as it is mounted, as runc has them, whatever cgroup this process is in itself. Hybrid machines, which mount the
//! unified hierarchy beside the old ones without a controller in it, count as old ones.

#[cfg(test)]
mod tests;
mod usage;
mod v1;
mod v2;

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use vk_pod_engine::backend::Resources;

pub use self::usage::Usage;

/// Where the hierarchies are mounted, everywhere.
pub const MOUNTED: &str = "/sys/fs/cgroup";
/// How often a removal is tried again while the kernel still lets processes end.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// The cgroups of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    root: PathBuf,
    hierarchy: Hierarchy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// Version 1: directories below the root, each with one or more controllers.
    Old(Vec<v1::Mounted>),
    /// Version 2, with the controllers that the root has.
    Unified(Vec<String>),
}

// === impl Cgroups ===

impl Cgroups {
    /// The cgroups that are mounted at a path, normally [`MOUNTED`]. An error says what is missing.
    pub fn detect(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let hierarchy = match fs::read_to_string(root.join("cgroup.controllers")) {
            Ok(controllers) => {
                Hierarchy::Unified(controllers.split_whitespace().map(ToOwned::to_owned).collect())
            }
            Err(_) => Hierarchy::Old(v1::mounted(&root)?),
        };
        let found = Self { root, hierarchy };
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

    /// Whether these are cgroups of version 2.
    pub fn is_unified(&self) -> bool {
        matches!(self.hierarchy, Hierarchy::Unified(_))
    }

    /// Whether there is this controller.
    pub fn has(&self, controller: &str) -> bool {
        match &self.hierarchy {
            Hierarchy::Unified(controllers) => controllers.iter().any(|other| other == controller),
            Hierarchy::Old(mounted) => mounted.iter().any(|one| one.has(controller)),
        }
    }

    /// The directories of the old hierarchies; none where they are unified.
    pub fn hierarchies(&self) -> Vec<String> {
        match &self.hierarchy {
            Hierarchy::Unified(_) => Vec::new(),
            Hierarchy::Old(mounted) => mounted.iter().map(|one| one.directory.clone()).collect(),
        }
    }

    /// Makes a cgroup, and those above it, and sets its limits.
    pub fn create(&self, path: &str, limits: Option<&Resources>) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::Unified(controllers) => {
                let directory = v2::create(&self.root, inside(path)?, controllers)?;
                limits.map_or(Ok(()), |limits| v2::limit(&directory, limits))
            }
            Hierarchy::Old(mounted) => {
                for one in mounted {
                    let directory = self.root.join(&one.directory).join(inside(path)?);
                    v1::create(&self.root.join(&one.directory), &directory, one)?;
                    if let Some(limits) = limits {
                        v1::limit(&directory, one, limits)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Kills everything in a cgroup and below it. Returns when nothing is left, or with an error when something will not go.
    pub fn kill(&self, path: &str) -> io::Result<()> {
        let directories = self.directories(path)?;
        let Some(watched) = directories.iter().find(|directory| directory.exists()) else { return Ok(()) };
        for attempt in 0..ATTEMPTS {
            if processes(watched)?.is_empty() {
                return Ok(());
            }
            // What forks while it is killed is met again.
            match &self.hierarchy {
                Hierarchy::Unified(_) => v2::kill(watched)?,
                Hierarchy::Old(mounted) => {
                    let freezer = mounted.iter().find(|one| one.has("freezer"));
                    let freezer =
                        freezer.map(|one| self.root.join(&one.directory).join(path.trim_matches('/')));
                    v1::kill(watched, freezer.as_deref())?;
                }
            }
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
        }
        let left = processes(watched)?;
        if left.is_empty() {
            return Ok(());
        }
        Err(io::Error::other(format!("processes {left:?} of cgroup {path} do not end after SIGKILL")))
    }

    /// Removes a cgroup with all below it, when nothing runs in it. One that is not there is removed.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        for directory in self.everywhere(path)? {
            remove_tree(&directory)?;
        }
        Ok(())
    }

    /// Removes the cgroups above a path that are empty, up to one that is kept.
    pub fn prune(&self, path: &str, kept: &str) {
        let mut next = Path::new(path).parent();
        while let Some(parent) = next.filter(|parent| parent.starts_with(kept) && *parent != Path::new(kept))
        {
            let Some(text) = parent.to_str() else { return };
            let Ok(directories) = self.directories(text) else { return };
            // One that holds others stays: the kernel refuses.
            for directory in directories {
                let _ = fs::remove_dir(directory);
            }
            next = parent.parent();
        }
    }

    /// Removes a cgroup and those below it as far as nothing runs in them. Nothing is killed.
    pub fn discard(&self, path: &str) {
        for directory in self.everywhere(path).unwrap_or_default() {
            discard(&directory);
        }
    }

    /// Whether the cgroup is there in any hierarchy.
    pub fn exists(&self, path: &str) -> bool {
        self.everywhere(path).is_ok_and(|all| all.iter().any(|directory| directory.exists()))
    }

    /// The ids of what runs in a cgroup and below it.
    pub fn processes(&self, path: &str) -> io::Result<Vec<i32>> {
        let directories = self.directories(path)?;
        directories
            .iter()
            .find(|directory| directory.exists())
            .map_or(Ok(Vec::new()), |first| processes(first))
    }

    /// What a cgroup uses; `None` where it is not there.
    pub fn usage(&self, path: &str) -> Option<Usage> {
        let path = inside(path).ok()?;
        match &self.hierarchy {
            Hierarchy::Unified(_) => v2::usage(&self.root.join(path)),
            Hierarchy::Old(mounted) => {
                let of = |controller: &str| {
                    let one = mounted.iter().find(|one| one.has(controller))?;
                    Some(self.root.join(&one.directory).join(path))
                };
                v1::usage(of("cpuacct"), of("memory"), of("pids"))
            }
        }
    }

    /// The same, and beside the old hierarchies those without a controller, which supervisors enter too.
    fn everywhere(&self, path: &str) -> io::Result<Vec<PathBuf>> {
        let mut all = self.directories(path)?;
        if let Hierarchy::Old(_) = &self.hierarchy {
            let path = inside(path)?;
            let others = children(&self.root).unwrap_or_default().into_iter();
            let others =
                others.filter(|other| other.join("cgroup.procs").exists()).map(|other| other.join(path));
            all.extend(others.collect::<Vec<_>>().into_iter().filter(|other| other.exists()));
            all.sort();
            all.dedup();
        }
        Ok(all)
    }

    fn directories(&self, path: &str) -> io::Result<Vec<PathBuf>> {
        let path = inside(path)?;
        Ok(match &self.hierarchy {
            Hierarchy::Unified(_) => vec![self.root.join(path)],
            Hierarchy::Old(mounted) => {
                mounted.iter().map(|one| self.root.join(&one.directory).join(path)).collect()
            }
        })
    }
}

/// The path below a hierarchy's root. The root itself and what leads out of it are refused: everything there would be killed.
fn inside(path: &str) -> io::Result<&Path> {
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

fn processes(directory: &Path) -> io::Result<Vec<i32>> {
    let mut all = match fs::read_to_string(directory.join("cgroup.procs")) {
        Ok(text) => text.lines().filter_map(|line| line.trim().parse().ok()).collect(),
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(at(directory, "read the processes of cgroup", &error)),
    };
    for child in children(directory)? {
        let below: Vec<i32> = processes(&child)?;
        all = [all, below].concat();
    }
    Ok(all)
}

fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(at(directory, "list cgroup", &error)),
    };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(directories.map(|entry| entry.path()).collect())
}

/// From below: the kernel removes only what holds nothing.
fn remove_tree(directory: &Path) -> io::Result<()> {
    for child in children(directory)? {
        remove_tree(&child)?;
    }
    for attempt in 0..ATTEMPTS {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            // A process that was killed holds it for a moment.
            Err(error) if attempt + 1 < ATTEMPTS && error.raw_os_error() == Some(EBUSY) => {
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(at(directory, "remove cgroup", &error)),
        }
    }
    Ok(())
}

fn discard(directory: &Path) {
    for child in children(directory).unwrap_or_default() {
        discard(&child);
    }
    // The kernel refuses where something runs.
    let _ = fs::remove_dir(directory);
}

const EBUSY: i32 = 16;
const ENODEV: i32 = 19;

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}

fn at(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| at(path, &format!("write {value:?} to"), &error))
}

fn send_kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
