//! Namespaces that stay without a process.
//!
//! A namespace lives as long as something holds it. Runtimes keep a process that does nothing in each sandbox for that; here the namespaces are
//! mounted onto files of the sandbox's directory. A thread of its own makes and enters them and ends with its work: the namespaces of a process are
//! its threads', so no other thread of this process ever is anywhere else than before.

mod forward;
mod sysctl;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::statfs::{NSFS_MAGIC, statfs},
};

pub use self::forward::connect;
use crate::network::link::{LOOPBACK, Routing};

/// Kinds of namespace that a sandbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Network.
    Net,
    /// Inter-process communication.
    Ipc,
    /// The host's name.
    Uts,
}

/// The namespaces that a sandbox has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// A network; without it, the host's.
    pub network: bool,
    /// Inter-process communication; without it, the host's.
    pub ipc: bool,
    /// A name of the host; without it, the host's own.
    pub hostname: Option<String>,
}

// === impl Kind ===

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Net, Self::Ipc, Self::Uts];

    /// The name of its file, which is also the kernel's name for the kind.
    pub fn file(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }

    /// Its file in a sandbox's directory.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.file())
    }

    fn flag(self) -> CloneFlags {
        match self {
            Self::Net => CloneFlags::CLONE_NEWNET,
            Self::Ipc => CloneFlags::CLONE_NEWIPC,
            Self::Uts => CloneFlags::CLONE_NEWUTS,
        }
    }
}

// === impl Pin ===

impl Pin {
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let wanted = |kind: &Kind| match kind {
            Kind::Net => self.network,
            Kind::Ipc => self.ipc,
            Kind::Uts => self.hostname.is_some(),
        };
        Kind::ALL.into_iter().filter(wanted)
    }
}

/// Makes the namespaces of a sandbox and mounts them onto files in its directory, which must exist. The loop-back interface is up.
///
/// What an earlier attempt left there is removed first; after an error nothing is left.
pub async fn pin(dir: &Path, pin: &Pin) -> io::Result<()> {
    let (place, dir, pin) = (dir.display(), dir.to_owned(), pin.clone());
    thread::run(place, move || {
        remove(&dir)?;
        let made = make(&dir, &pin);
        if made.is_err() {
            // The error to tell is the first one.
            let _ = remove(&dir);
        }
        made
    })
    .await
}

/// Writes the sandbox's kernel settings in its namespaces. Some belong to its interface, so this comes after the network has been attached.
pub async fn tune(dir: &Path, sysctls: &BTreeMap<String, String>) -> io::Result<()> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let (place, dir, sysctls) = (dir.display(), dir.to_owned(), sysctls.clone());
    thread::run(place, move || {
        let settings = sysctls
            .iter()
            .map(|(name, value)| sysctl::Setting::new(name, value, |kind| pinned(&dir, kind)))
            .collect::<io::Result<Vec<_>>>()?;
        for kind in [Kind::Net, Kind::Ipc] {
            if settings.iter().any(|setting| setting.kind() == kind) {
                enter(&kind.path(&dir), kind)?;
            }
        }
        settings.iter().try_for_each(sysctl::Setting::write)
    })
    .await
}

/// Whether a namespace of this kind is mounted in the directory: not after a reboot, which leaves the file only.
pub fn pinned(dir: &Path, kind: Kind) -> bool {
    statfs(&kind.path(dir)).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

/// Lets the namespaces go. Whoever is still in one keeps it; without anybody, the kernel removes it and, with it, the interfaces in it. May be repeated.
pub async fn unpin(dir: &Path) -> io::Result<()> {
    let dir = dir.to_owned();
    // Not with the calling task's thread: a mount table of thousands makes this slow. Nor with one of its own, which may not be had on a
    // machine that is full: nothing is entered here.
    tokio::task::spawn_blocking(move || remove(&dir)).await.unwrap_or_else(|_| Err(thread::panicked()))
}

/// Does something on a thread of its own in a network namespace.
///
/// A socket that is opened there stays there, so most callers open one and hand it out.
pub async fn inside<T: Send + 'static>(
    netns: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (place, netns) = (netns.display(), netns.to_owned());
    thread::run(place, move || {
        enter(&netns, Kind::Net)?;
        Ok(work())
    })
    .await
}

/// The same for a caller that may block.
pub(crate) fn inside_blocking<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::run_blocking("a network namespace", || {
        setns(netns, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    })
}

/// Opens a namespace's file, and refuses what is another file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let wrong =
        |error: io::Error| io::Error::new(error.kind(), format!("namespace {}: {error}", path.display()));
    let file = File::open(path).map_err(wrong)?;
    let found = nix::sys::statfs::fstatfs(&file).map_err(|errno| wrong(errno.into()))?;
    if found.filesystem_type() != NSFS_MAGIC {
        let why = "no namespace is mounted here: the machine was restarted, or it was unmounted";
        return Err(wrong(io::Error::new(io::ErrorKind::NotFound, why)));
    }
    Ok(file)
}

/// Moves this thread, which ends soon after.
fn enter(path: &Path, kind: Kind) -> io::Result<()> {
    setns(open(path)?, kind.flag()).map_err(|errno| {
        io::Error::new(
            io::Error::from(errno).kind(),
            format!("enter namespace {}: {}", path.display(), errno.desc()),
        )
    })
}

/// Makes and mounts, on a thread that ends with it.
fn make(dir: &Path, pin: &Pin) -> io::Result<()> {
    let doing = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    let flags = pin.kinds().map(Kind::flag).collect();
    unshare(flags).map_err(|errno| {
        let hint = if errno == Errno::EPERM { " (needs CAP_SYS_ADMIN)" } else { "" };
        doing(&format!("make namespaces{hint}"), errno.into())
    })?;
    if pin.network {
        Routing::open()
            .and_then(|routing| routing.up(LOOPBACK))
            .map_err(|error| doing("switch lo on", error))?;
    }
    if let Some(hostname) = &pin.hostname {
        nix::unistd::sethostname(hostname)
            .map_err(|errno| doing(&format!("set the host's name {hostname:?}"), errno.into()))?;
        // A new namespace begins with the host's.
        fs::write("/proc/sys/kernel/domainname", "\n")
            .map_err(|error| doing("clear the domain's name", error))?;
    }
    for kind in pin.kinds() {
        let path = kind.path(dir);
        let mut options = fs::OpenOptions::new();
        options
            .create(true)
            .append(true)
            .mode(0o444)
            .open(&path)
            .and_then(|mut file| file.flush())
            .map_err(|error| doing(&format!("make {}", path.display()), error))?;
        let source = format!("/proc/thread-self/ns/{}", kind.file());
        mount(Some(source.as_str()), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|errno| doing(&format!("mount {source} on {}", path.display()), errno.into()))?;
    }
    Ok(())
}

fn remove(dir: &Path) -> io::Result<()> {
    for kind in Kind::ALL {
        let path = kind.path(dir);
        // Mounts may lie on top of each other.
        while pinned(dir, kind) {
            match umount2(&path, MntFlags::MNT_DETACH) {
                Ok(()) => {}
                // Somebody else was faster.
                Err(Errno::EINVAL | Errno::ENOENT) => break,
                Err(errno) => {
                    let text = format!("unmount {}: {}", path.display(), errno.desc());
                    return Err(io::Error::new(io::Error::from(errno).kind(), text));
                }
            }
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let text = format!("remove {}: {error}", path.display());
                return Err(io::Error::new(error.kind(), text));
            }
            _ => {}
        }
    }
    Ok(())
}
