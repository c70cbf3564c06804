//! Whether files can be laid over others here. The kernel may know how and still refuse: not every file system can be the upper one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{FsOpenFlags, fsconfig_create, fsconfig_set_string, fsopen},
};
use vk_pod_engine::host::Host;

use super::Need;

/// Tries whether an overlay can be made in a directory.
pub type Trial<'a> = dyn Fn(&Path) -> io::Result<()> + 'a;

/// Makes an overlay whose files are in this directory, without mounting it anywhere, and leaves nothing.
pub fn try_overlay(directory: &Path) -> io::Result<()> {
    let scratch = Scratch::below(directory)?;
    let part = |name: &str| -> io::Result<String> {
        let path = scratch.0.join(name);
        fs::create_dir(&path)?;
        path.into_os_string().into_string().map_err(|_| io::Error::other("its path is no text"))
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
        // A kernel before 5.2 cannot be asked this way.
        Err(Errno::NOSYS) => Ok(()),
        made => Ok(made?),
    }
}

pub(super) fn need(machine: &Host, is_root: bool, trial: &Trial<'_>, storage: &Path) -> Need {
    let what = "overlay";
    let known = machine.read("proc/filesystems").unwrap_or_default();
    let known = known.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if !is_root {
        let found = if known { "the kernel has it" } else { "not tried: that needs root" };
        return Need::met(what, found);
    }
    // What is not made yet will be made in the next directory above that is there.
    let there = storage.ancestors().find(|path| path.is_dir()).unwrap_or_else(|| Path::new("/"));
    match trial(there) {
        Ok(()) => Need::met(what, format!("can be made in {}", there.display())),
        // A module that is not loaded yet is not in the list, and the trial would have loaded it.
        Err(_) if !known => Need::unmet(
            what,
            "the kernel has none",
            "load its module: modprobe overlay, or boot a kernel that has it",
        ),
        Err(error) => Need::unmet(
            what,
            format!("cannot be made in {}: {error}", there.display()),
            "put the state directory on another file system (`stateDir`, or the provider's `root`): ext4 or xfs, not overlay",
        ),
    }
}

/// A directory that goes away again.
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
            tracing::debug!(path = %self.0.display(), %error, "cannot remove what a trial left");
        }
    }
}
