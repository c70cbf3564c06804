//! Mounts that nobody sees.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use nix::libc;
use rustix::{
    fs::CWD,
    mount::{OpenTreeFlags, open_tree},
};

/// A file on a detached read-only mount: a process that is executed from it cannot overwrite it through
/// `/proc/PID/exe`, not even as root. Needs CAP_SYS_ADMIN and Linux 5.12.
pub fn read_only(file: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, file, flags)?;
    let wanted =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is an empty NUL-terminated string, and the kernel reads the structure up to the given size; both
    // outlive the call.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if set == 0 { Ok(tree) } else { Err(io::Error::last_os_error()) }
}
