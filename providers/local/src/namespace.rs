//! Namespaces that persist without a process.
//!
//! A namespace exists as long as something refers to it. Other runtimes keep a pause process in each sandbox; here the
//! namespaces are bind-mounted onto files in the sandbox's directory. They are created and entered on short-lived
//! threads: namespaces belong to threads, so all other threads of this process stay where they are.

mod port_forward;
mod sysctl;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{StatFs, fstatfs, statfs},
    io::Errno,
    mount::{UnmountFlags, mount_bind, unmount},
    system::sethostname,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

pub use self::port_forward::connect;
use crate::{
    network::link::{LOOPBACK, RouteSocket},
    sys,
};

/// The kinds of namespace that a sandbox can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Network.
    Net,
    /// Inter-process communication.
    Ipc,
    /// Host name.
    Uts,
}

/// The namespaces that a sandbox has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNamespaces {
    /// A network namespace; otherwise the host's.
    pub network: bool,
    /// An IPC namespace; otherwise the host's.
    pub ipc: bool,
    /// The host name in a UTS namespace; otherwise the host's.
    pub hostname: Option<String>,
}

// === impl Kind ===

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Net, Self::Ipc, Self::Uts];

    /// The name of the file, which is also the kernel's name of the kind.
    pub fn file(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }

    /// The path of the file in a sandbox's directory.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.file())
    }

    fn unshare_flag(self) -> UnshareFlags {
        match self {
            Self::Net => UnshareFlags::NEWNET,
            Self::Ipc => UnshareFlags::NEWIPC,
            Self::Uts => UnshareFlags::NEWUTS,
        }
    }

    fn link_type(self) -> LinkNameSpaceType {
        match self {
            Self::Net => LinkNameSpaceType::Network,
            Self::Ipc => LinkNameSpaceType::InterProcessCommunication,
            Self::Uts => LinkNameSpaceType::HostNameAndNISDomainName,
        }
    }
}

// === impl PodNamespaces ===

impl PodNamespaces {
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let wanted = |kind: &Kind| match kind {
            Kind::Net => self.network,
            Kind::Ipc => self.ipc,
            Kind::Uts => self.hostname.is_some(),
        };
        Kind::ALL.into_iter().filter(wanted)
    }
}

/// Creates the namespaces of a sandbox, mounts them onto files in its existing directory, and sets the loopback
/// interface up.
///
/// Removes what an earlier attempt left there. Leaves nothing behind after an error.
pub async fn pin(dir: &Path, pin: &PodNamespaces) -> io::Result<()> {
    let (place, dir, pin) = (dir.display(), dir.to_owned(), pin.clone());
    thread::run(place, move || {
        remove(&dir)?;
        let made = make(&dir, &pin);
        if made.is_err() {
            // The first error is the one to report.
            let _ = remove(&dir);
        }
        made
    })
    .await
}

/// Sets the sandbox's sysctls in its namespaces. Some belong to its interface, so the network must be attached before.
pub async fn set_sysctls(dir: &Path, sysctls: &BTreeMap<String, String>) -> io::Result<()> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let (place, dir, sysctls) = (dir.display(), dir.to_owned(), sysctls.clone());
    thread::run(place, move || {
        let settings = sysctls
            .iter()
            .map(|(name, value)| sysctl::Sysctl::new(name, value, |kind| is_pinned(&dir, kind)))
            .collect::<io::Result<Vec<_>>>()?;
        for kind in [Kind::Net, Kind::Ipc] {
            if settings.iter().any(|setting| setting.kind() == kind) {
                enter(&kind.path(&dir), kind)?;
            }
        }
        settings.iter().try_for_each(sysctl::Sysctl::write)
    })
    .await
}

/// Whether a namespace of this kind is mounted in the directory. After a reboot only the file is left.
pub fn is_pinned(dir: &Path, kind: Kind) -> bool {
    statfs(kind.path(dir)).is_ok_and(|found| is_nsfs(&found))
}

