//! Whether an overlay can be mounted here. The kernel may support overlays and still reject this filesystem as the
//! upper one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{FsOpenFlags, fsconfig_create, fsconfig_set_string, fsopen},
};
use vk_pod_engine::machine::Machine;

use super::Need;

/// Tests whether an overlay can be created in a directory.
pub type Trial<'a> = dyn Fn(&Path) -> io::Result<()> + 'a;

/// Creates an overlay in this directory without mounting it, and removes everything again.
pub fn try_overlay(directory: &Path) -> io::Result<()> {
    let scratch = Scratch::below(directory)?;
    let part = |name: &str| -> io::Result<String> {
        let path = scratch.0.join(name);
        fs::create_dir(&path)?;
        path.into_os_string().into_string().map_err(|_| io::Error::other("its path is not valid UTF-8"))
    };
    let (lower, upper, work) = (part("lower")?, part("upper")?, part("work")?);
    let made = || -> rustix::io::Result<()> {
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&overlay, "lowerdir", lower.as_str())?;
        fsconfig_set_string(&overlay, "upperdir", upper.as_str())?;
        fsconfig_set_string(&overlay, "workdir", work.as_str())?;
        fsconfig_create(&overlay)
    };
    match made() {
        // Kernels before 5.2 lack this system call.
        Err(Errno::NOSYS) => Ok(()),
        made => Ok(made?),
    }
}

pub(super) fn need(machine: &Machine, is_root: bool, trial: &Trial<'_>, storage: &Path) -> Need {
    let what = "overlay";
    let known = machine.read("proc/filesystems").unwrap_or_default();
    let known = known.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if !is_root {
        let found = if known { "supported by the kernel" } else { "not tested: that needs root" };
        return Need::met(what, found);
    }
    // A storage directory that does not exist yet will be created below its nearest existing ancestor.
    let there = storage.ancestors().find(|path| path.is_dir()).unwrap_or_else(|| Path::new("/"));
    match trial(there) {
        Ok(()) => Need::met(what, format!("can be mounted in {}", there.display())),
        // A module that is not loaded is not listed, but the test would have loaded it.
        Err(_) if !known => Need::unmet(
            what,
            "not supported by the kernel",
            "load its module: modprobe overlay, or boot a kernel that has it",
        ),
        Err(error) => Need::unmet(
            what,
            format!("cannot be mounted in {}: {error}", there.display()),
            "put the state directory on another file system (`stateDir`, or the provider's `root`): ext4 or xfs, not overlay",
        ),
    }
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn below(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".overlay-{}-{:016x}", std::process::id(), rand::random::<u64>()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "removing the test overlay's directory failed");
        }
    }
}
