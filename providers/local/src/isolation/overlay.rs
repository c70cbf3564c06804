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
use vk_pod_engine::host::Host;

use super::Requirement;

/// Tests whether an overlay can be created in a directory.
pub type OverlayTest<'a> = dyn Fn(&Path) -> io::Result<()> + 'a;

/// Creates an overlay in this directory without mounting it, and removes everything again.
pub fn test_overlay(directory: &Path) -> io::Result<()> {
    let scratch = TestDir::create_in(directory)?;
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

pub(super) fn requirement(host: &Host, is_root: bool, test: &OverlayTest<'_>, storage: &Path) -> Requirement {
    let what = "overlay";
    let supported = host.read("proc/filesystems").unwrap_or_default();
    let supported = supported.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if !is_root {
        let found = if supported { "supported by the kernel" } else { "not tested: that needs root" };
        return Requirement::met(what, found);
    }
    // A storage directory that does not exist yet will be created below its nearest existing ancestor.
    let there = storage.ancestors().find(|path| path.is_dir()).unwrap_or_else(|| Path::new("/"));
    match test(there) {
        Ok(()) => Requirement::met(what, format!("can be mounted in {}", there.display())),
        // A module that is not loaded is not listed, but the test would have loaded it.
        Err(_) if !supported => Requirement::unmet(
            what,
            "not supported by the kernel",
            "load its module: modprobe overlay, or boot a kernel that has it",
        ),
        Err(error) => Requirement::unmet(
            what,
            format!("cannot be mounted in {}: {error}", there.display()),
            "put the state directory on another file system (`stateDir`, or the provider's `root`): ext4 or xfs, not overlay",
        ),
    }
}

/// A directory that is removed on drop.
struct TestDir(PathBuf);

impl TestDir {
    fn create_in(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".overlay-{}-{:016x}", std::process::id(), rand::random::<u64>()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "removing the test overlay's directory failed");
        }
    }
}