/// Unmounts the namespaces. The kernel removes a namespace, with its interfaces, when its last process is gone.
/// Idempotent.
pub async fn unpin(dir: &Path) -> io::Result<()> {
    let dir = dir.to_owned();
    // A large mount table makes this slow, so it runs off the async threads. It does not need a new thread of its own,
    // which may be unavailable on a full host: no namespace is entered.
    tokio::task::spawn_blocking(move || remove(&dir)).await.unwrap_or_else(|_| Err(thread::panicked()))
}

/// Runs a closure in a network namespace, on a thread of its own.
///
/// A socket that is opened there stays there, so most callers open one and return it.
pub async fn run_inside<T: Send + 'static>(
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

/// Blocking version of [`run_inside`].
pub(crate) fn run_inside_blocking<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::run_blocking("a network namespace", || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    })
}

/// Opens the file of a namespace; fails if no namespace is mounted on it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let wrong =
        |error: io::Error| io::Error::new(error.kind(), format!("namespace {}: {error}", path.display()));
    let file = File::open(path).map_err(wrong)?;
    let found = fstatfs(&file).map_err(|errno| wrong(errno.into()))?;
    if !is_nsfs(&found) {
        let why = "no namespace is mounted here: the host was rebooted, or it was unmounted";
        return Err(wrong(io::Error::new(io::ErrorKind::NotFound, why)));
    }
    Ok(file)
}

/// Whether a file is on the filesystem of namespaces.
fn is_nsfs(found: &StatFs) -> bool {
    const NSFS_MAGIC: i128 = 0x6e73_6673;
    i128::from(found.f_type) == NSFS_MAGIC
}

/// Moves this thread, which must end soon after, into a namespace.
fn enter(path: &Path, kind: Kind) -> io::Result<()> {
    move_into_link_name_space(open(path)?.as_fd(), Some(kind.link_type())).map_err(|errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("enter namespace {}: {error}", path.display()))
    })
}

/// Creates and mounts the namespaces, on a thread that ends afterwards.
fn make(dir: &Path, pin: &PodNamespaces) -> io::Result<()> {
    let doing = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    let flags = pin.kinds().map(Kind::unshare_flag).collect();
    sys::process::unshare(flags).map_err(|errno| {
        let hint = if errno == Errno::PERM { " (needs CAP_SYS_ADMIN)" } else { "" };
        doing(&format!("create namespaces{hint}"), errno.into())
    })?;
    if pin.network {
        RouteSocket::open()
            .and_then(|routing| routing.set_up(LOOPBACK))
            .map_err(|error| doing("set interface lo up", error))?;
    }
    if let Some(hostname) = &pin.hostname {
        sethostname(hostname.as_bytes())
            .map_err(|errno| doing(&format!("set the host name {hostname:?}"), errno.into()))?;
        // A new namespace starts with the host's domain name.
        fs::write("/proc/sys/kernel/domainname", "\n")
            .map_err(|error| doing("clear the domain name", error))?;
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
            .map_err(|error| doing(&format!("create {}", path.display()), error))?;
        let source = format!("/proc/thread-self/ns/{}", kind.file());
        mount_bind(source.as_str(), &path)
            .map_err(|errno| doing(&format!("mount {source} on {}", path.display()), errno.into()))?;
    }
    Ok(())
}

fn remove(dir: &Path) -> io::Result<()> {
    for kind in Kind::ALL {
        let path = kind.path(dir);
        // Mounts may be stacked.
        while is_pinned(dir, kind) {
            match unmount(&path, UnmountFlags::DETACH) {
                Ok(()) => {}
                // Somebody else has unmounted it.
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(errno) => {
                    let error = io::Error::from(errno);
                    let text = format!("unmount {}: {error}", path.display());
                    return Err(io::Error::new(error.kind(), text));
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
