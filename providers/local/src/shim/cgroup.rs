//! The end of a cgroup: who is left in it is killed, and it is removed. Both versions.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill as send},
    unistd::Pid,
};
use tokio::time::Instant;

/// How long killing and removing may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// Kills everything in a cgroup and below, and waits until nothing is left. `path` is below the mount of each controller. Nothing to do
/// where there is no such cgroup.
pub fn kill(path: &str) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let places = places(path)?;
    loop {
        let left: Vec<i32> = places.iter().flat_map(|place| processes(&place.dir)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(io::Error::other(format!("{} processes in cgroup {path} do not end", left.len())));
        }
        for place in &places {
            place.kill();
        }
        thread::sleep(LOOK);
    }
}

/// Removes a cgroup with those below it, from all controllers.
pub fn remove(path: &str) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    for place in places(path)? {
        loop {
            match remove_tree(&place.dir) {
                Ok(()) => break,
                // A process that has ended stays in it for a moment.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                    thread::sleep(LOOK);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// How often the kernel killed in a cgroup for want of memory.
pub fn oom_kills(path: &str) -> u64 {
    let places = places(path).unwrap_or_default();
    let counts = places.iter().filter_map(|place| match place.version {
        Version::One { memory: true, .. } => count(&place.dir.join("memory.oom_control")),
        Version::Two => count(&place.dir.join("memory.events")),
        Version::One { .. } => None,
    });
    counts.max().unwrap_or(0)
}

/// Puts this process into a cgroup.
pub(super) fn join(path: &str) -> io::Result<()> {
    for place in places(path)? {
        fs::write(place.dir.join("cgroup.procs"), "0").map_err(|error| {
            io::Error::new(error.kind(), format!("join cgroup {}: {error}", place.dir.display()))
        })?;
    }
    Ok(())
}

/// Puts this process into a cgroup of every hierarchy, which is made where there is none. What fails in one is no reason not to try the
/// others; the first of it is told.
pub(super) fn enter(path: &str) -> io::Result<()> {
    let below = relative(path)?;
    let mut failed = None;
    for (root, _) in mounted(&fs::read_to_string("/proc/self/mountinfo")?) {
        let dir = root.join(below);
        let entered = make(&root, below).and_then(|()| fs::write(dir.join("cgroup.procs"), "0"));
        if let Err(error) = entered {
            let words = format!("enter cgroup {}: {error}", dir.display());
            failed.get_or_insert_with(|| io::Error::new(error.kind(), words));
        }
    }
    failed.map_or(Ok(()), Err)
}

fn make(root: &Path, below: &str) -> io::Result<()> {
    let mut dir = root.to_owned();
    for part in below.split('/') {
        let parent = dir.clone();
        dir.push(part);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Version 1 lets nobody into a new one that has no processors and no memory.
        for file in ["cpuset.cpus", "cpuset.mems"].map(|name| dir.join(name)) {
            if fs::read_to_string(&file).is_ok_and(|text| text.trim().is_empty())
                && let Some(name) = file.file_name()
                && let Ok(all) = fs::read_to_string(parent.join(name))
            {
                let _ = fs::write(&file, all.trim());
            }
        }
    }
    Ok(())
}

/// A cgroup in one hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    dir: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One { freezer: bool, memory: bool },
    Two,
}

/// Where a cgroup is.
fn places(path: &str) -> io::Result<Vec<Place>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let below = relative(path)?;
    let places = mounted(&mounts).into_iter();
    let places = places.map(|(dir, version)| Place { dir: dir.join(below), version });
    Ok(places.filter(|place| place.dir.is_dir()).collect())
}

/// A path below the mounts; the root of a hierarchy is none.
fn relative(path: &str) -> io::Result<&str> {
    let below = path.trim_matches('/');
    if below.is_empty() || below.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(io::Error::other(format!("cgroup {path:?} is none of a container")));
    }
    Ok(below)
}

fn mounted(mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut found: Vec<(PathBuf, Version)> = Vec::new();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (Some(point), mut after) = (before.split(' ').nth(4), after.split(' ')) else { continue };
        let (kind, options) = (after.next(), after.nth(1).unwrap_or_default());
        let has = |name: &str| options.split(',').any(|option| option == name);
        let version = match kind {
            Some("cgroup") => Version::One { freezer: has("freezer"), memory: has("memory") },
            Some("cgroup2") => Version::Two,
            _ => continue,
        };
        let point = PathBuf::from(point.replace("\\040", " "));
        // One that is mounted over another hides it.
        found.retain(|(other, _)| *other != point);
        found.push((point, version));
    }
    found
}

impl Place {
    /// Sends the signal to all at one moment, as far as this hierarchy can.
    fn kill(&self) {
        match self.version {
            Version::Two if fs::write(self.dir.join("cgroup.kill"), "1").is_ok() => {}
            Version::One { freezer: true, .. } => {
                let state = self.dir.join("freezer.state");
                // Whoever forks faster than we kill is stopped first. The signal is delivered when they are let go.
                let _ = fs::write(&state, "FROZEN");
                let until = Instant::now() + Duration::from_millis(500);
                let frozen = || fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN");
                while !frozen() && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                self.kill_each();
                let _ = fs::write(&state, "THAWED");
            }
            _ => self.kill_each(),
        }
    }

    fn kill_each(&self) {
        for pid in processes(&self.dir) {
            let _ = send(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The processes in a cgroup and below.
fn processes(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // A process of another namespace is shown as 0, and that would be ourselves.
    let mut found: Vec<i32> =
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
    for child in children(dir) {
        found.extend(processes(&child));
    }
    found
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok);
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for child in children(dir) {
        remove_tree(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchies_are_found_among_the_mounts() {
        let mounts = "\
            31 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            32 31 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n\
            33 31 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
            34 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let one = |freezer, memory| Version::One { freezer, memory };
        assert_eq!(
            mounted(mounts),
            [
                ("/sys/fs/cgroup/memory".into(), one(false, true)),
                ("/sys/fs/cgroup/freezer".into(), one(true, false)),
                ("/sys/fs/cgroup/unified".into(), Version::Two),
            ]
        );
    }

    #[test]
    fn the_root_of_a_hierarchy_is_nothing_to_kill() {
        for path in ["", "/", "//", "/a/../.."] {
            assert!(kill(path).is_err(), "{path:?}");
            assert!(remove(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn the_count_of_kills_is_read_from_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        fs::write(&file, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n").unwrap();
        assert_eq!(count(&file), Some(2));
        fs::write(&file, "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n").unwrap();
        assert_eq!(count(&file), Some(1));
    }
}
