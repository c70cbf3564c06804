//! File descriptors that need `unsafe`.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    path::Path,
};

use nix::libc;
use rustix::{
    fs::CWD,
    io::{FdFlags, fcntl_setfd},
    mount::{OpenTreeFlags, open_tree},
};
use tokio::io::unix::AsyncFd;

/// Takes ownership of an inherited file descriptor and sets CLOEXEC on it.
///
/// Only for a number that the parent process passed for this purpose, and only once.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::other(format!("file descriptor {number} is stdio and cannot be taken")));
    }
    // SAFETY: the number is only borrowed for a call that fails if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, as the call above showed, and nothing else in this process owns it: the parent process opened
    // it and passed its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes all descriptors except stdio, at the start of a process that outlives its parent. Must be called before this
/// process opens anything.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor yet.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Registers a descriptor with the async runtime.
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor keeps its number and stays open until it is dropped, and dropping the `AsyncFd`
    // deregisters it first.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}

/// A file on a detached read-only mount: a process that is executed from it cannot overwrite it through
/// `/proc/PID/exe`, not even as root. Needs CAP_SYS_ADMIN and Linux 5.12.
pub fn read_only_mount(file: &Path) -> io::Result<OwnedFd> {
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
