//! File descriptors that need `unsafe`.

use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::libc;
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::io::unix::AsyncFd;

/// Takes ownership of an inherited file descriptor and sets CLOEXEC on it.
///
/// Only for a number that the parent process passed for this purpose, and only once.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
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
pub fn close_all() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor yet.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Registers a descriptor with the async runtime.
pub fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor keeps its number and stays open until it is dropped, and dropping the `AsyncFd`
    // deregisters it first.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}
