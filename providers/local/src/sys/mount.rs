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

/// A file on a mount of its own that is at no place and cannot be written through, also not by root: what is run from it cannot be
/// changed through its `/proc/PID/exe`. Needs the right to mount, and Linux 5.12.
pub fn read_only(file: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, file, flags)?;
    let wanted =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is an empty string that ends with a zero, and the kernel reads no more of the structure than its size says; both
    // outlive the call, which keeps neither.
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
